"""The training step that gives one result however the global batch is shared and cut.

B rows of a replica, N micro-batches that they are cut into.
"""

import keras
import tensorflow as tf

from spanbert_tf.models import SpanBertPretrainer

_SEED_STATE = "seed_generator_state"
_REPLICA_STRIDE = 0x9E3779B9  # far apart in the first half of a seed


class ReplicatedPretrainer(SpanBertPretrainer):
    """A `SpanBertPretrainer` for the replicas of any `tf.distribute` strategy.

    The targets of the whole global batch are counted before the first gradient is taken, so each
    replica and each micro-batch contributes its share of one mean. Replicas draw different dropout
    masks; Keras gives all of them the same. The optimizer must be this project's `AdamW`, which
    adds up over the replicas before it clips.

    Attributes:
        accumulation_steps: N, how many micro-batches each replica's rows are cut into to save
            memory; one update for all of them.
    """

    accumulation_steps = 1

    def train_step(self, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One update from the rows of this replica."""
        batch, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        num_targets = self._global_target_counts(batch)
        if self.accumulation_steps == 1:
            gradients = self._gradients(batch, num_targets)
        else:
            gradients = self._accumulated_gradients(batch, num_targets)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._reducible(self.get_metrics_result())

    def test_step(self, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The metrics of the rows of this replica."""
        batch, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        self.update_metrics(self.objective_sums(batch, self(batch, training=False)))
        return self._reducible(self.get_metrics_result())

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        """Nothing: the model is built. Keras 3.15 fails here with several workers (#20585)."""

    def _reducible(self, results: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Results with an axis for Keras 3.15 to reduce over, with several workers (#20585)."""
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return {name: tf.reshape(value, [1]) for name, value in results.items()}
        return results

    def _global_target_counts(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        counts = self.target_counts(batch)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            counts = context.all_reduce(tf.distribute.ReduceOp.SUM, counts)
        return {name: tf.maximum(count, 1.0) for name, count in counts.items()}

    def _gradients(
        self, batch: dict[str, tf.Tensor], num_targets: dict[str, tf.Tensor]
    ) -> list[tf.Tensor]:
        """Gradients of this batch's share of the loss; updates the metrics."""
        with tf.GradientTape() as tape:
            sums = self.objective_sums(batch, self._call_with_own_dropout(batch))
            loss = sum(part.loss / num_targets[name] for name, part in sums.items())
            loss = self.optimizer.scale_loss(loss)
        self.update_metrics(sums)
        gradients = tape.gradient(loss, self.trainable_variables)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _accumulated_gradients(
        self, batch: dict[str, tf.Tensor], num_targets: dict[str, tf.Tensor]
    ) -> list[tf.Tensor]:
        """The sum of the gradients of the micro-batches, one after the other."""
        count = self.accumulation_steps
        micro_batches = {
            name: tf.reshape(values, [count, values.shape[0] // count, *values.shape[1:]])
            for name, values in batch.items()
        }  # [N, B / N, …]

        def add_gradients(number: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            micro_batch = {name: values[number] for name, values in micro_batches.items()}
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

    def _call_with_own_dropout(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The model's outputs in training; the replica's number is part of each random seed."""
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return self(batch, training=True)
        states = [variable for variable in self.variables if variable.name == _SEED_STATE]
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        shift = tf.stack([replica * _REPLICA_STRIDE, 0])  # [2]
        mapping = [(state, state.value + tf.cast(shift, state.value.dtype)) for state in states]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = self(batch, training=True)
        for state in states:
            after = scope.get_current_value(state)
            state.assign(after - tf.cast(shift, after.dtype))
        return outputs
