"""`spanbert-tf compare`: pre-training systems or ways of continuing, side by side."""

import collections
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from rich.table import Table

from spanbert_tf.config import PretrainingConfig, load_config, shape_values
from spanbert_tf.config.run import INPUTS_FILE
from spanbert_tf.console import DataConsole
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import ConfigurationError, SpanBertError
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import whole_file
from spanbert_tf.files.paths import check_resumable, without_slash
from spanbert_tf.lazy import import_figure
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.pretraining.datasets import check_records, tokens_per_row
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.run_directory import RunDirectory

RESULTS_FILE, PLOT_FILE, RUNS = "results.csv", "results.png", "runs"
_MEASURES = ("masked_lm_loss", "masked_lm_accuracy", "span_boundary_loss", "encoder_change")
_CONTINUING = "continue"  # the configuration whose batches all ways of continuing have
_OPTION = "--initial-preset"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one trained model reaches on the held-out records."""

    config: str  # its name
    seed: int
    masked_lm_loss: float  # nats a masked token
    masked_lm_accuracy: float  # share of the masked tokens whose likeliest filling is right
    span_boundary_loss: float | None  # nats a target; `None` without that objective
    # How far the weights of the encoder are from those that it began with, as a share of their
    # norm; `None` where it began at random.
    encoder_change: float | None = None


class ContinuedEncoder:
    """What the encoder of a preset was before the runs."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset.name
        encoder = preset.encoder()
        self._weights = encoder.get_weights()
        self._digest = weights_digest(encoder)

    def note_in(self, directory: str) -> None:
        """Writes down what a comparison began with: its runs do not read the preset again."""
        inputs = {_OPTION: self._digest}
        RunDirectory(directory).check_inputs(inputs)
        RunDirectory(directory).write_inputs(inputs)

    def change(self, encoder: SpanBertBackbone) -> float:
        """The norm of the difference of all weights, as a share of the norm of those before."""
        pairs = [
            (now.astype("float64"), before[: len(now)].astype("float64"))
            for now, before in zip(encoder.get_weights(), self._weights, strict=True)
        ]
        difference = sum(float(np.sum((now - before) ** 2)) for now, before in pairs)
        return math.sqrt(difference / sum(float(np.sum(before**2)) for _, before in pairs))


@locks_output(inside=True)
def compare_systems(
    configs: Sequence[str],
    data: str,
    output: str,
    *,
    steps: int,
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    initial_preset: str | None = None,
    keep_checkpoints: bool = False,
    console: DataConsole | None = None,
) -> list[Result]:
    """Trains each system with each seed on the same records for the same number of tokens.

    All are evaluated on the held-out records under the same masks, those of geometric spans,
    whatever masks they were trained with. Runs that an earlier call finished are not repeated.

    Args:
        configs: shipped names or files; each keeps its method and gets the size of
            `spanbert_tiny`, or of the encoder that all continue from.
        data: directory of the records.
        output: directory for the runs, the table as CSV and the plot.
        steps: steps of each run and of its whole learning-rate schedule.
        seeds: seeds of weights, order and masks; a run for each.
        overrides: texts `section.key=value` for every system.
        initial_preset: preset of the encoder that all continue from; `None`: all begin at random.
        keep_checkpoints: whether finished runs keep their checkpoints beside their presets.
        console: where to print; standard output by default.

    Returns:
        The result of each run that ended, which SIGTERM may have prevented.

    Raises:
        SpanBertError: a configuration cannot be used, or does not fit the records, or the output
            holds something else.
    """
    console = console or DataConsole()
    output = without_slash(output)
    check_resumable(output, "a comparison", (RESULTS_FILE, PLOT_FILE, RUNS, INPUTS_FILE))
    info = PretrainingManifest.load(data)
    overrides = [f"training.keep_checkpoints={str(keep_checkpoints).lower()}", *overrides]
    preset = Preset(initial_preset) if initial_preset else None
    # All are checked before the first is trained.
    runs = []
    for name, seed in itertools.product(configs, seeds):
        settings = [f"training.seed={seed}", *overrides]
        if preset:
            config = _continued_version(name, preset, info, steps, settings)
        else:
            config = small_version(name, info, steps, settings)
        try:
            check_records(config, info, data)
        except SpanBertError as error:
            raise type(error)(f"{name}: {error}") from error
        runs.append((name, config))
    run_names = [_run_name(name, config.training.seed) for name, config in runs]
    if twice := [name for name, count in collections.Counter(run_names).items() if count > 1]:
        raise ConfigurationError(
            f"two runs would be {twice[0]}; give each configuration file a name of its own, and "
            "each seed once, by --seeds alone"
        )
    encoder = None
    if preset:
        check_tokenizer(preset.tokenizer, preset.name, data, info)
        encoder = ContinuedEncoder(preset)
        encoder.note_in(output)
    results = []
    for number, ((name, config), run_name) in enumerate(zip(runs, run_names, strict=True), start=1):
        title = f"{name}, seed {config.training.seed} (run {number} of {len(runs)})"
        console.print()
        console.print(title, style="bold", highlight=False)
        result = _train(name, config, data, os.path.join(output, RUNS, run_name), encoder)
        if result is None:  # stopped by SIGTERM
            return results
        results.append(result)
    _write_csv(results, os.path.join(output, RESULTS_FILE))
    _plot(results, os.path.join(output, PLOT_FILE))
    tokens = steps * runs[0][1].training.batch_size * tokens_per_row(info)
    console.print(_table(results, f"{steps:,} steps, {tokens:,.0f} tokens a run"))
    console.print(f"{output}: {RESULTS_FILE}, {PLOT_FILE}, runs/", highlight=False)
    return results


def _run_name(name: str, seed: int) -> str:
    return f"{os.path.splitext(os.path.basename(name))[0]}-seed{seed}"


def _train(
    name: str, config: PretrainingConfig, data: str, run: str, encoder: ContinuedEncoder | None
) -> Result | None:
    initial_preset = encoder.preset if encoder else None
    model = run_pretraining(config, data, run, initial_preset, show_next_steps=False)
    if model is None:
        return None
    held_out = pretraining_dataset(
        data,
        batch_size=config.training.batch_size,
        # The rows of the head's position table are as many as were trained.
        masking=MaskingOptions(max_span_targets=config.masking.max_span_targets),
        split="validation",
        segment_aware=config.model.position_embeddings != "absolute",
    )
    num_records = PretrainingManifest.load(data).num_records("validation")
    num_batches = -(-num_records // config.training.batch_size)
    # The number is stated: given as `steps`, `steps_per_execution` would run past it.
    held_out = held_out.apply(tf.data.experimental.assert_cardinality(num_batches))
    measured = model.evaluate(held_out, return_dict=True, verbose=0)
    if encoder:
        measured["encoder_change"] = encoder.change(model.backbone)
    return Result(name, config.training.seed, *(measured.get(key) for key in _MEASURES))


def _write_csv(results: Sequence[Result], path: str) -> None:
    with (
        whole_file(path) as unfinished,
        io.TextIOWrapper(unfinished, encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Result))
        writer.writerows(dataclasses.astuple(result) for result in results)


def _table(results: Sequence[Result], title: str) -> Table:
    table = Table("system", title=f"Held-out records, masks of geometric spans; {title}")
    is_continued = any(result.encoder_change is not None for result in results)
    measures = _MEASURES if is_continued else _MEASURES[:-1]
    for measure in measures:
        table.add_column(measure.replace("_", " "), justify="right")
    for name in dict.fromkeys(result.config for result in results):
        row = [
            [getattr(result, measure) for result in results if result.config == name]
            for measure in measures
        ]
        table.add_row(name, *map(_mean_and_deviation, row))
    return table


def _mean_and_deviation(values: Sequence[float | None]) -> str:
    """`1.234 ± 0.056`: the mean and the sample standard deviation over seeds."""
    if None in values:
        return "-"
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def _plot(results: Sequence[Result], path: str) -> None:
    """Draws the MLM loss of each run as a point and each system's mean as a line."""
    names = list(dict.fromkeys(result.config for result in results))
    figure = import_figure()(figsize=(7, 1.2 + 0.5 * len(names)), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(names):
        losses = [result.masked_lm_loss for result in results if result.config == name]
        axes.plot(losses, [row] * len(losses), "o", color="tab:blue", alpha=0.6)
        axes.plot([statistics.mean(losses)] * 2, [row - 0.25, row + 0.25], "k-")
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="held-out MLM loss (nats a token)")
    axes.invert_yaxis()
    with whole_file(path) as file:
        figure.savefig(file, dpi=120, format="png")


def small_version(
    name: str, info: PretrainingManifest, steps: int, overrides: Sequence[str] = ()
) -> PretrainingConfig:
    """A configuration with the size and the optimizer of `spanbert_tiny`, which fits records."""
    tiny = load_config("spanbert_tiny")
    sizes = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    rates = ("dropout", "attention_dropout")  # the second may be a user's own
    values = {
        **{f"model.{name}": getattr(tiny.model, name) for name in (*sizes, *rates)},
        "model.max_sequence_length": info.sequence_length,
        "objectives.span_position_dim": tiny.objectives.span_position_dim,
        "optimizer.learning_rate": tiny.optimizer.learning_rate,
        "training.batch_size": tiny.training.batch_size,
        # All begin at random: nothing is to be kept, or trained later or less than the rest.
        "training.initial_encoder_share": 0,
        "training.head_steps": 0,
        "optimizer.encoder_learning_rate": None,
        "optimizer.layer_decay": 1,
    }
    return _sized(name, values, info, steps, overrides)


def _continued_version(
    name: str, preset: Preset, info: PretrainingManifest, steps: int, overrides: Sequence[str]
) -> PretrainingConfig:
    """A configuration in a preset's shape, whose heads train alone for their share of steps."""
    training = load_config(name).training
    head_share = training.head_steps / training.schedule_steps
    values = {
        **shape_values(preset),
        "model.from_preset": True,
        "training.head_steps": round(head_share * steps),
        "training.batch_size": load_config(_CONTINUING).training.batch_size,
    }
    return _sized(name, values, info, steps, overrides)


def _sized(
    name: str,
    size: Mapping[str, Any],
    info: PretrainingManifest,
    steps: int,
    overrides: Sequence[str],
) -> PretrainingConfig:
    values = {
        **size,
        "data.sequence_length": info.sequence_length,
        "optimizer.warmup_steps": steps // 10,
        "training.strategy": "one_device",
        "training.steps": steps,
        "training.schedule_steps": steps,
        "training.evaluate_every": steps,
        "training.checkpoint_every_steps": steps,
    }
    # As JSON, which YAML reads: nothing is null there, not "None".
    settings = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return load_config(name, [*settings, *overrides])
