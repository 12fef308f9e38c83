"""Output biases that begin at the tokens' frequencies."""

from collections.abc import Collection, Sequence

import keras
import numpy as np

from spanbert_tf.models import SpanBertPretrainer

_HEADS = ("masked_lm_head", "span_boundary_head")  # those that choose an entry of the vocabulary
_BIASES = ("output_bias", "bias")  # KerasHub's name, and ours


def begin_at_frequencies(
    model: SpanBertPretrainer, unigram_counts: Sequence[int], trained: Collection[str]
) -> list[str]:
    """Gives heads the output biases of a model that knows the tokens' frequencies alone.

    One is added to each count, so that no entry of the vocabulary is impossible.

    Args:
        model: a new model.
        unigram_counts: occurrences of each entry of the vocabulary in the training text.
        trained: names of the heads that keep the biases that they have.

    Returns:
        The names of the heads that were given one.
    """
    counts = np.asarray(unigram_counts, "float64") + 1.0  # [V]
    filled = [name for name in _HEADS if name not in trained and getattr(model, name) is not None]
    for name in filled:
        _output_bias(getattr(model, name)).assign(np.log(counts / counts.sum()))
    return filled


def _output_bias(head: keras.layers.Layer) -> keras.Variable:
    """The head's own bias; those of its dense layers lie a layer deeper."""
    paths = [f"{head.name}/{name}" for name in _BIASES]
    (bias,) = (weight for weight in head.weights if weight.path in paths)
    return bias
