"""One update of `AdamW` on TensorFlow, under any strategy of `tf.distribute`."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class ReplicatedUpdate:
    """The part of `AdamW` that adds up over replicas and decides whether to update."""

    def apply(
        self,
        grads: Sequence[tf.Tensor | tf.IndexedSlices | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables; call it in a replica's context, with the replica's gradients.

        Args:
            grads: gradients of the replica's share of the loss.
            trainable_variables: in the same order; those of `build` by default.
        """
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        kept = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        variables = [variable for _, variable in kept]
        sums = [tf.convert_to_tensor(grad) for grad, _ in kept]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        norms = self._norms(sums, variables)  # [clips]
        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            is_finite = tf.reduce_all(tf.math.is_finite(norms))
            tf.cond(is_finite, lambda: self._update(sums, norms, variables), self._skip)
        else:
            context.merge_call(self._update_all_or_skip, args=(sums, norms, variables))

    def _norms(self, sums: list[tf.Tensor], variables: list[keras.Variable]) -> tf.Tensor:
        """The norm of the gradients of each clip, float32 [clips]; 0 for a clip without gradients.

        One pass over the gradients says how long they are and whether all are finite.
        """
        squares: list[list[tf.Tensor]] = [[] for _ in range(len(self._limits))]
        for gradient, variable in zip(sums, variables, strict=True):
            values = self._values[self._get_variable_index(variable)]
            squares[values.clip].append(tf.nn.l2_loss(gradient))
        return tf.sqrt(2.0 * tf.stack([tf.add_n(part) if part else 0.0 for part in squares]))

    def _update_all_or_skip(
        self,
        strategy: tf.distribute.Strategy,
        sums: list[tf.Tensor],
        norms: tf.Tensor,
        variables: list[keras.Variable],
    ) -> None:
        """One decision for all replicas: updates may not stand in a replica's own `tf.cond`."""
        update = strategy.extended.call_for_each_replica
        tf.cond(
            tf.reduce_all(tf.math.is_finite(strategy.experimental_local_results(norms)[0])),
            lambda: update(self._update, args=(sums, norms, variables)),
            lambda: update(self._skip),
        )

    def _all_reduce_sum_gradients(self, grads_and_vars: list[tuple]) -> list[tuple]:
        """Keras' sum over the replicas, which `apply` has done already."""
        return grads_and_vars

    def _adam_step(
        self,
        gradient: tf.Tensor,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
        powers: tuple[tf.Tensor, tf.Tensor],
        epsilon: float,
    ) -> None:
        """Keras' step in one operation, which goes through the memory once."""
        number = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[number].value.handle,
            v=self._velocities[number].value.handle,
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )
