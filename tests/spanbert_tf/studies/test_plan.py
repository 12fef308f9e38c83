"""What `plan` makes of configurations; the compilers are in `test_compiled_plans`."""

import json
import os
import subprocess
import sys

import pytest

from spanbert_tf.config import load_config
from spanbert_tf.config.settings import kind_of
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.pretraining.model import build_pretrainer
from spanbert_tf.studies.chips import CHIPS, Machine, machine_of
from spanbert_tf.studies.compiled_step import Memory, OutOfMemory, shortage
from spanbert_tf.studies.described_run import pretraining_batch
from spanbert_tf.studies.plan import (
    Plan,
    check_fits,
    configured,
    described,
    least_seconds,
    report,
    run_plan,
)
from spanbert_tf.tasks.table import load_task_config


@pytest.mark.parametrize("name", ["spanbert_base", "bert_2seq_nsp", "segabert_base"])
def test_a_planned_batch_is_that_of_the_data_set(
    name, tiny_records, tiny_pair_records, tiny_overrides
):
    config = load_config(name, tiny_overrides)
    is_pair = config.data.sequences == "pair"
    dataset = pretraining_dataset(
        tiny_pair_records if is_pair else tiny_records,
        batch_size=config.training.batch_size,
        masking=config.masking,
        segment_aware=config.model.segment_aware,
    )
    planned = pretraining_batch(build_pretrainer(config, 30), config)
    found = {key: (one.shape, one.dtype.name) for key, one in planned.items()}
    wanted = {
        key: (tuple(spec.shape), spec.dtype.name) for key, spec in dataset.element_spec.items()
    }
    assert found == wanted


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("v9z:2x4", "--device v9z:2x4: is not known; known are v5e, v6e, v5p, h100"),
        ("v5e", "as v5e:2x4"),
        ("v5e:0x4", "is not known"),
        ("h100:2x4", "cards are counted: h100:8"),
        (
            "v5e:2x4",
            "the compiler of TPUs, is not installed: pip install 'spanbert_tf[tpu]'",
        ),
        (
            "h100:8",
            "of NVIDIA's cards, is not installed: pip install 'spanbert_tf[plan]'",
        ),
    ],
)
def test_what_cannot_be_compiled_for_is_one_line(device, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setitem(sys.modules, "jax_plugins.xla_cuda12", None)
    with pytest.raises(ConfigurationError) as caught:
        machine_of(device)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (74.58G) exceeds available HBM (15.75G).",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 74.58G of 15.75G hbm.",
    ],
)
def test_what_a_compiler_lacks_is_said_in_gibibytes(message):
    assert shortage(message) == "needs 74.6 of 15.8 GiB a chip"


def test_a_step_that_a_card_has_no_room_for_is_refused():
    chip = CHIPS["v100"]
    machine = Machine("v100:1", chip, (0,))
    check_fits(Memory(0, 0, 0, chip.memory), machine)
    with pytest.raises(OutOfMemory, match=r"needs 31\.7 of 31\.7 GiB"):
        check_fits(Memory(0, 0, 0, chip.memory + 1), machine)


def planned(operations=0.0, memory=0, gradients=0):
    return Plan(Memory(0, 0, 0, memory), operations, gradients, fuses_attention=False)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("squad_v1", "32 rows of 512"),
        ("coreference_spanbert_base", "1 rows of 1,152"),  # 3 segments of 384
        ("coreference_bert_base", "1 rows of 1,408"),  # 11 of 128
    ],
)
def test_positions_of_a_document_are_those_of_all_its_segments(name, rows):
    chip = CHIPS["v5e"]
    machine = Machine("v5e:1x1", chip, (0,))
    # A quarter of a second of compute, of which a run is expected to make a second.
    plan = planned(operations=chip.operations / 4, memory=chip.memory // 2)
    lines = report(plan, load_task_config(name), machine)
    assert lines[0].startswith(f"v5e:1x1: {rows},")
    count, length = (int(part.replace(",", "")) for part in rows.split(" rows of "))
    assert f"{count * length:,} tokens/s" in lines[-1]
    in_float32 = load_task_config(name, ["training.precision=float32"])
    assert report(plan, in_float32, machine)[-1].endswith("in float32 it takes longer")


@pytest.mark.parametrize("bound", ["compute", "memory", "network"])
def test_the_slowest_of_three_bounds_a_step(bound):
    chip = CHIPS["h100"]
    machine = Machine("h100:8", chip, tuple(range(8)))
    amounts = {
        "operations": chip.operations / 1000,
        "memory": chip.bandwidth / 1000 / 2,  # written and read
        "gradients": chip.link / 1000 / 2 * 8 / 7,  # each card sends 2 · 7/8
    }
    amount = {"compute": "operations", "network": "gradients"}.get(bound, bound)
    amounts[amount] *= 3
    least = least_seconds(planned(**amounts), machine)
    assert least == pytest.approx({**dict.fromkeys(least, 0.001), bound: 0.003})
    lines = report(planned(**amounts), load_config("spanbert_base"), machine)
    assert lines[3].endswith(f"bound by {bound}")


def test_operations_are_those_of_the_products():
    """Counted by hand: two for each product of numbers, three times as many with gradients."""
    program = """
import json
from spanbert_tf.config import load_config
from spanbert_tf.studies.compiled_step import count_operations
from spanbert_tf.studies.plan import described

overrides = ["model.num_layers=3", "data.vocabulary_size=1000", "training.batch_size=5"]
found = {}
for checkpointing in ("false", "true"):
    changed = [*overrides, f"training.gradient_checkpointing={checkpointing}"]
    config = load_config("spanbert_base", changed)
    found[checkpointing] = count_operations(*described(config, config))
model, (batch,) = described(config, config)
found["told"] = 1e9 * float(model.step_operations(batch))
print(json.dumps(found))
"""
    child = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(child.stdout.splitlines()[-1])
    rows, length, width, inner, slots = 5, 512, 768, 3072, 77
    layer = length * (4 * width * width + 2 * width * inner) + 2 * length * length * width
    masked_lm = slots * (width * width + width * 1000)
    span_boundary = slots * ((2 * width + 200) * width + width * width + width * 1000)
    heads = 3 * (masked_lm + span_boundary)
    # Recomputed layers go forwards twice. What is not a product is little beside them.
    for checkpointing, times in (("false", 3), ("true", 4)):
        products = 2 * rows * (times * 3 * layer + heads)
        assert products * 0.99 <= found[checkpointing] <= 1.03 * products
    # Runs tell what they compute once.
    assert found["told"] == pytest.approx(2 * rows * (9 * layer + heads))


@pytest.mark.parametrize("fuses", [True, False])
def test_cards_that_are_not_here_are_described_to_attention(fuses):
    from jax._src.cudnn import fused_attention_stablehlo as attention

    asked = attention.check_compute_capability
    machine = Machine("card", CHIPS["h100" if fuses else "v100"], (0,))
    with machine.described_to_attention():
        assert attention.check_compute_capability("8.0") == fuses
        assert attention.check_cudnn_version() >= 90_000
    assert attention.check_compute_capability is asked


def test_rows_that_chips_cannot_share_are_refused():
    machine = Machine("v5e:2x4", CHIPS["v5e"], tuple(range(8)))
    config = load_config("spanbert_base", ["training.accumulation_steps=2"])
    words = r"100 rows cannot .* 16 equal parts .devices: 8, .* --rows 112"
    with pytest.raises(ConfigurationError, match=words):
        configured(config, machine, 100, config)
    found = configured(config, machine, 112, config).training
    assert (found.batch_size, found.precision) == (112, "mixed_bfloat16")


def test_cards_add_up_between_hosts_what_they_added_up_inside():
    """Of gradients of 1 GB, a card of four hosts sends 2 · 7/8 inside, 2 · 3/4 / 8 outside."""
    chip = CHIPS["v100"]
    inside, between = 2e9 * 7 / 8 / chip.link, 2e9 / 8 * 3 / 4 / chip.network
    assert Machine("v100:8", chip, tuple(range(8))).seconds_to_add_up(1e9) == inside
    assert Machine("v100:32", chip, tuple(range(32))).seconds_to_add_up(1e9) == between > inside
    pod = Machine("v5e:4x4", CHIPS["v5e"], tuple(range(16)))
    assert pod.seconds_to_add_up(1e9) == 2e9 * 15 / 16 / CHIPS["v5e"].link


@pytest.mark.parametrize(
    ("name", "encoder", "said"),
    [
        (
            "segabert_squad_v1",
            None,
            "has BERT's positions, the rows of question_answering have Sega",
        ),
        (
            "rte",
            "segabert_base",
            "has SegaBERT's positions, the rows of text_classification have BE",
        ),
        ("squad_v1", "spanbert_tiny", "has 64 positions, rows have 512; try --set data.sequence_l"),
        ("spanbert_base", "spanbert_large", "the configuration begins with a new one; leave it"),
    ],
)
def test_an_encoder_that_does_not_fit_is_one_line(name, encoder, said):
    encoder = load_config(encoder or "spanbert_base")
    with pytest.raises(ConfigurationError, match=f"--encoder: {said}"):
        if kind_of(name) == "pretrain":
            run_plan(load_config(name), "v5e:2x4", encoder=encoder)
        else:
            described(load_task_config(name), encoder)


def test_configurations_of_both_kinds_are_told_apart(tmp_path):
    assert kind_of("spanbert_base") == "pretrain"
    assert kind_of("squad_v1") == "finetune"
    own = tmp_path / "own.yaml"
    own.write_text("base: squad_v1\n")
    assert kind_of(str(own)) == "finetune"
    other = tmp_path / "other.yaml"
    other.write_text("base: own.yaml\n")
    assert kind_of(str(other)) == "finetune"
    own.write_text("base: other.yaml\n")
    with pytest.raises(ConfigurationError, match="is its own base"):
        {"pretrain": load_config, "finetune": load_task_config}[kind_of(str(own))](str(own))
    with pytest.raises(ConfigurationError, match="neither a file nor"):
        kind_of(str(tmp_path / "none.yaml"))
