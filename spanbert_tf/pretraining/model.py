"""Builds the model of a pre-training run with its optimizer and its initial weights.

The weights come from `--initial-preset` if there is one; missing heads are new. At the end of the
run, `training.initial_encoder_share` mixes the trained encoder with the initial one.

The size of the vocabulary is written V.
"""

import os
from collections.abc import Collection, Sequence

import keras
import numpy as np

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.arrays import ARRAYS_DAMAGE, read_arrays
from spanbert_tf.files.output import whole_file
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.presets.pretraining import load_preset_into
from spanbert_tf.terminal import print_line
from spanbert_tf.training.configured_optimizer import (
    configured_adamw,
    encoder_variables,
    set_gradient_checkpointing,
)
from spanbert_tf.training.optimizer import AdamW, VariableGroup, WarmupLinearDecay
from spanbert_tf.training.precision import choose_precision

INITIAL_ENCODER = "initial_encoder.npz"  # in the directory of a run
_SHARE_SETTING = "training.initial_encoder_share"
_VOCABULARY_HEADS = ("masked_lm_head", "span_boundary_head")  # heads that predict word pieces
_BIAS_NAMES = ("output_bias", "bias")  # of KerasHub's head and of this project's


def build_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> SpanBertPretrainer:
    """Builds a model with random weights; call it inside the scope of the run's strategy."""
    dtype = choose_precision(config.training.precision, config.model.hidden_dim)
    backbone = SpanBertBackbone(
        vocabulary_size=vocabulary_size, **config.model.encoder_options(), dtype=dtype
    )
    objectives = config.objectives
    return SpanBertPretrainer(
        backbone,
        span_boundary=objectives.span_boundary,
        next_sentence=objectives.next_sentence,
        max_span_targets=config.masking.max_span_targets,
        span_position_dim=objectives.span_position_dim,
    )


def compiled_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> SpanBertPretrainer:
    """Builds a model with random weights and its optimizer, so that a checkpoint fits them."""
    model = build_pretrainer(config, vocabulary_size)
    set_gradient_checkpointing(model, config.training.gradient_checkpointing)
    model.compile(
        optimizer=pretraining_optimizer(model, config),
        accumulation_steps=config.training.accumulation_steps,
        jit_compile=config.training.jit_compile,
        steps_per_execution=config.training.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def pretraining_optimizer(model: SpanBertPretrainer, config: PretrainingConfig) -> AdamW:
    """Makes the AdamW of a run. The encoder may have another learning rate than the heads."""
    optimizer = config.optimizer
    num_head_steps = config.training.head_steps

    def schedule(learning_rate: float, first_step: int = 0) -> WarmupLinearDecay:
        return WarmupLinearDecay(
            learning_rate, optimizer.warmup_steps, config.training.schedule_steps, first_step
        )

    groups = []
    if num_head_steps or optimizer.encoder_learning_rate is not None:
        encoder = VariableGroup(
            tuple(variable.path for variable in encoder_variables(model)),
            schedule(optimizer.encoder_learning_rate or optimizer.learning_rate, num_head_steps),
            optimizer.weight_decay,
            optimizer.epsilon,
        )
        groups.append(encoder)
    learning_rate = schedule(optimizer.learning_rate)
    return configured_adamw(optimizer, model.backbone, learning_rate, groups)


def begin_with_preset(
    model: SpanBertPretrainer,
    preset: str | os.PathLike | Preset,
    data: str,
    manifest: PretrainingManifest,
) -> dict[str, str]:
    """Copies the weights of a preset to a model, and prints for each part whether it was copied."""
    preset = Preset.of(preset)
    check_tokenizer(preset.tokenizer, preset.name, data, manifest)
    report = load_preset_into(model, preset)
    print_line(f"{preset}:")
    for part, outcome in report.items():
        print_line(f"  {part.replace('_', ' ')}: {outcome}")
    print_line("  optimizer and schedule: starts fresh")
    return report


def begin_at_frequencies(
    model: SpanBertPretrainer, unigram_counts: Sequence[int], trained: Collection[str]
) -> list[str]:
    """Sets the output biases of untrained heads to the logarithms of the tokens' frequencies.

    Args:
        model: the model.
        unigram_counts: counts of the vocabulary's entries in the training text, [V]. One is added
            to each count, so no entry is impossible.
        trained: names of the heads that were copied from a preset.

    Returns:
        The names of the heads whose biases were set.
    """
    counts = np.asarray(unigram_counts, "float64") + 1.0  # [V]
    filled = [
        name
        for name in _VOCABULARY_HEADS
        if name not in trained and getattr(model, name) is not None
    ]
    for name in filled:
        _output_bias(getattr(model, name)).assign(np.log(counts / counts.sum()))
    return filled


def _output_bias(head: keras.layers.Layer) -> keras.Variable:
    """Returns the bias of a head that has a value for each entry of the vocabulary."""
    paths = [f"{head.name}/{name}" for name in _BIAS_NAMES]
    (bias,) = [weight for weight in head.weights if weight.path in paths]
    return bias


def keep_initial_encoder(encoder: SpanBertBackbone, run: str) -> None:
    """Writes the initial weights of the encoder into the directory of a run."""
    arrays = [np.asarray(value) for value in encoder.get_weights()]
    path = os.path.join(run, INITIAL_ENCODER)
    with whole_file(path) as file:
        np.savez(file, *arrays)
        file.flush()
        os.fsync(file.fileno())


def check_initial_encoder(share: float, run: str, preset: str | None, *, is_new: bool) -> None:
    """Checks before the first step that there are initial weights to mix with at the end."""
    if not share:
        return
    if not is_new:
        _read(os.path.join(run, INITIAL_ENCODER))
    elif preset is None:
        raise ConfigurationError(
            f"{_SHARE_SETTING} is {share} and the encoder begins at random; give --initial-preset, "
            f"or set {_SHARE_SETTING}=0"
        )


def _read(path: str) -> dict[str, np.ndarray]:
    """Reads all arrays of a file. The file has checksums, by which damage is noticed."""
    if not os.path.exists(path):
        raise BadInputError(f"{path}: is missing; set {_SHARE_SETTING}=0 to go on without it")
    try:
        return read_arrays(path)
    except ARRAYS_DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(path: str, reason: object) -> BadInputError:
    reason = (str(reason).splitlines() or [""])[0]
    return BadInputError(
        f"{path}: is damaged ({reason}); set {_SHARE_SETTING}=0 to go on without it"
    )


def mix_with_initial(encoder: SpanBertBackbone, run: str, share: float) -> None:
    """Mixes the weights of an encoder with its initial weights.

    Each weight becomes `share · initial + (1 - share) · trained`: the weight-space ensemble of
    WiSE-FT (Wortsman et al. 2022, section 3) with the mixing coefficient `1 - share`.
    """
    path = os.path.join(run, INITIAL_ENCODER)
    initial = _read(path)
    mixed = []
    for index, trained in enumerate(encoder.get_weights()):
        before = initial.get(f"arr_{index}")
        if before is None or before.shape != trained.shape:
            raise _damaged(path, "its arrays are not those of the encoder")
        mixed.append(share * before + (1 - share) * trained)
    encoder.set_weights(mixed)
