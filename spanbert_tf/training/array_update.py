"""One update of `AdamW` on JAX, where the global batch is one array, on however many devices."""

from collections.abc import Sequence

import keras
from keras import ops


class ArrayUpdate:
    """The part of `AdamW` that decides whether to update, without TensorFlow."""

    def apply(
        self,
        grads: Sequence[keras.KerasTensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables.

        Args:
            grads: gradients of the loss of the global batch.
            trainable_variables: in the same order; those of `build` by default.
        """
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        kept = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        sums, variables = [grad for grad, _ in kept], [variable for _, variable in kept]
        norms = self._norms(sums, variables)  # [clips]
        # A branch may not assign to variables, so both ways are computed, and one is taken; their
        # arrays never change, so that those from before an assignment are still there after it.
        state = [*variables, *self.variables]
        before = [variable.value for variable in state]
        self._update(sums, norms, variables)
        updated = [variable.value for variable in state]
        for variable, value in zip(state, before, strict=True):
            variable.assign(value)
        self._skip()
        is_finite = ops.all(ops.isfinite(norms))
        for variable, value in zip(state, updated, strict=True):
            variable.assign(ops.where(is_finite, value, variable.value))

    def _norms(
        self, sums: list[keras.KerasTensor], variables: list[keras.Variable]
    ) -> keras.KerasTensor:
        """The norm of the gradients of each clip, float32 [clips]; 0 for a clip without any."""
        squares = [ops.zeros((), "float32") for _ in range(len(self._limits))]
        for gradient, variable in zip(sums, variables, strict=True):
            values = self._values[self._get_variable_index(variable)]
            squares[values.clip] += ops.sum(ops.square(gradient))
        return ops.sqrt(ops.stack(squares))

    def _adam_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
        powers: tuple[keras.KerasTensor, keras.KerasTensor],
        epsilon: float,
    ) -> None:
        """Keras' step, with an epsilon of the variable's own."""
        number = self._get_variable_index(variable)
        first, second = self._momentums[number], self._velocities[number]
        gradient, beta_1, beta_2 = (
            ops.cast(value, variable.dtype) for value in (gradient, self.beta_1, self.beta_2)
        )
        # 1 - 0.999 in float32, as in TensorFlow's operation, is 1.3e-5 less than 0.001.
        first.assign_add((gradient - first.value) * (1 - beta_1))
        second.assign_add((ops.square(gradient) - second.value) * (1 - beta_2))
        rate = learning_rate * ops.sqrt(1 - powers[1]) / (1 - powers[0])
        variable.assign_sub(rate * first.value / (ops.sqrt(second.value) + epsilon))
