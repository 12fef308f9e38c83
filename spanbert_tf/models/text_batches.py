"""How `fit`, `evaluate` and `predict` make batches of texts.

B rows, S positions, W positions of a batch's longest row.
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

_BATCH_SIZE = 32  # Keras' default
# Whether the rows that are being made may be short. A variable of the context, since several
# threads may predict with one model.
_SHORTENS = contextvars.ContextVar("shortens", default=False)


class TextBatches(MixinBase):
    """Makes short rows of short texts, and shuffles arrays; name it before KerasHub's class.

    In `fit`, `evaluate` and `predict` a batch of texts is as wide as its longest row, rounded up to
    one of few widths (`data.batches.even_width`). Losses, metrics and outputs are those of rows of
    the whole length, but for rounding; dropout draws other numbers.

    Rows have the whole length, `sequence_length`, wherever the shape must be known: where XLA
    compiles the step, on TPUs and on JAX, in what `predict` returns for each position, in
    `train_on_batch` and its like, in Grain's data sets, and in a preprocessor that is called
    directly.

    KerasHub hands arrays over in their order, whatever `shuffle` says, and Keras warns of that.
    Here `fit` shuffles them, as `keras.Model.fit` does.
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
            x: texts, or what else the preprocessor takes; or a data set.
            y: what is to be learned; a part of `x` where that is a data set.
            batch_size: B of arrays; 32 by default.
            sample_weight: weights of the rows.
            validation_data: a tuple of such, or a data set.
            validation_split: share of the rows, the last ones, that are scored, not trained, where
                there is no `validation_data`.
            shuffle: whether each epoch has its own order of the rows of arrays, the default. Data
                sets are shuffled by whoever makes them; for one, `True` has Keras say so.
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
            x, y, sample_weight = rows.batch(batch_size or _BATCH_SIZE), None, None
            batch_size = validation_split = shuffle = None
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
                shuffle=bool(shuffle),  # arrays are shuffled already
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
        """The loss and the metrics, as `keras.Model.evaluate`.

        Args:
            x: as for `fit`.
            y: as for `fit`.
            batch_size: as for `fit`.
            sample_weight: as for `fit`.
            **kwargs: as for `keras.Model.evaluate`.
        """
        rows = self._rows(x, y, sample_weight)
        if rows is not None:
            x, y, sample_weight = rows.batch(batch_size or _BATCH_SIZE), None, None
            batch_size = None
        with self._short_rows(True):
            return super().evaluate(
                x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
            )

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs) -> Any:
        """The outputs for inputs, as `keras.Model.predict`.

        Args:
            x: texts, or what else the preprocessor takes; or a data set.
            batch_size: B of arrays; 32 by default.
            **kwargs: as for `keras.Model.predict`.
        """
        rows = self._rows(x)
        if rows is not None:
            x, batch_size = rows.batch(batch_size or _BATCH_SIZE), None
        with self._short_rows(not self._has_outputs_of_positions):
            return super().predict(x, batch_size=batch_size, **kwargs)

    def preprocess_samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """What the preprocessor makes of a batch, as `fit` and the like call it.

        Args:
            x: what the preprocessor takes.
            y: as well.
            sample_weight: as well.
        """
        batch = super().preprocess_samples(x, y, sample_weight)
        # Outside of a graph the batch is one of `train_on_batch`, or of Grain, which takes the
        # shape of the first few batches for that of all.
        shortens = _SHORTENS.get() and not tf.executing_eagerly()
        return self._shortened(batch) if shortens else batch

    def _note_inputs(self, x: Any) -> None:
        """Learns of the inputs that the model is trained on, tensors or their specifications."""

    def _prepared_labels(self, y: Any) -> Any:
        """The labels that `fit` and `evaluate` were given, as the preprocessor takes them."""
        return y

    def _rows(self, x: Any, y: Any = None, sample_weight: Any = None) -> tf.data.Dataset | None:
        """A data set of the rows of arrays; `None` for what has batches, or is no array."""
        if x is None or isinstance(x, tf.data.Dataset) or _is_of_grain(x):
            return None
        values = _arrays(
            keras.utils.pack_x_y_sample_weight(x, self._prepared_labels(y), sample_weight)
        )
        try:
            return tf.data.Dataset.from_tensor_slices(values)
        except (TypeError, ValueError):  # KerasHub says what is wrong with it
            return None

    @contextlib.contextmanager
    def _short_rows(self, is_wanted: bool) -> Iterator[None]:
        token = _SHORTENS.set(is_wanted and self._takes_any_width())
        try:
            yield
        finally:
            _SHORTENS.reset(token)

    def _takes_any_width(self) -> bool:
        """Whether batches of several shapes cost nothing: XLA would compile a step for each."""
        if self.preprocessor is None or keras.backend.backend() != "tensorflow":
            return False
        compiles = self.jit_compile or getattr(self, "_compiles_replicas", False)
        return not compiles and not isinstance(self.distribute_strategy, tf.distribute.TPUStrategy)

    def _shortened(self, batch: dict | tuple) -> dict | tuple:
        """A batch of rows [B, S] without the positions that none of its rows uses, [B, W]."""
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
    """A structure of tuples and dicts whose leaves TensorFlow makes tensors of.

    A list is a leaf, and so is a column of pandas'.
    """
    if isinstance(values, tuple):
        return tuple(map(_arrays, values))
    if isinstance(values, dict):
        return {name: _arrays(value) for name, value in values.items()}
    is_of_tensorflow = isinstance(values, tf.Tensor | tf.RaggedTensor)
    return values.__array__() if hasattr(values, "__array__") and not is_of_tensorflow else values


def _is_of_grain(x: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "grain" for kind in type(x).__mro__)


def _inputs_of(dataset: Any) -> Any:
    """The inputs of a data set's batches: their specifications, or those of the first batch."""
    if isinstance(dataset, tf.data.Dataset):
        batch = dataset.element_spec
    elif hasattr(dataset, "__getitem__"):  # Grain's `MapDataset`
        batch = dataset[0]
    else:
        batch = next(iter(dataset))
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def _split(rows: tf.data.Dataset, share: float) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """All rows but the last ones, and those, which are that share of all."""
    number = int(rows.cardinality())
    size = math.floor(number * (1 - share))
    if not 0 < size < number:
        raise ValueError(f"validation_split={share} leaves {size} of {number} rows to train on")
    return rows.take(size), rows.skip(size)
