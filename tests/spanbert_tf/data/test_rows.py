"""Lists of all widths come back as they were written."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.data.manifest import token_id_dtype
from spanbert_tf.data.rows import decode_unsigned


@pytest.mark.parametrize("vocabulary_size", [28_996, 2**16, 2**16 + 1, 250_002])
def test_ids_of_any_vocabulary(vocabulary_size):
    dtype = token_id_dtype(vocabulary_size)
    values = np.array([0, 1, vocabulary_size // 2, vocabulary_size - 1])
    raw = values.astype(f"<{np.dtype(dtype).str[1:]}").tobytes()

    decoded = decode_unsigned(tf.constant(raw), dtype)
    assert tf.cast(decoded, tf.int32).numpy().tolist() == values.tolist()
    item_size = len(raw) // len(values)
    rows = decode_unsigned(tf.constant([raw, raw[:item_size]]), dtype, fixed_length=5 * item_size)
    expected = [[*values.tolist(), 0], [0] * 5]
    assert tf.cast(rows, tf.int32).numpy().tolist() == expected
