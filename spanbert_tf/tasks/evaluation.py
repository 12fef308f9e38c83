"""`evaluate`: scores a fine-tuned model, or a task's baseline, on sets of records."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence

import keras_hub
import numpy as np

from spanbert_tf.config.positions import has_positions, reads_indices
from spanbert_tf.console import table_console
from spanbert_tf.data.records import Records, TaskManifest
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.output import FileKind, Output, write_output
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.tasks.lookup import open_records, task_of_preset, task_of_records
from spanbert_tf.tasks.report import is_report, print_table, render_page
from spanbert_tf.tasks.task import Predictions, Task
from spanbert_tf.terminal import print_line


def run_evaluation(
    preset: str | os.PathLike | None,
    data: Sequence[str | os.PathLike],
    *,
    metric: str | None = None,
    report: str | os.PathLike | None = None,
    batch_size: int = 32,
    precision: str = "float32",
    overwrite: bool = False,
) -> list[dict[str, float]]:
    """Scores a preset on sets of records, and prints the scores and their mean over the sets.

    Args:
        preset: name of the preset of a task's model; `None` to score the task's baseline, which is
            not trained.
        data: directories of records.
        metric: one of the task's `metrics`; by default the first one.
        report: path of an HTML page that shows each record of the first set.
        batch_size: number of rows of a batch.
        precision: precision of weights and computations, as for `Preset.trained_task`.
        overwrite: whether an earlier report may be replaced.

    Returns:
        The scores of each set.

    Raises:
        BadInputError: a file cannot be used, the report exists or cannot be written, or the task
            has no baseline, or no such metric.
        MismatchError: the records were written for another model.
    """
    page = checked_report(report, data[0], overwrite=overwrite)
    if metric is not None:  # refused before the model is loaded
        task_of_records(data[0]).score_by(metric)
    name = "the baseline"
    model = None
    predict: Callable[[Records], Predictions]
    if preset is None:
        task = task_of_records(data[0])
        if task.baseline is None:
            raise BadInputError(f"{data[0]}: {task.name} has no baseline")
        sets = [open_records(directory, task) for directory in data]
        predict = task.baseline
    else:
        opened = Preset.of(preset)
        name = opened.name
        sets = [open_records(directory) for directory in data]
        task, model = load_task_model(opened, sets, precision)
        predict = functools.partial(task.predict, model, batch_size=batch_size)
    if metric is not None:
        task.score_by(metric)
    for records in sets:
        check_labelled(records.manifest, str(records))
        task.check_metric(records)
    return score_sets(task, name, model, predict, sets, page)


def checked_report(
    report: str | os.PathLike | None, data: str | os.PathLike, *, overwrite: bool
) -> str | None:
    """Checks the path of a report before the work begins.

    Args:
        report: path of the report, or `None`.
        data: directory of the first set of records.
        overwrite: whether an earlier report may be replaced.

    Returns:
        The path without a slash at its end, or `None`.

    Raises:
        BadInputError: the report exists or cannot be written, or the task has no report.
    """
    if report is None:
        return None
    task = task_of_records(data)
    if task.report is None:
        raise BadInputError(f"{report}: {task.name} has no report; leave out --report")
    return Output(report, FileKind("a report page", is_report), overwrite=overwrite).check()


def score_sets(
    task: Task,
    name: str,
    model: keras_hub.models.Task | None,
    predict: Callable[[Records], Predictions],
    data: Sequence[Records],
    report: str | None,
) -> list[dict[str, float]]:
    """Scores the predictions of a model or a baseline for sets of records, and prints the scores.

    Args:
        task: the task.
        name: name of what predicts, for the title of the report.
        model: the model; `None` for a baseline.
        predict: records → predictions.
        data: the sets of records.
        report: path of a page that shows the records of the first set, or `None`.
    """
    scores: list[dict[str, float]] = []
    for records in data:
        with records.named_damage():
            outcome = task.outcome(model, records, predict(records))
        scores.append(task.score(outcome))
        print_line(f"{records}: {shown_scores(scores[-1])}")
        console = table_console()
        if outcome.note:
            console.print(outcome.note, markup=False)
        tables = task.tables(outcome)
        for table in tables:
            print_table(console, table)
        if report and task.report and records is data[0]:
            shown = task.report(outcome, scores[-1])
            title = f"{name} on {records}"
            page = render_page(
                shown,
                title,
                by=outcome.by,
                tables=tables,
                language=records.manifest.language,
            )
            write_output(report, page)
            print_line(f"{report}: all records of {records}")
    if len(data) > 1:  # MRQA's overall score (Fisch et al., 2019; SpanBERT, table 2: "Avg.")
        print_line(f"overall, the mean of {len(data)} sets: {shown_scores(_means(scores))}")
    return scores


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means of the scores that all data sets have.

    The data sets of one task can have different metrics, as those of GLUE do.
    """
    means = {}
    for name in scores[0]:
        if all(name in of_set for of_set in scores):
            means[name] = float(np.mean([of_set[name] for of_set in scores]))
    return means


def shown_scores(scores: Mapping[str, float]) -> str:
    """Formats scores as one line."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def load_task_model(
    preset: str | os.PathLike | Preset,
    data: Sequence[Records] = (),
    precision: str = "float32",
) -> tuple[Task, keras_hub.models.Task]:
    """Loads a fine-tuned model and checks that records were written for it.

    Args:
        preset: the preset, or its name.
        data: the records that the model is to read.
        precision: as for `Preset.trained_task`.

    Returns:
        The task and its model.

    Raises:
        BadInputError: the preset cannot be used, or does not hold the model of a task.
        MismatchError: vocabulary, text rules or layout of the rows differ.
    """
    preset = Preset.of(preset)
    task = task_of_preset(preset, data[0].manifest.task if data else None)
    if task is None:
        raise BadInputError(
            f"{preset}: holds no fine-tuned model with a trained head; fine-tune it first, or use "
            "the preset of a fine-tuning run"
        )
    model = preset.trained_task(task.model_class, precision)
    for records in data:
        reads = task.manifest_class.task
        if records.manifest.task != reads:
            raise MismatchError(f"{records}: holds no records of {reads}, as {preset} reads")
        tokenizer = model.preprocessor.tokenizer
        check_reads(model.backbone, tokenizer, records, preset.name)
        task.check_model(model, records, preset.name)
    return task, model


def check_labelled(manifest: TaskManifest, data: str) -> None:
    """Checks that records have labels to score by, and prints what the scores leave out.

    Args:
        manifest: manifest of the records.
        data: name of the records, for messages.

    Raises:
        BadInputError: the records have no labels.
    """
    if not manifest.is_labelled:
        raise BadInputError(f"{data}: {manifest.lack_of_labels}")
    if manifest.scoring_note:
        print_line(f"{data}: {manifest.scoring_note}")


def check_reads(
    backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer, records: Records, preset: str
) -> None:
    """Checks that a model can read records, as `check_encoder` and `check_tokenizer` do."""
    check_tokenizer(tokenizer, preset, str(records), records.manifest)
    check_encoder(backbone, records.manifest, str(records), preset)


def check_encoder(
    backbone: SpanBertBackbone, manifest: TaskManifest, data: str, preset: str
) -> None:
    """Checks that an encoder has the kind of positions that records need, and enough of them.

    Args:
        backbone: the encoder.
        manifest: manifest of the records.
        data: name of the records, for errors.
        preset: name of the preset, for errors.

    Raises:
        MismatchError: the encoder has other positions, or too few.
    """
    if manifest.segment_aware != reads_indices(backbone.position_embeddings):
        reads = "SegaBERT's positions"
        if manifest.segment_aware:
            reads = "BERT's positions"
            advice = "write the records without --segment-aware"
        elif manifest.segment_aware_options:
            advice = f"write the records with {manifest.segment_aware_options}"
        else:
            advice = f"records of {manifest.task} have BERT's positions: take such an encoder"
        raise MismatchError(f"{preset}: reads {reads}, and {data} was written for others; {advice}")
    limit = backbone.max_sequence_length
    length = manifest.sequence_length
    if not has_positions(backbone.position_embeddings, limit, length):
        raise MismatchError(
            f"{preset}: has {limit} positions, the rows in {data} up to {length}; write them with "
            "--sequence-length"
        )
