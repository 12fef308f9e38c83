"""`training.initial_encoder_share`: what the encoder began with, in what it ends with."""

import os
import re
import shutil

import numpy as np
import pytest
from continued_runs import configured, continue_run, save_encoder
from signalled_runs import terminated_after

from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.job import PretrainingJob, run_pretraining
from spanbert_tf.training.devices import Devices

SHARE, FILE = 0.25, "initial_encoder.npz"


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("presets") / "encoder")


def mixed_run(preset, data, run, share=SHARE, **changed):
    return continue_run(preset, data, run, training__initial_encoder_share=share, **changed)


@pytest.fixture(scope="module")
def straight_run(preset, tiny_records, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "straight"
    mixed_run(preset, tiny_records, run)
    return run


def encoder_of(preset):
    return SpanBertBackbone.from_preset(str(preset)).get_weights()


@pytest.mark.slow
def test_encoder_is_the_mean_and_heads_are_the_trained_ones(
    straight_run, preset, tiny_records, tmp_path
):
    """The finished run, told that no share is wanted, writes what its checkpoint holds."""
    run = tmp_path / "run"
    shutil.copytree(straight_run, run)
    trained = mixed_run(preset, tiny_records, run, share=0.0)
    moved = 0.0
    for before, after, mixed in zip(
        encoder_of(preset),
        encoder_of(run / "preset"),
        encoder_of(straight_run / "preset"),
        strict=True,
    ):
        np.testing.assert_allclose(mixed, before / 4 + after * 3 / 4, rtol=1e-6, atol=1e-7)
        moved = max(moved, np.abs(after - before).max())
    assert moved > 1e-3
    model = SpanBertPretrainer.from_preset(str(straight_run / "preset"))
    for head in ("masked_lm_head", "span_boundary_head"):
        own = {w.path: w.numpy() for w in getattr(trained, head).weights}
        for weight in getattr(model, head).weights:
            if "token_embedding" not in weight.path:  # the encoder's
                np.testing.assert_array_equal(weight.numpy(), own[weight.path], weight.path)


@pytest.mark.slow
def test_a_finished_run_without_checkpoints_says_the_losses_of_its_preset(
    preset, tiny_records, tmp_path, capfd
):
    lines = []
    for _ in range(2):
        changed = {"training__steps": 8, "training__keep_checkpoints": False}
        mixed_run(preset, tiny_records, tmp_path / "run", **changed)
        printed = capfd.readouterr().out.splitlines()
        lines.append([line for line in printed if line.startswith("Held-out records")])
    assert lines[0] == lines[1] and len(lines[0]) == 1
    # A worker that is not the chief reads the same result, and prints nothing.
    config = configured(preset, tmp_path / "run", training__initial_encoder_share=SHARE, **changed)
    job = PretrainingJob(config, tiny_records, None, show_next_steps=False)
    devices = Devices(config.training)
    devices.is_chief = False
    model = job.build(devices)
    capfd.readouterr()
    assert job.read_result(model, str(tmp_path / "run")) is model
    assert "Held-out" not in capfd.readouterr().out
    # A damaged held-out record is named.
    records = shutil.copytree(tiny_records, tmp_path / "records")
    (shard,) = records.glob("validation*.tfrecord")
    content = bytearray(shard.read_bytes())
    content[20] ^= 1  # inside of the first record, after its length and the checksum of that
    shard.write_bytes(content)
    with pytest.raises(BadInputError, match=f"{shard}: ") as error:
        mixed_run(preset, str(records), tmp_path / "run", **changed)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_held_out_losses_are_those_of_the_preset(preset, tiny_records, tmp_path, capfd):
    run = tmp_path / "run"
    returned = mixed_run(preset, tiny_records, run, training__steps=8)
    output = capfd.readouterr().out
    assert "encoder: 0.25 x first weights + 0.75 x trained weights" in output
    line = output[output.index("Held-out records after step 8") :].splitlines()[0]
    (shown,) = re.findall(r"masked lm loss ([\d.]+)", line)
    config = configured(preset, run, training__initial_encoder_share=SHARE)
    held_out = configured_dataset(config, tiny_records, split="validation")
    saved = SpanBertPretrainer.from_preset(str(run / "preset"))
    saved.compile()
    for model in (saved, returned):
        measured = model.evaluate(held_out, return_dict=True, verbose=0)
        assert measured["masked_lm_loss"] == pytest.approx(float(shown), abs=1e-4)
    card = (run / "preset" / "README.md").read_text()
    assert f"masked lm {shown}" in card
    assert "0.25 x before + 0.75 x trained" in card
    # While it was trained, the encoder was the trained one.
    (trained,) = re.findall(r"evaluated after step 8: .*masked lm loss ([\d.]+)", output)
    assert trained != shown


@pytest.mark.slow
def test_stopped_run_ends_with_the_same_preset_without_the_first_one(
    straight_run, preset, tiny_records, tmp_path
):
    copied, run = str(shutil.copytree(preset, tmp_path / "preset")), tmp_path / "run"
    with terminated_after(7):
        assert mixed_run(copied, tiny_records, run) is None
    shutil.rmtree(copied)
    assert mixed_run(copied, tiny_records, run)
    for found, expected in zip(
        encoder_of(run / "preset"), encoder_of(straight_run / "preset"), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_finished_run_takes_another_share(straight_run, preset, tiny_records, tmp_path):
    """The checkpoints hold what was trained; 0 is a way out where the file is lost."""
    run = tmp_path / "run"
    shutil.copytree(straight_run, run)
    mixed_run(preset, tiny_records, run, share=0.75)
    quarters = [encoder_of(kept / "preset") for kept in (straight_run, run)]
    for before, more_trained, less_trained in zip(encoder_of(preset), *quarters, strict=True):
        np.testing.assert_allclose(
            less_trained - before, (more_trained - before) / 3, rtol=1e-4, atol=1e-7
        )
    os.remove(run / FILE)
    with pytest.raises(
        BadInputError, match=f"{FILE}: is missing; set training.initial_encoder_share=0"
    ):
        mixed_run(preset, tiny_records, run)
    assert mixed_run(preset, tiny_records, run, share=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["half", "bit"])
def test_damaged_file_is_named_before_the_first_step(
    damage, straight_run, preset, tiny_records, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(straight_run, run)
    content = bytearray((run / FILE).read_bytes())
    middle = len(content) // 2
    if damage == "half":
        del content[middle:]
    else:
        content[middle] ^= 1
    (run / FILE).write_bytes(content)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(BadInputError, match=f"{FILE}: is damaged"):
        mixed_run(preset, tiny_records, run, training__steps=16)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_random_weights_have_nothing_to_keep(preset, tiny_records, tmp_path):
    run = tmp_path / "run"
    config = configured(preset, run, training__initial_encoder_share=SHARE)
    with pytest.raises(ConfigurationError, match="begins at random; give --initial-preset, or set"):
        run_pretraining(config, tiny_records, str(run))
    assert not run.exists()
