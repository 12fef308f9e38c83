"""How the models load and save presets: `from_preset` and `save_to_preset` of KerasHub's classes.

Every `from_preset` goes through `check_preset`. Presets name no mixed precision: their weights are
in float32, and the caller of `from_preset` chooses. KerasHub 0.32 cannot load a task whose preset
names one: it asks whether the policy's name is a float dtype, and Keras 3.15 raises an error for
names that are no dtype.
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

# Bytes beside the values of the weights: for each variable in HDF5 (2,500 to 5,000 were measured),
# and for vocabulary and descriptions.
_HDF5_ENTRY, _TEXT_FILES = 8192, 4 << 20
_HEAD_STATE = "is_head_trained"  # name of the mark in the file with the head's weights
# The classes that descriptions may name. A registered class belongs to this project, to a package
# that the user has imported, or to KerasHub; some of KerasHub's hundreds of classes open paths that
# a description names.
_KERAS_HUB = ("keras_hub", "keras_nlp")
_STOCK_CLASSES = (
    *("BertBackbone", "BertTokenizer", "BertMaskedLM", "BertMaskedLMPreprocessor"),
    *("BertTextClassifier", "BertTextClassifierPreprocessor"),
    *("BertTextEmbedder", "BertTextEmbedderPreprocessor"),
)
# Modules of Keras whose classes take numbers alone: none opens files or creates layers.
_MODULES_OF_NUMBERS = {
    "keras": keras.dtype_policies,  # the module that Keras writes for policies
    "keras.dtype_policies": keras.dtype_policies,
    "keras.initializers": keras.initializers,
    "keras.regularizers": keras.regularizers,
    "keras.constraints": keras.constraints,
}
_PLAIN = ("__tuple__", "__numpy__", "__ellipsis__", "__slice__")
# The base class that is meant at the root of a file, or under a key of a task or preprocessor.
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
    """Refuses a preset that is not safe to load, before Keras creates anything from its files.

    The encoder of an adapter is checked as the adapter is.

    Args:
        preset: a preset, or its name: what `from_preset` takes.
        reads_weights: whether the weights are loaded.

    Returns:
        The preset.

    Raises:
        BadInputError: there is no preset, or something else, such as a model of Hugging Face; a
            file is a pipe or a link that leads out; a description has numbers that no model has, or
            names classes of others; or the weights do not fit the descriptions, or lie elsewhere.
    """
    files = PresetFiles.of(preset)
    for name, description in files.descriptions.items():
        for key, value in _objects(name, description):
            if fault := _class_fault(key, value):
                raise BadInputError(f"{files}: {name} {fault}")
    if reads_weights:
        files.check_weights()
        if files.base is not files:
            check_preset(files.base, reads_weights=True)
    return files


def _objects(name: str, description: object) -> Iterator[tuple[str, dict]]:
    """The parts of a description from which Keras creates objects, each with its key."""
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
    """Why Keras must not create an object from a part of a description, as a predicate."""
    if key == PRESET_CONFIG and "class_name" not in value and value.get("model_type") == "bert":
        return None  # a remote model of Hugging Face, which KerasHub converts to its own BERT
    module, name = value.get("module"), value.get("class_name")
    if not isinstance(name, str):
        return "names no class; copy the preset again"
    shown = f"{module}.{name}"[:200]
    found, wanted = _registered(value), _KINDS.get(key)
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
    """The name by which Keras looks for a registered class or function."""
    if value.get("class_name") == "function":
        return value.get("config")
    return value.get("registered_name", value.get("class_name"))


def _registered(value: dict) -> Any:
    """The class or function that is registered under the name in a description, if one is."""
    name = _registered_name(value)
    return keras.saving.get_registered_object(name) if isinstance(name, str) else None


def _is_of_keras(module: object, name: str, config: object) -> bool:
    """Whether an unregistered name is one of Keras' classes that take numbers alone."""
    if not isinstance(module, str | None):
        return False
    if name == "function":
        return (
            module == "builtins" and isinstance(config, str) and hasattr(keras.activations, config)
        )
    place = _MODULES_OF_NUMBERS.get(module or "")
    return name in _PLAIN or isinstance(getattr(place, name, None), type)


class LoadsPresets(MixinBase):
    """Base of backbone, tokenizer and preprocessors; name it before KerasHub's class."""

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, *args: object, **kwargs: object
    ) -> Self:
        """Loads a preset.

        Args:
            preset: directory, another name that KerasHub knows, or a preset.
            *args: as for KerasHub's class.
            **kwargs: as for KerasHub's class.

        Raises:
            BadInputError: as `check_preset`.
        """
        load_weights = args[0] if args else kwargs.get("load_weights", True)
        reads_weights = issubclass(cls, _MODELS) and bool(load_weights)
        files = check_preset(preset, reads_weights=reads_weights)
        return super().from_preset(files.name, *args, **kwargs)


def preset_bytes(model: keras.Model) -> int:
    """The largest number of bytes that a preset of a model can take on disk."""
    numbers = sum(math.prod(weight.shape) * 4 for weight in model.weights)  # float32
    return numbers + len(model.weights) * _HDF5_ENTRY + _TEXT_FILES


@contextlib.contextmanager
def without_mixed_precision(model: keras.Model) -> Iterator[None]:
    """A context in which layers in mixed precision compute in the dtype of their weights.

    Args:
        model: the model; its weights stay as they are.
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
    """Base of backbone and tasks; name it before KerasHub's class.

    Attributes:
        needs_tensorflow: why the model runs on TensorFlow alone; empty if it does not.
    """

    needs_tensorflow = ""

    def save_to_preset(self, preset_dir: str, max_shard_size: float | None = 10) -> None:
        """Writes a preset whose descriptions name the dtype of the weights alone.

        Args:
            preset_dir: directory of the preset.
            max_shard_size: in GiB; larger encoders are saved in several files. `None`: in one.
        """
        with without_mixed_precision(self):
            super().save_to_preset(preset_dir, max_shard_size=max_shard_size)

    def export(
        self, filepath: str, format: str = "tf_saved_model", *args: object, **kwargs
    ) -> None:
        """Writes a file for a runtime, as `keras.Model.export`.

        Args:
            filepath: of the file, or directory of the SavedModel.
            format: as there.
            *args: as there.
            **kwargs: as there.

        Raises:
            ValueError: the runtime lacks operations.
        """
        if self.needs_tensorflow and format != "tf_saved_model":
            raise ValueError(f"format={format!r}: {self.needs_tensorflow}")
        if format == "onnx" and keras.backend.backend() == "tensorflow":
            register_onnx_operations()
        super().export(filepath, format, *args, **kwargs)


class NewHeadWarning(UserWarning):
    """A preset has no trained head of a class, so its model got a new one."""


class TaskPresets(SavesWithoutMixedPrecision):
    """Presets of tasks, which store whether the head was trained; see `SpanBertTask`."""

    is_head_trained = False

    @classmethod
    def asks_for_new_head(cls, arguments: Mapping[str, object]) -> bool:
        """Whether arguments of `from_preset` ask for a new head."""
        return "num_classes" in arguments

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, load_weights: bool = True, **kwargs
    ) -> "keras_hub.models.Task":
        """Loads a preset; one without a head of this class gets a new head.

        That warns, unless the call asks for a new head: with `num_classes`, with the `labels` of a
        relation or token classifier, or without weights. The commands refuse to predict with a head
        that was never trained.

        Args:
            preset: directory, another name that KerasHub knows, or a preset.
            load_weights: whether to load weights; all are random otherwise.
            **kwargs: arguments of the class and of its backbone, in place of the preset's.

        Raises:
            BadInputError: as `check_preset`.
        """
        is_new = cls.asks_for_new_head(kwargs)
        files = check_preset(preset, reads_weights=load_weights)
        if is_new and "num_classes" not in kwargs:
            # KerasHub leaves a saved head out only if it is given `num_classes`.
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

        The file of a trained head has no mark, so a plain `keras.Model` can load it.
        """
        super().save_own_variables(store)
        if not self.is_head_trained:
            store[_HEAD_STATE] = np.array(False, "uint8")

    def load_own_variables(self, store: dict) -> None:
        """Reads what `save_own_variables` wrote."""
        own = {name: store[name] for name in store.keys()}  # noqa: SIM118
        state = own.pop(_HEAD_STATE, None)
        if state is not None and state.shape != ():  # HDF5 has not read its values yet
            raise ValueError(f"{_HEAD_STATE} has shape {list(state.shape)}, and is one value")
        self.is_head_trained = state is None or bool(np.array(state))
        super().load_own_variables(own)

    def save_task_weights(self, filepath: str) -> None:
        """Saves the head without the encoder and the optimizer."""
        keras.saving.save_weights(self, filepath, objects_to_skip=self._beside_head())

    def load_task_weights(self, filepath: str) -> None:
        """Loads what `save_task_weights` wrote."""
        keras.saving.load_weights(self, filepath, objects_to_skip=self._beside_head())

    def _beside_head(self) -> list[object]:
        optimizer = getattr(self, "optimizer", None)
        of_training = [*self.metrics, optimizer] if optimizer else self.metrics
        return [*self.backbone._flatten_layers(), *of_training]


def weights_digest(backbone: keras_hub.models.Backbone) -> str:
    """A hexadecimal digest of an encoder's weights, whatever format they were stored in.

    Args:
        backbone: the encoder; its adapters are left out.
    """
    digest = hashlib.sha256()
    for weight in backbone.weights:
        if "lora" in weight.name:
            continue
        values = keras.ops.convert_to_numpy(weight)
        digest.update(np.ascontiguousarray(values, "float32").data)
    return digest.hexdigest()
