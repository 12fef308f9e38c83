"""What a finished run writes and prints: its preset and a summary."""

import os

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.schema import VOCABULARY_FILE, DatasetInfo
from spanbert_tf.models import SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics
from spanbert_tf.training.run_directory import PRESET
from spanbert_tf.vocabulary import load_vocabulary


def save_run_preset(
    model: SpanBertPretrainer, config: PretrainingConfig, data: str, output: str, info: DatasetInfo
) -> None:
    """Writes the preset of a finished run into its directory.

    Args:
        model: as trained.
        config: configuration of the run.
        data: directory of the records.
        output: directory of the run.
        info: description of the records.

    Raises:
        BadInputError: it cannot be written.
    """
    vocabulary = load_vocabulary(os.path.join(data, VOCABULARY_FILE))
    save_pretraining_preset(
        model,
        SpanBertTokenizer(vocabulary, **info.casing._asdict()),
        os.path.join(output, PRESET),
        sequence_length=info.sequence_length,
        facts=_card_facts(config, output, info),
        of_run=True,
    )


def _card_facts(config: PretrainingConfig, output: str, info: DatasetInfo) -> dict[str, str]:
    """What the model card says of the run."""
    training, objectives = config.training, config.objectives
    names = ["masked LM"]
    names += ["span boundary"] * objectives.span_boundary
    names += ["next sentence"] * objectives.next_sentence
    losses = (
        f"{name.removeprefix('validation_').removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in _last_evaluation(output).items()
        if name.endswith("_loss") and name != "validation_loss"
    )
    return {
        "Pre-training": f"{config.masking.scheme} masking, {training.steps:,} steps of "
        f"{training.batch_size} rows of {info.sequence_length} positions",
        "Objectives": ", ".join(names),
        "Data": f"{info.num_records('train'):,} records, {info.num_tokens('train'):,} tokens",
        "Held-out losses in nats": ", ".join(losses),
    }


def print_summary(output: str, *, show_next_steps: bool = True) -> None:
    """Prints the last evaluation of a run, where everything is, and what can be done next."""
    last = _last_evaluation(output)
    measured = ", ".join(
        f"{name.removeprefix('validation_').replace('_', ' ')} {value:.4f}"
        for name, value in last.items()
        if name != "step"
    )
    print(f"\nHeld-out records after step {last['step']}: {measured}", flush=True)
    if not show_next_steps:
        return
    print(f"{output}: preset/, checkpoints/, metrics.jsonl, config.yaml")
    print(f"tensorboard --logdir {output}/logs")
    print(f"spanbert-tf export --preset {output}/{PRESET} --output served", flush=True)


def _last_evaluation(output: str) -> dict[str, float]:
    lines = read_metrics(os.path.join(output, METRICS_FILE))
    return [line for line in lines if "validation_loss" in line][-1]
