"""Exports in less than float32, and what that changes."""

import keras
import numpy as np

from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.golden import golden_rows
from spanbert_tf.presets.loading import load_masked_lm, load_preset


def in_precision(preset: str, precision: str) -> SpanBertMaskedLM:
    """Loads a masked-language model in a precision.

    Args:
        preset: what `from_preset` takes.
        precision: `"bfloat16"`: weights and computations. `"int8"`: Keras' dynamic quantization of
            the dense layers, whose weights take a quarter of the space.

    Raises:
        BadInputError: the preset cannot be used.
    """
    if precision == "bfloat16":
        return load_preset(SpanBertMaskedLM, preset, dtype="bfloat16")
    masked_lm = load_masked_lm(preset)
    masked_lm.quantize("int8", filters=_is_dense)
    return masked_lm


def _is_dense(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense)


def describe_change(exact: SpanBertMaskedLM, other: SpanBertMaskedLM) -> str:
    """How far the fillings of two models differ when each token of three sentences is masked.

    Args:
        exact: the model in float32.
        other: the same model in another precision.
    """
    difference, num_same, num_masks = 0.0, 0, 0
    for row in golden_rows(exact.preprocessor.tokenizer):
        row = row[: exact.backbone.max_sequence_length]
        features = _masked_one_by_one(row, exact.preprocessor.tokenizer.mask_token_id)
        expected, actual = (_probabilities(model, features) for model in (exact, other))
        difference = max(difference, float(np.abs(expected - actual).max()))
        num_same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        num_masks += len(expected)
    return (
        f"probabilities differ by up to {difference:.1e}; {num_same} of {num_masks} masked tokens "
        "have the same most probable filling"
    )


def _masked_one_by_one(row: list[int], mask_id: int) -> dict[str, np.ndarray]:
    positions = np.arange(1, len(row) - 1)[:, np.newaxis]  # [masks, 1]: all but [CLS] and [SEP]
    token_ids = np.tile(np.array(row, "int32"), (len(positions), 1))  # [masks, S]
    np.put_along_axis(token_ids, positions, mask_id, axis=1)
    return {
        "token_ids": token_ids,
        "segment_ids": np.zeros_like(token_ids),
        "padding_mask": np.ones_like(token_ids),
        "mask_positions": positions.astype("int32"),
    }


def _probabilities(model: SpanBertMaskedLM, features: dict[str, np.ndarray]) -> np.ndarray:
    logits = model(features, training=False)[:, 0]  # [masks, V]
    return keras.ops.convert_to_numpy(keras.ops.softmax(keras.ops.cast(logits, "float32")))
