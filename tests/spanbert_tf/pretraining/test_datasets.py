"""Records that do not fit a configuration: what the message says to set makes them fit."""

import re

import pytest

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import MismatchError
from spanbert_tf.pretraining.datasets import check_records


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
