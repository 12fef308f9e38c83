"""Finds the Keras variable of each array of a `Checkpoint`, and copies the values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np

from spanbert_tf.conversion.checkpoint import Checkpoint, LazyArray
from spanbert_tf.conversion.names import ENCODER, Entry, entries_of


class Parameter(NamedTuple):
    """A variable of a Keras model, and its entry in the table of arrays.

    Attributes:
        entry: the entry.
        variable: the variable.
    """

    entry: Entry
    variable: keras.Variable

    @property
    def name(self) -> str:
        """Name of the array in a `Checkpoint`."""
        return self.entry.name

    def assign(self, array: np.ndarray | LazyArray) -> None:
        """Copies an array of a `Checkpoint` to the variable."""
        values = np.asarray(array)
        if self.entry.is_matrix:
            values = values.T
        self.variable.assign(values.reshape(self.variable.shape))

    def to_array(self) -> np.ndarray:
        """Returns the variable's values as float32, in the layout of a `Checkpoint`."""
        values = np.asarray(keras.ops.convert_to_numpy(self.variable), "float32")
        values = values.reshape(self.entry.joined_shape(values.shape))
        return np.ascontiguousarray(values.T) if self.entry.is_matrix else values

    def lazy(self) -> LazyArray:
        """Returns the result of `to_array` as an array that is computed when it is used."""
        shape = self.entry.joined_shape(tuple(self.variable.shape))
        return LazyArray(shape[::-1] if self.entry.is_matrix else shape, self.to_array)


def part_parameters(part: str, holder: keras.layers.Layer, num_layers: int = 0) -> list[Parameter]:
    """Returns the parameters of a part of a model.

    Args:
        part: one of `names.PARTS`.
        holder: the backbone for the encoder and the pooler, the layer of the head for a head.
        num_layers: number of encoder layers.

    Returns:
        The parameters that the model has. An encoder does not have every table of positions, and a
        resolver of depth 1 has no gate.
    """
    parameters = []
    for entry in entries_of(part, num_layers):
        variable = _find_variable(holder, entry.keras)
        if variable is not None:
            parameters.append(Parameter(entry, variable))
    return parameters


def _find_variable(holder: Any, path: str) -> keras.Variable | None:
    """Follows a path of attributes, indices and keys; returns `None` if a step is missing."""
    for step in path.split("."):
        if isinstance(holder, Mapping):
            holder = holder.get(step)
        elif step.isdigit():
            holder = holder[int(step)]
        else:
            holder = getattr(holder, step, None)
    return holder


def encoder_parameters(backbone: keras_hub.models.Backbone) -> list[Parameter]:
    """Returns the parameters of a BERT encoder without its pooler.

    Args:
        backbone: a `SpanBertBackbone` or KerasHub's `BertBackbone`.
    """
    return part_parameters(ENCODER, backbone, backbone.num_layers)


def assign_part(part: str, holder: keras.layers.Layer, checkpoint: Checkpoint) -> None:
    """Copies the arrays of a part of a checkpoint to the variables of a model.

    Args:
        part: one of `names.PARTS`.
        holder: as for `part_parameters`.
        checkpoint: the checkpoint.

    Raises:
        KeyError: the model has no variable for an array of the part.
    """
    parameters = part_parameters(part, holder, checkpoint.sizes["num_layers"])
    variables = {parameter.name: parameter for parameter in parameters}
    for name in checkpoint.parts()[part]:
        variables[name].assign(checkpoint.arrays[name])
