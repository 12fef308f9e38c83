"""Trains a backbone with a head under one of Keras' distributions; prints losses. Runs on JAX.

python distributed_program.py None|DataParallel|ModelParallel
"""

import sys

import jax
import keras
import numpy as np

from spanbert_tf.models import SpanBertBackbone

(name,) = sys.argv[1:]
sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
assert len(jax.devices()) == 2
if name == "DataParallel":
    keras.distribution.set_distribution(keras.distribution.DataParallel())
elif name == "ModelParallel":
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
    layout = SpanBertBackbone.get_layout_map(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
keras.utils.set_random_seed(1)
backbone = SpanBertBackbone(20, dropout=0.0, max_sequence_length=8, **sizes)
outputs = keras.layers.Dense(1)(backbone(backbone.input)["pooled_output"])
if name == "ModelParallel":
    shared = [w.path for w in backbone.weights if not w.value.sharding.is_fully_replicated]
    assert len(shared) == 1 + 10, shared  # the token table, and ten of the layer
model = keras.Model(backbone.input, outputs)
model.compile(keras.optimizers.Adam(1e-2), "mse")
random = np.random.default_rng(1)
x = {key: np.ones((4, 8), "int32") for key in ("token_ids", "segment_ids", "padding_mask")}
x["token_ids"] = random.integers(0, 20, (4, 8)).astype("int32")
history = model.fit(x, np.arange(4.0)[:, None], epochs=3, shuffle=False, verbose=0)
print(*history.history["loss"])
