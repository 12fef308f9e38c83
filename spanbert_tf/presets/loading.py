"""Loads presets for the commands, and checks them."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Protocol

import keras_hub
from keras_hub.src.utils import preset_utils

from spanbert_tf.data.manifest import vocabulary_hash
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.preset_files import describe_missing
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.models.keras_hub_presets import (
    LoadsPresets,
    NewHeadWarning,
    TaskPresets,
    check_preset,
    check_weight_files,
    encoder_width,
    is_task_preset,
    task_config,
)
from spanbert_tf.presets.writing import check_token_ids, check_weights
from spanbert_tf.text.vocabulary import Casing
from spanbert_tf.training.precision import choose_precision

# What Keras, KerasHub and h5py raise of descriptions and weights that are damaged.
_DAMAGE = (
    *(ValueError, OSError, LookupError, TypeError, ImportError, RuntimeError),
    *(ArithmeticError, AttributeError),
)
# Other options can mean a new head.
_KEEP_WEIGHTS = {
    "dtype",
    "load_weights",
    "lora_alpha",
    "lora_rank",
    "lora_targets",
    "preprocessor",
}


class RecordsInfo(Protocol):
    """What the descriptions of all kinds of records tell."""

    vocabulary_hash: str
    casing: Casing


def load_preset(
    kind: type, preset: str, **options: object
) -> keras_hub.models.Backbone | keras_hub.models.Task | keras_hub.tokenizers.Tokenizer:
    """`kind.from_preset(preset)`, with errors that say which preset.

    Args:
        kind: a class with `from_preset`.
        preset: directory, or another name that `from_preset` takes.
        **options: as for `from_preset`.

    Raises:
        BadInputError: the preset is of another class, or one of its files is missing or damaged,
            or it names modules of others.
        MismatchError: it has SegaBERT's positions of before 0.2.0.
    """
    try:
        files = check_preset(preset)
        if not issubclass(kind, keras_hub.models.Tokenizer):  # it reads none
            check_weights(preset)
            is_stock = not issubclass(kind, LoadsPresets)  # ours look at them themselves
            if is_stock and options.get("load_weights", True):
                check_weight_files(files)
        with (
            weights_are_loaded() if _holds_all(kind, preset, options) else contextlib.nullcontext()
        ):
            loaded = kind.from_preset(preset, **options)
    except MismatchError as error:  # of an encoder, which does not know where it is from
        raise MismatchError(f"{preset}: {error}") from error
    except BadInputError:
        raise
    except _DAMAGE as error:
        if not os.path.isdir(preset):
            raise BadInputError(describe_missing(preset, error)) from error
        raise BadInputError(
            f"{preset}: no preset of a {kind.__name__} ({_first_line(error)})"
        ) from error
    if isinstance(loaded, SpanBertTokenizer) and loaded.compute_dtype != "int32":
        raise BadInputError(
            f"{preset}: its tokenizer gives strings, not ids; set dtype to int32 in "
            f"{preset_utils.TOKENIZER_CONFIG_FILE}"
        )
    return loaded


def _holds_all(kind: type, preset: str, options: Mapping[str, object]) -> bool:
    """Whether all weights come from the preset: Keras refuses one that lacks some of them."""
    if not options.get("load_weights", True) or options.keys() - _KEEP_WEIGHTS:
        return False
    if issubclass(kind, keras_hub.models.Task):  # otherwise it gets a new head
        return is_task_preset(preset, kind)
    return issubclass(kind, keras_hub.models.Backbone)


def _first_line(error: Exception) -> str:
    """What is wrong, out of the long message that Keras writes."""
    reason = str(error).rpartition("Exception encountered: ")[2] or type(error).__name__
    return reason.splitlines()[0]


def load_checked(
    kind: type, preset: str, **options: object
) -> keras_hub.models.Backbone | keras_hub.models.Task:
    """A model, by default in float32, with the weights and token ids that were saved.

    Args:
        kind: class of a backbone or a task, this project's or KerasHub's.
        preset: directory, or another name that `from_preset` takes.
        **options: as for `from_preset`.

    Raises:
        BadInputError: as `load_preset`; or its encoder is no BERT, or token ids are not those of
            `golden.json`.
    """
    return load_with_tokenizer(kind, preset, **options)[0]


def load_with_tokenizer(
    kind: type, preset: str, *, dtype: str = "float32", **options: object
) -> tuple[keras_hub.models.Backbone | keras_hub.models.Task, keras_hub.tokenizers.Tokenizer]:
    """The same, and the tokenizer whose token ids were compared: a task's own, or the preset's."""
    model = load_preset(kind, preset, dtype=dtype, **options)
    backbone = getattr(model, "backbone", model)
    if not isinstance(backbone, SpanBertBackbone | keras_hub.models.BertBackbone):
        raise BadInputError(f"{preset}: holds a {type(backbone).__name__}, no BERT; name another")
    tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    if tokenizer is None:
        tokenizer = load_preset(keras_hub.models.Tokenizer, preset)
    check_token_ids(preset, tokenizer)
    return model, tokenizer


def load_trained(kind: type, preset: str, precision: str = "float32") -> keras_hub.models.Task:
    """Loads a task to predict with, whose head, where its class has one, must have been trained.

    (`from_preset` puts a new head on an encoder that has none, for fine-tuning.)

    Args:
        kind: class of the task, this project's.
        preset: directory, or another name that `from_preset` takes.
        precision: dtype of weights and computations, or `"auto"`: what this machine's devices
            compute fastest in.

    Raises:
        BadInputError: as `load_checked`; or the preset has no head of that class, one that was
            never trained, or no preprocessor.
    """
    has_head = issubclass(kind, TaskPresets)
    is_task = is_task_preset(preset, kind)
    if has_head and not is_task:
        raise BadInputError(
            f"{preset}: has no trained head ({preset_utils.TASK_WEIGHTS_FILE} of a "
            f"{kind.__name__}); use the preset of such a model"
        )
    if is_task and task_config(preset).get("preprocessor") is None:
        raise BadInputError(
            f"{preset}: was saved without a preprocessor, which tells how text is read; save the "
            f"{kind.__name__} with its preprocessor"
        )
    if precision == "auto":
        precision = choose_precision(precision, encoder_width(preset)).removeprefix("mixed_")
    with without_warning_of_new_heads():  # it is an error here
        task = load_checked(kind, preset, dtype=precision)
    if has_head and not task.is_head_trained:
        raise BadInputError(
            f"{preset}: the head of its {kind.__name__} was never trained; use the preset of a "
            "training run"
        )
    task.loaded_from = preset
    return task


@contextlib.contextmanager
def without_warning_of_new_heads() -> Iterator[None]:
    """For a caller that looks at `is_head_trained` itself: `from_preset` does not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewHeadWarning)
        yield


def checked_tokenizer(
    preset: str,
    data: str,
    info: RecordsInfo,
    tokenizer: keras_hub.tokenizers.Tokenizer | None = None,
) -> SpanBertTokenizer:
    """The tokenizer of a preset, which reads text as the records were written.

    Args:
        preset: directory, or another name that `from_preset` takes.
        data: directory of the records, for errors.
        info: their description.
        tokenizer: the preset's, where it is loaded already.

    Raises:
        BadInputError: the preset has no tokenizer of ours.
        MismatchError: vocabulary or casing differ.
    """
    if not isinstance(tokenizer, SpanBertTokenizer):
        tokenizer = load_preset(SpanBertTokenizer, preset)
    if tokenizer.casing != info.casing:
        raise MismatchError(
            f"{preset}: its text is {tokenizer.casing.describe()}, that of the records in {data} "
            f"{info.casing.describe()} (lowercase, strip_accents); write the records again with "
            f"--preset {preset}"
        )
    if vocabulary_hash(tokenizer.get_vocabulary()) != info.vocabulary_hash:
        raise MismatchError(
            f"{preset}: its vocabulary is not that of the records in {data} (vocabulary_hash); "
            f"write the records again with --preset {preset}"
        )
    return tokenizer
