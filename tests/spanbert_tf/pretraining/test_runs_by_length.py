"""Runs with batches of records of similar length: what they compute, and what they count."""

import contextlib
import dataclasses
import importlib.util
import itertools
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from commands_on_jax import run_on_jax

from spanbert_tf.config import load_config
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models.objective import loss_of
from spanbert_tf.pretraining.datasets import RunDatasets, steps_per_epoch, tokens_per_step
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.pretraining.model import build_pretrainer
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.metrics_log import read_metrics

BY_LENGTH = "training.batch_by_length=true"
# As in `test_pretraining_on_jax`.
COMPARABLE = [BY_LENGTH, "model.dropout=0", "optimizer.epsilon=1e-3", "training.log_every=1"]
COMPARABLE += ["training.evaluate_every=12"]


def test_a_batch_by_length_has_the_loss_and_the_gradients_of_padded_rows(
    tiny_overrides, tiny_records
):
    config = load_config("spanbert_base", [*tiny_overrides, "model.dropout=0"])
    manifest = PretrainingManifest.load(tiny_records)
    keras.utils.set_random_seed(3)
    model = build_pretrainer(config, manifest.vocabulary_size)
    dataset = pretraining_dataset(tiny_records, batch_size=4, batch_by_length=True)
    width, num_slots = 24, config.masking.num_slots(24)

    def computed(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(model, (batch, None, None)).loss
        return loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))

    def padded(values):
        most = width if values.shape[1] == batch["token_ids"].shape[1] else num_slots
        return np.pad(values, [(0, 0), (0, most - values.shape[1])])

    batches = {batch["token_ids"].shape[1]: batch for batch in dataset.take(9).as_numpy_iterator()}
    assert len(batches) > 1
    for batch in batches.values():
        found = computed(batch)
        expected = computed({name: padded(values) for name, values in batch.items()})
        for value, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, other, atol=1e-6, rtol=1e-4)


def test_an_epoch_is_counted_by_its_batches(tiny_overrides, tiny_records):
    config = load_config("spanbert_base", [*tiny_overrides, BY_LENGTH])
    manifest = PretrainingManifest.load(tiny_records)
    dataset = pretraining_dataset(tiny_records, batch_size=4, batch_by_length=True)
    num_steps = steps_per_epoch(config, manifest, tiny_records)
    batches = list(dataset.take(num_steps).as_numpy_iterator())
    masks = [batch["padding_mask"] for batch in batches]
    num_tokens = sum(int(mask.sum()) for mask in masks)
    num_tokens -= 2 * sum(int(np.sum(mask.sum(axis=1) == 2)) for mask in masks)  # empty rows
    assert tokens_per_step(config, manifest, tiny_records) == num_tokens / num_steps


def _refused_or_fitting(datasets, batch_size):
    """The refusal of a batch size names one that is not refused."""

    def check(size):
        training = datasets.config.training.model_copy(update={"batch_size": size})
        config = datasets.config.model_copy(update={"training": training})
        dataclasses.replace(datasets, config=config).check_batches()

    with contextlib.suppress(ConfigurationError):
        check(batch_size)
        return
    with pytest.raises(ConfigurationError) as raised:
        check(batch_size)
    (advised,) = re.findall(r"set training\.batch_size=(\d+), or", str(raised.value))
    assert int(advised) > batch_size
    check(int(advised))


def test_what_devices_cannot_share_is_refused(tiny_overrides, tiny_records):
    config = load_config("spanbert_base", [*tiny_overrides, BY_LENGTH])
    manifest = PretrainingManifest.load(tiny_records)
    devices = Devices(config.training)
    datasets = RunDatasets(config, tiny_records, manifest, devices)
    datasets.check_batches()
    devices.num_replicas = 4  # batches have 4, 6 and 12 rows
    with pytest.raises(ConfigurationError, match=r"12, 6, 4 rows cannot be shared .* by 4 devices"):
        datasets.check_batches()
    for num_replicas, batch_size in itertools.product((2, 4, 8, 16), (5, 6, 16, 24, 48)):
        devices.num_replicas = num_replicas
        _refused_or_fitting(datasets, batch_size)
    devices.num_replicas = 6
    with pytest.raises(ConfigurationError, match="by 6 devices; train on a power of two of them"):
        datasets.check_batches()
    devices.are_tpu = True
    with pytest.raises(ConfigurationError, match="needs batches of one shape"):
        datasets.check_batches()


def trained(run):
    return [line for line in read_metrics(str(run / "metrics.jsonl")) if "loss" in line]


@pytest.mark.slow
def test_replicas_and_micro_batches_train_what_one_device_does(
    tiny_overrides, tiny_records, tmp_path
):
    """A replica has 6, 3 or 2 rows of a batch, which 2 micro-batches cut into 2, 3 and 2."""

    def losses_and_weights(run, *settings, num_devices=None):
        run = tmp_path / run
        config = load_config("spanbert_base", [*tiny_overrides, *COMPARABLE, *settings])
        model = run_pretraining(config, tiny_records, str(run), num_devices=num_devices)
        return [line["loss"] for line in trained(run)], model.get_weights()

    expected_losses, expected = losses_and_weights("one")
    assert len(expected_losses) == 12
    for num_parts in (1, 2):
        settings = ("training.strategy=mirrored", f"training.accumulation_steps={num_parts}")
        losses, found = losses_and_weights(f"parts{num_parts}", *settings, num_devices=2)
        assert losses == pytest.approx(expected_losses, abs=1e-4)
        for values, others in zip(found, expected, strict=True):
            np.testing.assert_allclose(values, others, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="the extra `jax` is missing")
def test_jax_its_devices_and_micro_batches_go_on_as_tensorflow_does(
    tiny_overrides, tiny_records, tmp_path
):
    """From one checkpoint, since new weights are other ones on each backend."""

    def configured(*settings):
        return load_config("spanbert_base", [*tiny_overrides, *COMPARABLE, *settings])

    def command(run, *settings):
        (tmp_path / f"{run}.yaml").write_text(configured(*settings).to_yaml())
        words = ["--config", str(tmp_path / f"{run}.yaml"), "--data", tiny_records]
        return ["pretrain", *words, "--output", str(tmp_path / run), "--backend-changed"]

    whole = tmp_path / "tensorflow"
    run_pretraining(configured("training.steps=4"), tiny_records, str(whole))
    for run in ("one", "parts", "two"):
        shutil.copytree(whole, tmp_path / run)
    run_pretraining(configured(), tiny_records, str(whole))
    one_device = (command("one"), command("parts", "training.accumulation_steps=2"))
    two_devices = [*command("two", "training.strategy=mirrored"), "--devices", "2"]
    for commands in (one_device, (two_devices,)):
        child, statuses = run_on_jax(*commands)
        assert not any(statuses), child.stderr
    expected = trained(whole)
    assert len(expected) == 12
    for run in ("one", "parts", "two"):
        for line, other in zip(trained(tmp_path / run), expected, strict=True):
            assert line["loss"] == pytest.approx(other["loss"], abs=1e-4)
            assert line["padding_share"] == other["padding_share"]
