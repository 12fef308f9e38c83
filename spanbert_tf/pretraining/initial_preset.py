"""The first weights of a run: those of `--initial-preset`, and new heads beside them."""

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.records import load_unigram_counts
from spanbert_tf.data.schema import DatasetInfo
from spanbert_tf.models import SpanBertPretrainer
from spanbert_tf.models.pretraining_heads import LOADED
from spanbert_tf.presets.loading import checked_tokenizer
from spanbert_tf.presets.pretraining import load_preset_into
from spanbert_tf.pretraining.output_bias import begin_at_frequencies


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
            print(f"  output bias of the {words}: frequencies of the training text", flush=True)


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
    print(f"{preset}:")
    for part, outcome in report.items():
        print(f"  {part.replace('_', ' ')}: {outcome}")
    print("  optimizer and schedule: starts fresh", flush=True)
    return report
