"""Continuing from an encoder: heads alone first, their first biases, the encoder's own rate."""

import contextlib
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from continued_runs import HEAD_STEPS, SETTINGS, configured, continue_run, save_encoder
from record_files import VOCABULARY
from signalled_runs import terminated_after

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.model import (
    begin_at_frequencies,
    build_pretrainer,
    compiled_pretrainer,
)
from spanbert_tf.studies.quickstart import unigram_cross_entropy
from spanbert_tf.training.configured_optimizer import encoder_variables, variables_beside_encoder
from spanbert_tf.training.metrics_log import CLOCKED, read_metrics


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("presets") / "encoder")


@pytest.fixture(scope="module")
def straight_run_and_output(preset, tiny_records, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "straight"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        continue_run(preset, tiny_records, run)
    return run, output.getvalue()


@pytest.fixture(scope="module")
def straight_run(straight_run_and_output):
    return straight_run_and_output[0]


def checkpoint(run, step):
    """Its digest: pytest would compare the bytes for an hour."""
    content = (run / "checkpoints" / f"step-{step:08d}" / "state.safetensors").read_bytes()
    return hashlib.sha256(content).hexdigest()


def encoder_of(preset):
    backbone = SpanBertBackbone.from_preset(str(preset))
    return {variable.path: variable.numpy() for variable in backbone.weights}


@pytest.mark.slow
def test_run_has_the_shape_of_the_preset(straight_run, preset):
    config = load_config(str(straight_run / "config.yaml"))
    expected = SpanBertBackbone.from_preset(preset)
    written = SpanBertBackbone.from_preset(str(straight_run / "preset"))
    for name, value in config.model.encoder_options().items():
        assert getattr(expected, name) == getattr(written, name) == value, name
    model = SpanBertPretrainer.from_preset(str(straight_run / "preset"))
    assert model.span_position_dim == config.objectives.span_position_dim
    assert model.is_head_trained


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_layers", 3, "is 2 in the preset and 3 in the configuration"),
        ("layer_norm_epsilon", 1e-5, "is 1e-12 in the preset and 1e-05 in the configuration"),
    ],
)
def test_key_that_contradicts_the_preset_is_refused(
    key, value, words, preset, tiny_records, tmp_path
):
    with pytest.raises(MismatchError, match=f"model.{key} {words}; set it to the preset's"):
        continue_run(preset, tiny_records, tmp_path / "run", **{f"model__{key}": value})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_heads_alone_leave_the_encoder_as_it_is(preset, tiny_records, tmp_path):
    run = tmp_path / "run"
    continue_run(preset, tiny_records, run, training__head_steps=100, training__steps=4)
    before, after = encoder_of(preset), encoder_of(run / "preset")
    for path, values in before.items():
        np.testing.assert_array_equal(after[path], values, path)
    model = SpanBertPretrainer.from_preset(str(run / "preset"))
    counts = np.array(PretrainingManifest.load(tiny_records).unigram_counts(tiny_records)) + 1
    moved = model.span_boundary_head.bias.numpy() - np.log(counts / counts.sum())
    assert np.abs(moved).max() > 0.01  # the rates of four steps add up to 0.03


def train(config, data, strategy, phases):
    """The weights after each phase of so many steps, with the encoder held or not."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = compiled_pretrainer(config, len(VOCABULARY))
    encoder = encoder_variables(model)
    first_step, weights = 0, []
    for num_steps, is_held in phases:
        model.freeze(encoder if is_held else ())
        batches = configured_dataset(config, data, split="train", seed=0, first_batch=first_step)
        model.fit(batches, steps_per_epoch=num_steps, shuffle=False, verbose=0)
        first_step += num_steps
        weights.append({v.path: np.array(v) for v in model.weights})
    return model, *weights


def plain(preset, tmp_path, **changed):
    """Nothing random, and no rounding errors that Adam would blow up."""
    return configured(
        preset,
        tmp_path,
        model__dropout=0.0,
        optimizer__epsilon=1e-4,
        training__batch_size=16,
        **changed,
    )


@pytest.mark.slow
def test_held_encoder_is_no_part_of_the_heads_training(preset, tiny_records, tmp_path):
    """The same heads as of a model whose encoder Keras itself does not train."""
    config, strategy = plain(preset, tmp_path), tf.distribute.get_strategy()
    model, weights = train(config, tiny_records, strategy, [(HEAD_STEPS, True)])
    keras.utils.set_random_seed(7)
    frozen = compiled_pretrainer(config, len(VOCABULARY))
    frozen.backbone.trainable = False
    optimizer = keras.optimizers.AdamW(
        frozen.optimizer.schedule, weight_decay=0.01, epsilon=1e-4, global_clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    heads = variables_beside_encoder(frozen)
    assert [v.path for v in heads] == [v.path for v in frozen.trainable_variables]
    optimizer.build(heads)
    for batch in configured_dataset(config, tiny_records, split="train", seed=0).take(HEAD_STEPS):
        with tf.GradientTape() as tape:
            sums = frozen.objective_sums(batch, frozen(batch, training=True))
            loss = sum(part.loss / part.num_targets for part in sums.values())
        gradients = tape.gradient(loss, heads)
        optimizer.apply(gradients, heads)
    for variable in heads:
        # Keras' epsilon stands after the correction of the second moment, ours before.
        np.testing.assert_allclose(weights[variable.path], variable.numpy(), atol=2e-3)
    assert int(model.optimizer.iterations.numpy()) == HEAD_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_first_step_of_the_encoder_by_hand(layer_decay, preset, tiny_records, tmp_path):
    """Adam's first step is as long as the rate, if it is counted from the encoder's own start."""
    config = configured(
        preset,
        tmp_path,
        model__dropout=0.0,
        optimizer__weight_decay=0.0,
        optimizer__epsilon=1e-12,
        optimizer__layer_decay=layer_decay,
    )
    strategy = tf.distribute.get_strategy()
    phases = [(HEAD_STEPS, True), (1, False)]
    model, before, after = train(config, tiny_records, strategy, phases)
    rate = 0.001 / 2  # of the first of two steps of warm-up
    factors = {"transformer_layer_1": layer_decay, "transformer_layer_0": layer_decay**2}
    for variable in encoder_variables(model):
        layer = variable.path.split("/")[0]
        expected = rate * factors.get(layer, layer_decay**3)
        longest = np.abs(after[variable.path] - before[variable.path]).max()
        if variable.path.endswith("key/bias"):  # no softmax depends on it: its gradient is rounding
            assert longest <= expected
            continue
        assert longest == pytest.approx(expected, rel=2e-3), variable.path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_devices", "overrides"),
    [
        (1, {"training__steps_per_execution": 1, "training__jit_compile": "true"}),
        (2, {"training__accumulation_steps": 4, "training__jit_compile": "true"}),
    ],
)
def test_both_phases_are_the_same_in_parts(
    num_devices, overrides, preset, two_devices, tiny_records, tmp_path
):
    phases = [(4, True), (6, False)]
    one = tf.distribute.get_strategy()
    *_, expected = train(plain(preset, tmp_path), tiny_records, one, phases)
    config = plain(preset, tmp_path, **overrides)
    strategy = two_devices if num_devices == 2 else one
    *_, found = train(config, tiny_records, strategy, phases)
    for (path, values), (_, other) in zip(expected.items(), found.items(), strict=True):
        np.testing.assert_allclose(other, values, atol=2e-5, err_msg=path)


def without_speed(run):
    lines = read_metrics(str(run / "metrics.jsonl"))
    return [{k: v for k, v in line.items() if k not in CLOCKED} for line in lines]


@pytest.mark.slow
def test_run_stopped_at_the_switch_goes_on_bit_for_bit(
    straight_run, preset, tiny_records, tmp_path
):
    """The preset is gone when the run goes on. Before and after the switch: runs killed there."""
    copied, run = str(shutil.copytree(preset, tmp_path / "preset")), tmp_path / "run"
    with terminated_after(HEAD_STEPS):
        assert continue_run(copied, tiny_records, run) is None
    assert max(os.listdir(run / "checkpoints")) == f"step-{HEAD_STEPS:08d}"
    shutil.rmtree(copied)
    assert continue_run(copied, tiny_records, run)
    assert checkpoint(run, 12) == checkpoint(straight_run, 12)
    assert without_speed(run) == without_speed(straight_run)


DOOMED_RUN = """
import os, signal, sys
from spanbert_tf.training import metrics_log
from spanbert_tf.cli import main

write, step = metrics_log.MetricsLog.on_step_end, int(sys.argv[1])

def die_at_step(self, done, model):
    if done == step:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, done, model)

metrics_log.MetricsLog.on_step_end = die_at_step
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_run_killed_on_both_sides_of_the_switch_ends_with_the_same_bits(
    straight_run, preset, tiny_records, tmp_path
):
    """SIGKILL in the step after the switch, which is repeated from before it, and once more."""
    run = tmp_path / "run"
    command = ["pretrain", "--config", "continue", "--initial-preset", preset]
    command += ["--data", tiny_records, "--output", str(run)]
    command += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    for step in (HEAD_STEPS + 1, 2 * HEAD_STEPS, 0):
        child = subprocess.run(
            [sys.executable, "-c", DOOMED_RUN, str(step), *command], capture_output=True
        )
        expected = -signal.SIGKILL if step else 0
        assert child.returncode == expected, child.stderr.decode()[-2000:]
    assert checkpoint(run, 12) == checkpoint(straight_run, 12)


@pytest.mark.slow
def test_a_loop_of_steps_ends_at_the_switch(straight_run, preset, tiny_records, tmp_path):
    names = ("log_every", "evaluate_every", "checkpoint_every_steps", "steps_per_execution")
    settings = {f"training__{name}": 4 for name in names}
    continue_run(preset, tiny_records, tmp_path / "run", **settings)
    assert checkpoint(tmp_path / "run", 12) == checkpoint(straight_run, 12)


@pytest.mark.slow
def test_run_says_how_long_the_heads_are_alone(straight_run_and_output, preset):
    lines = straight_run_and_output[1].splitlines()
    assert lines[:7] == [
        f"{preset}:",
        "  encoder: taken over",
        "  masked lm head: starts fresh: the preset has none",
        "  span boundary head: starts fresh: the preset has none",
        "  optimizer and schedule: starts fresh",
        "  output bias of the masked lm head: frequencies of the training text",
        "  output bias of the span boundary head: frequencies of the training text",
    ]
    assert lines[7].endswith("epochs of 40 records, the heads alone in the first 5")


# Output biases.


def test_biases_by_hand(preset, tmp_path):
    """Two of seven, none, and the rest once each: one is added to each count."""
    model = build_pretrainer(configured(preset, tmp_path), 4)
    before = {v.path: v.numpy() for v in model.weights}
    filled = begin_at_frequencies(model, [2, 0, 1, 0], ["masked_lm_head"])
    assert filled == ["span_boundary_head"]
    expected = np.log(np.array([3, 1, 2, 1]) / 7)
    np.testing.assert_allclose(model.span_boundary_head.bias.numpy(), expected, rtol=1e-6)
    for variable in model.weights:
        if variable.path != "span_boundary_head/bias":
            np.testing.assert_array_equal(variable.numpy(), before[variable.path], variable.path)


@pytest.mark.slow
def test_heads_that_know_nothing_else_reach_the_unigrams_cross_entropy(
    preset, tiny_records, tmp_path
):
    config = configured(preset, tmp_path)
    model = compiled_pretrainer(config, len(VOCABULARY))
    counts = PretrainingManifest.load(tiny_records).unigram_counts(tiny_records)
    begin_at_frequencies(model, counts, [])
    for variable in variables_beside_encoder(model):
        if variable.name in ("gamma", "beta"):
            variable.assign(np.zeros(variable.shape))  # nothing passes but the output bias
    held_out = configured_dataset(config, tiny_records, split="validation")
    measured = model.evaluate(held_out, return_dict=True, verbose=0)
    expected = unigram_cross_entropy(config, tiny_records)
    assert measured["masked_lm_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_finished_run_refuses_another_encoder(straight_run, tiny_records, tmp_path):
    """It would print the first encoder's losses as those of the other one."""
    other = save_encoder(tmp_path / "other", seed=8)
    with pytest.raises(MismatchError, match="was begun with another --initial-preset"):
        continue_run(other, tiny_records, straight_run)


@pytest.mark.slow
def test_head_of_the_preset_keeps_its_bias(straight_run, tiny_records, tmp_path):
    """A run goes on from another run's preset, which has both heads."""
    earlier = str(straight_run / "preset")
    run = tmp_path / "run"
    continue_run(earlier, tiny_records, run, training__steps=4, training__head_steps=4)
    before, after = map(SpanBertPretrainer.from_preset, (earlier, str(run / "preset")))
    moved = after.span_boundary_head.bias.numpy() - before.span_boundary_head.bias.numpy()
    assert 0 < np.abs(moved).max() < 0.05  # four steps, not a new beginning
