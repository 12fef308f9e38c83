"""Which Keras variable holds which array of a `Checkpoint`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np

from spanbert_tf.conversion.checkpoint import Checkpoint, LazyArray
from spanbert_tf.conversion.names import ENCODER, Entry, entries_of


class Parameter(NamedTuple):
    """One variable.

    Attributes:
        entry: the array that it holds.
        variable: variable of a Keras model.
    """

    entry: Entry
    variable: keras.Variable

    @property
    def name(self) -> str:
        """The name of the array in a `Checkpoint`."""
        return self.entry.name

    def assign(self, array: np.ndarray | LazyArray) -> None:
        """Gives the variable the values of an array of a `Checkpoint`."""
        values = np.asarray(array)
        if self.entry.is_matrix:
            values = values.T
        self.variable.assign(values.reshape(self.variable.shape))

    def to_array(self) -> np.ndarray:
        """The variable's values as float32, in the layout of a `Checkpoint`."""
        values = np.asarray(keras.ops.convert_to_numpy(self.variable), "float32")
        values = values.reshape(self.entry.joined_shape(values.shape))
        return np.ascontiguousarray(values.T) if self.entry.is_matrix else values

    def lazy(self) -> LazyArray:
        """What `to_array` returns, when it is asked for."""
        shape = self.entry.joined_shape(tuple(self.variable.shape))
        return LazyArray(shape[::-1] if self.entry.is_matrix else shape, self.to_array)


def part_parameters(part: str, holder: keras.layers.Layer, num_layers: int = 0) -> list[Parameter]:
    """The variables of a part of a model.

    Args:
        part: one of `names.PARTS`.
        holder: the backbone, of the encoder and the pooler, or the layer that is the head.
        num_layers: layers of the encoder.

    Returns:
        The variables that the model has: an encoder has not all tables of positions, and a resolver
        of depth 1 has no gate.
    """
    parameters = []
    for entry in entries_of(part, num_layers):
        variable = _find_variable(holder, entry.keras)
        if variable is not None:
            parameters.append(Parameter(entry, variable))
    return parameters


def _find_variable(holder: Any, path: str) -> keras.Variable | None:
    """What lies at the end of a path of attributes, indices and keys."""
    for step in path.split("."):
        if isinstance(holder, Mapping):
            holder = holder.get(step)
        elif step.isdigit():
            holder = holder[int(step)]
        else:
            holder = getattr(holder, step, None)
    return holder


def encoder_parameters(backbone: keras_hub.models.Backbone) -> list[Parameter]:
    """The parameters of a `SpanBertBackbone` or KerasHub's `BertBackbone`, without the pooler."""
    return part_parameters(ENCODER, backbone, backbone.num_layers)


def assign_part(part: str, holder: keras.layers.Layer, checkpoint: Checkpoint) -> None:
    """Gives the variables of a part the arrays of a checkpoint; `holder` as in `part_parameters`.

    Raises:
        KeyError: the checkpoint's part has an array that the model has no variable for.
    """
    parameters = part_parameters(part, holder, int(checkpoint.sizes["num_layers"]))
    variables = {parameter.name: parameter for parameter in parameters}
    for name in checkpoint.parts()[part]:
        variables[name].assign(checkpoint.arrays[name])
