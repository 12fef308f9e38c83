"""Named entities as a `Task`."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.named_entities.dataset import named_entities_dataset
from spanbert_tf.tasks.named_entities.decoding import EntityDecoder, best_labels
from spanbert_tf.tasks.named_entities.metrics import score_labels, word_labels
from spanbert_tf.tasks.named_entities.records import (
    BEGIN,
    INSIDE,
    OUTSIDE,
    NamedEntitiesConfig,
    NamedEntitiesInfo,
    load_sentences,
)
from spanbert_tf.tasks.named_entities.report import report_page
from spanbert_tf.tasks.named_entities.serving import served
from spanbert_tf.tasks.raw_inputs import in_batches_by_length, string_tensor
from spanbert_tf.tasks.report.class_tables import ClassScore, print_class_scores
from spanbert_tf.tasks.report.page import predictor_of
from spanbert_tf.tasks.row_predictions import predict_rows
from spanbert_tf.tasks.task import Task
from spanbert_tf.terminal import print_line

_PIPELINE_NAMES = {  # of an entity: ours and those of the pipeline
    "types": "entity_group",
    "scores": "score",
    "words": "word",
    "starts": "start",
    "ends": "end",
}
_TEXTS_AT_ONCE = 1024


class PieceLabels(NamedTuple):
    """What is predicted for a sentence.

    Attributes:
        labels: numbers of the pieces' labels, int32 [pieces].
        scores: their probabilities, float32 [pieces].
    """

    labels: np.ndarray
    scores: np.ndarray


def _build(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: NamedEntitiesInfo,
    config: NamedEntitiesConfig,
) -> SpanBertTokenClassifier:
    return SpanBertTokenClassifier(
        backbone,
        info.labels,
        SpanBertTokenClassifierPreprocessor(tokenizer, info.sequence_length),
        dropout=backbone.dropout,
        aggregation_strategy=config.prediction.aggregation_strategy,
    )


def _check_model(
    model: SpanBertTokenClassifier, info: NamedEntitiesInfo, directory: str, preset: str
) -> None:
    """Labels are compared by name; what the model never saw can only be missed."""
    known = (BEGIN, INSIDE)
    if others := [name for name in model.labels if name != OUTSIDE and not name.startswith(known)]:
        raise MismatchError(
            f"{preset}: its label {others[0]!r} is neither {OUTSIDE} nor one that begins with "
            f"{BEGIN} or {INSIDE}, which are the only ones that can be scored"
        )
    unknown = [label for label in info.labels if label not in model.labels]
    if len(unknown) == len(info.labels):
        raise MismatchError(
            f"{directory}: has none of the labels of {preset} ({', '.join(model.labels[:5])}, …)"
        )
    if unknown:
        print_line(f"{directory}: {preset} knows nothing of {', '.join(unknown)}")


def _predict(
    model: SpanBertTokenClassifier,
    directory: str,
    *,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
) -> list[PieceLabels]:
    def labels_and_scores(x: dict) -> tf.Tensor:
        labels, scores = best_labels(model, x)
        return tf.stack([tf.cast(labels, tf.float32), scores], axis=-1)  # [B, S, 2]

    dataset = named_entities_dataset(directory, batch_size=batch_size, training=False)
    rows = predict_rows(labels_and_scores, dataset, after_batch)
    lengths = Records.of(directory, NamedEntitiesInfo).lengths()
    pieces = np.concatenate(  # without [CLS], [SEP] and padding
        [row[1 : length - 1] for row, length in zip(rows, lengths, strict=True)]
    )  # [pieces of all sentences, 2]
    ends = np.cumsum([sentence["num_pieces"] for sentence in load_sentences(directory)])
    if ends[-1] != len(pieces):
        raise BadInputError(
            f"{directory}: its sentences are not those of its rows; write the records again"
        )
    return [
        PieceLabels(part[:, 0].astype("int32"), part[:, 1]) for part in np.split(pieces, ends[:-1])
    ]


def _all_scores(
    model: SpanBertTokenClassifier, directory: str, predictions: Sequence[PieceLabels]
) -> tuple[dict[str, float], list[ClassScore]]:
    sentences = load_sentences(directory)
    gold = [sentence["labels"] for sentence in sentences]
    return score_labels(gold, _predicted_labels(model, sentences, predictions))


def _score(
    model: SpanBertTokenClassifier, directory: str, predictions: Sequence[PieceLabels]
) -> dict[str, float]:
    return _all_scores(model, directory, predictions)[0]


def _print_details(
    model: SpanBertTokenClassifier,
    directory: str,
    predictions: Sequence[PieceLabels],
    console: DataConsole,
) -> None:
    print_class_scores(console, _all_scores(model, directory, predictions)[1])


def _report(
    title: str,
    model: SpanBertTokenClassifier,
    directory: str,
    predictions: Sequence[PieceLabels],
) -> str:
    sentences = load_sentences(directory)
    predicted = _predicted_labels(model, sentences, predictions)
    scores = _score(model, directory, predictions)
    return report_page(title, sentences, predicted, scores, predictor_of(model))


def _predicted_labels(
    model: SpanBertTokenClassifier, sentences: Sequence[dict], predictions: Sequence[PieceLabels]
) -> list[list[str]]:
    return [
        word_labels(sentence, model.labels, found.labels)
        for sentence, found in zip(sentences, predictions, strict=True)
    ]


def _answers(
    model: SpanBertTokenClassifier, directory: str, predictions: Sequence[PieceLabels]
) -> list[str]:
    """The labels of all words, empty for those outside of entities."""
    words = _predicted_labels(model, load_sentences(directory), predictions)
    return ["" if label == OUTSIDE else label for labels in words for label in labels]


def _write(
    model: SpanBertTokenClassifier,
    directory: str,
    predictions: Sequence[PieceLabels],
    output: str,
) -> None:
    """Writes `entities.jsonl`, and the columns that the script `conlleval` reads."""
    sentences = load_sentences(directory)
    texts = [sentence["text"] for sentence in sentences]
    lines = [
        {"id": sentence["id"], "text": sentence["text"], "entities": found}
        for sentence, found in zip(sentences, _entities(model, texts, predictions), strict=True)
    ]
    write_json_lines(os.path.join(output, "entities.jsonl"), lines)
    words = _predicted_labels(model, sentences, predictions)
    text = "\n".join(_columns(*pair) for pair in zip(sentences, words, strict=True))
    write_text(os.path.join(output, "predictions.conll"), text)


def _columns(sentence: dict, predicted: Sequence[str]) -> str:
    """A line `word gold predicted` for each word; without gold labels `word predicted`."""
    places = sentence["words"]
    words = ["".join(sentence["text"][start:end].split()) or "_" for start, end in places]
    columns = [words, sentence["labels"], predicted]
    known = [column for column in columns if column is not None]
    return "".join(f"{' '.join(line)}\n" for line in zip(*known, strict=True))


def _entities(
    model: SpanBertTokenClassifier, texts: Sequence[str], predictions: Sequence[PieceLabels]
) -> list[list[dict]]:
    decoder, found = EntityDecoder(model), []
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        part = slice(first, first + _TEXTS_AT_ONCE)
        batch = string_tensor([{"text": text} for text in texts[part]], "text")
        flat = [np.concatenate(column) for column in zip(*predictions[part], strict=True)]
        entities = decoder.decode(batch, decoder.tokenize(batch), *flat)
        found += _pipeline_entities(
            {name: values.to_tensor() for name, values in entities._asdict().items()}
        )
    return found


def _pipeline_entities(found: dict[str, tf.Tensor]) -> list[list[dict]]:
    """Padded entities [N, entities] as the pipeline returns them."""
    columns = [found[name].numpy() for name in _PIPELINE_NAMES]
    return [
        [
            dict(zip(_PIPELINE_NAMES.values(), _plain(values), strict=True))
            for values in zip(*rows, strict=True)
            if values[0]
        ]
        for rows in zip(*columns, strict=True)
    ]


def _plain(values: Sequence[bytes | np.generic]) -> list[str | float | int]:
    return [v.decode() if isinstance(v, bytes) else v.item() for v in values]


def _from_raw(model: SpanBertTokenClassifier, *, top_k: int = 1) -> Callable[..., list[list[dict]]]:
    """Finds the entities of dicts of `text` as the `token-classification` pipeline does.

    Args:
        model: with its preprocessor.
        top_k: unused: all entities are returned.
    """
    module = served(model)
    find = tf.function(module.function, input_signature=module.signatures()["serving_default"][1])

    def find_batch(batch: Sequence[dict]) -> list[list[dict]]:
        return _pipeline_entities(find(string_tensor(batch, "text")))

    return functools.partial(in_batches_by_length, names=("text",), work=find_batch)


TASK = Task(
    name="named_entities",
    main_metric="f1",
    model_class=SpanBertTokenClassifier,
    config_class=NamedEntitiesConfig,
    info_class=NamedEntitiesInfo,
    check_model=_check_model,
    build=_build,
    dataset=named_entities_dataset,
    predict=_predict,
    score=_score,
    answers=_answers,
    print_details=_print_details,
    report=_report,
    write=_write,
    written_files=("entities.jsonl", "predictions.conll"),
    served=served,
    from_raw=_from_raw,
)
