"""Loads presets for the commands, and checks them."""

import keras_hub

from spanbert_tf.errors import BadInputError
from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.presets.golden import check_outputs, check_weights


def load_preset(
    kind: type, preset: str, **options: object
) -> keras_hub.models.Backbone | keras_hub.models.Task | keras_hub.tokenizers.Tokenizer:
    """`kind.from_preset(preset)`, with errors that say which preset.

    Args:
        kind: a class with `from_preset`.
        preset: directory, or another name that `from_preset` takes.
        **options: of `from_preset`.

    Raises:
        BadInputError: the preset is none of that class, or a file of it is missing or damaged.
    """
    try:
        check_weights(preset)
        return kind.from_preset(preset, **options)
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        raise BadInputError(
            f"{preset}: no preset of a {kind.__name__} ({_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    """What is wrong, out of the page that Keras writes about it."""
    reason = str(error).rpartition("Exception encountered: ")[2] or type(error).__name__
    return reason.splitlines()[0]


def load_backbone(preset: str) -> keras_hub.models.Backbone:
    """The encoder of a preset, this project's or KerasHub's, in float32 and checked.

    Raises:
        BadInputError: as `load_preset`, or it does not compute what it was saved with.
    """
    backbone = load_preset(keras_hub.models.Backbone, preset, dtype="float32")
    check_outputs(preset, backbone, load_preset(keras_hub.models.Tokenizer, preset))
    return backbone


def load_masked_lm(preset: str, dtype: str = "float32") -> SpanBertMaskedLM:
    """A masked-language model with its trained head, checked.

    Args:
        preset: directory, or another name that `from_preset` takes.
        dtype: of the weights and computations; only `"float32"` is compared with the outputs that
            the preset was saved with.

    Raises:
        BadInputError: as `load_preset`; or the head was never trained, or the encoder does not
            compute what it was saved with.
    """
    masked_lm = load_preset(SpanBertMaskedLM, preset, dtype=dtype)
    if not masked_lm.is_head_trained:
        raise BadInputError(
            f"{preset}: its masked-language-model head was never trained; use the preset of a "
            "pre-training run"
        )
    if dtype == "float32":
        tokenizer = load_preset(SpanBertTokenizer, preset)
        check_outputs(preset, masked_lm.backbone, tokenizer)
    return masked_lm
