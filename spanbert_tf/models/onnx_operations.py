"""What converters to ONNX lack of the models' operations.

TensorFlow computes exact GELU by `Erfc`, which tf2onnx 1.17 leaves in the file as it is, so that
no runtime loads it (and tf2onnx says nothing); ONNX has `Erf`.
"""

import functools
from typing import Any

import numpy as np


@functools.cache
def register_onnx_operations() -> None:
    """Teaches tf2onnx, in this process, that `Erfc` is 1 - `Erf`; and lets it run on NumPy 2."""
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
