"""The encoder that all runs of a comparison continue from."""

import math

import numpy as np

from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.presets.loading import weights_digest
from spanbert_tf.presets.pretraining import load_encoder_and_head
from spanbert_tf.training.run_directory import RunDirectory

_OPTION = "--initial-preset"


class ContinuedEncoder:
    """What the encoder of a preset was before the runs.

    Args:
        preset: directory, or another name that `from_preset` takes.

    Attributes:
        preset: as given.

    Raises:
        BadInputError: the preset cannot be read.
    """

    def __init__(self, preset: str) -> None:
        self.preset = preset
        encoder, _ = load_encoder_and_head(preset)
        self._weights = encoder.get_weights()
        self._digest = weights_digest(encoder)

    def note_in(self, directory: str) -> None:
        """Writes down what a comparison began with: its runs do not read the preset again.

        Args:
            directory: directory of the comparison.

        Raises:
            MismatchError: the directory was begun with another encoder.
        """
        inputs = {_OPTION: self._digest}
        RunDirectory(directory).check_inputs(inputs)
        RunDirectory(directory).write_inputs(inputs)

    def change(self, encoder: SpanBertBackbone) -> float:
        """The norm of the difference of all weights, as a share of the norm of those before.

        Args:
            encoder: as trained.
        """
        pairs = [
            (now.astype("float64"), before[: len(now)].astype("float64"))
            for now, before in zip(encoder.get_weights(), self._weights, strict=True)
        ]
        difference = sum(float(np.sum((now - before) ** 2)) for now, before in pairs)
        return math.sqrt(difference / sum(float(np.sum(before**2)) for _, before in pairs))
