"""Classification of texts and pairs of texts as a `Task`."""

import json
import os

import numpy as np

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.errors import MismatchError
from spanbert_tf.files.preset_files import golden_digest
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import published_name
from spanbert_tf.tasks.report.class_tables import (
    class_scores,
    print_class_scores,
    print_confusions,
)
from spanbert_tf.tasks.report.page import predictor_of
from spanbert_tf.tasks.task import Task
from spanbert_tf.tasks.text_classification.dataset import (
    load_examples,
    text_classification_dataset,
)
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, submission_file, submission_text
from spanbert_tf.tasks.text_classification.metrics import (
    MAIN_METRIC,
    has_correlation,
    is_constant,
    score_labels,
)
from spanbert_tf.tasks.text_classification.predictions import (
    Rows,
    predict_directory,
    predict_majority,
    predicted_labels,
)
from spanbert_tf.tasks.text_classification.records import (
    TextClassificationConfig,
    TextClassificationInfo,
    text_names,
)
from spanbert_tf.tasks.text_classification.report import report_page
from spanbert_tf.tasks.text_classification.serving import classify_raw, served_classifier

# What records hold, without and with each property, and how a `prepare` command makes it so.
_PAIRS = ("single texts", "pairs of texts")
_PAIR_ADVICE = ("without --text-pair-column", "with --text-pair-column, or of pairs")
_NUMBERS = ("texts with classes as labels", "texts with numbers as labels")
_NUMBER_ADVICE = ("without --regression", "with --regression")
PREDICTIONS_FILE, EVALUATION_FILE = "predictions.jsonl", "evaluation.json"


def _check_model(
    model: SpanBertTextClassifier, info: TextClassificationInfo, directory: str, preset: str
) -> None:
    for (without, with_it), found, wanted, advice in (
        (_PAIRS, info.is_pair, model.preprocessor.is_pair, _PAIR_ADVICE),
        (_NUMBERS, info.is_regression, model.is_regression, _NUMBER_ADVICE),
    ):
        if found != wanted:
            shown, read = (with_it, without) if found else (without, with_it)
            raise MismatchError(
                f"{directory}: holds {shown}, and {preset} is for {read}; write the records again "
                f"{advice[wanted]}"
            )
    unknown = [] if info.is_regression else sorted(set(info.labels) - set(model.labels))
    if unknown:
        raise MismatchError(
            f"{directory}: label {unknown[0]!r} is none that {preset} knows: "
            f"{', '.join(model.labels)}"
        )


def _build(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: TextClassificationInfo,
    config: TextClassificationConfig,
) -> SpanBertTextClassifier:
    preprocessor = SpanBertTextClassifierPreprocessor(
        tokenizer,
        info.sequence_length,
        segment_aware=info.segment_aware,
        is_pair=info.is_pair,
    )
    model = SpanBertTextClassifier(
        backbone, len(info.labels), preprocessor, dropout=backbone.dropout, labels=info.labels
    )
    if config.classifier.initial == "majority":
        _predict_majority(model, info)
    return model


def _predict_majority(model: SpanBertTextClassifier, info: TextClassificationInfo) -> None:
    """Gives the classifier weights that predict the shares of the classes whatever the text."""
    if info.is_regression:
        raise MismatchError(
            "classifier.initial: is majority, and these records have numbers, no classes; set it "
            "to random"
        )
    counts = np.maximum(np.array(info.label_counts, "float32"), np.finfo("float32").tiny)
    kernel, _ = model.output_dense.get_weights()
    model.output_dense.set_weights([np.zeros_like(kernel), np.log(counts / counts.sum())])
    model.is_head_trained = True  # it predicts, though no step has trained it


def _labels_and_kind(
    model: SpanBertTextClassifier | None, directory: str
) -> tuple[TextClassificationInfo, list[str]]:
    """The records' description, and the labels that predictions have: a baseline's are theirs."""
    info = Records.of(directory, TextClassificationInfo).info
    return info, info.labels if model is None else model.labels


def _gold_and_predicted(
    model: SpanBertTextClassifier | None, directory: str, rows: Rows
) -> tuple[TextClassificationInfo, list, list]:
    info, labels = _labels_and_kind(model, directory)
    gold = [line["label"] for line in load_examples(directory)]
    return info, gold, predicted_labels(rows, labels, info.is_regression)


def _score(model: SpanBertTextClassifier | None, directory: str, rows: Rows) -> dict[str, float]:
    info, gold, predicted = _gold_and_predicted(model, directory, rows)
    return score_labels(gold, predicted, dataset=info.dataset, is_regression=info.is_regression)


def _answers(model: SpanBertTextClassifier, directory: str, rows: Rows) -> list[str]:
    return list(map(str, _gold_and_predicted(model, directory, rows)[2]))


def _print_details(
    model: SpanBertTextClassifier | None,
    directory: str,
    rows: Rows,
    console: DataConsole,
) -> None:
    """Prints a table of the classes and the confusion matrix; and says where a metric is void."""
    info, gold, predicted = _gold_and_predicted(model, directory, rows)
    if is_constant(predicted) and has_correlation(info.dataset, is_regression=info.is_regression):
        console.print(
            f"all predictions are {predicted[0]}: a correlation is undefined then, and counts as 0",
            markup=False,
        )
    if not info.is_regression:
        labels = info.labels if model is None else model.labels
        print_class_scores(console, class_scores(gold, predicted, labels))
        print_confusions(console, gold, predicted, labels)


def _write(model: SpanBertTextClassifier, directory: str, rows: Rows, output: str) -> None:
    """Writes `predictions.jsonl`, a line a text; GLUE's file for its test sets, else the scores."""
    info, labels = _labels_and_kind(model, directory)
    predicted = predicted_labels(rows, labels, info.is_regression)
    lines = [
        {"label": labels[0], "score": label}
        if info.is_regression
        else {
            "label": label,
            "score": float(row.max()),
            "probabilities": dict(zip(labels, row.tolist(), strict=True)),
        }
        for label, row in zip(predicted, rows, strict=True)
    ]
    write_json_lines(os.path.join(output, PREDICTIONS_FILE), lines)
    if info.is_labelled:
        # `spanbert-tf glue` tells a development set by its size, and whose predictions these are.
        content = {
            "dataset": info.dataset,
            "rows": info.num_rows,
            "preset": model.loaded_from and published_name(model.loaded_from),
            "golden_sha256": model.loaded_from and golden_digest(model.loaded_from),
            "scores": _score(model, directory, rows),
        }
        write_text(os.path.join(output, EVALUATION_FILE), json.dumps(content, indent=1) + "\n")
    elif info.dataset is not None:
        text = submission_text(info.dataset, predicted)
        write_text(os.path.join(output, submission_file(info.dataset)), text)


def _report(title: str, model: SpanBertTextClassifier | None, directory: str, rows: Rows) -> str:
    info, _, predicted = _gold_and_predicted(model, directory, rows)
    scores = _score(model, directory, rows)
    return report_page(
        title,
        load_examples(directory),
        predicted,
        rows,
        scores,
        is_regression=info.is_regression,
        by=predictor_of(model),
    )


TASK = Task(
    name="text_classification",
    main_metric=MAIN_METRIC,
    model_class=SpanBertTextClassifier,
    config_class=TextClassificationConfig,
    info_class=TextClassificationInfo,
    check_model=_check_model,
    build=_build,
    dataset=text_classification_dataset,
    predict=predict_directory,
    baseline=predict_majority,
    score=_score,
    answers=_answers,
    write=_write,
    written_files=(PREDICTIONS_FILE, EVALUATION_FILE, *map(submission_file, GLUE_TASKS)),
    report=_report,
    print_details=_print_details,
    served=served_classifier,
    from_raw=classify_raw,
    fields=lambda model: text_names(model.preprocessor.is_pair),
)
