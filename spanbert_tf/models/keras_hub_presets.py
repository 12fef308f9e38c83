"""Loads and saves presets: the methods `from_preset` and `save_to_preset` of the models.

Every `from_preset` calls `check_preset`. Presets name no mixed precision: their weights are in
float32, and the caller of `from_preset` chooses the precision. KerasHub 0.32 could not load a task
whose preset names one: it checks whether the name of the policy is a float dtype, and Keras 3.15
raises an error for a name that is no dtype.
"""

import contextlib
import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Self

import keras
import keras_hub
import numpy as np
from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import PRESET_CONFIG
from spanbert_tf.files.preset import (
    PREPROCESSOR_CONFIG,
    TASK_CONFIG,
    TOKENIZER_CONFIG,
    PresetFiles,
)
from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.onnx_operations import register_onnx_operations

# Further bytes of a preset: for the entry of each variable in HDF5 (2,500 to 5,000 were measured),
# and for the vocabulary and the descriptions.
_HDF5_ENTRY = 8192
_TEXT_FILES = 4 << 20
_HEAD_STATE = "is_head_trained"  # name of the mark in the file of the head's weights
# Classes of KerasHub that descriptions may name. Other registered classes belong to this project or
# to a package that the user has imported. Some of KerasHub's hundreds of classes open paths that a
# description names.
_KERAS_HUB = ("keras_hub", "keras_nlp")
_STOCK_CLASSES = (
    "BertBackbone",
    "BertTokenizer",
    "BertMaskedLM",
    "BertMaskedLMPreprocessor",
    "BertTextClassifier",
    "BertTextClassifierPreprocessor",
    "BertTextEmbedder",
    "BertTextEmbedderPreprocessor",
)
# Modules of Keras whose classes take only numbers: they open no files and create no layers.
_MODULES_OF_NUMBERS = {
    "keras": keras.dtype_policies,  # the module that Keras writes for policies
    "keras.dtype_policies": keras.dtype_policies,
    "keras.initializers": keras.initializers,
    "keras.regularizers": keras.regularizers,
    "keras.constraints": keras.constraints,
}
_PLAIN = ("__tuple__", "__numpy__", "__ellipsis__", "__slice__")
# The base class of the object at the root of a file, or under a key of a task or preprocessor.
_KINDS = {
    PRESET_CONFIG: keras_hub.models.Backbone,
    TASK_CONFIG: keras_hub.models.Task,
    TOKENIZER_CONFIG: keras_hub.models.Tokenizer,
    PREPROCESSOR_CONFIG: keras_hub.models.Preprocessor,
    "backbone": keras_hub.models.Backbone,
    "tokenizer": keras_hub.models.Tokenizer,
    "preprocessor": keras_hub.models.Preprocessor,
}
_MODELS = (keras_hub.models.Backbone, keras_hub.models.Task)


def check_preset(preset: str | os.PathLike | PresetFiles, *, reads_weights: bool) -> PresetFiles:
    """Checks that a preset is safe to load, before Keras creates objects from its files.

    The encoder of an adapter is checked, too.

    Args:
        preset: a preset or its name, as for `from_preset`.
        reads_weights: whether the weights are loaded.

    Returns:
        The preset.

    Raises:
        BadInputError: there is no preset of this name, but perhaps something else, such as a model
            of Hugging Face; a file is a pipe or a link to another directory; a description has
            numbers that no model has, or names classes that it must not name; or the weights do
            not fit the descriptions, or lie in another directory.
    """
    files = PresetFiles.of(preset)
    for name, description in files.descriptions.items():
        for key, value in _objects(name, description):
            fault = _class_fault(key, value)
            if fault:
                raise BadInputError(f"{files}: {name} {fault}")
    if reads_weights:
        files.check_weights()
        if files.base is not files:
            check_preset(files.base, reads_weights=True)
    return files


def _objects(name: str, description: object) -> Iterator[tuple[str, dict]]:
    """Yields the parts of a description from which Keras creates objects, with their keys."""
    left = [(name, description)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            if "class_name" in value or key == name:
                yield key, value
            left += value.items()
        elif isinstance(value, list):
            left += [(key, inner) for inner in value]


def _class_fault(key: str, value: dict) -> str | None:
    """Says why Keras must not create an object from a part of a description; `None` if it may."""
    if key == PRESET_CONFIG and "class_name" not in value and value.get("model_type") == "bert":
        return None  # a remote model of Hugging Face, which KerasHub converts to its own BERT
    module = value.get("module")
    name = value.get("class_name")
    if not isinstance(name, str):
        return "names no class; copy the preset again"
    shown = f"{module}.{name}"[:200]
    found = _registered(value)
    wanted = _KINDS.get(key)
    if found is None:
        is_allowed = wanted is None and _is_of_keras(module, name, value.get("config"))
    else:
        package = str(_registered_name(value)).partition(">")[0]
        is_allowed = package not in _KERAS_HUB or found.__name__ in _STOCK_CLASSES
    if not is_allowed:
        return (
            f"names {shown!a}, which is no class of this project, of KerasHub's BERT, or of a "
            "package that you have imported; import the one that registers it first if you trust it"
        )
    is_model = isinstance(found, type) and issubclass(found, _MODELS)
    if wanted is None and is_model:
        return f"names {shown!a} where no model is meant; copy the preset again"
    if wanted is not None and not (isinstance(found, type) and issubclass(found, wanted)):
        return f"names {shown!a} where a {wanted.__name__} is meant; copy the preset again"
    return None


def _registered_name(value: dict) -> object:
    """Returns the name by which Keras looks up a registered class or function."""
    if value.get("class_name") == "function":
        return value.get("config")
    return value.get("registered_name", value.get("class_name"))


def _registered(value: dict) -> Any:
    """Returns the registered class or function that a description names, or `None`."""
    name = _registered_name(value)
    return keras.saving.get_registered_object(name) if isinstance(name, str) else None


def _is_of_keras(module: object, name: str, config: object) -> bool:
    """Whether an unregistered name is one of Keras' classes or functions that take only numbers."""
    if not isinstance(module, str | None):
        return False
    if name == "function":
        return (
            module == "builtins" and isinstance(config, str) and hasattr(keras.activations, config)
        )
    place = _MODULES_OF_NUMBERS.get(module or "")
    return name in _PLAIN or isinstance(getattr(place, name, None), type)


class LoadsPresets(MixinBase):
    """Mixin of backbone, tokenizer and preprocessors; name it before KerasHub's class."""

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, *args: object, **kwargs: object
    ) -> Self:
        """Loads a preset.

        Args:
            preset: a directory, another name that KerasHub knows, or a preset.
            *args: as for the class of KerasHub.
            **kwargs: as for the class of KerasHub.

        Raises:
            BadInputError: as `check_preset`.
        """
        load_weights = args[0] if args else kwargs.get("load_weights", True)
        reads_weights = issubclass(cls, _MODELS) and bool(load_weights)
        files = check_preset(preset, reads_weights=reads_weights)
        return super().from_preset(files.name, *args, **kwargs)


def preset_bytes(model: keras.Model) -> int:
    """Returns the largest number of bytes that the preset of a model can take on disk."""
    numbers = sum(math.prod(weight.shape) * 4 for weight in model.weights)  # float32
    return numbers + len(model.weights) * _HDF5_ENTRY + _TEXT_FILES


@contextlib.contextmanager
def without_mixed_precision(model: keras.Model) -> Iterator[None]:
    """Makes layers in mixed precision compute in the dtype of their weights within a context.

    Args:
        model: the model; its weights are not changed.
    """
    mixed = [
        (layer, layer.dtype_policy)
        for layer in model._flatten_layers()
        if str(layer.dtype_policy.name).startswith("mixed_")  # a map of policies has no name
    ]
    try:
        for layer, policy in mixed:
            layer.dtype_policy = policy.variable_dtype
        yield
    finally:
        for layer, policy in mixed:
            layer.dtype_policy = policy


class SavesWithoutMixedPrecision(MixinBase):
    """Mixin of backbone and tasks; name it before KerasHub's class.

    Attributes:
        needs_tensorflow: why the model runs only on TensorFlow; empty if it runs elsewhere, too.
    """

    needs_tensorflow = ""

    def save_to_preset(self, preset_dir: str, max_shard_size: float | None = 10) -> None:
        """Writes a preset whose descriptions name only the dtype of the weights.

        Args:
            preset_dir: directory of the preset.
            max_shard_size: limit of the size of a file of the encoder's weights, in GiB; `None`
                for no limit.
        """
        with without_mixed_precision(self):
            super().save_to_preset(preset_dir, max_shard_size=max_shard_size)

    def export(
        self, filepath: str, format: str = "tf_saved_model", *args: object, **kwargs
    ) -> None:
        """Exports the model for a runtime, as `keras.Model.export`.

        Args:
            filepath: path of the file, or of the directory of the SavedModel.
            format: as for `keras.Model.export`.
            *args: as for `keras.Model.export`.
            **kwargs: as for `keras.Model.export`.

        Raises:
            ValueError: the runtime lacks operations of the model.
        """
        if self.needs_tensorflow and format != "tf_saved_model":
            raise ValueError(f"format={format!r}: {self.needs_tensorflow}")
        if format == "onnx":
            # Without tf2onnx, Keras uses another package, or says that this one is missing.
            with contextlib.suppress(ModuleNotFoundError):
                register_onnx_operations()
        super().export(filepath, format, *args, **kwargs)


class NewHeadWarning(UserWarning):
    """Warns that a preset has no trained head of a class, so its model got a new one."""


class TaskPresets(SavesWithoutMixedPrecision):
    """Loads and saves presets of tasks, which store whether the head was trained.

    Attributes:
        is_head_trained: see `SpanBertTask`.
    """

    is_head_trained = False

    @classmethod
    def asks_for_new_head(cls, arguments: Mapping[str, object]) -> bool:
        """Whether arguments of `from_preset` ask for a new head."""
        return "num_classes" in arguments

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, load_weights: bool = True, **kwargs
    ) -> "keras_hub.models.Task":
        """Loads a preset. If it has no head of this class, the model gets a new one.

        A new head causes a `NewHeadWarning`, unless the call asks for it: by `num_classes`, by the
        `labels` of a relation or token classifier, or by `load_weights=False`. The commands refuse
        to predict with a head that was never trained.

        Args:
            preset: a directory, another name that KerasHub knows, or a preset.
            load_weights: whether to load weights; otherwise all weights are random.
            **kwargs: arguments of the class and of its backbone that override the preset's.

        Raises:
            BadInputError: as `check_preset`.
        """
        is_new = cls.asks_for_new_head(kwargs)
        files = check_preset(preset, reads_weights=load_weights)
        if is_new and "num_classes" not in kwargs:
            # KerasHub's `from_preset` ignores a saved head only if `num_classes` is given.
            loader = preset_utils.get_preset_loader(files.name)
            task = loader.load_task(cls, load_weights, load_task_weights=False, **kwargs)
        else:
            task = super().from_preset(files.name, load_weights=load_weights, **kwargs)
        if not (is_new or not load_weights or task.is_head_trained):
            warnings.warn(
                f"{files}: has no trained head of a {cls.__name__}; a new one was put on its "
                "encoder: train it before you use it",
                NewHeadWarning,
                stacklevel=2,
            )
        return task

    def save_own_variables(self, store: dict) -> None:
        """Writes the model's own variables, and a mark if the head was never trained.

        The file of a trained head has no mark, so that a plain `keras.Model` can load it.
        """
        super().save_own_variables(store)
        if not self.is_head_trained:
            store[_HEAD_STATE] = np.array(False, "uint8")

    def load_own_variables(self, store: dict) -> None:
        """Reads the variables and the mark that `save_own_variables` wrote."""
        own = {name: store[name] for name in store.keys()}  # noqa: SIM118
        state = own.pop(_HEAD_STATE, None)
        if state is not None and state.shape != ():  # checked before HDF5 reads the values
            raise ValueError(f"{_HEAD_STATE} has shape {list(state.shape)}, and is one value")
        self.is_head_trained = state is None or bool(np.array(state))
        super().load_own_variables(own)

    def save_task_weights(self, filepath: str) -> None:
        """Writes the weights of the head, without the encoder and the optimizer."""
        keras.saving.save_weights(self, filepath, objects_to_skip=self._objects_beside_head())

    def load_task_weights(self, filepath: str) -> None:
        """Reads the weights that `save_task_weights` wrote."""
        keras.saving.load_weights(self, filepath, objects_to_skip=self._objects_beside_head())

    def _objects_beside_head(self) -> list[object]:
        objects = [*self.backbone._flatten_layers(), *self.metrics]
        optimizer = getattr(self, "optimizer", None)
        if optimizer:
            objects.append(optimizer)
        return objects


def weights_digest(backbone: keras_hub.models.Backbone) -> str:
    """Returns a hexadecimal digest of an encoder's weights, independent of their file format.

    Args:
        backbone: the encoder. Its adapters are ignored.
    """
    digest = hashlib.sha256()
    for weight in backbone.weights:
        if "lora" in weight.name:
            continue
        values = keras.ops.convert_to_numpy(weight)
        digest.update(np.ascontiguousarray(values, "float32").data)
    return digest.hexdigest()
