"""Masked rows in one file, for a machine without TensorFlow, which alone reads records.

B rows of a batch, R rows of a file.
"""

from typing import NamedTuple

import click
import numpy as np

_VOCABULARY_SIZE = "vocabulary_size"


class SavedRows(NamedTuple):
    """What a file holds.

    Attributes:
        features: those of `spanbert_tf.data.pretraining_dataset`, [R, …] each.
        vocabulary_size: entries of the records' vocabulary.
    """

    features: dict[str, np.ndarray]
    vocabulary_size: int

    @property
    def count(self) -> int:
        """R."""
        return len(self.features["token_ids"])

    @property
    def length(self) -> int:
        """Positions of a row."""
        return self.features["token_ids"].shape[1]

    @property
    def slots(self) -> int:
        """Prediction slots of a row."""
        return self.features["mask_positions"].shape[1]

    @property
    def filled(self) -> float:
        """Share of the positions that are no padding."""
        return float(self.features["padding_mask"].mean())

    def batches(self, size: int) -> list[dict[str, np.ndarray]]:
        """All full batches, features [B, …] each.

        Raises:
            click.ClickException: there are fewer rows than that.
        """
        if self.count < size:
            raise click.ClickException(f"a batch of {size} rows: only {self.count} are saved")
        return [
            {name: values[first : first + size] for name, values in self.features.items()}
            for first in range(0, self.count - size + 1, size)
        ]


def save_rows(data: str, output: str, *, batches: int, batch_size: int) -> SavedRows:
    """Writes the first batches of the training stream, masked with seed 0, as .npz.

    Args:
        data: directory of pre-training records.
        output: the file.
        batches: how many.
        batch_size: rows of each.
    """
    from spanbert_tf.data.manifest import PretrainingManifest
    from spanbert_tf.data.pretraining import pretraining_dataset

    dataset = pretraining_dataset(data, batch_size=batch_size, seed=0)
    read = list(dataset.take(batches).as_numpy_iterator())
    features = {name: np.concatenate([batch[name] for batch in read]) for name in read[0]}
    rows = SavedRows(features, PretrainingManifest.load(data).vocabulary_size)
    with open(output, "wb") as file:  # given a path, NumPy would add a suffix to it
        np.savez_compressed(file, **features, **{_VOCABULARY_SIZE: rows.vocabulary_size})
    return rows


def load_rows(path: str) -> SavedRows:
    """Reads what `save_rows` wrote."""
    with np.load(path, allow_pickle=False) as file:
        features = dict(file)
    return SavedRows(features, int(features.pop(_VOCABULARY_SIZE)))
