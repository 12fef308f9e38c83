"""What `plan` makes of configurations and of code; the compilers are in `test_compiled_plans`."""

import re
import sys
import time

import jax
import keras
import numpy as np
import pytest
from jax import numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo

from spanbert_tf.config import load_config
from spanbert_tf.config.settings import kind_of
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.pretraining.model import build_pretrainer
from spanbert_tf.studies.chips import CHIPS, Machine, machine_of
from spanbert_tf.studies.compiled_step import (
    CompiledStep,
    OutOfMemory,
    count_operations,
    read_code,
    shortage,
)
from spanbert_tf.studies.described_run import pretraining_batch
from spanbert_tf.studies.plan import configured, fitting, largest_count, report, run_plan, ways
from spanbert_tf.tasks.table import load_task_config

CODE = """HloModule jit_step

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[], f32[4,8]{1,0}) parameter(0)
  %number = s32[] get-tuple-element(%state), index=0
  %values = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %doubled = f32[4,8]{1,0:T(8,128)S(1)} add(%values, %values)
  %shared = f32[4,8]{1,0} all-reduce(%doubled), replica_groups={}, to_apply=%add
  ROOT %next = (s32[], f32[4,8]{1,0}) tuple(%number, %shared)
}

%condition (state: (s32[], f32[4,8])) -> pred[] {
  %state = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %goes_on = pred[] constant(true)
}

ENTRY %main (a: bf16[16,2], b: (s32[], f32[4,8])) -> f32[32] {
  %a = bf16[16,2]{1,0} parameter(0)
  %b = (s32[], f32[4,8]{1,0}) parameter(1)
  %c = bf16[32]{0} reshape(%a), metadata={op_name="a(b)"}
  %loop = (s32[], f32[4,8]{1,0}) while(%b), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %start = (f32[32]{0}, f32[32]{0}, u32[]) copy-start(%c)
  ROOT %done = f32[32]{0} copy-done(%start)
}
"""


def test_traffic_and_collectives_are_those_of_each_instruction():
    traffic, collectives = read_code(CODE)
    # reshape 64 + 64, copy 128; in each turn two operands of 128, and the all-reduce's result: what
    # is between them stays on the chip.
    assert traffic == 256 + 3 * (2 * 128 + 128)
    assert collectives == {"all-reduce": 3 * 128}


def test_operations_of_loops_and_of_recomputed_parts_are_all_counted():
    def layer(x, weights):
        return jax.checkpoint(lambda x: jnp.tanh(x @ weights))(x), None

    def loss(weights, x):
        return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    weights, x = jnp.zeros((5, 16, 16)), jnp.zeros((4, 16))
    product = 2 * 4 * 16 * 16
    assert count_operations(jax.make_jaxpr(loss)(weights, x).jaxpr) == 5 * product
    gradient = jax.make_jaxpr(jax.grad(loss))(weights, x)
    # Forward, again for the gradients, of inputs and of weights.
    assert count_operations(gradient.jaxpr) == 4 * 5 * product


def test_operations_of_fused_attention_are_those_of_its_products(monkeypatch):
    """Two products forwards; backwards, where the scores are computed again, five."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)

    def attend(implementation):
        def loss(query, key, value):
            found = jax.nn.dot_product_attention(query, key, value, implementation=implementation)
            return found.astype("float32").sum()

        return jax.grad(loss, argnums=(0, 1, 2))

    array = jax.ShapeDtypeStruct((2, 128, 3, 64), "bfloat16")
    product = 2 * 2 * 3 * 128 * 128 * 64
    for implementation, products in (("cudnn", 7), ("xla", 6)):
        traced = jax.jit(attend(implementation)).trace(array, array, array)
        assert count_operations(traced.jaxpr.jaxpr) == products * product


@pytest.mark.parametrize(("chip", "num_fused"), [("h100", 2), ("v100", 0), ("v5e", 0)])
@pytest.mark.parametrize("name", ["spanbert_base", "squad_v1"])
def test_ways_of_a_step_are_recomputed_and_where_cards_fuse_it_without_dropout(
    chip, num_fused, name
):
    encoder = load_config("spanbert_base")
    config = encoder if kind_of(name) == "pretrain" else load_task_config(name)
    found = list(ways(config, encoder, Machine(f"{chip}:1", CHIPS[chip], (0,))))
    assert len({label for label, *_ in found}) == len(found) == 2 + num_fused
    for label, way, of_encoder in found:
        model = (way if name == "spanbert_base" else of_encoder).model
        assert model.attention_dropout == (0 if "no dropout" in label else None)
        assert f"recompute {way.training.recompute}" in label


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
        segment_aware=config.model.position_embeddings != "absolute",
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
        ("v5e:2x4", "libtpu, the compiler of TPUs, is not installed: pip install -e '.[tpu]'"),
        ("h100:8", "the compiler of NVIDIA's cards, is not installed: pip install -e '.[plan]'"),
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
    sizes = dict.fromkeys(("weights", "optimizer", "activations", "operations", "traffic"), 0)
    step = CompiledStep(
        **sizes, memory=chip.memory + 1, collectives={}, attention="in parts", compiled=None
    )
    with pytest.raises(OutOfMemory, match=r"needs 31\.7 of 31\.7 GiB"):
        fitting(step, Machine("v100:1", chip, (0,)))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("squad_v1", "32 rows of 512"),
        ("coreference_spanbert_base", "1 rows of 1,152"),  # 3 segments of 384
        ("coreference_bert_base", "1 rows of 1,408"),  # 11 of 128
    ],
)
def test_positions_of_a_document_are_those_of_all_its_segments(name, rows):
    sizes = dict.fromkeys(("memory", "weights", "optimizer", "activations"), 0)
    sizes |= {"operations": 0.4 * CHIPS["v5e"].operations, "traffic": 0}  # 0.4 s: 1 s is expected
    step = CompiledStep(**sizes, collectives={}, attention="in parts", compiled=None)
    machine = Machine("v5e:1x1", CHIPS["v5e"], (0,))
    lines = report(step, load_task_config(name), machine)
    assert lines[0].startswith(f"v5e:1x1: {rows},")
    count, length = (int(part.replace(",", "")) for part in rows.split(" rows of "))
    assert f"{count * length:,} tokens/s" in lines[-1]
    in_float32 = load_task_config(name, ["training.precision=float32"])
    assert report(step, in_float32, machine)[-1].endswith("in float32 it takes longer")


def test_a_step_of_this_processor_is_measured():
    """The middle one of three, after one that does not count; new weights, rows without padding."""
    machine, seen = machine_of("cpu"), []
    seconds = iter([0.5, 0.01, 0.4, 0.1])

    def wait(*values):
        seen.append([np.asarray(value) for value in values])
        time.sleep(next(seconds))
        return values[-1]

    def step(state, batch):
        weights, others, moments, metrics = state
        like = jax.ShapeDtypeStruct(batch["token_ids"].shape, batch["token_ids"].dtype)
        given = jax.pure_callback(wait, like, weights[0], moments[0], metrics[0], *batch.values())
        return given, (weights, others, [moments[0] + given.sum()], metrics)

    numbers = jax.ShapeDtypeStruct((40, 50), "float32"), jax.ShapeDtypeStruct((), "int32")
    state = ([numbers[0]], [], [jax.ShapeDtypeStruct((), "int32")], [numbers[1]])
    batch = {"token_ids": jax.ShapeDtypeStruct((32, 64), "int32")}
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    sizes = dict.fromkeys(("memory", "weights", "optimizer", "activations", "traffic"), 0)
    rest = {"operations": 1e10, "collectives": {}, "attention": "in parts"}
    found = CompiledStep(**sizes, **rest, compiled=compiled)
    *_, work, line = report(found, load_config("spanbert_tiny"), machine)

    assert len(seen) == 4
    for number, (weights, moments, metrics, tokens) in enumerate(seen):
        assert 0.015 < weights.std() < 0.025
        assert (moments, metrics) == (number * 32 * 64, 0)  # each step goes on from the last one
        assert (tokens == 1).all()
    milliseconds = float(re.search(r"measured: ([\d.]+) ms", line)[1])
    assert 100 <= milliseconds < 400
    assert float(re.search(r"([\d.]+) G a second", work)[1]) == pytest.approx(
        1e4 / milliseconds, rel=0.01
    )
    tokens_a_second = re.search(r"([\d,]+) tokens/s", line)[1].replace(",", "")
    assert float(tokens_a_second) == pytest.approx(32 * 64 * 1000 / milliseconds, rel=0.01)


def test_rows_that_chips_cannot_share_are_refused():
    machine = Machine("v5e:2x4", CHIPS["v5e"], tuple(range(8)))
    config = load_config("spanbert_base", ["training.accumulation_steps=2"])
    with pytest.raises(ConfigurationError, match=r"100 rows cannot .* 8 chips .* --rows 112"):
        configured(config, machine, 100, config)
    found = configured(config, machine, 112, config).training
    assert (found.batch_size, found.precision) == (112, "mixed_bfloat16")


def test_cards_share_between_hosts_what_they_reduced_inside():
    """Of 2 GB, a card of four hosts sends 7/8 inside, and 3/4 of an eighth outside."""
    chip = CHIPS["v100"]
    inside, between = 2e9 * 7 / 8 / chip.link, 2e9 / 8 * 3 / 4 / chip.network
    assert Machine("v100:8", chip, tuple(range(8))).seconds_to_share(2e9) == inside
    assert Machine("v100:32", chip, tuple(range(32))).seconds_to_share(2e9) == between > inside
    pod = Machine("v5e:4x4", CHIPS["v5e"], tuple(range(16)))
    assert pod.seconds_to_share(2e9) == 2e9 * 15 / 16 / CHIPS["v5e"].link


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
def test_an_encoder_that_does_not_fit_is_one_line(name, encoder, said, monkeypatch):
    monkeypatch.setattr(keras.distribution, "set_distribution", lambda _: None)
    encoder = load_config(encoder) if encoder else None
    config = load_config(name) if kind_of(name) == "pretrain" else load_task_config(name)
    with pytest.raises(ConfigurationError, match=f"--encoder: {said}"):
        run_plan(config, "cpu", encoder=encoder)


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


@pytest.mark.parametrize("first", [1, 3, 70, 71, 500])
@pytest.mark.parametrize("limit", [9, 11, 40, 710, 719, 1_000_000])
def test_the_largest_number_is_found_to_5_percent_in_few_steps(first, limit):
    asked = []

    def memory(number):
        asked.append(number)
        taken = 5 + 10 * number - number // 3  # a compiler that finds more room where it is needed
        return None if taken > limit else (taken, taken - 5)

    most = max((n for n in range(1, 110_000) if 5 + 10 * n - n // 3 <= limit), default=0)
    found = largest_count(memory, first, limit)
    assert 0.95 * most - 1 <= found <= most
    assert len(asked) <= 12
