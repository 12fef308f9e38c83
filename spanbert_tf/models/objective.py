"""The objectives of a model: sums over their targets, and the loss and metrics from these sums.

The sums can be added up over the parts of a batch, so the loss does not depend on the number of
replicas and micro-batches. Shapes: B rows or documents, C classes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.work import Work, WorkMetrics


class ObjectiveSums(NamedTuple):
    """The sums of one objective over the targets of a batch, float32 scalars.

    Attributes:
        loss: sum of the losses, in nats for cross-entropies.
        num_correct: number of targets whose prediction is right; `None` for a regression.
        num_targets: number of targets.
    """

    loss: keras.KerasTensor
    num_correct: keras.KerasTensor | None
    num_targets: keras.KerasTensor

    @classmethod
    def of(
        cls,
        losses: keras.KerasTensor,
        is_right: keras.KerasTensor | None,
        weights: keras.KerasTensor,
    ) -> "ObjectiveSums":
        """Adds up the losses of targets.

        As in Keras, a weight scales the loss of a target, but does not change the number of
        targets. A value with weight 0 is no target.

        Args:
            losses: float32 [B, …].
            is_right: bool or float of the same shape; `None` for a regression.
            weights: float32 of the same shape.
        """
        is_target = are_targets(weights)
        num_right = None
        if is_right is not None:
            num_right = ops.sum(ops.cast(is_right, "float32") * is_target)
        return cls(ops.sum(losses * weights), num_right, ops.sum(is_target))


class BatchLoss(NamedTuple):
    """The loss of a batch or of a part of it, and the values from which it was computed.

    Attributes:
        loss: float32 scalar.
        outputs: the outputs of the model.
        sums: the sums of each objective.
        further_loss: sum of the losses of regularizers and `add_loss`; `None` if there are none.
    """

    loss: keras.KerasTensor
    outputs: Any
    sums: dict[str, ObjectiveSums]
    further_loss: keras.KerasTensor | None


def loss_of(
    model: "Objectives",
    batch: tuple,
    num_targets: Mapping[str, keras.KerasTensor] | None = None,
    num_parts: int | keras.KerasTensor = 1,
    *,
    training: bool = True,
) -> BatchLoss:
    """Computes the loss of one part of a batch. The losses of all parts add up to the batch's.

    loss = Σ over objectives (sum of the part's losses / targets of the batch)
           + (losses of regularizers and of `add_loss`) / parts

    Args:
        model: a model with objectives.
        batch: inputs, targets and sample weights of the part; the latter two may be `None`.
        num_targets: number of targets of each objective in the whole batch, float32 scalars;
            `None` if the part is the whole batch.
        num_parts: number of parts of the batch, over all replicas and micro-batches.
        training: whether to run the model in training mode, with dropout.
    """
    x, y, sample_weight = batch
    outputs = model(x, training=training)
    sums = model.objective_sums(x, outputs, y, sample_weight)
    loss = mean_loss(sums, num_targets)
    further_loss = model.further_loss()
    if further_loss is not None:
        loss += further_loss / ops.cast(num_parts, further_loss.dtype)
    return BatchLoss(loss, outputs, sums, further_loss)


def mean_loss(
    sums: Mapping[str, ObjectiveSums], num_targets: Mapping[str, keras.KerasTensor] | None = None
) -> keras.KerasTensor:
    """Adds up the mean losses of all objectives. The loss of an objective without targets is 0.

    Args:
        sums: the sums of each objective.
        num_targets: the divisors of the sums, float32 scalars; by default the `num_targets` of the
            sums.
    """
    loss = 0.0
    for name, part in sums.items():
        count = part.num_targets if num_targets is None else num_targets[name]
        loss += ops.divide_no_nan(part.loss, count)
    return loss


class Objectives(MixinBase):
    """Mixin of a Keras model that is trained by its own objectives.

    A subclass with one objective sets `objective`, the name, and may override `objective_sums`
    (another loss) and `target_weights` (which labels count). A subclass with several objectives
    overrides `objectives`, `objective_sums` and `target_counts`.

    The metrics are means over the targets of an epoch: `OBJECTIVE_loss` and `OBJECTIVE_accuracy` of
    each objective (a regression has no accuracy), and `loss`, the sum of the losses. A class with
    one objective reports only `loss` and the accuracy.

    Attributes:
        objective: name of the objective, of a class with one.
        has_accuracy: whether predictions are right or wrong.
    """

    has_accuracy = True
    objective: str
    _objective_metrics: "ObjectiveMetrics | None" = None  # set when the model is compiled

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return (self.objective,)

    def call(self, inputs: dict, training: bool | None = None, mask: None = None) -> Any:
        """Computes the outputs of the model; features that are no inputs of it are ignored."""
        # Keras would assign the values of a dict with further keys to the inputs by their order.
        if isinstance(inputs, dict) and isinstance(self.input, dict):
            inputs = {name: inputs[name] for name in self.input}
        return super().call(inputs, training=training, mask=mask)

    def objective_sums(
        self,
        x: dict,
        outputs: Any,
        y: Any,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Computes the sums of each objective over a batch; by default those of a classification.

        Args:
            x: the inputs of `call`.
            outputs: the outputs of `call`; by default logits, [B, …, C].
            y: targets in the format of the task; by default classes, int [B, …].
            sample_weight: float [B], or of the shape of `y`; 1 by default.
        """
        weights = self.target_weights(y, sample_weight)
        return {self.objective: crossentropy_sums(ops.maximum(y, 0), outputs, weights)}

    def target_weights(self, y: Any, sample_weight: keras.KerasTensor | None) -> keras.KerasTensor:
        """Returns the weight of each target, float32 of the shape of `y`."""
        return weights_of(y, sample_weight)

    def target_counts(
        self, x: dict, y: Any = None, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Counts the targets of each objective in a batch; float32 scalars."""
        weights = self.target_weights(y, sample_weight)
        return {self.objective: ops.sum(are_targets(weights))}

    def _metric_targets(
        self, y: Any, sample_weight: keras.KerasTensor | None
    ) -> tuple[Any, keras.KerasTensor | None]:
        """Returns the labels and weights for the metrics that were given to `compile`."""
        return y, sample_weight

    def further_loss(self) -> keras.KerasTensor | None:
        """Adds up the losses of `add_loss` and of regularizers; `None` if there are none.

        Keras' property `losses` fails in a `StatelessScope` that does not map all regularized
        weights.
        """
        losses = []
        for layer in self._flatten_layers():
            losses += layer._get_own_losses()
        for weight in self.trainable_weights:
            if weight.regularizer is not None:
                losses.append(weight.regularizer(weight.value))
        if not losses:
            return None
        return sum(ops.sum(ops.cast(loss, "float32")) for loss in losses)

    def step_operations(self, x: Any) -> keras.KerasTensor | float:
        """Computes the operations of a training step in billions; 0.0 if they are not known.

        Args:
            x: the inputs of a batch or of a part of it.
        """
        return 0.0

    def work_done(self) -> Work:
        """Returns the work of the steps since the metrics were reset; it waits for the device.

        If several workers share the run, all of them must call this after the same step.
        """
        if self._objective_metrics is None:  # compiled with another loss
            return Work(0.0, 0.0, 0.0)
        return self._objective_metrics.work.read()

    @property
    def metrics(self) -> list[keras.Metric]:
        """Keras' metrics and those of the objectives."""
        if self._objective_metrics is None:
            return super().metrics
        return super().metrics + self._objective_metrics.metrics

    def _update_metrics(self, batch: tuple, batch_loss: BatchLoss) -> None:
        """Updates the metrics of the objectives, and those given to `compile`, with a batch."""
        x, y, sample_weight = batch
        if self._objective_metrics is not None:
            self._objective_metrics.update(batch_loss.sums, batch_loss.further_loss)
            self._objective_metrics.work.update(x, sample_weight, self.step_operations(x))
        if self._compile_metrics is not None:
            y, sample_weight = self._metric_targets(y, sample_weight)
            self._compile_metrics.update_state(y, batch_loss.outputs, sample_weight)

    def get_metrics_result(self) -> dict[str, keras.KerasTensor]:
        """Returns the values of the metrics. `loss` is the sum of the mean losses of objectives."""
        results = super().get_metrics_result()
        if self._objective_metrics is None:
            return results
        for metric in self._objective_metrics.work.metrics:
            del results[metric.name]
        losses = [results[f"{name}_loss"] for name in self.objectives]
        results["loss"] = sum(losses) + results.pop(_FURTHER)
        if hasattr(type(self), "objective"):
            del results[f"{self.objective}_loss"]
        return results


_FURTHER = "further_loss"


class ObjectiveMetrics:
    """The metrics of objectives: means over the targets of an epoch.

    Args:
        objectives: names of the objectives.
        has_accuracy: whether to include the accuracy of each objective.

    Attributes:
        work: what the steps of the epoch have worked through.
    """

    def __init__(self, objectives: tuple[str, ...], has_accuracy: bool) -> None:
        self.work = WorkMetrics()
        self._means: dict[str, keras.metrics.Mean] = {}
        for objective in objectives:
            self._add(f"{objective}_loss")
            if has_accuracy:
                self._add(f"{objective}_accuracy")
        self._add(_FURTHER)

    def _add(self, name: str) -> None:
        self._means[name] = keras.metrics.Mean(name=name)

    @property
    def metrics(self) -> list[keras.Metric]:
        """All metrics: the means of objectives and of further losses, and the work."""
        return [*self._means.values(), *self.work.metrics]

    def update(
        self, sums: dict[str, ObjectiveSums], further_loss: keras.KerasTensor | None = None
    ) -> None:
        """Updates the means with the sums of a batch and its further losses."""
        for objective, part in sums.items():
            self._update_mean(f"{objective}_loss", part.loss, part.num_targets)
            if part.num_correct is not None:
                self._update_mean(f"{objective}_accuracy", part.num_correct, part.num_targets)
        if further_loss is not None:
            self._means[_FURTHER].update_state(further_loss)

    def _update_mean(self, name: str, total: keras.KerasTensor, count: keras.KerasTensor) -> None:
        if name in self._means:
            self._means[name].update_state(ops.divide_no_nan(total, count), sample_weight=count)


def are_targets(weights: keras.KerasTensor) -> keras.KerasTensor:
    """Returns 1.0 where a weight is not 0, else 0.0; float32 of the shape of `weights`."""
    return ops.cast(ops.not_equal(weights, 0.0), "float32")


def weights_of(values: keras.KerasTensor, weights: keras.KerasTensor | None) -> keras.KerasTensor:
    """Broadcasts weights to values; float32 of the shape of `values`.

    Args:
        values: [B, …].
        weights: weights with at most as many axes as the values, or with one more axis of size 1;
            `None` for weights of 1.
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
    """Computes the sums of a classification.

    Args:
        labels: int [B, …].
        logits: logits or probabilities, float [B, …, C].
        weights: as for `weights_of`.
        from_logits: whether `logits` are logits.
    """
    logits = ops.cast(logits, "float32")
    labels = ops.reshape(labels, ops.shape(logits)[:-1])  # labels of a table's column are [B, 1]
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=from_logits)
    is_right = ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32"))
    return ObjectiveSums.of(losses, is_right, weights_of(losses, weights))
