"""What `precision: auto` is, and that it stays what it was when a run began."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.errors import MismatchError
from spanbert_tf.pretraining.run import run_pretraining
from spanbert_tf.process import precision
from spanbert_tf.training.strategies import decide_precision

WIDE = 768


@pytest.fixture
def as_if_gained(monkeypatch):
    """Makes the measured gain another processor's."""
    return lambda gain: monkeypatch.setattr(precision, "bfloat16_gain", lambda: gain)


@pytest.mark.parametrize(
    ("gain", "width", "of_several_machines", "expected"),
    [
        (2.5, WIDE, False, "mixed_bfloat16"),
        (1.4, WIDE, False, "float32"),
        (0.2, WIDE, False, "float32"),
        (2.5, 128, False, "float32"),  # spanbert_tiny: the same figures on every processor
        (2.5, WIDE, True, "float32"),
    ],
)
def test_processors(gain, width, of_several_machines, expected, as_if_gained):
    as_if_gained(gain)
    found = precision.choose_precision("auto", width, of_several_machines=of_several_machines)
    assert found == expected
    assert precision.choose_precision("mixed_float16", width) == "mixed_float16"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([(8, 0), (9, 0)], "mixed_bfloat16"),
        ([(9, 0), (7, 0)], "mixed_float16"),
        ([(9, 0), (6, 1)], "float32"),
        ([(9, 0), None], "float32"),
    ],
)
def test_oldest_gpu_decides(capabilities, expected, as_if_gained, monkeypatch):
    as_if_gained(9.0)
    details = [{"compute_capability": one} if one else {} for one in capabilities]
    numbers = list(range(len(details)))
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: numbers if kind == "GPU" else []
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    assert precision.choose_precision("auto", 32) == expected


def test_gain_is_a_number():
    assert np.isfinite(precision.bfloat16_gain()) and precision.bfloat16_gain() > 0


def test_several_workers_keep_float32_on_processors(as_if_gained):
    as_if_gained(9.0)
    config = load_config("spanbert_base", ["training.strategy=multi_worker"])
    assert decide_precision(config, None, WIDE).training.precision == "float32"


@pytest.mark.slow
def test_run_goes_on_in_the_precision_that_it_began_with(
    tiny_overrides, tiny_records, tmp_path, as_if_gained
):
    """The same command on a machine that would choose another one."""
    as_if_gained(9.0)
    wide = ["model.hidden_dim=256", "model.num_layers=1", "training.steps=2"]
    first = load_config("spanbert_base", [*tiny_overrides, *wide])
    run = str(tmp_path / "run")
    assert first.training.precision == "auto"
    model = run_pretraining(first, tiny_records, run)
    assert model.model.backbone.dtype_policy.name == "mixed_bfloat16"
    as_if_gained(0.1)
    longer = load_config("spanbert_base", [*tiny_overrides, *wide, "training.steps=3"])
    model = run_pretraining(longer, tiny_records, run)
    assert model.model.backbone.dtype_policy.name == "mixed_bfloat16"
    assert load_config(f"{run}/config.yaml").training.precision == "mixed_bfloat16"
    other = load_config(
        "spanbert_base", [*tiny_overrides, *wide, "training.steps=3", "training.precision=float32"]
    )
    with pytest.raises(MismatchError, match=r"training.precision is mixed_bfloat16 in this run"):
        run_pretraining(other, tiny_records, run)
