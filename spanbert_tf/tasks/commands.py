"""`spanbert-tf evaluate` and `predict --data`, for every task."""

import os
from collections.abc import Callable, Sequence

import keras_hub
import numpy as np

from spanbert_tf.console import table_console
from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.kinds import refuse_no_preset
from spanbert_tf.files.outputs import OutputKind, check_output, check_output_file
from spanbert_tf.files.writing import write_directory, write_output
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.loading import load_trained
from spanbert_tf.serving.exporting import export_model
from spanbert_tf.tasks.fill_mask import FillMask, check_fill_mask
from spanbert_tf.tasks.finetuning import shown_scores
from spanbert_tf.tasks.report.page import is_report
from spanbert_tf.tasks.run_inputs import check_labelled, check_reads
from spanbert_tf.tasks.task import (
    Predictions,
    Task,
    open_records,
    task_of_preset,
    task_of_records,
)
from spanbert_tf.terminal import print_line

_REPORT = OutputKind("a report page", "report.html")


def run_evaluation(
    preset: str | os.PathLike,
    data: Sequence[str | os.PathLike],
    *,
    report: str | os.PathLike | None = None,
    batch_size: int = 32,
    precision: str = "float32",
    overwrite: bool = False,
) -> list[dict[str, float]]:
    """Prints the scores of a preset on sets of records, and their mean over the sets.

    Args:
        preset: name of the preset of a task's model.
        data: directories of records.
        report: path of an HTML page that shows each record of the first set.
        batch_size: rows of a batch.
        precision: of weights and computations, as for `load_trained`.
        overwrite: whether an earlier report may be replaced.

    Returns:
        The scores of each set.

    Raises:
        BadInputError: a file cannot be used, or the report exists or cannot be written.
        MismatchError: the records were written for another model.
    """
    report = checked_report(report, data[0], overwrite=overwrite)
    refuse_no_preset(os.fspath(preset))
    sets = [open_records(directory) for directory in data]
    task, model = load_task_model(preset, sets, precision)
    for records in sets:
        check_labelled(records.info, records)

    def predict(directory: str) -> Predictions:
        return task.predict(model, directory, batch_size=batch_size)

    return print_scores(task, preset, model, predict, sets, report)


def run_baseline_evaluation(
    data: Sequence[str | os.PathLike],
    *,
    report: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> list[dict[str, float]]:
    """Prints the scores of the task's baseline, which was never trained.

    Args:
        data: as for `run_evaluation`.
        report: as for `run_evaluation`.
        overwrite: as for `run_evaluation`.

    Raises:
        BadInputError: a file cannot be used, the report exists or cannot be written, or the task
            has no baseline.
    """
    report = checked_report(report, data[0], overwrite=overwrite)
    task = task_of_records(data[0])
    if task.baseline is None:
        raise BadInputError(f"{data[0]}: {task.name} has no baseline")
    sets = [task.records(directory) for directory in data]
    for records in sets:
        check_labelled(records.info, records)
    return print_scores(task, "the baseline", None, task.baseline, sets, report)


def checked_report(report: str | None, data: str, *, overwrite: bool) -> str | None:
    """The path of a report without a slash at its end, checked before the work.

    Args:
        report: as for `run_evaluation`.
        data: directory of the records that it shows.
        overwrite: as for `run_evaluation`.

    Raises:
        BadInputError: it exists, and is not an earlier report that may be replaced; or the
            records' task has no reports.
    """
    if report is None:
        return None
    task = task_of_records(data)
    if task.report is None:
        raise BadInputError(f"{report}: {task.name} has no report; leave out --report")
    return check_output_file(report, _REPORT, is_report, overwrite=overwrite)


def print_scores(
    task: Task,
    name: str,
    model: keras_hub.models.Task | None,
    predict: Callable[[Records], Predictions],
    data: Sequence[Records],
    report: str | None,
) -> list[dict[str, float]]:
    """Scores predictions for sets of records; prints them, writes the report.

    Args:
        task: task of the records.
        name: name of the model or the baseline, for the report.
        model: what predicts, or `None` for a baseline.
        predict: records → predictions.
        data: sets of records.
        report: as for `run_evaluation`.
    """
    scores = []
    for records in data:
        predictions = predict(records)
        scores.append(task.score(model, records, predictions))
        print_line(f"{records}: {shown_scores(scores[-1])}")
        if task.print_details is not None:
            task.print_details(model, records, predictions, table_console())
        if report and records is data[0]:
            page = task.report(f"{name} on {records}", model, records, predictions)
            write_output(report, page)
            print_line(f"{report}: all records of {records}")
    if len(data) > 1:  # MRQA's overall score (Fisch et al., 2019; SpanBERT, table 2: "Avg.")
        # Data sets of one task can have metrics of their own, as GLUE's do.
        shared = [key for key in scores[0] if all(key in one for one in scores)]
        means = {key: float(np.mean([one[key] for one in scores])) for key in shared}
        print_line(f"overall, the mean of {len(data)} sets: {shown_scores(means)}")
    return scores


def run_prediction(
    preset: str | os.PathLike,
    data: str | os.PathLike,
    output: str | os.PathLike,
    *,
    batch_size: int = 32,
    precision: str = "float32",
    overwrite: bool = False,
) -> None:
    """Writes the predictions for some records in the task's official layout.

    Args:
        preset: name of the preset of a task's model.
        data: directory of records.
        output: directory that appears whole or not at all.
        batch_size: rows of a batch.
        precision: of weights and computations, as for `load_trained`.
        overwrite: whether earlier predictions may be replaced.

    Raises:
        BadInputError: a file cannot be used, or the output exists or cannot be written.
        MismatchError: the records were written for another model.
    """
    task = task_of_records(data)
    kind = OutputKind("predictions", task.written_files[0], task.written_files[1:])
    output = check_output(output, kind, overwrite=overwrite)
    records = task.records(data)
    task, model = load_task_model(preset, [records], precision)
    predictions = task.predict(model, records, batch_size=batch_size)

    def write(directory: str) -> None:
        task.write(model, records, predictions, directory)

    write_directory(output, write, kind, overwrite=overwrite)
    print_line(f"{output}: predictions for {len(predictions):,} records")


def load_task_model(
    preset: str | os.PathLike,
    data: Sequence[str | os.PathLike | Records] = (),
    precision: str = "float32",
) -> tuple[Task, keras_hub.models.Task]:
    """Loads a fine-tuned model and checks that records were written for it.

    Args:
        preset: name of the preset of a task's model.
        data: directories of records, or records.
        precision: of weights and computations, as for `load_trained`.

    Raises:
        BadInputError: records are damaged, or the preset cannot be used, or holds no task's model.
        MismatchError: vocabulary, casing or the layout of the rows differ.
    """
    preset = os.fspath(preset)
    task = task_of_preset(preset)
    if task is None:
        raise BadInputError(
            f"{preset}: holds no fine-tuned model with a trained head; fine-tune it first, or use "
            "the preset of a fine-tuning run"
        )
    model = load_trained(task.model_class, preset, precision)
    for directory in data:
        if task_of_records(directory) is not task:
            raise MismatchError(f"{directory}: holds no records of {task.name}, as {preset} reads")
        info = task.records(directory).info
        check_reads(model.backbone, model.preprocessor.tokenizer, info, directory, preset)
        if task.check_model is not None:
            task.check_model(model, info, directory, preset)
    return task, model


def export_preset(preset: str, output: str, *, top_k: int = 5, **options: object) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    It loads with TensorFlow and TensorFlow Text alone. Beside the versions lie `models.config`,
    `batching_parameters.txt` and a README.

    Args:
        preset: preset of a fine-tuned model, or of a masked-language model with a trained head.
        output: the model's directory for TF Serving; its name is the model's.
        top_k: predictions of each input, where the task has several.
        **options: `version`, `precision`, `overwrite`; as for `export_model`.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset cannot be used, the version exists, or it cannot be written.
    """
    task = task_of_preset(preset)
    if task is not None:
        return export_model(
            task.model_class, preset, output, lambda model: task.served(model, top_k), **options
        )

    def served(model: SpanBertMaskedLM) -> FillMask:
        check_fill_mask(model, preset, top_k)
        return FillMask(model, top_k)

    return export_model(SpanBertMaskedLM, preset, output, served, **options)
