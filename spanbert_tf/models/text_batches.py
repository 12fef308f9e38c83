"""Makes batches of texts for `fit`, `evaluate` and `predict`.

Shapes: B rows, S positions.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from spanbert_tf.data.batches import even_width
from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.train_step import takes_any_width

_BATCH_SIZE = 32  # Keras' default
# Whether the current call may make rows shorter than `sequence_length`. It is a context variable
# because several threads may predict with one model.
_SHORTENS = contextvars.ContextVar("shortens", default=False)


class TextBatches(MixinBase):
    """Mixin that shortens batches of short texts and shuffles arrays.

    Name it before KerasHub's class.

    In `fit`, `evaluate` and `predict`, a batch of texts is as wide as its longest row, rounded up
    to one of a few widths (`data.batches.even_width`). Losses, metrics and outputs equal those of
    rows of the full length, except for rounding. Dropout draws other numbers.

    Rows have the full length, `sequence_length`, where their shape must be known: if XLA compiles
    the step, on TPUs and on JAX, if `predict` returns outputs for each position, in
    `train_on_batch` and similar methods, in Grain's data sets, and if the preprocessor is called
    directly.

    KerasHub ignores `shuffle` for arrays, and Keras warns about it. Here `fit` shuffles arrays, as
    `keras.Model.fit` does.
    """

    _labels_positions = False  # whether `y` has a label for each position
    _has_outputs_of_positions = False  # whether outputs are as wide as the rows

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        validation_data: Any = None,
        validation_split: float | None = None,
        shuffle: bool | None = None,
        **kwargs,
    ) -> keras.callbacks.History:
        """Trains the model, as `keras.Model.fit`.

        Args:
            x: texts or other inputs of the preprocessor, or a data set.
            y: labels; `None` if `x` is a data set, which includes them.
            batch_size: number of rows of a batch, if `x` is no data set; 32 by default.
            sample_weight: weights of the rows.
            validation_data: a tuple of `x`, `y` and optionally `sample_weight`, or a data set.
            validation_split: share of the last rows that are held out for validation, if there is
                no `validation_data`.
            shuffle: whether to shuffle the rows of arrays in each epoch; `True` by default. Data
                sets are not shuffled, and Keras warns if it is `True` for a data set.
            **kwargs: as for `keras.Model.fit`.

        Raises:
            ValueError: `validation_split` leaves no rows.
        """
        if isinstance(validation_data, list | tuple):
            rows = self._rows(*validation_data)
            if rows is not None:
                validation_data = rows.batch(batch_size or _BATCH_SIZE)
        rows = self._rows(x, y, sample_weight)
        if rows is not None:
            if validation_split and validation_data is None:
                rows, held_out = _split(rows, validation_split)
                validation_data = held_out.batch(batch_size or _BATCH_SIZE)
            if shuffle is None or shuffle:
                rows = rows.shuffle(max(int(rows.cardinality()), 1))
            x = rows.batch(batch_size or _BATCH_SIZE)
            y = None
            sample_weight = None
            batch_size = None
            validation_split = None
            shuffle = None
        if isinstance(x, tf.data.Dataset) or _is_of_grain(x):
            self._note_inputs(_inputs_of(x))
        with self._short_rows(True):
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                sample_weight=sample_weight,
                validation_data=validation_data,
                validation_split=validation_split,
                shuffle=bool(shuffle),  # `False` for arrays, which are shuffled already
                **kwargs,
            )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs,
    ) -> Any:
        """Computes the loss and the metrics, as `keras.Model.evaluate`.

        Args:
            x: as for `fit`.
            y: as for `fit`.
            batch_size: as for `fit`.
            sample_weight: as for `fit`.
            **kwargs: as for `keras.Model.evaluate`.
        """
        rows = self._rows(x, y, sample_weight)
        if rows is not None:
            x = rows.batch(batch_size or _BATCH_SIZE)
            y = None
            sample_weight = None
            batch_size = None
        with self._short_rows(True):
            return super().evaluate(
                x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
            )

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs) -> Any:
        """Returns the outputs for inputs, as `keras.Model.predict`.

        Args:
            x: texts or other inputs of the preprocessor, or a data set.
            batch_size: number of rows of a batch, if `x` is no data set; 32 by default.
            **kwargs: as for `keras.Model.predict`.
        """
        rows = self._rows(x)
        if rows is not None:
            x = rows.batch(batch_size or _BATCH_SIZE)
            batch_size = None
        with self._short_rows(not self._has_outputs_of_positions):
            return super().predict(x, batch_size=batch_size, **kwargs)

    def preprocess_samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Preprocesses a batch; `fit`, `evaluate` and `predict` call this.

        Args:
            x: inputs of the preprocessor.
            y: labels, or `None`.
            sample_weight: weights, or `None`.
        """
        batch = super().preprocess_samples(x, y, sample_weight)
        # An eager call comes from `train_on_batch` or from Grain, which assumes that all batches
        # have the shape of the first few.
        if _SHORTENS.get() and not tf.executing_eagerly():
            return self._shortened(batch)
        return batch

    def _note_inputs(self, x: Any) -> None:
        """Is called with the inputs of training, tensors or specifications; does nothing here."""

    def _prepared_labels(self, y: Any) -> Any:
        """Converts the labels of `fit` and `evaluate` to labels that the preprocessor takes."""
        return y

    def _rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> tf.data.Dataset | None:
        """Makes a data set of the rows of arrays; `None` for data sets and other inputs."""
        if x is None or isinstance(x, tf.data.Dataset) or _is_of_grain(x):
            return None
        values = _arrays(
            keras.utils.pack_x_y_sample_weight(x, self._prepared_labels(y), sample_weight)
        )
        try:
            return tf.data.Dataset.from_tensor_slices(values)
        except (TypeError, ValueError):  # KerasHub raises an error that says what is wrong
            return None

    @contextlib.contextmanager
    def _short_rows(self, is_wanted: bool) -> Iterator[None]:
        """Allows short rows within a context, if the model takes batches of any width."""
        token = _SHORTENS.set(is_wanted and self._takes_any_width())
        try:
            yield
        finally:
            _SHORTENS.reset(token)

    def _takes_any_width(self) -> bool:
        """Whether the model makes its rows itself, and its step takes batches of several widths."""
        return self.preprocessor is not None and takes_any_width(self)

    def _shortened(self, batch: dict | tuple) -> dict | tuple:
        """Removes the last positions of a batch of rows [B, S] that no row uses."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        mask = x.get("padding_mask") if isinstance(x, dict) else None
        if mask is None or mask.shape.rank != 2 or mask.shape[1] is None:
            return batch
        length = mask.shape[1]
        is_used = mask > 0  # [B, S]
        if self._labels_positions and y is not None:
            if y.shape[1:] != mask.shape[1:]:
                return batch
            is_used |= y >= 0
        longest = tf.reduce_max(tf.where(is_used, tf.range(length) + 1, 0))
        width = even_width(longest, length)
        x = {
            name: values[:, :width] if name in self.backbone.input else values
            for name, values in x.items()
        }
        if self._labels_positions and y is not None:
            y = y[:, :width]
            if sample_weight is not None and sample_weight.shape[1:2] == [length]:
                sample_weight = sample_weight[:, :width]
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def _arrays(values: Any) -> Any:
    """Converts columns of pandas and the like, in tuples and dicts, to NumPy arrays.

    TensorFlow converts the leaves of the result, such as lists, to tensors.
    """
    if isinstance(values, tuple):
        return tuple(_arrays(value) for value in values)
    if isinstance(values, dict):
        return {name: _arrays(value) for name, value in values.items()}
    is_tensor = isinstance(values, tf.Tensor | tf.RaggedTensor)
    if hasattr(values, "__array__") and not is_tensor:
        return values.__array__()
    return values


def _is_of_grain(x: Any) -> bool:
    """Whether an object is a data set of Grain, which may not be installed."""
    return any(kind.__module__.partition(".")[0] == "grain" for kind in type(x).__mro__)


def _inputs_of(dataset: Any) -> Any:
    """Returns the inputs of a data set: their specifications, or those of the first batch."""
    if isinstance(dataset, tf.data.Dataset):
        batch = dataset.element_spec
    elif hasattr(dataset, "__getitem__"):  # Grain's `MapDataset`
        batch = dataset[0]
    else:
        batch = next(iter(dataset))
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def _split(rows: tf.data.Dataset, share: float) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Splits rows into training rows and the last rows, which are a share of all."""
    num_rows = int(rows.cardinality())
    size = math.floor(num_rows * (1 - share))
    if not 0 < size < num_rows:
        raise ValueError(f"validation_split={share} leaves {size} of {num_rows} rows to train on")
    return rows.take(size), rows.skip(size)
