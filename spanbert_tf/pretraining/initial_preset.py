"""The first weights of a run: those of `--initial-preset`, and new heads beside them."""

import os

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.records import load_unigram_counts
from spanbert_tf.data.schema import DatasetInfo
from spanbert_tf.models import SpanBertPretrainer
from spanbert_tf.models.pretraining_heads import LOADED
from spanbert_tf.presets.loading import checked_tokenizer, weights_digest
from spanbert_tf.presets.pretraining import load_preset_into
from spanbert_tf.pretraining.output_bias import begin_at_frequencies
from spanbert_tf.process.lines import print_line
from spanbert_tf.training.run_directory import check_same_inputs, write_inputs

_OPTION = "--initial-preset"


def begin_run(
    model: SpanBertPretrainer,
    config: PretrainingConfig,
    preset: str | None,
    data: str,
    info: DatasetInfo,
) -> None:
    """Gives a new model the weights that a run begins with, and prints what they are.

    Args:
        model: a new model.
        config: configuration of the run.
        preset: as for `begin_with_preset`; `None`: all weights are new.
        data: directory of the records.
        info: description of the records.

    Raises:
        BadInputError: the preset or the records' unigram counts cannot be read.
        MismatchError: as for `begin_with_preset`.
    """
    report = begin_with_preset(model, preset, data, info) if preset else {}
    if config.objectives.output_bias == "unigrams":
        trained = [part for part, outcome in report.items() if outcome == LOADED]
        counts = load_unigram_counts(data, info)
        for head in begin_at_frequencies(model, counts, trained):
            words = head.replace("_", " ")
            print_line(f"  output bias of the {words}: frequencies of the training text")


def check_same_preset(model: SpanBertPretrainer, preset: str, directory: str) -> None:
    """Checks that a run that goes on began with this preset, where that is still there.

    Args:
        model: gets the preset's weights; those of the run are restored after this.
        preset: as for `begin_with_preset`.
        directory: directory of the run.

    Raises:
        MismatchError: the run began with another encoder, or with random weights.
    """
    if os.path.isdir(preset):
        load_preset_into(model, preset)
        check_same_inputs(directory, {_OPTION: weights_digest(model.backbone)})


def note_preset(model: SpanBertPretrainer, preset: str | None, directory: str) -> None:
    """Writes down what a run begins with, for `check_same_preset`.

    Args:
        model: as `begin_run` left it.
        preset: as for `begin_run`.
        directory: directory of the run.
    """
    write_inputs(directory, {_OPTION: preset and weights_digest(model.backbone)})


def begin_with_preset(
    model: SpanBertPretrainer, preset: str, data: str, info: DatasetInfo
) -> dict[str, str]:
    """Gives a model the weights of a preset and prints, part by part, what was taken over.

    Args:
        model: a new model with the shape of the preset's encoder.
        preset: directory, or another name that `from_preset` takes.
        data: directory of the records, for errors.
        info: description of the records.

    Returns:
        What became of each part, as `load_preset_into` says it.

    Raises:
        BadInputError: the preset cannot be read.
        MismatchError: its vocabulary, its casing or its shape is not that of the run.
    """
    checked_tokenizer(preset, data, info)
    report = load_preset_into(model, preset)
    print_line(f"{preset}:")
    for part, outcome in report.items():
        print_line(f"  {part.replace('_', ' ')}: {outcome}")
    print_line("  optimizer and schedule: starts fresh")
    return report
