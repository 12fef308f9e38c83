"""The training step on JAX: Keras' own, where the global batch is one array on all devices.

B rows of the global batch, N micro-batches that they are cut into.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from spanbert_tf.models.micro_batches import equal_parts


class TrainStep:
    """What the step on TensorFlow offers beside Keras' own; for `Objectives`.

    Keras' step takes the gradient of `compute_loss`, a mean over the targets of the global batch,
    and shares the batch's rows among the devices of a `keras.distribution`.
    """

    _accumulation_steps = 1

    def compile(
        self,
        *args: object,
        accumulation_steps: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs,
    ) -> None:
        """As on TensorFlow; XLA compiles whatever `jit_compile` says: without, JAX is slow."""
        self._accumulation_steps = accumulation_steps
        super().compile(*args, jit_compile="auto", **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        """As in Keras, which after each step would search the step's arrays for layers."""
        if name == "_jax_state":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def hold(self, variables: Sequence[keras.Variable]) -> None:
        """Leaves variables as they are from the next `fit` on, and trains all others again.

        Args:
            variables: those to hold; none: all that can be trained are.

        Raises:
            ValueError: the optimizer is not this project's `AdamW`, which alone can.
        """
        # Keras' step wants gradients of all; the optimizer leaves some variables alone.
        if hasattr(type(self.optimizer), "held"):
            self.optimizer.held = frozenset(map(id, variables))
        elif variables:
            raise ValueError(f"on JAX {type(self.optimizer).__name__} cannot leave variables alone")
        self.train_function = None

    def train_step(self, state: tuple, data: object) -> tuple[dict, tuple]:
        """One update from the global batch; Keras' own where nothing is accumulated."""
        if self._objective_metrics is None or self._accumulation_steps == 1:
            return super().train_step(state, data)
        trainable, non_trainable, of_optimizer, of_metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        gradients, non_trainable, *found = self._accumulate(
            trainable, non_trainable, of_optimizer, batch
        )
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        mapping = zip(self.metrics_variables, of_metrics, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)) as scope:
            self._update_metrics(batch, *found)
            logs = self.get_metrics_result()
        of_metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
        return logs, (trainable, non_trainable, of_optimizer, of_metrics)

    def _accumulate(
        self, trainable: list, non_trainable: list, of_optimizer: list, batch: tuple
    ) -> tuple:
        """The sum of the gradients of the micro-batches, and what the metrics need."""
        count, _ = equal_parts(batch, self._accumulation_steps)
        num_targets = {
            name: jnp.where(number == 0.0, 1.0, number)
            for name, number in self.target_counts(*batch).items()
        }
        # [B, …] -> [N, B / N, …]; the rows of a device stay with it.
        micro_batches = jax.tree.map(
            lambda values: values.reshape(-1, count, *values.shape[1:]).swapaxes(0, 1), batch
        )

        def loss_of(trainable: list, non_trainable: list, micro_batch: tuple) -> tuple:
            x, y, sample_weight = micro_batch
            outputs, non_trainable, losses = self.stateless_call(
                trainable, non_trainable, x, return_losses=True, training=True
            )
            sums = self.objective_sums(x, outputs, y, sample_weight)
            loss = sum(part.loss / num_targets[name] for name, part in sums.items())
            further_loss = sum(losses, jnp.zeros(())) / count
            mapping = list(zip(self.optimizer.variables, of_optimizer, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                scaled = self.optimizer.scale_loss(loss + further_loss)
            # Outputs are large, and hardly ever needed.
            kept = outputs if self._compile_metrics else None
            return scaled, (non_trainable, kept, sums, further_loss)

        def add(before: tuple, micro_batch: tuple) -> tuple[tuple, Any]:
            total, non_trainable = before
            gradients, (non_trainable, *found) = jax.grad(loss_of, has_aux=True)(
                trainable, non_trainable, micro_batch
            )
            return (jax.tree.map(jnp.add, total, gradients), non_trainable), found

        zeros = jax.tree.map(jnp.zeros_like, trainable)
        (gradients, non_trainable), found = jax.lax.scan(add, (zeros, non_trainable), micro_batches)
        outputs, *sums = found
        outputs = jax.tree.map(  # as in the batch
            lambda values: values.swapaxes(0, 1).reshape(-1, *values.shape[2:]), outputs
        )
        sums = jax.tree.map(lambda values: jnp.sum(values, axis=0), sums)
        return gradients, non_trainable, outputs, *sums


# Model → function → what XLA has compiled, which lasts as long as the model does.
_COMPILED: weakref.WeakKeyDictionary[keras.Model, dict] = weakref.WeakKeyDictionary()


def jitted(function: Callable[..., Any], model: keras.Model) -> Callable[..., Any]:
    """A function that computes with a model, compiled by XLA; of structures of NumPy's arrays.

    Args:
        function: one of a module, which is compiled once for the model and the shapes that it is
            given. It is given the model first, and changes no variable. What it is given besides
            may be anything that NumPy makes arrays of, such as TensorFlow's tensors.
        model: the model; its variables are arguments of what is compiled, not constants in it.
    """
    of_model = _COMPILED.setdefault(model, {})
    if function not in of_model:
        of_model[function] = _compiled(function, weakref.ref(model))

    def call(*arguments: Any) -> Any:
        arrays = jax.tree.map(np.asarray, arguments)
        values = [_here(variable.value) for variable in model.variables]
        return jax.tree.map(np.asarray, of_model[function](values, *arrays))

    return call


def _compiled(
    function: Callable[..., Any], reference: weakref.ref[keras.Model]
) -> Callable[..., Any]:
    @jax.jit
    def run(values: list, *arguments: Any) -> Any:
        model = reference()
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(model, *arguments)

    return run


def _here(value: jax.Array) -> jax.Array:
    """A variable's value; where several devices have it, that of this process's first one alone."""
    return value.addressable_data(0) if value.is_fully_replicated else value
