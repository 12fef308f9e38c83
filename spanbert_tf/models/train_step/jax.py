"""The training step on JAX, where the global batch is one array on all devices.

Shapes: B rows of the global batch, N micro-batches.
"""

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.objective import BatchLoss, loss_of
from spanbert_tf.models.train_step.micro_batches import equal_parts

# Values of the trained variables, of the other variables, of the optimizer and of the metrics.
_State = tuple[list, list, list, list]


class TrainStep(MixinBase):
    """The training step of `fit` and of the commands, as on TensorFlow.

    It is a mixin of a Keras model with `Objectives`. A `keras.distribution` shares the rows of a
    batch among the devices. If the model was compiled with a loss, Keras' own step trains it.
    """

    _accumulation_steps = 1
    _frozen: frozenset[int] = frozenset()  # ids of the variables that are frozen
    left_out_of_training: frozenset[int] = frozenset()  # Keras trains what it began to train
    seconds_waited = 0.0  # that steps have waited for their batches

    def compile(
        self,
        optimizer: str | keras.Optimizer = "rmsprop",
        loss: str | keras.losses.Loss | None = None,
        *,
        accumulation_steps: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs,
    ) -> None:
        """Configures the model, as on TensorFlow. XLA always compiles the step."""
        self._accumulation_steps = accumulation_steps
        super().compile(optimizer=optimizer, loss=loss, jit_compile="auto", **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute, as in Keras, which would search the state for layers in each step."""
        if name in ("_jax_state", "seconds_waited"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def freeze(self, variables: Sequence[keras.Variable]) -> None:
        """Freezes variables from the next `fit` on, and trains all others again.

        Keras' optimizers on JAX take the values of all variables that they were built with, so a
        frozen variable remains among the trainable ones, and has no gradient.

        Args:
            variables: the variables to freeze; an empty sequence unfreezes all.

        Raises:
            ValueError: the model was compiled with a loss, and Keras' own step trains all.
        """
        if variables and self._objective_metrics is None:
            raise ValueError("on JAX a model that was compiled with a loss trains all variables")
        self._frozen = frozenset(id(variable) for variable in variables)
        self.train_function = None

    def is_frozen(self, variable: keras.Variable) -> bool:
        """Whether `freeze` has frozen a variable."""
        return id(variable) in self._frozen

    def fetch_state(self) -> None:
        """Assigns the values that the last step computed to the variables."""
        self.jax_state_sync()

    def _make_function(
        self, step_function: Callable[..., tuple], concatenate_outputs: bool = False
    ) -> Callable[..., tuple]:
        """Makes a function of one or more steps. Keras would fix their number in advance."""
        if concatenate_outputs:
            return super()._make_function(step_function, concatenate_outputs)

        def run_steps(state: tuple, iterator: Iterator) -> tuple[dict, tuple]:
            results, state = step_function(state, next_batch(iterator))
            with contextlib.suppress(StopIteration):  # the data may end
                for _ in range(self.steps_per_execution - 1):
                    results, state = step_function(state, next_batch(iterator))
            return results, state

        def next_batch(iterator: Iterator) -> object:
            begin = time.perf_counter()
            batch = next(iterator)
            self.seconds_waited += time.perf_counter() - begin
            return batch

        return run_steps

    def train_step(self, state: _State, data: object) -> tuple[dict, _State]:
        """Updates the model with the global batch."""
        if self._objective_metrics is None:  # compiled with another loss
            return super().train_step(state, data)
        trainable, non_trainable, optimizer_values, metric_values = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        gradients, non_trainable, batch_loss = self._gradients(state, batch)
        gradients = [
            None if self.is_frozen(variable) else gradient
            for variable, gradient in zip(self.trainable_variables, gradients, strict=True)
        ]
        trainable, optimizer_values = self.optimizer.stateless_apply(
            optimizer_values, gradients, trainable
        )
        results, metric_values = self._updated_metrics(metric_values, batch, batch_loss)
        return results, (trainable, non_trainable, optimizer_values, metric_values)

    def test_step(self, state: tuple, data: object) -> tuple[dict, tuple]:
        """Updates the metrics with the global batch."""
        if self._objective_metrics is None:
            return super().test_step(state, data)
        trainable, non_trainable, metric_values = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        mapping = self._mapping(trainable, non_trainable)
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
            batch_loss = loss_of(self, batch, training=False)
        results, metric_values = self._updated_metrics(metric_values, batch, batch_loss)
        return results, (trainable, non_trainable, metric_values)

    def _mapping(self, trainable: list, non_trainable: list) -> list[tuple[keras.Variable, Any]]:
        """Pairs the variables of the model with the values that replace them."""
        mapping = list(zip(self.trainable_variables, trainable, strict=True))
        mapping += zip(self.non_trainable_variables, non_trainable, strict=True)
        return mapping

    def _gradients(self, state: _State, batch: tuple) -> tuple[list, list, BatchLoss]:
        """Computes the gradients, the new values of the other variables, and the loss."""
        trainable, non_trainable, optimizer_values, _ = state
        num_targets = self.target_counts(*batch)
        num_parts, _ = equal_parts(batch, self._accumulation_steps)

        def scaled_loss(trainable: list, non_trainable: list, part: tuple) -> tuple:
            mapping = self._mapping(trainable, non_trainable)
            mapping += zip(self.optimizer.variables, optimizer_values, strict=True)
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                batch_loss = loss_of(self, part, num_targets, num_parts)
                loss = self.optimizer.scale_loss(batch_loss.loss)
            others = self.non_trainable_variables
            non_trainable = [scope.get_current_value(variable) for variable in others]
            if self._compile_metrics is None:
                batch_loss = batch_loss._replace(outputs=None)  # they are large
            return loss, (non_trainable, batch_loss)

        compute = jax.grad(scaled_loss, has_aux=True)
        if num_parts == 1:
            gradients, (non_trainable, batch_loss) = compute(trainable, non_trainable, batch)
            return gradients, non_trainable, batch_loss

        def add_gradients(before: tuple, part: tuple) -> tuple[tuple, BatchLoss]:
            sums, non_trainable = before
            gradients, (non_trainable, batch_loss) = compute(trainable, non_trainable, part)
            return (jax.tree.map(jnp.add, sums, gradients), non_trainable), batch_loss

        zeros = jax.tree.map(jnp.zeros_like, trainable)
        (gradients, non_trainable), batch_loss = jax.lax.scan(
            add_gradients, (zeros, non_trainable), _cut(batch, num_parts)
        )
        return gradients, non_trainable, _join(batch_loss)

    def _updated_metrics(
        self, values: list, batch: tuple, batch_loss: BatchLoss
    ) -> tuple[dict[str, jax.Array], list]:
        """Returns the results and the new values of the metrics after a batch."""
        mapping = list(zip(self.metrics_variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self._update_metrics(batch, batch_loss)
            results = self.get_metrics_result()
        return results, [scope.get_current_value(variable) for variable in self.metrics_variables]


def _cut(batch: tuple, num_parts: int) -> tuple:
    """Divides a batch into micro-batches, [B, …] → [N, B / N, …]; rows stay on their device."""

    def cut(values: jax.Array) -> jax.Array:
        return values.reshape(-1, num_parts, *values.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(cut, batch)


def _join(parts: BatchLoss) -> BatchLoss:
    """Combines the results of micro-batches, [N, …], to the result of the batch."""

    def join(values: jax.Array) -> jax.Array:
        return values.swapaxes(0, 1).reshape(-1, *values.shape[2:])

    return BatchLoss(
        loss=jnp.sum(parts.loss),
        outputs=jax.tree.map(join, parts.outputs),
        sums=jax.tree.map(lambda values: jnp.sum(values, axis=0), parts.sums),
        further_loss=jax.tree.map(jnp.mean, parts.further_loss),
    )


def takes_any_width(model: keras.Model) -> bool:
    """Returns `False`: XLA compiles a step for each width."""
    return False


def wait_until_computed(results: object) -> None:
    """Waits for the device to compute the results of a step."""
    jax.block_until_ready(results)


# Maps a model and a function to the function that XLA has compiled, as long as the model exists.
_COMPILED: weakref.WeakKeyDictionary[keras.Model, dict] = weakref.WeakKeyDictionary()


def with_model(function: Callable[..., Any], model: keras.Model) -> Callable[..., Any]:
    """Compiles a function of a model by XLA, once for each shape of its arguments.

    Args:
        function: a function of a module. Its first argument is the model. It changes no variable.
        model: the model. Its variables are arguments of the compiled function, not constants.

    Returns:
        A function of the further arguments, which are converted to NumPy arrays, for example from
        TensorFlow's tensors. It returns NumPy arrays.
    """
    functions = _COMPILED.setdefault(model, {})
    if function not in functions:
        functions[function] = _compiled(function, weakref.ref(model))

    def call(*arguments: Any) -> Any:
        arrays = jax.tree.map(np.asarray, arguments)
        values = [_here(variable.value) for variable in model.variables]
        return jax.tree.map(np.asarray, functions[function](values, *arrays))

    return call


def traced_once(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Returns the function unchanged: `with_model` compiles functions on JAX."""
    return function


def _compiled(
    function: Callable[..., Any], reference: weakref.ref[keras.Model]
) -> Callable[..., Any]:
    """Compiles a function; the weak reference does not keep the model alive."""

    @jax.jit
    def run(values: list, *arguments: Any) -> Any:
        model: keras.Model = reference()
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(model, *arguments)

    return run


def _here(value: jax.Array) -> jax.Array:
    """Returns a value; if it is replicated, the copy on the first device of this process."""
    if value.is_fully_replicated:
        return value.addressable_data(0)
    return value
