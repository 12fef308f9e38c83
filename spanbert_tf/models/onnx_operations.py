"""Adds an operation of the models to tf2onnx, which converts them to ONNX.

TensorFlow computes exact GELU by `Erfc`, which ONNX does not have. tf2onnx 1.17 writes `Erfc` to
the file without an error, and no runtime can load the file. ONNX has `Erf`.
"""

import functools
from typing import Any

import numpy as np


@functools.cache
def register_onnx_operations() -> None:
    """Makes tf2onnx convert `Erfc` to 1 - `Erf` in this process, and makes it run on NumPy 2."""
    from keras.src.export.tf2onnx_lib import patch_tf2onnx
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    patch_tf2onnx()

    @tf_op("Erfc")
    class _Erfc:
        @classmethod
        def version_9(cls, ctx: Any, node: Any, **kwargs: Any) -> None:
            dtype = utils.map_onnx_to_numpy_type(ctx.get_dtype(node.input[0]))
            erf = ctx.make_node("Erf", list(node.input))
            one = ctx.make_const(utils.make_name("one"), np.array(1, dtype))
            output = node.output[0]
            ctx.remove_node(node.name)
            ctx.make_node("Sub", [one.output[0], erf.output[0]], outputs=[output], name=node.name)
