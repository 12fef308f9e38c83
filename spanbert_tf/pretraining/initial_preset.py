"""`--initial-preset`: begins a run with the weights of an earlier model."""

from spanbert_tf.data.schema import DatasetInfo
from spanbert_tf.models import SpanBertPretrainer
from spanbert_tf.presets.loading import checked_tokenizer
from spanbert_tf.presets.pretraining import load_preset_into


def begin_with_preset(model: SpanBertPretrainer, preset: str, data: str, info: DatasetInfo) -> None:
    """Gives a model the weights of a preset and prints, part by part, what was taken over.

    Args:
        model: a new model with the shape of the preset's encoder.
        preset: directory, or another name that `from_preset` takes.
        data: directory of the records, for errors.
        info: description of the records.

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
