"""`spanbert-tf compare`: trains and compares pre-training systems or ways of further training."""

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
from spanbert_tf.files.figures import save_figure
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import whole_file
from spanbert_tf.files.paths import check_resumable, without_slash
from spanbert_tf.lazy import import_figure
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.pretraining.datasets import check_records, tokens_per_step
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.run_directory import RunDirectory

RESULTS_FILE = "results.csv"
PLOT_FILE = "results.png"
RUNS = "runs"
# Fields of `Result`, in this order.
_MEASURES = ("masked_lm_loss", "masked_lm_accuracy", "span_boundary_loss", "encoder_change")
_CONTINUING = "continue"  # the configuration whose batch size all ways of further training have
_OPTION = "--initial-preset"


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of a trained model on the held-out records.

    Attributes:
        config: name of the configuration.
        seed: seed of the run.
        masked_lm_loss: nats per masked token.
        masked_lm_accuracy: share of the masked tokens whose most probable filling is right.
        span_boundary_loss: nats per target; `None` without that objective.
        encoder_change: distance of the encoder's weights from those before the run, relative to
            their norm; `None` if the encoder began at random.
    """

    config: str
    seed: int
    masked_lm_loss: float
    masked_lm_accuracy: float
    span_boundary_loss: float | None
    encoder_change: float | None = None


class ContinuedEncoder:
    """The encoder of a preset as it was before the runs.

    Args:
        preset: name of the preset.

    Attributes:
        preset: the same.
    """

    def __init__(self, preset: Preset) -> None:
        self.preset = preset.name
        encoder = preset.encoder()
        self._weights = encoder.get_weights()
        self._digest = weights_digest(encoder)

    def note_in(self, directory: str) -> None:
        """Stores the encoder's digest in a comparison, and checks that an earlier one agrees."""
        inputs = {_OPTION: self._digest}
        RunDirectory(directory).check_inputs(inputs)
        RunDirectory(directory).write_inputs(inputs)

    def change(self, encoder: SpanBertBackbone) -> float:
        """Returns the norm of the change of all weights, relative to that of the weights before."""
        difference = 0.0
        norm = 0.0
        for weights, earlier in zip(encoder.get_weights(), self._weights, strict=True):
            now = weights.astype("float64")
            before = earlier[: len(weights)].astype("float64")
            difference += float(np.sum((now - before) ** 2))
            norm += float(np.sum(before**2))
        return math.sqrt(difference / norm)


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

    All models are evaluated on the held-out records with the same masks of geometric spans, however
    they were trained. Runs that an earlier call finished are not repeated.

    Args:
        configs: names of shipped configurations, or files. Each keeps its method and gets the size
            of `spanbert_tiny`, or of the encoder of `initial_preset`.
        data: directory of the records.
        output: directory for the runs, the table as CSV and the plot.
        steps: steps of each run and of its whole learning-rate schedule.
        seeds: seeds of weights, order and masks, one for each run of a system.
        overrides: texts `section.key=value` for every system.
        initial_preset: preset of an encoder that all runs train further. `None`: all runs begin
            with random weights.
        keep_checkpoints: whether finished runs keep their checkpoints beside their presets.
        console: console to print to; by default standard output.

    Returns:
        The results of the finished runs. SIGTERM may have ended the others.

    Raises:
        SpanBertError: a configuration cannot be used or does not fit the records, or the output
            has other contents.
    """
    console = console or DataConsole()
    output = without_slash(output)
    check_resumable(output, "a comparison", (RESULTS_FILE, PLOT_FILE, RUNS, INPUTS_FILE))
    manifest = PretrainingManifest.load(data)
    overrides = [f"training.keep_checkpoints={str(keep_checkpoints).lower()}", *overrides]
    preset = Preset(initial_preset) if initial_preset else None
    # All configurations are checked before the first run.
    runs = []
    for name, seed in itertools.product(configs, seeds):
        settings = [f"training.seed={seed}", *overrides]
        if preset:
            config = _continued_version(name, preset, manifest, steps, settings)
        else:
            config = small_version(name, manifest, steps, settings)
        try:
            check_records(config, manifest, data)
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
        check_tokenizer(preset.tokenizer, preset.name, data, manifest)
        encoder = ContinuedEncoder(preset)
        encoder.note_in(output)
    results: list[Result] = []
    for number, ((name, config), run_name) in enumerate(zip(runs, run_names, strict=True), start=1):
        title = f"{name}, seed {config.training.seed} (run {number} of {len(runs)})"
        console.print()
        console.print(title, style="bold", highlight=False)
        result = _train(name, config, data, os.path.join(output, RUNS, run_name), encoder)
        if result is None:  # SIGTERM stopped the run
            return results
        results.append(result)
    _write_csv(results, os.path.join(output, RESULTS_FILE))
    _plot(results, os.path.join(output, PLOT_FILE))
    tokens = steps * tokens_per_step(runs[0][1], manifest, data)
    console.print(_table(results, f"{steps:,} steps, {tokens:,.0f} tokens a run"))
    console.print(f"{output}: {RESULTS_FILE}, {PLOT_FILE}, runs/", highlight=False)
    return results


def _run_name(name: str, seed: int) -> str:
    stem, _ = os.path.splitext(os.path.basename(name))
    return f"{stem}-seed{seed}"


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
        # The head's position table has as many rows as in training.
        masking=MaskingOptions(max_span_targets=config.masking.max_span_targets),
        split="validation",
        segment_aware=config.model.segment_aware,
    )
    num_records = PretrainingManifest.load(data).num_records("validation")
    num_batches = -(-num_records // config.training.batch_size)
    # With `steps` of `evaluate`, `steps_per_execution` could read past this number of batches.
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
        row = []
        for measure in measures:
            values = [getattr(result, measure) for result in results if result.config == name]
            row.append(_mean_and_deviation(values))
        table.add_row(name, *row)
    return table


def _mean_and_deviation(values: Sequence[float | None]) -> str:
    """Returns `1.234 ± 0.056`: the mean and the sample standard deviation over seeds."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return "-"
    mean = f"{statistics.mean(numbers):.3f}"
    if len(numbers) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(numbers):.3f}"


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
        save_figure(figure, file)


def small_version(
    name: str, manifest: PretrainingManifest, steps: int, overrides: Sequence[str] = ()
) -> PretrainingConfig:
    """Loads a configuration with the size and the optimizer of `spanbert_tiny`, for some records.

    Args:
        name: name of a shipped configuration, or a file.
        manifest: manifest of the records.
        steps: steps of the run and of its learning-rate schedule.
        overrides: texts `section.key=value`.

    Raises:
        ConfigurationError: the configuration cannot be used.
    """
    tiny = load_config("spanbert_tiny")
    values = {
        "model.num_layers": tiny.model.num_layers,
        "model.num_heads": tiny.model.num_heads,
        "model.hidden_dim": tiny.model.hidden_dim,
        "model.intermediate_dim": tiny.model.intermediate_dim,
        "model.dropout": tiny.model.dropout,
        "model.attention_dropout": tiny.model.attention_dropout,
        "model.max_sequence_length": manifest.sequence_length,
        "objectives.span_position_dim": tiny.objectives.span_position_dim,
        "optimizer.learning_rate": tiny.optimizer.learning_rate,
        "training.batch_size": tiny.training.batch_size,
        # All weights begin at random, so none is kept, trained later or trained less than others.
        "training.initial_encoder_share": 0,
        "training.head_steps": 0,
        "optimizer.encoder_learning_rate": None,
        "optimizer.layer_decay": 1,
    }
    return _sized(name, values, manifest, steps, overrides)


def _continued_version(
    name: str, preset: Preset, manifest: PretrainingManifest, steps: int, overrides: Sequence[str]
) -> PretrainingConfig:
    """Loads a configuration with the shape of a preset's encoder.

    The heads are trained alone for the same share of the steps as in the configuration.
    """
    training = load_config(name).training
    head_share = training.head_steps / training.schedule_steps
    values = {
        **shape_values(preset),
        "model.from_preset": True,
        "training.head_steps": round(head_share * steps),
        "training.batch_size": load_config(_CONTINUING).training.batch_size,
    }
    return _sized(name, values, manifest, steps, overrides)


def _sized(
    name: str,
    size: Mapping[str, Any],
    manifest: PretrainingManifest,
    steps: int,
    overrides: Sequence[str],
) -> PretrainingConfig:
    values = {
        **size,
        "data.sequence_length": manifest.sequence_length,
        "optimizer.warmup_steps": steps // 10,
        "training.strategy": "one_device",
        "training.steps": steps,
        "training.schedule_steps": steps,
        "training.evaluate_every": steps,
        "training.checkpoint_every_steps": steps,
    }
    # Overrides are YAML, which includes JSON. `str` would write "None" for null.
    settings = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return load_config(name, [*settings, *overrides])
