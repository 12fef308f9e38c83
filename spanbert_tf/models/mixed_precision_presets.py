"""Lets KerasHub load presets of tasks that were saved in mixed precision.

Its loader asks `is_float_dtype("mixed_bfloat16")`, which is documented to be true and in KerasHub
0.32 raises ValueError. Such a preset is written wherever a run computes in mixed precision, and
KerasHub's own classes load it past any of ours, so the function itself is replaced.
"""

import functools

from keras_hub.src.utils import tensor_utils

_MIXED = ("mixed_bfloat16", "mixed_float16")


def load_mixed_precision() -> None:
    """Makes `is_float_dtype` true of the policies of mixed precision; once, and for good."""
    original = tensor_utils.is_float_dtype
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def is_float_dtype(dtype: object) -> bool:
        return (isinstance(dtype, str) and dtype in _MIXED) or original(dtype)

    tensor_utils.is_float_dtype = is_float_dtype
