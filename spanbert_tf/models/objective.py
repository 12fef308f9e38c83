"""What a model is trained by: sums over the targets of its objectives, its loss and its metrics.

Sums can be added up over the parts of a batch, so the loss of a batch does not depend on how many
replicas and micro-batches share it. B rows or documents.
"""

from typing import Any, NamedTuple

import keras
from keras import ops


class ObjectiveSums(NamedTuple):
    """What one objective contributes before it is divided by the number of its targets; all []."""

    loss: keras.KerasTensor  # sum of the losses of the targets, in nats for cross-entropies
    num_correct: keras.KerasTensor | None  # targets predicted right; of numbers none is right
    num_targets: keras.KerasTensor

    @classmethod
    def of(
        cls,
        losses: keras.KerasTensor,
        is_right: keras.KerasTensor | None,
        weights: keras.KerasTensor,
    ) -> "ObjectiveSums":
        """The sums of targets: losses and weights float32 [B, …], hits bool or float, as those.

        As in Keras a weight makes a target's loss larger or smaller, and counts it once; with a
        weight of 0 it is none.
        """
        is_target = are_targets(weights)
        num_right = None
        if is_right is not None:
            num_right = ops.sum(ops.cast(is_right, "float32") * is_target)
        return cls(ops.sum(losses * weights), num_right, ops.sum(is_target))


class Objectives:
    """The part of a task that a batch passes: its loss and metrics are those of its objectives.

    A class has `objective_sums`; with one objective `_objective`, its name, and `_target_weights`,
    with several `objectives` and `target_counts`. Reported as metrics, each as a mean over the
    targets of an epoch: `OBJECTIVE_loss` and `OBJECTIVE_accuracy` of each objective (the latter not
    of a regression), and `loss`, the sum of the losses. A class with one objective reports its loss
    as `loss` alone.
    """

    has_accuracy = True  # whether targets are right or wrong
    _objective: str
    _objective_metrics: "ObjectiveMetrics | None" = None  # of a model that is compiled

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return (self._objective,)

    def call(self, inputs: dict, training: bool | None = None, mask: None = None) -> Any:
        """The model's outputs; features that it does not know are ignored."""
        # A functional model would bind a dict with further keys to its inputs in their order.
        if isinstance(inputs, dict) and isinstance(self.input, dict):
            inputs = {name: inputs[name] for name in self.input}
        return super().call(inputs, training=training, mask=mask)

    def objective_sums(
        self,
        x: dict,
        outputs: Any,
        y: Any = None,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Sums over the targets of a batch, for each objective; by default of a classification.

        Args:
            x: as for `call`.
            outputs: what `call` returned; by default logits, [B, …, C].
            y: targets, of the task's own kind; by default classes, int [B, …].
            sample_weight: float [B], or as `y`; 1 by default.
        """
        weights = self._target_weights(y, sample_weight)
        return {self._objective: crossentropy_sums(ops.maximum(y, 0), outputs, weights)}

    def _target_weights(self, y: Any, sample_weight: keras.KerasTensor | None) -> keras.KerasTensor:
        """Weights of the targets, float32 as `y`."""
        return weights_of(y, sample_weight)

    def target_counts(
        self, x: dict, y: Any = None, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """How many targets a batch has, float32 [], for each objective."""
        weights = self._target_weights(y, sample_weight)
        return {self._objective: ops.sum(are_targets(weights))}

    def _metric_targets(
        self, y: Any, sample_weight: keras.KerasTensor | None
    ) -> tuple[Any, keras.KerasTensor | None]:
        """Labels and weights for metrics that `compile` was given."""
        return y, sample_weight

    def _further_loss(self, *added: keras.KerasTensor) -> keras.KerasTensor | None:
        """The losses of regularisers and of `add_loss`; `None` where there are none.

        On TensorFlow Keras divides them, which all replicas have alike, by the replicas' number.
        """
        losses = [self._aggregate_additional_loss(loss) for loss in (*added, *self.losses)]
        return sum(losses) if losses else None

    @property
    def metrics(self) -> list[keras.Metric]:
        """Keras' metrics, and those of the objectives."""
        own = self._objective_metrics
        return super().metrics + ([] if own is None else own.metrics)

    def _update_metrics(
        self,
        batch: tuple,
        outputs: Any,
        sums: dict[str, ObjectiveSums],
        further_loss: keras.KerasTensor | None,
    ) -> None:
        """Updates the metrics with a batch; outputs are for those that `compile` was given."""
        if further_loss is not None and keras.backend.backend() == "tensorflow":
            further_loss *= self.distribute_strategy.num_replicas_in_sync  # of a replica's share
        self._objective_metrics.update(sums, further_loss)
        if self._compile_metrics is not None:
            _, y, sample_weight = batch
            y, sample_weight = self._metric_targets(y, sample_weight)
            self._compile_metrics.update_state(y, outputs, sample_weight)

    def get_metrics_result(self) -> dict[str, keras.KerasTensor]:
        """The metrics' values; `loss` is the sum of the objectives' mean losses."""
        results = super().get_metrics_result()
        if self._objective_metrics is not None:
            parts = [results[f"{name}_loss"] for name in self.objectives]
            results["loss"] = sum(parts) + results.pop(_FURTHER)
            if hasattr(type(self), "_objective"):
                del results[f"{self._objective}_loss"]
        return results


_FURTHER = "further_loss"


class ObjectiveMetrics:
    """Means over the targets of an epoch.

    Args:
        objectives: names of the objectives.
        has_accuracy: whether the share of right targets is one of the metrics.
    """

    def __init__(self, objectives: tuple[str, ...], has_accuracy: bool) -> None:
        kinds = ("loss", "accuracy") if has_accuracy else ("loss",)
        names = [f"{objective}_{kind}" for objective in objectives for kind in kinds]
        self._means = {name: keras.metrics.Mean(name=name) for name in (*names, _FURTHER)}

    @property
    def metrics(self) -> list[keras.Metric]:
        """All of them, that of further losses at last."""
        return list(self._means.values())

    def update(
        self, sums: dict[str, ObjectiveSums], further_loss: keras.KerasTensor | None = None
    ) -> None:
        """Updates the means with what `objective_sums` returned, and with further losses."""
        for objective, part in sums.items():
            count = part.num_targets
            for kind, total in (("loss", part.loss), ("accuracy", part.num_correct)):
                mean = self._means.get(f"{objective}_{kind}")
                if mean is not None and total is not None:
                    mean.update_state(ops.divide_no_nan(total, count), sample_weight=count)
        if further_loss is not None:
            self._means[_FURTHER].update_state(further_loss)


def are_targets(weights: keras.KerasTensor) -> keras.KerasTensor:
    """1 for each weight of a target, 0 for those of none, float32 as `weights`."""
    return ops.cast(ops.not_equal(weights, 0.0), "float32")


def weights_of(values: keras.KerasTensor, weights: keras.KerasTensor | None) -> keras.KerasTensor:
    """The weight of each value [B, …], float32; `None`: 1.

    Weights have as many axes or fewer, or a last axis of 1 more.
    """
    ones = ops.ones_like(values, dtype="float32")
    if weights is None:
        return ones
    weights = ops.cast(weights, "float32")
    if len(weights.shape) > len(values.shape):
        weights = ops.squeeze(weights, axis=-1)
    while len(weights.shape) < len(values.shape):
        weights = ops.expand_dims(weights, axis=-1)
    return weights * ones


def crossentropy_sums(
    labels: keras.KerasTensor,
    logits: keras.KerasTensor,
    weights: keras.KerasTensor | None,
    *,
    from_logits: bool = True,
) -> ObjectiveSums:
    """The sums of a classification: labels int [B, …], logits or probabilities [B, …, classes]."""
    logits = ops.cast(logits, "float32")
    labels = ops.reshape(labels, ops.shape(logits)[:-1])  # of a table's column: [B, 1]
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=from_logits)
    is_right = ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32"))
    return ObjectiveSums.of(losses, is_right, weights_of(losses, weights))


def vocabulary_crossentropy(
    labels: keras.KerasTensor, logits: keras.KerasTensor
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Cross-entropy of each target, and whether its label has the highest logit.

    On TensorFlow it is computed from the softmax, which is one fast kernel on a processor.
    TensorFlow's own loss takes an exponential after the other there for its gradient, and Keras'
    `argmax` goes four times over the logits to tell -0.0 from 0.0; with 28,996 entries the two
    were a tenth of a small model's step. Other backends have Keras' functions, which their
    compilers fuse.

    Of labels int [...] and logits float32 [..., V]: losses in nats, float32 [...], and hits, bool
    [...]; of equal logits the first counts.
    """
    if keras.backend.backend() == "tensorflow":
        return _on_tensorflow(labels, logits)
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32"))


def _on_tensorflow(labels: Any, logits: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    shape = tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])  # [N]
    rows = tf.reshape(logits, [-1, logits.shape[-1]])  # [N, V]
    best = tf.argmax(rows, axis=-1, output_type=tf.int32)  # [N]
    numbers = tf.range(tf.size(labels))
    of_labels, of_best = (tf.stack([numbers, entries], axis=1) for entries in (labels, best))

    @tf.custom_gradient
    def crossentropy(rows: tf.Tensor) -> tuple[tf.Tensor, object]:
        shares = tf.nn.softmax(rows)  # [N, V]
        label_shares = tf.gather_nd(shares, of_labels)
        # The largest share is at least 1 / V, so its logarithm is exact where that of a label's
        # may be minus infinity.
        gaps = tf.gather_nd(rows, of_best) - tf.gather_nd(rows, of_labels)
        losses = gaps - tf.math.log(tf.gather_nd(shares, of_best))  # [N]

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # A processor's softmax of NaN has finite shares, which must not be trained on. The loss
            # itself takes the place: `tf.debugging.enable_check_numerics` ends at a constant NaN.
            upstream = tf.where(tf.math.is_finite(losses), upstream, losses)
            return tf.tensor_scatter_nd_update(
                shares * upstream[:, None], of_labels, (label_shares - 1.0) * upstream
            )

        return losses, gradient

    return tf.reshape(crossentropy(rows), shape), tf.reshape(best == labels, shape)
