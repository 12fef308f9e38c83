"""What of attention XLA is given for a card of NVIDIA's; no card is needed to read it."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each starts a process

PROGRAM = """
import json, re

import jax
import keras
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from spanbert_tf.layers.transformer_encoder import TransformerEncoder
from spanbert_tf.studies.compiled_step import undrawn

# As a card of Hopper's answers.
cudnn.check_cudnn_version = lambda: 91000
cudnn.check_compute_capability = lambda least: True


def build():
    layers = [TransformerEncoder(128, 2, dropout=0.1, dtype="mixed_bfloat16") for _ in range(2)]
    for layer in layers:
        layer.build((None, None, 64))
    return layers


layers = build()
x, is_token = jax.numpy.ones((2, 8, 64), "bfloat16"), jax.numpy.ones((2, 8), "int32")


def loss(x):
    for layer in layers:
        x = layer(x, padding_mask=is_token, training=True)
    return x.astype("float32").sum()


def stateless(x, values):
    variables = [variable for layer in layers for variable in layer.variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, values))):
        return loss(x)


values = [variable.value for layer in layers for variable in layer.variables]
lowered = jax.jit(jax.grad(stateless)).trace(x, values).lower(lowering_platforms=("cuda",))
calls = re.findall(r"@__cudnn\\$(\\w+).*?backend_config = \\"(.*?)\\", ", lowered.as_text())
found = []
for name, text in calls:
    text = text.replace("\\\\22", '"').replace('\\\\"', '"')
    config = json.loads(text)["cudnn_fmha_backend_config"]
    found.append([name, config["dropout_rate"], int(config["seed"])])
# Of a model that has no values, as `plan` compiles it.
print(json.dumps([found, [layer._kernel_seed for layer in undrawn(build)]]))
"""
DETERMINISTIC = """
import json, os

from jax._src import xla_bridge

from spanbert_tf.config import load_config
from spanbert_tf.training.devices import Devices

config = load_config(
    "spanbert_base", ["training.deterministic=true", "training.strategy=one_device"]
)
is_late = xla_bridge.backends_are_initialized()
Devices(config.training)
print(json.dumps([is_late, os.environ["XLA_FLAGS"]]))
"""
UNRECORDED = "--xla_gpu_enable_command_buffer="


def _run(program, flags):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


def test_attention_drops_by_the_same_numbers_forward_and_backward_and_others_in_each_layer():
    calls, undrawn_seeds = _run(PROGRAM, UNRECORDED)
    assert len(calls) == 4
    assert all("Dropout" in name and rate == 0.1 for name, rate, _ in calls)
    forward, backward = (
        {seed for name, _, seed in calls if name.endswith("Backward") == is_backward}
        for is_backward in (False, True)
    )
    assert forward == backward
    assert len(forward) == len(set(undrawn_seeds)) == 2


@pytest.mark.parametrize("flags", ["", f"{UNRECORDED} --xla_gpu_deterministic_ops=true"])
def test_attention_drops_in_parts_where_xla_records_it_or_bits_are_to_be_the_same(flags):
    assert _run(PROGRAM, flags)[0] == []


def test_a_deterministic_run_says_so_to_xla_before_jax_sees_a_card():
    is_late, flags = _run(DETERMINISTIC, "--xla_gpu_autotune_level=0")
    assert not is_late
    assert "--xla_gpu_deterministic_ops=true" in flags.split()
    assert flags.startswith("--xla_gpu_autotune_level=0 ")
