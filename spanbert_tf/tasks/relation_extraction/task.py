"""Relation extraction as a `Task`."""

import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.errors import MismatchError
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertRelationClassifier,
    SpanBertRelationClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.raw_inputs import (
    BATCH_SIZE,
    in_batches_by_length,
    input_place,
    string_tensor,
)
from spanbert_tf.tasks.relation_extraction.dataset import relation_extraction_dataset
from spanbert_tf.tasks.relation_extraction.metrics import score_semeval2010, score_tacred
from spanbert_tf.tasks.relation_extraction.records import (
    RelationExtractionConfig,
    RelationExtractionInfo,
    load_examples,
)
from spanbert_tf.tasks.relation_extraction.report import report_page
from spanbert_tf.tasks.relation_extraction.rows import marked_text_of
from spanbert_tf.tasks.relation_extraction.serving import relation_probabilities, served
from spanbert_tf.tasks.report.class_tables import (
    ClassScore,
    class_scores,
    print_class_scores,
    print_confusions,
)
from spanbert_tf.tasks.report.page import predictor_of
from spanbert_tf.tasks.row_predictions import predict_rows
from spanbert_tf.tasks.task import Task

_TEXT_FIELDS = ("text", "subject_type", "object_type")


def _build(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: RelationExtractionInfo,
    config: RelationExtractionConfig,
) -> SpanBertRelationClassifier:
    preprocessor = SpanBertRelationClassifierPreprocessor(
        tokenizer, info.sequence_length, markers=info.markers, entities=info.entities
    )
    return SpanBertRelationClassifier(backbone, info.labels, preprocessor, dropout=backbone.dropout)


def _check_model(
    model: SpanBertRelationClassifier, info: RelationExtractionInfo, directory: str, preset: str
) -> None:
    """Other markers or another order of the relations would shift all predictions."""
    preprocessor = model.preprocessor
    for name, found, wanted in (
        ("entities", info.entities, preprocessor.entities),
        ("markers", info.markers, preprocessor.markers),
        ("labels", info.labels, model.labels),
    ):
        if found != wanted:
            shown = f" ({found}, {wanted})" if isinstance(found, str) else ""
            raise MismatchError(
                f"{directory}: {name} of these examples are not those of {preset}{shown}; write "
                "them again with the training set of this model as --training-input"
            )


def _predict(
    model: SpanBertRelationClassifier,
    directory: str,
    *,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    dataset = relation_extraction_dataset(directory, batch_size=batch_size, training=False)
    return predict_rows(functools.partial(relation_probabilities, model), dataset, after_batch)


def _gold(directory: str) -> dict[str, str]:
    """The id of each example and its relation."""
    return {example["id"]: example["relation"] for example in load_examples(directory)}


def _relations(model: SpanBertRelationClassifier, predictions: Sequence[np.ndarray]) -> list[str]:
    return [model.labels[row.argmax()] for row in predictions]


def _all_scores(
    model: SpanBertRelationClassifier, directory: str, predictions: Sequence[np.ndarray]
) -> tuple[dict[str, float], list[ClassScore]]:
    """The official scores, and those of each relation."""
    gold, predicted = _gold(directory), _relations(model, predictions)
    if Records.of(directory, RelationExtractionInfo).info.layout == "semeval2010":
        return score_semeval2010(gold, dict(zip(gold, predicted, strict=True)))
    relations = list(gold.values())
    unknown = sorted(set(relations) - set(model.labels))
    scores = score_tacred(relations, predicted, negative=model.labels[0])
    return scores, class_scores(relations, predicted, [*model.labels, *unknown])


def _score(
    model: SpanBertRelationClassifier, directory: str, predictions: Sequence[np.ndarray]
) -> dict[str, float]:
    return _all_scores(model, directory, predictions)[0]


def _print_details(
    model: SpanBertRelationClassifier,
    directory: str,
    predictions: Sequence[np.ndarray],
    console: DataConsole,
) -> None:
    print_class_scores(console, _all_scores(model, directory, predictions)[1])
    gold = list(_gold(directory).values())
    labels = list(dict.fromkeys([*model.labels, *gold]))
    print_confusions(console, gold, _relations(model, predictions), labels)


def _report(
    title: str,
    model: SpanBertRelationClassifier,
    directory: str,
    predictions: Sequence[np.ndarray],
) -> str:
    return report_page(
        title,
        load_examples(directory),
        list(_gold(directory).values()),
        _relations(model, predictions),
        [float(row.max()) for row in predictions],
        _score(model, directory, predictions),
        predictor_of(model),
    )


def _write(
    model: SpanBertRelationClassifier,
    directory: str,
    predictions: Sequence[np.ndarray],
    output: str,
) -> None:
    """Writes what the official scorers read, and all probabilities as JSON lines."""
    examples, relations = load_examples(directory), _relations(model, predictions)
    if Records.of(directory, RelationExtractionInfo).info.layout == "semeval2010":
        pairs = zip(examples, relations, strict=True)
        lines = [f"{example['id']}\t{relation}" for example, relation in pairs]
    else:
        lines = relations
    write_text(os.path.join(output, "answers.txt"), "".join(f"{line}\n" for line in lines))
    write_json_lines(
        os.path.join(output, "probabilities.jsonl"),
        [
            {"id": example["id"], **dict(zip(model.labels, row.tolist(), strict=True))}
            for example, row in zip(examples, predictions, strict=True)
        ],
    )


def _from_raw(
    model: SpanBertRelationClassifier, *, top_k: int = 1
) -> Callable[..., list[dict | list[dict]]]:
    """Classifies the relations of texts or tokens with two entities, see `marked_text_of`."""
    module = served(model, top_k)
    specs = module.signatures()["serving_default"][1]
    classify = tf.function(module.function, input_signature=specs)

    def classify_batch(batch: Sequence[dict]) -> list[dict | list[dict]]:
        columns = {name: string_tensor(batch, name) for name in _TEXT_FIELDS}
        columns |= {n: tf.constant([x[n] for x in batch]) for n in ("subject", "object")}
        found = classify(**columns)
        rows = zip(found["labels"].numpy(), found["probabilities"].numpy(), strict=True)
        answers = [
            [{"label": n.decode(), "score": float(p)} for n, p in zip(*row, strict=True)]
            for row in rows
        ]
        return [best[0] for best in answers] if top_k == 1 else answers

    def classify_all(
        inputs: Sequence[dict], batch_size: int = BATCH_SIZE
    ) -> list[dict | list[dict]]:
        texts = []
        for number, item in enumerate(inputs, start=1):
            with input_place(number) as place:
                texts.append(marked_text_of(item, place))
        return in_batches_by_length(texts, _TEXT_FIELDS, classify_batch, batch_size=batch_size)

    return classify_all


TASK = Task(
    name="relation_extraction",
    main_metric="f1",
    model_class=SpanBertRelationClassifier,
    config_class=RelationExtractionConfig,
    info_class=RelationExtractionInfo,
    check_model=_check_model,
    build=_build,
    dataset=relation_extraction_dataset,
    predict=_predict,
    score=_score,
    answers=lambda model, directory, predictions: _relations(model, predictions),
    print_details=_print_details,
    report=_report,
    write=_write,
    written_files=("answers.txt", "probabilities.jsonl"),
    served=served,
    from_raw=_from_raw,
    fields=lambda model: ("text", "subject", "object"),
)
