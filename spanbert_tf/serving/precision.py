"""Exports in less than float32, and what that changes."""

import keras
import keras_hub
import numpy as np

from spanbert_tf.models import SpanBertMaskedLM, SpanBertQuestionAnswerer
from spanbert_tf.presets.golden import SENTENCES, golden_rows
from spanbert_tf.presets.loading import load_checked, load_preset


def in_precision(kind: type, preset: str, precision: str) -> keras_hub.models.Task:
    """Loads a model in a precision.

    Args:
        kind: its class.
        preset: what `from_preset` takes.
        precision: `"bfloat16"`: weights and computations. `"int8"`: Keras' dynamic quantization of
            the dense layers, whose weights take a quarter of the space.

    Raises:
        BadInputError: the preset cannot be used.
    """
    if precision == "bfloat16":
        return load_preset(kind, preset, dtype="bfloat16")
    model = load_checked(kind, preset)
    model.quantize("int8", filters=_is_dense)
    return model


def _is_dense(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense)


def describe_fillings(exact: SpanBertMaskedLM, other: SpanBertMaskedLM) -> str:
    """How far the fillings of two models differ when each token of three sentences is masked.

    Args:
        exact: the model in float32.
        other: the same model in another precision.
    """
    pairs = []
    for row in golden_rows(exact.preprocessor.tokenizer):
        row = row[: exact.backbone.max_sequence_length]
        features = _masked_one_by_one(row, exact.preprocessor.tokenizer.mask_token_id)
        pairs.append([model(features, training=False)[:, 0] for model in (exact, other)])
    return _describe(pairs, "masked tokens have the same most probable filling")


def describe_answers(exact: SpanBertQuestionAnswerer, other: SpanBertQuestionAnswerer) -> str:
    """How far starts and ends of answers differ, where each of three sentences asks each.

    Args:
        exact: the model in float32.
        other: the same model in another precision.
    """
    count = len(SENTENCES)
    texts = (np.repeat(SENTENCES, count), np.tile(SENTENCES, count))
    features = exact.preprocessor(x=texts)
    outputs = [model(features, training=False) for model in (exact, other)]
    pairs = [[logits[name] for logits in outputs] for name in ("start_logits", "end_logits")]
    return _describe(pairs, "starts and ends of answers are at the same token")


def _describe(pairs: list[list], what: str) -> str:
    """Compares pairs of logits [N, classes]."""
    difference, num_same, num_all = 0.0, 0, 0
    for logits in pairs:
        expected, actual = (
            keras.ops.convert_to_numpy(keras.ops.softmax(keras.ops.cast(values, "float32")))
            for values in logits
        )
        difference = max(difference, float(np.abs(expected - actual).max()))
        num_same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        num_all += len(expected)
    return f"probabilities differ by up to {difference:.1e}; {num_same} of {num_all} {what}"


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
