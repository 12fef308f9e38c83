"""The task of finding named entities.

Dimensions: B rows, S positions, N texts.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras_hub
import numpy as np
import tensorflow as tf
from rich.text import Text

from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.models.span_bert_token_classifier import AggregationStrategy
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import string_tensor, text_specs
from spanbert_tf.tasks.label_task import LabelTask
from spanbert_tf.tasks.marked_text import marked_pieces
from spanbert_tf.tasks.named_entities.graph import (
    EntityDecoder,
    FindEntities,
    best_labels,
    label_sources,
)
from spanbert_tf.tasks.named_entities.metrics import (
    NO_ENTITY,
    OTHER_BORDERS,
    confused_types,
    entity_spans,
    score_labels,
    word_labels,
)
from spanbert_tf.tasks.named_entities.records import (
    BEGIN,
    INSIDE,
    OUTSIDE,
    SENTENCES_FILE,
    NamedEntitiesConfig,
    NamedEntitiesManifest,
    SentenceLine,
)
from spanbert_tf.tasks.report import (
    Report,
    Table,
    class_table,
    confusion_table,
    marked_parts,
    marked_places,
)
from spanbert_tf.tasks.shown_answers import View
from spanbert_tf.tasks.task import Outcome
from spanbert_tf.terminal import print_line

_PIPELINE_NAMES = {  # outputs of the graph → keys of an entity in the pipeline's answer
    "types": "entity_group",
    "scores": "score",
    "words": "word",
    "starts": "start",
    "ends": "end",
}
_TEXTS_AT_ONCE = 1024
_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {
    "missed": "with a missed entity",
    "invented": "with a wrong entity",
    "mistyped": "with a right place and a wrong type",
}
_NOTES = ("missed", "wrong", "\u2713")


class PieceLabels(NamedTuple):
    """The predictions for a sentence."""

    labels: np.ndarray  # numbers of the labels of its word pieces, int32 [pieces]
    scores: np.ndarray  # their probabilities, float32 [pieces]


class NamedEntities(LabelTask[NamedEntitiesManifest, NamedEntitiesConfig]):
    """Finds the named entities of texts.

    Predictions are `PieceLabels`; gold labels are those of words.
    """

    name = "named_entities"
    model_class = SpanBertTokenClassifier
    config_class = NamedEntitiesConfig
    manifest_class = NamedEntitiesManifest
    written_files = ("entities.jsonl", "predictions.conll")
    lines_file = SENTENCES_FILE
    first_label = 1
    label_title = "label of a word"
    readme = os.path.join(os.path.dirname(__file__), "readme.md")
    example: ClassVar[Mapping[str, Any]] = {"text": "Ann lives in New York."}

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature, which finds all entities of texts."""
        return {"serving_default": (FindEntities(model).find, text_specs("text"))}

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes the labels of word pieces, from which a client makes entities."""
        labels, scores = best_labels(model(x, training=False))
        return {"labels": labels, "scores": scores}

    def answer(self, description: Description, item: dict, found: dict, top_k: int) -> list[dict]:
        """Returns all entities in their order, as the pipeline `token-classification` does."""
        return _entities_of(found)

    def view(self, description: Description, item: dict, answer: list[dict]) -> View:
        """Shows the entities in their text."""
        places = [(one["start"], one["end"], one["entity_group"]) for one in answer]
        return View([marked_places(item["text"], places)])

    def check_model(self, model: keras_hub.models.Task, records: Records, preset: str) -> None:
        """Compares labels by name. Entities of types that the model lacks count as missed."""
        names = [label for label in model.labels if label != OUTSIDE]
        labels = [label for label in records.manifest.labels if label != OUTSIDE]
        for name in names:
            if not name.startswith((BEGIN, INSIDE)):
                raise MismatchError(
                    f"{preset}: its label {name!r} is neither {OUTSIDE} nor one that begins with "
                    f"{BEGIN} or {INSIDE}; no others can be scored"
                )
        unknown = [label for label in labels if label not in names]
        if unknown and len(unknown) == len(labels):
            raise MismatchError(
                f"{records}: has none of the labels of {preset} ({', '.join(names[:5])}, …)"
            )
        if unknown:
            print_line(f"{records}: {preset} does not have the labels {', '.join(unknown)}")

    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: NamedEntitiesManifest,
        config: NamedEntitiesConfig,
    ) -> SpanBertTokenClassifier:
        """Creates a classifier of word pieces that first predicts the shares of the labels."""
        strategy: AggregationStrategy = config.prediction.aggregation_strategy
        if strategy == "first" and manifest.words == "marked":
            strategy = "word"
        if manifest.words == "pieces":
            strategy = "simple"
        model = self.model_class(
            backbone,
            manifest.labels,
            SpanBertTokenClassifierPreprocessor(tokenizer, manifest.sequence_length),
            dropout=backbone.dropout,
            aggregation_strategy=strategy,
        )
        model.begin_at_shares(manifest.label_counts)
        return model

    def predict_batch(
        self, model: keras_hub.models.Task, x: dict, outputs: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the most probable label of each position and its probability, [B, S]."""
        return best_labels(outputs)

    def collect(
        self, model: keras_hub.models.Task, records: Records, rows: list
    ) -> list[PieceLabels]:
        """Combines the rows of each sentence, without [CLS], [SEP] and padding."""
        lengths = records.lengths()
        columns = []  # labels and scores of the word pieces of all sentences
        for column in zip(*rows, strict=True):
            parts = [row[1 : length - 1] for row, length in zip(column, lengths, strict=True)]
            columns.append(np.concatenate(parts))
        sentences = records.lines(SENTENCES_FILE)
        ends = np.cumsum([sentence["num_pieces"] for sentence in sentences])
        if ends[-1] != len(columns[0]):
            raise BadInputError(
                f"{records}: its sentences are not those of its rows; write the records again"
            )
        labels, scores = [np.split(column, ends[:-1]) for column in columns]
        return [PieceLabels(*pair) for pair in zip(labels, scores, strict=True)]

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records,
        predictions: Sequence[Any],
    ) -> Outcome:
        """Decodes `PieceLabels` to the labels of words.

        As texts, labels of words outside of entities are empty.
        """
        assert model is not None  # there is no baseline
        sentences = records.lines(SENTENCES_FILE)
        piece_labels = [found.labels for found in predictions]
        if model.aggregation_strategy == "word" and records.manifest.words != "marked":
            piece_labels = _labels_of_whole_words(model, sentences, piece_labels)
        gold = [sentence["labels"] for sentence in sentences]
        predicted: list[list[str]] = []
        texts: list[str] = []
        for sentence, label_ids in zip(sentences, piece_labels, strict=True):
            labels = word_labels(sentence, model.labels, label_ids)
            predicted.append(labels)
            texts += ["" if label == OUTSIDE else label for label in labels]
        return Outcome(model, records, predictions, gold, predicted, texts)

    def score(self, outcome: Outcome) -> dict[str, float]:
        """Computes F1, precision and recall of entities."""
        return score_labels(outcome.gold, outcome.predicted)[0]

    def tables(self, outcome: Outcome) -> list[Table]:
        """Returns the table of the types' scores, and what was predicted in place of each type."""
        gold, found = _spans(outcome)
        _, scores = score_labels(outcome.gold, outcome.predicted)
        labels = [score.name for score in scores.classes]
        labels.append(NO_ENTITY)
        gold_types, predicted_types = confused_types(gold, found)
        columns = [*labels, OTHER_BORDERS]
        confusions = confusion_table(gold_types, predicted_types, labels, columns)
        return [class_table("entities by type", scores), confusions]

    def gold_labels(self, line: Mapping[str, Any]) -> Sequence[str]:
        """Returns the gold labels of the words of a sentence, a `SentenceLine`."""
        return line["labels"] or []

    def row_in_words(
        self, records: Records, index: int, pieces: Sequence[str], labels: np.ndarray
    ) -> Iterator[Text]:
        """Shows a row with its entities marked."""
        names = [records.manifest.labels[label] if label >= 0 else None for label in labels]
        yield marked_pieces(pieces, _spans_of_pieces(names[: len(pieces) - 1]))

    def report(self, outcome: Outcome, scores: Mapping[str, float]) -> Report:
        """Returns a report that shows each sentence with its entities."""
        sentences = outcome.records.lines(SENTENCES_FILE)
        records = map(_record, sentences, *_spans(outcome))
        return Report(_TEMPLATE, "sentence", records, _FILTERS, {"scores": scores})

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes `entities.jsonl`, and the columns that the script `conlleval` reads."""
        sentences = outcome.records.lines(SENTENCES_FILE)
        lines = [
            {"id": sentence["id"], "text": sentence["text"], "entities": found}
            for sentence, found in zip(sentences, self._entities(outcome), strict=True)
        ]
        write_json_lines(os.path.join(output, "entities.jsonl"), lines)
        text = "\n".join(map(_columns, sentences, outcome.predicted))
        write_text(os.path.join(output, "predictions.conll"), text)

    def _entities(self, outcome: Outcome) -> list[list[dict]]:
        """Returns the entities of each sentence as the pipeline does, by the decoder of exports."""
        model = outcome.model
        assert model is not None  # there is no baseline
        decoder = EntityDecoder(model)
        answers = []
        sentences = outcome.records.lines(SENTENCES_FILE)
        has_marked_words = outcome.records.manifest.words == "marked"
        for first in range(0, len(sentences), _TEXTS_AT_ONCE):
            part = slice(first, first + _TEXTS_AT_ONCE)
            texts = string_tensor([sentence["text"] for sentence in sentences[part]])
            pieces = decoder.tokenize(texts)
            labels = np.concatenate([found.labels for found in outcome.predictions[part]])
            scores = np.concatenate([found.scores for found in outcome.predictions[part]])
            if model.aggregation_strategy == "word" and has_marked_words:
                begins = [_begin_words(sentence) for sentence in sentences[part]]
                keeps_label = np.concatenate(begins)
            else:
                keeps_label = decoder.keeps_label(texts, pieces)
            entities = decoder.decode(texts, pieces, labels, scores, keeps_label)
            columns = [values.to_tensor().numpy() for values in entities]
            for row in zip(*columns, strict=True):
                found = dict(zip(entities._fields, row, strict=True))
                answers.append(_entities_of(found))
        return answers


def _entities_of(found: Mapping[str, np.ndarray]) -> list[dict]:
    """Returns the entities of a text by the keys of the pipeline; see `Entities`."""
    entities = []
    for index, entity_type in enumerate(found["types"]):
        if entity_type:  # empty after the last entity of the text
            entity = {}
            for name, key in _PIPELINE_NAMES.items():
                entity[key] = _plain(found[name][index])
            entities.append(entity)
    return entities


def _begin_words(sentence: SentenceLine) -> np.ndarray:
    """Whether each word piece is the first of a word that is marked in the data, bool [pieces]."""
    begins = np.zeros(sentence["num_pieces"], bool)
    begins[[first for first in sentence["first_pieces"] if first >= 0]] = True
    return begins


def _labels_of_whole_words(
    model: keras_hub.models.Task,
    sentences: Sequence[SentenceLine],
    labels: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Gives all word pieces of a word the label of its first piece.

    So a model that was trained on marked words is scored on the words of BERT's tokenizer. The
    pieces after the first get the label that continues its entity.

    Args:
        model: the model.
        sentences: sentences whose words are those of BERT's tokenizer.
        labels: label ids of the word pieces, int32 [pieces] for each sentence.
    """
    decoder = EntityDecoder(model)
    whole_words: list[np.ndarray] = []
    continuing = _continuing_labels(model.labels)
    for first in range(0, len(sentences), _TEXTS_AT_ONCE):
        part = slice(first, first + _TEXTS_AT_ONCE)
        texts = string_tensor([sentence["text"] for sentence in sentences[part]])
        keeps_label = decoder.keeps_label(texts, decoder.tokenize(texts)).numpy()
        source_labels = np.concatenate(labels[part])[label_sources(keeps_label).numpy()]
        found = np.where(keeps_label, source_labels, continuing[source_labels])
        ends = np.cumsum([len(piece_labels) for piece_labels in labels[part]])[:-1]
        whole_words.extend(np.split(found, ends))
    return whole_words


def _continuing_labels(labels: Sequence[str]) -> np.ndarray:
    """Returns for each label the id of the label that continues its entity: `I-X` for `B-X`."""
    label_ids = {label: label_id for label_id, label in enumerate(labels)}
    continuing = list(range(len(labels)))
    for label, label_id in label_ids.items():
        if label.startswith(BEGIN):
            continuing[label_id] = label_ids.get(INSIDE + label.removeprefix(BEGIN), label_id)
    return np.array(continuing)


def _columns(sentence: dict, predicted: Sequence[str]) -> str:
    """Formats a line `word gold predicted` for each word, without `gold` if it is not known."""
    places = sentence["words"]
    words = ["".join(sentence["text"][start:end].split()) or "_" for start, end in places]
    columns = [words, sentence["labels"], predicted]
    known = [column for column in columns if column is not None]
    return "".join(f"{' '.join(line)}\n" for line in zip(*known, strict=True))


def _spans_of_pieces(labels: Sequence[str | None]) -> Iterator[tuple[int, int, str]]:
    """Yields first piece, last piece and type of each entity.

    A piece without a label continues a word.
    """
    start = 0
    kind = ""
    for index, label in enumerate([*labels, OUTSIDE]):
        if label is None or (kind and label == f"{INSIDE}{kind}"):
            continue
        if kind:
            yield start, index - 1, kind
        start = index
        kind = "" if label == OUTSIDE else label[2:]


def _plain(value: bytes | np.generic) -> str | float | int:
    """Returns a value as a string or a number of Python."""
    return value.decode() if isinstance(value, bytes) else value.item()


def _spans(outcome: Outcome) -> list[list[set[tuple[int, int, str]]]]:
    """Returns the gold entities of each sentence, and the predicted ones."""
    sentences = outcome.records.lines(SENTENCES_FILE)
    spans = []
    for labels in (outcome.gold, outcome.predicted):
        pairs = zip(sentences, labels, strict=True)
        spans.append([set(entity_spans(*pair)) for pair in pairs])
    return spans


def _record(sentence: SentenceLine, gold: set[tuple], found: set[tuple]) -> dict:
    """Returns what the report shows of a sentence with its gold and its predicted entities."""
    missed = gold - found
    invented = found - gold
    types = {place[:2]: place[2] for place in missed}
    mistyped = {place for place in invented if place[:2] in types}
    places_of_mistyped = {place[:2] for place in mistyped}
    text = sentence["text"]

    def shown(places: set) -> list[str]:
        return [f"{text[start:end]} ({name})" for start, end, name in sorted(places)]

    kinds = {"missed": missed, "invented": invented, "mistyped": mistyped}
    return {
        "kinds": [name for name, places in kinds.items() if places],
        "error": len(missed | invented),
        "id": sentence["id"],
        "parts": marked_parts(text, gold, found, _NOTES),
        "lists": {
            "right": shown(gold & found),
            "missed": shown({place for place in missed if place[:2] not in places_of_mistyped}),
            "wrong": shown(invented - mistyped),
            "wrong type": [
                f"{text[start:end]} ({name}, gold: {types[start, end]})"
                for start, end, name in sorted(mistyped)
            ],
        },
    }
