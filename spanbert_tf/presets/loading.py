"""Loads presets for the commands, and checks them."""

import keras_hub

from spanbert_tf.errors import BadInputError
from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
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
        if not issubclass(kind, keras_hub.models.Tokenizer):  # it reads none
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


def load_checked(
    kind: type, preset: str, **options: object
) -> keras_hub.models.Backbone | keras_hub.models.Task:
    """A model in float32 whose encoder computes what the preset was saved with.

    Args:
        kind: class of a backbone or a task, this project's or KerasHub's.
        preset: directory, or another name that `from_preset` takes.
        **options: of `from_preset`.

    Raises:
        BadInputError: as `load_preset`; or token ids or outputs are not those of `golden.json`.
    """
    model = load_preset(kind, preset, dtype="float32", **options)
    backbone = getattr(model, "backbone", model)
    check_outputs(preset, backbone, load_preset(keras_hub.models.Tokenizer, preset))
    return model


def load_masked_lm(preset: str) -> SpanBertMaskedLM:
    """A masked-language model with its trained head, checked.

    Raises:
        BadInputError: as `load_checked`; or the head was never trained.
    """
    masked_lm = load_checked(SpanBertMaskedLM, preset)
    if not masked_lm.is_head_trained:
        raise BadInputError(
            f"{preset}: its masked-language-model head was never trained; use the preset of a "
            "pre-training run"
        )
    return masked_lm
