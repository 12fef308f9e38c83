"""The training step, whose result does not depend on how the global batch is shared and cut.

B rows of a replica, N micro-batches that they are cut into.
"""

from collections.abc import Sequence
from typing import Protocol

import keras
import tensorflow as tf

from spanbert_tf.models.objective_sums import ObjectiveSums

_SEED_STATE = "seed_generator_state"
_REPLICA_STRIDE = 0x9E3779B9  # far apart in the first half of a seed


class TrainableModel(Protocol):
    """What a Keras model must offer to be trained here: sums, which can be added up over parts.

    Both methods take what the data set yields: features `x`, and where it has them labels `y` and
    the rows' `sample_weight`.
    """

    objectives: tuple[str, ...]
    has_accuracy: bool  # where it is not there, they have

    def objective_sums(
        self, x: dict, outputs: object, y: object = None, sample_weight: tf.Tensor | None = None
    ) -> dict[str, ObjectiveSums]:
        """Losses, right answers and targets of a batch, added up, for each objective."""

    def target_counts(
        self, x: dict, y: object = None, sample_weight: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """How many targets a batch has, float32 [], for each objective."""


class ReplicatedModel(keras.Model):
    """Trains a model on the replicas of any `tf.distribute` strategy.

    The targets of the whole global batch are counted before the first gradient is taken, so each
    replica and each micro-batch contributes its share of one mean. Replicas draw different dropout
    masks; Keras gives all of them the same. The optimizer must be this project's `AdamW`, which
    adds up over the replicas before it clips.

    Reported as metrics, each as a mean over the targets of an epoch: `OBJECTIVE_loss` and
    `OBJECTIVE_accuracy` of each objective (not of a regression), and `loss`, the sum of the losses.

    Args:
        model: a built model that offers `objectives`, `objective_sums` and `target_counts`.
        accumulation_steps: N, how many micro-batches each replica's rows are cut into to save
            memory; one update for all of them.
        frozen: variables that are not trained.
    """

    def __init__(
        self,
        model: keras.Model,
        accumulation_steps: int = 1,
        frozen: Sequence[keras.Variable] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.accumulation_steps = accumulation_steps
        self._frozen = frozenset(map(id, frozen))
        self._held: frozenset[int] = frozenset()
        kinds = ("loss", "accuracy") if getattr(model, "has_accuracy", True) else ("loss",)
        self._objective_metrics = {
            f"{objective}_{kind}": keras.metrics.Mean(name=f"{objective}_{kind}")
            for objective in model.objectives
            for kind in kinds
        }
        self.built = True

    def compile(self, *args: object, jit_compile: bool = False, **kwargs) -> None:
        """Configures the model for training, as `keras.Model.compile`.

        Args:
            *args: as for `keras.Model.compile`.
            jit_compile: whether XLA compiles the step; on mirrored replicas forward and backward
                of each, without the update, whose all-reduce it cannot compile on processors.
            **kwargs: as for `keras.Model.compile`.
        """
        mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
        is_mirrored = isinstance(self.distribute_strategy, mirrored)
        self._compiles_replicas = jit_compile and is_mirrored
        self._make_forward_and_backward()
        super().compile(*args, jit_compile=jit_compile and not is_mirrored, **kwargs)

    def hold(self, variables: Sequence[keras.Variable]) -> None:
        """Leaves variables as they are from the next `fit` on, and trains all others again.

        Args:
            variables: those to hold; none: all are trained but the frozen ones.
        """
        self._held = frozenset(map(id, variables))
        # Graphs that are there already train the former variables.
        self._make_forward_and_backward()
        self.train_function = None

    def _make_forward_and_backward(self) -> None:
        self._forward_and_backward = self._compute_gradients
        if self._compiles_replicas:
            self._forward_and_backward = tf.function(
                self._compute_gradients, jit_compile=True, reduce_retracing=True
            )

    def call(self, inputs: dict, training: bool | None = None) -> object:
        """The outputs of the model."""
        return self.model(inputs, training=training)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The model's variables that its objectives read, without those that stay as they are."""
        constant = self._frozen | self._held
        return [v for v in self.model.trainable_variables if id(v) not in constant]

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """One update from the rows of this replica."""
        batch = keras.utils.unpack_x_y_sample_weight(data)
        num_targets = self._global_target_counts(batch)
        if self.accumulation_steps == 1:
            gradients = self._gradients(batch, num_targets)
        else:
            gradients = self._accumulated_gradients(batch, num_targets)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._reducible(self.get_metrics_result())

    def test_step(self, data: object) -> dict[str, tf.Tensor]:
        """The metrics of the rows of this replica."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self(x, training=False)
        self._update_metrics(self.model.objective_sums(x, outputs, y, sample_weight))
        return self._reducible(self.get_metrics_result())

    def get_metrics_result(self) -> dict[str, tf.Tensor]:
        """The metrics' values; `loss` is the sum of the objectives' mean losses."""
        results = {name: metric.result() for name, metric in self._objective_metrics.items()}
        losses = [value for name, value in results.items() if name.endswith("_loss")]
        return {"loss": sum(losses), **results}

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        """Nothing: the model is built. Keras 3.15 fails here with several workers (#20585)."""

    def _reducible(self, results: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Results with an axis for Keras 3.15 to reduce over, with several workers (#20585)."""
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return {name: tf.reshape(value, [1]) for name, value in results.items()}
        return results

    def _update_metrics(self, sums: dict[str, ObjectiveSums]) -> None:
        for objective, part in sums.items():
            num_targets = tf.maximum(part.num_targets, 1.0)
            for kind, total in (("loss", part.loss), ("accuracy", part.num_correct)):
                if total is None:
                    continue
                metric = self._objective_metrics[f"{objective}_{kind}"]
                metric.update_state(total / num_targets, sample_weight=part.num_targets)

    def _global_target_counts(self, batch: tuple) -> dict[str, tf.Tensor]:
        x, y, sample_weight = batch
        counts = self.model.target_counts(x, y, sample_weight)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            counts = context.all_reduce(tf.distribute.ReduceOp.SUM, counts)
        return {name: tf.maximum(count, 1.0) for name, count in counts.items()}

    def _gradients(self, batch: tuple, num_targets: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Gradients of this batch's share of the loss; updates the metrics.

        The replica's number is part of each random seed while they are computed.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        shift = tf.stack([tf.cast(replica, tf.int64) * _REPLICA_STRIDE, 0])  # [2]
        states = self._seed_states()
        seeds = [state.value + tf.cast(shift, state.value.dtype) for state in states]
        gradients, sums, seeds = self._forward_and_backward(batch, num_targets, seeds)
        for state, seed in zip(states, seeds, strict=True):
            state.assign(seed - tf.cast(shift, seed.dtype))
        self._update_metrics(sums)
        return gradients

    def _seed_states(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if variable.name == _SEED_STATE]

    def _compute_gradients(
        self, batch: tuple, num_targets: dict[str, tf.Tensor], seeds: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, ObjectiveSums], list[tf.Tensor]]:
        """Gradients, the objectives' sums and the random seeds afterwards; changes no variable."""
        x, y, sample_weight = batch
        states = self._seed_states()
        mapping = list(zip(states, seeds, strict=True))
        with tf.GradientTape() as tape:
            with keras.StatelessScope(state_mapping=mapping) as scope:
                outputs = self(x, training=True)
            sums = self.model.objective_sums(x, outputs, y, sample_weight)
            loss = sum(part.loss / num_targets[name] for name, part in sums.items())
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return dense, sums, [scope.get_current_value(state) for state in states]

    def _accumulated_gradients(
        self, batch: tuple, num_targets: dict[str, tf.Tensor]
    ) -> list[tf.Tensor]:
        """The sum of the gradients of the micro-batches, one after the other."""
        count = self.accumulation_steps

        def cut(values: tf.Tensor | None) -> tf.Tensor | None:
            if values is None:  # no labels, no weights
                return None
            shape = tf.concat([[count, tf.shape(values)[0] // count], tf.shape(values)[1:]], axis=0)
            parts = tf.reshape(values, shape)
            static = [None if size is None else size // count for size in values.shape[:1]]
            return tf.ensure_shape(parts, [count, *static, *values.shape[1:]])

        micro_batches = tf.nest.map_structure(cut, batch)  # [N, B / N, …]

        def add_gradients(number: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            micro_batch = tf.nest.map_structure(
                lambda values: None if values is None else values[number], micro_batches
            )
            gradients = self._gradients(micro_batch, num_targets)
            return number + 1, *(a + b for a, b in zip(sums, gradients, strict=True))

        zeros = [tf.zeros(variable.shape, tf.float32) for variable in self.trainable_variables]
        _, *sums = tf.while_loop(
            lambda number, *sums: number < count,
            add_gradients,
            (tf.constant(0), *zeros),
            parallel_iterations=1,  # as much memory as one micro-batch needs
            maximum_iterations=count,
        )
        return sums
