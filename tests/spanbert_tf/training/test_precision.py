"""What `precision: auto` is, and that it stays what it was when a run began."""

import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.errors import MismatchError
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.devices import tensorflow as tensorflow_devices
from spanbert_tf.training.precision import choose_precision, decide_precision

WIDE = 768
# Of lines of `flags` in /proc/cpuinfo, those that matter: Sapphire Rapids, Cooper Lake and Zen 4,
# Ice Lake, Haswell.
AMX = "avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile"
AVX512_BF16 = "avx2 avx512f avx512_vnni avx512_bf16"
AVX512 = "avx2 avx512f avx512_vnni"
AVX2 = "fma avx2"


@pytest.fixture
def on_processor(tmp_path, monkeypatch):
    """Makes the processor one with these flags, as Linux describes it, and nothing turned off."""
    for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(tensorflow_devices, "CPU_INFO", str(path))

    def describe(flags):
        core = f"vendor_id\t: Some\nmodel name\t: amx_bf16 avx512_bf16\nflags\t\t: fpu {flags}\n\n"
        path.write_text(core * 2)

    return describe


@pytest.mark.parametrize(
    ("flags", "width", "of_several_machines", "expected"),
    [
        (AMX, WIDE, False, "mixed_bfloat16"),
        (AVX512_BF16, WIDE, False, "mixed_bfloat16"),
        (AVX512_BF16, 256, False, "mixed_bfloat16"),
        (AVX512, WIDE, False, "float32"),
        (AVX2, WIDE, False, "float32"),
        ("", WIDE, False, "float32"),
        (AMX, 128, False, "float32"),  # spanbert_tiny: the same figures on every processor
        (AMX, WIDE, True, "float32"),
    ],
)
def test_processors(flags, width, of_several_machines, expected, on_processor):
    on_processor(flags)
    found = choose_precision("auto", width, of_several_machines=of_several_machines)
    assert found == expected
    assert choose_precision("mixed_float16", width) == "mixed_float16"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TF_ENABLE_ONEDNN_OPTS", "0", "float32"),
        ("TF_ENABLE_ONEDNN_OPTS", "1", "mixed_bfloat16"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2", "float32"),  # where TensorFlow would end with an abort
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI", "float32"),
        ("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16", "mixed_bfloat16"),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", "mixed_bfloat16"),
    ],
)
def test_instructions_that_tensorflow_does_not_use_do_not_count(
    variable, value, expected, on_processor, monkeypatch
):
    on_processor(AMX)
    monkeypatch.setenv(variable, value)
    assert choose_precision("auto", WIDE) == expected


def test_a_system_that_does_not_describe_its_processor_has_float32(on_processor):
    assert choose_precision("auto", WIDE) == "float32"  # no such file


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([(8, 0), (9, 0)], "mixed_bfloat16"),
        ([(9, 0), (7, 0)], "mixed_float16"),
        ([(9, 0), (6, 1)], "float32"),
        ([(9, 0), None], "float32"),
    ],
)
def test_oldest_gpu_decides(capabilities, expected, on_processor, monkeypatch):
    on_processor(AMX)
    details = [{"compute_capability": one} if one else {} for one in capabilities]
    numbers = list(range(len(details)))
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: numbers if kind == "GPU" else []
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    assert choose_precision("auto", 32) == expected


def test_several_workers_keep_float32_on_processors(on_processor):
    on_processor(AMX)
    config = load_config("spanbert_base", ["training.strategy=multi_worker"])
    assert decide_precision(config, None, WIDE).training.precision == "float32"


@pytest.mark.slow
def test_run_goes_on_in_the_precision_that_it_began_with(
    tiny_overrides, tiny_records, tmp_path, on_processor
):
    """The same command on a machine that would choose another one."""
    on_processor(AMX)
    wide = ["model.hidden_dim=256", "model.num_layers=1", "training.steps=2"]
    first = load_config("spanbert_base", [*tiny_overrides, *wide])
    run = str(tmp_path / "run")
    assert first.training.precision == "auto"
    model = run_pretraining(first, tiny_records, run)
    assert model.backbone.dtype_policy.name == "mixed_bfloat16"
    on_processor(AVX2)
    longer = load_config("spanbert_base", [*tiny_overrides, *wide, "training.steps=3"])
    model = run_pretraining(longer, tiny_records, run)
    assert model.backbone.dtype_policy.name == "mixed_bfloat16"
    assert load_config(f"{run}/config.yaml").training.precision == "mixed_bfloat16"
    other = load_config(
        "spanbert_base", [*tiny_overrides, *wide, "training.steps=3", "training.precision=float32"]
    )
    with pytest.raises(MismatchError, match=r"training.precision is mixed_bfloat16 in this run"):
        run_pretraining(other, tiny_records, run)
