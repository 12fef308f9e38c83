"""Records that do not fit a configuration: what the message says to set makes them fit."""

import re

import pytest

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import MismatchError
from spanbert_tf.pretraining.datasets import RunDatasets, check_records
from spanbert_tf.training.devices import Devices


@pytest.mark.parametrize(
    ("name", "records", "overrides"),
    [
        ("spanbert_base", "tiny_records", []),  # 512 positions, and 24
        (
            "spanbert_base",
            "tiny_records",
            ["data.sequence_length=16", "model.max_sequence_length=16"],
        ),
        ("bert_2seq_nsp", "tiny_records", ["data.sequence_length=24"]),
        ("segabert_base", "tiny_pair_records", ["data.sequence_length=24"]),
        ("spanbert_base", "tiny_pair_records", []),
    ],
)
def test_what_the_message_says_to_set_makes_records_fit(name, records, overrides, request):
    manifest = PretrainingManifest.load(request.getfixturevalue(records))
    overrides = [*overrides, "training.batch_size=4"]
    for _ in range(3):
        config = load_config(name, overrides)
        try:
            check_records(config, manifest, "DATA")
            break
        except MismatchError as error:
            found = re.findall(r"--set (\S+)", str(error))
            assert found, error
            overrides += found
    else:
        pytest.fail(f"still no fit with {overrides}")
    assert len(overrides) > 1


def test_the_rate_of_masking_ends_with_the_schedule(tiny_overrides, tiny_records):
    """Not with the steps of a run, which may be more when it is resumed."""
    overrides = [*tiny_overrides, "training.steps=2", "training.schedule_steps=5"]
    overrides += ["optimizer.warmup_steps=1", "masking.rate=[0.5, 0.1]"]
    config = load_config("spanbert_base", overrides)
    manifest = PretrainingManifest.load(tiny_records)
    datasets = RunDatasets(config, tiny_records, manifest, Devices(config.training))
    for step, percent in ((0, 50), (1, 40), (4, 10)):
        batch = next(iter(datasets.training(step)))
        lengths = batch["padding_mask"].numpy().sum(axis=1) - 2  # without [CLS] and [SEP]
        expected = [-(-int(length) * percent // 100) for length in lengths]
        assert batch["mask_weights"].numpy().sum(axis=1).tolist() == expected
