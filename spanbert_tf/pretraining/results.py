"""What a finished run writes and prints: its preset and a summary."""

import os
import shlex
from collections.abc import Mapping

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.schema import VOCABULARY_FILE, DatasetInfo
from spanbert_tf.models import SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.process.lines import print_line
from spanbert_tf.text.vocabulary import load_vocabulary
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics
from spanbert_tf.training.run_directory import PRESET


def save_run_preset(
    model: SpanBertPretrainer,
    config: PretrainingConfig,
    data: str,
    output: str,
    info: DatasetInfo,
    measured: Mapping[str, float],
) -> None:
    """Writes the preset of a finished run into its directory.

    Args:
        model: as trained.
        config: configuration of the run.
        data: directory of the records.
        output: directory of the run.
        info: description of the records.
        measured: metrics of the model on the held-out records.

    Raises:
        BadInputError: it cannot be written.
    """
    vocabulary = load_vocabulary(os.path.join(data, VOCABULARY_FILE))
    save_pretraining_preset(
        model,
        SpanBertTokenizer(vocabulary, **info.casing._asdict()),
        os.path.join(output, PRESET),
        sequence_length=info.sequence_length,
        facts=_card_facts(config, info, measured),
        of_run=True,
    )


def _card_facts(
    config: PretrainingConfig, info: DatasetInfo, measured: Mapping[str, float]
) -> dict[str, str]:
    """What the model card says of the run."""
    training, objectives = config.training, config.objectives
    names = ["masked LM"]
    names += ["span boundary"] * objectives.span_boundary
    names += ["next sentence"] * objectives.next_sentence
    losses = (
        f"{name.removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in measured.items()
        if name.endswith("_loss")
    )
    facts = {
        "Pre-training": f"{config.masking.scheme} masking, {training.steps:,} steps of "
        f"{training.batch_size} rows of {info.sequence_length} positions",
        "Objectives": ", ".join(names),
        "Data": f"{info.num_records('train'):,} records, {info.num_tokens('train'):,} tokens",
        "Held-out losses in nats": ", ".join(losses),
    }
    share = training.initial_encoder_share
    if share:
        facts["Weights of the encoder"] = f"{share:g} x before + {1 - share:g} x trained"
    return facts


def print_summary(
    output: str, step: int, measured: Mapping[str, float], *, show_next_steps: bool = True
) -> None:
    """Prints what a run reached, where everything is, and what can be done next.

    Args:
        output: directory of the run.
        step: steps of the run.
        measured: as for `save_run_preset`.
        show_next_steps: whether to print more than the metrics.
    """
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measured.items())
    print_line()
    print_line(f"Held-out records after step {step}: {shown}")
    if not show_next_steps:
        return
    print_line(f"{output}: preset/, checkpoints/, metrics.jsonl, config.yaml")
    print_line(shlex.join(["tensorboard", "--logdir", os.path.join(output, "logs")]))
    preset = os.path.join(output, PRESET)
    print_line(shlex.join(["spanbert-tf", "export", "--preset", preset, "--output", "served"]))


def last_evaluation(output: str) -> dict[str, float]:
    """The metrics of a run's last evaluation, by their names in the model."""
    lines = read_metrics(os.path.join(output, METRICS_FILE))
    last = [line for line in lines if "validation_loss" in line][-1]
    return {name.removeprefix("validation_"): v for name, v in last.items() if name != "step"}
