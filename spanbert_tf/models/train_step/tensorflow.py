"""The training step on TensorFlow, which does not depend on the number of replicas.

Shapes: B rows of a replica.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.objective import BatchLoss, loss_of
from spanbert_tf.models.train_step.micro_batches import equal_parts

_SEED_STATE = "seed_generator_state"
# A seed is (key, counter). The index of the replica times this number is added to the key.
_REPLICA_STRIDE = 0x9E3779B9
_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_Gradients = list[tf.Tensor | tf.IndexedSlices | None]


class TrainStep(MixinBase):
    """The training step of `fit` and of the commands, under any `tf.distribute` strategy.

    It is a mixin of a Keras model with `Objectives`. The targets of the global batch are counted
    before the first gradient is computed, so each replica and each micro-batch contributes its
    share of one mean. Each replica draws its own dropout masks, while Keras gives all replicas the
    same ones. The optimizer adds up the gradients of the replicas: this project's `AdamW` before it
    clips them, Keras' optimizers after. If the model was compiled with a loss, Keras' own step
    trains it.
    """

    _accumulation_steps = 1
    _frozen: frozenset[int] = frozenset()  # ids of the variables that are frozen
    _compiles_replicas = False
    _compiled_forward_and_backward: Callable[..., tuple] | None = None

    def compile(
        self,
        optimizer: str | keras.Optimizer = "rmsprop",
        loss: str | keras.losses.Loss | None = None,
        *,
        accumulation_steps: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs,
    ) -> None:
        """Configures the model for training, as `keras.Model.compile`.

        Args:
            optimizer: as for `keras.Model.compile`.
            loss: as for `keras.Model.compile`; `None` for the objectives of the model.
            accumulation_steps: number of micro-batches into which the rows of each replica are
                divided to save memory, at least; see `equal_parts`. Together they make one update.
            jit_compile: whether XLA compiles the step. With mirrored replicas, it compiles only the
                forward and backward pass of each, because XLA cannot compile an all-reduce of CPU
                devices.
            **kwargs: as for `keras.Model.compile`.
        """
        if isinstance(self.distribute_strategy, tf.distribute.TPUStrategy):
            jit_compile = False  # the TPU compiles all steps; compiling twice fails (keras #19448)
        elif jit_compile == "auto" and self.distribute_strategy.num_replicas_in_sync > 1:
            jit_compile = False
        compiles = bool(jit_compile) and loss is None
        self._compiles_replicas = compiles and isinstance(self.distribute_strategy, _MIRRORED)
        if self._compiles_replicas:
            jit_compile = False
        self._accumulation_steps = accumulation_steps
        self._compile_forward_and_backward()
        super().compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile, **kwargs)

    def freeze(self, variables: Sequence[keras.Variable]) -> None:
        """Freezes variables from the next `fit` on, and trains all others again.

        Args:
            variables: the variables to freeze; an empty sequence unfreezes all.
        """
        self._frozen = frozenset()
        # Build it before variables are frozen, so that it has state for all of them.
        self._build_optimizer()
        self._frozen = frozenset(id(variable) for variable in variables)
        # Existing graphs train the previous variables.
        self._compile_forward_and_backward()
        self.train_function = None

    def is_frozen(self, variable: keras.Variable) -> bool:
        """Whether `freeze` has frozen a variable."""
        return id(variable) in self._frozen

    @property
    def left_out_of_training(self) -> frozenset[int]:
        """The ids of variables that are not among `trainable_variables`: the frozen ones."""
        return self._frozen

    def fetch_state(self) -> None:
        """Does nothing: on TensorFlow the variables always have the values of the last step."""

    @property
    def seconds_waited(self) -> float | None:
        """Seconds that training steps have waited for their batches, since it was set to 0.

        `None` in a deterministic run, in which TensorFlow tells no time.
        """
        if is_op_determinism_enabled():
            return None
        loop = self.train_function
        return float(loop.seconds_waited.numpy()) if isinstance(loop, _StepLoop) else 0.0

    @seconds_waited.setter
    def seconds_waited(self, seconds: float) -> None:
        loop = self.train_function
        if isinstance(loop, _StepLoop):
            loop.seconds_waited.assign(seconds)

    def _compile_forward_and_backward(self) -> None:
        """Makes a new XLA program of the gradients of a replica, if XLA compiles them."""
        self._compiled_forward_and_backward = None
        if self._compiles_replicas:
            self._compiled_forward_and_backward = tf.function(
                self._forward_and_backward, autograph=False, jit_compile=True, reduce_retracing=True
            )

    def make_train_function(self, force: bool = False) -> Callable[..., Any]:
        """Makes the function of a step, as in Keras, after building the optimizer.

        Otherwise the step would be traced twice.
        """
        self._build_optimizer()
        return super().make_train_function(force)

    def _build_optimizer(self) -> None:
        """Builds the optimizer, unless it is built or the model is not built yet."""
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None or optimizer.built:
            return
        if all(layer.built for layer in self._flatten_layers()):
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)

    def _make_function(self, step_function: Callable[[object], dict]) -> "_StepLoop":
        """Makes the loop of steps; that of Keras fails under a strategy (keras #19246)."""
        return _StepLoop(self, step_function)

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        """Builds, as in Keras, which fails with several workers if there is nothing to build."""
        if self._objective_metrics is None or self._compile_metrics is not None:
            super()._maybe_symbolic_build(iterator, data_batch)

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """Updates the model with the rows of this replica."""
        if self._objective_metrics is None:  # compiled with another loss
            return super().train_step(data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        num_targets = self._count_targets(batch)
        if self._accumulation_steps == 1:
            gradients = self._gradients_of_part(batch, num_targets)
        else:
            gradients = accumulate_gradients(
                lambda part, num_parts: self._gradients_of_part(part, num_targets, num_parts),
                batch,
                self._accumulation_steps,
                self.trainable_variables,
            )
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.get_metrics_result()  # of this replica only; `_StepLoop` does not use it

    def test_step(self, data: object) -> dict[str, tf.Tensor]:
        """Updates the metrics with the rows of this replica."""
        if self._objective_metrics is None:
            return super().test_step(data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        self._update_metrics(batch, loss_of(self, batch, training=False))
        return self.get_metrics_result()

    def _count_targets(self, batch: tuple) -> dict[str, tf.Tensor]:
        """Counts the targets of each objective in the global batch."""
        counts = self.target_counts(*batch)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            counts = context.all_reduce(tf.distribute.ReduceOp.SUM, counts)
        return counts

    def _gradients_of_part(
        self, part: tuple, num_targets: dict[str, tf.Tensor], num_parts: int | tf.Tensor = 1
    ) -> _Gradients:
        """Computes the gradients of a micro-batch's share of the loss; updates seeds and metrics.

        `num_parts` divides only losses without targets, such as those of regularizers. XLA compiles
        a pure function, so the seeds are passed and returned as values. The seeds of replicas
        differ by `_REPLICA_STRIDE`.
        """
        context = tf.distribute.get_replica_context()
        index = tf.cast(context.replica_id_in_sync_group, tf.int64)
        shift = tf.stack([index * _REPLICA_STRIDE, 0])  # [2]
        states = self._seed_states()
        seeds = [state.value + tf.cast(shift, state.value.dtype) for state in states]
        compute = self._compiled_forward_and_backward or self._forward_and_backward
        gradients, seeds, batch_loss = compute(
            part, num_targets, num_parts * context.num_replicas_in_sync, seeds
        )
        for state, seed in zip(states, seeds, strict=True):
            state.assign(seed - tf.cast(shift, seed.dtype))
        self._update_metrics(part, batch_loss)
        return gradients

    def _seed_states(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if variable.name == _SEED_STATE]

    def _forward_and_backward(
        self,
        part: tuple,
        num_targets: dict[str, tf.Tensor],
        num_parts: int | tf.Tensor,
        seeds: list[tf.Tensor],
    ) -> tuple[_Gradients, list[tf.Tensor], BatchLoss]:
        """Computes the gradients, the next seeds and the loss; changes no variable."""
        states = self._seed_states()
        mapping = list(zip(states, seeds, strict=True))
        with tf.GradientTape() as tape:
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                batch_loss = loss_of(self, part, num_targets, num_parts)
            scaled_loss = self.optimizer.scale_loss(batch_loss.loss)
        gradients = tape.gradient(scaled_loss, self.trainable_variables)
        seeds = [scope.get_current_value(state) for state in states]
        if self._compile_metrics is None:
            batch_loss = batch_loss._replace(outputs=None)  # they are large
        return gradients, seeds, batch_loss


class _StepLoop:
    """Runs `model.steps_per_execution` steps on the device, and returns the metrics.

    A step on two replicas calls `_run_one`, `_run_next`, the graph of the batch, `strategy.run` and
    `train_step`, in this order. There are these graphs:

    - The graphs of a single step and of a loop of steps. Whether there is a loop is decided in the
      constructor.
    - The graph of the step of a batch, which both call. On a single device it is inlined. As a
      separate function it would be optimized as a separate graph, with other merged factors and so
      other rounding. With replicas it is a function, since their threads would otherwise not wait
      for the batch. With XLA it is the function that XLA compiles.

    Args:
        model: a compiled model.
        step_function: the step of one replica: `train_step` or `test_step`.

    Attributes:
        seconds_waited: variable with the seconds that the steps have waited for their batches.
    """

    def __init__(self, model: TrainStep, step_function: Callable[[object], dict]) -> None:
        self._model = model
        self._step_function = step_function
        self._has_loop = model.steps_per_execution > 1
        with tf.init_scope():
            self._num_done = tf.Variable(0, trainable=False)
            self.seconds_waited = tf.Variable(0.0, trainable=False)
        # Keras' batches have an `Optional` in place of missing labels or weights.
        run_batch = model._autoconvert_optionals(self._run_on_replicas)
        self._batch_step = run_batch  # called by a step that reads the iterator
        self._call_batch = run_batch  # called with a batch
        self._call_one = self._run_one
        self._call_many = self._run_many
        if model.run_eagerly:
            return
        as_graph = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        # Not inlined: operations that do not depend on the batch would run once more when the
        # iterator is exhausted.
        batch_graph = as_graph(
            run_batch, jit_compile=model.jit_compile, experimental_attributes={"_noinline": True}
        )
        strategy = model._distribute_strategy
        has_replicas = not (
            strategy is None or isinstance(strategy, tf.distribute.OneDeviceStrategy)
        )
        if has_replicas or model.jit_compile:
            self._batch_step = batch_graph
        self._call_batch = batch_graph
        self._call_one = as_graph(self._run_one)
        self._call_many = as_graph(self._run_many)

    def __call__(self, iterator: Iterator) -> dict[str, tf.Tensor]:
        """Runs steps on the next batches; fewer steps if the data end."""
        num_steps = self._model.steps_per_execution
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            for batch in itertools.islice(iterator, num_steps):
                self._call_batch(batch)
            return self._model.get_metrics_result()
        if num_steps == 1 and not self._has_loop:
            return self._call_one(iterator)
        try:
            return self._call_many(iterator, tf.constant(num_steps))
        except tf.errors.OutOfRangeError:
            if int(self._num_done) == 0:
                raise
            return self._model.get_metrics_result()

    def _run_one(self, iterator: tf.data.Iterator) -> dict[str, tf.Tensor]:
        self._run_next(iterator, 1)
        return self._model.get_metrics_result()

    def _run_many(self, iterator: tf.data.Iterator, num_steps: tf.Tensor) -> dict[str, tf.Tensor]:
        def run_step(index: tf.Tensor) -> tuple[tf.Tensor]:
            self._run_next(iterator, index + 1)
            return (index + 1,)

        self._num_done.assign(0)
        tf.while_loop(lambda index: index < num_steps, run_step, (0,), parallel_iterations=1)
        return self._model.get_metrics_result()

    def _run_next(self, iterator: tf.data.Iterator, num_done: int | tf.Tensor) -> None:
        """Runs the step of the next batch, after which `num_done` steps are done."""
        begin = _now()
        with tf.control_dependencies([begin]):
            batch = iterator.get_next()
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self.seconds_waited.assign_add(tf.cast(_now() - begin, tf.float32))
            self._num_done.assign(num_done)
            self._batch_step(batch)

    def _run_on_replicas(self, batch: object) -> None:
        @tf.autograph.experimental.do_not_convert
        def run_on_replica(batch: object) -> None:
            self._step_function(batch)  # its results, of one replica only, are not used

        self._model.distribute_strategy.run(run_on_replica, args=(batch,))


def takes_any_width(model: keras.Model) -> bool:
    """Whether batches of a model may have several widths; XLA would compile a step for each."""
    compiles = model.jit_compile or (isinstance(model, TrainStep) and model._compiles_replicas)
    return not compiles and not isinstance(model.distribute_strategy, tf.distribute.TPUStrategy)


def _now() -> tf.Tensor:
    """Returns the time in seconds, float64; 0 in a deterministic run, which may read no clock."""
    if is_op_determinism_enabled():
        return tf.zeros([], tf.float64)
    return tf.timestamp()


def accumulate_gradients(
    gradients_of: Callable[[tuple, int | tf.Tensor], _Gradients],
    batch: tuple,
    wanted: int,
    variables: Sequence[keras.Variable],
) -> list[tf.Tensor]:
    """Adds up the gradients of micro-batches, which are computed one after the other.

    Args:
        gradients_of: computes the gradients of a micro-batch, given the number of micro-batches.
        batch: a structure of tensors [B, …] and `None`.
        wanted: number of micro-batches, as for `equal_parts`.
        variables: the variables of the gradients.
    """
    count, size = equal_parts(batch, wanted)

    def rows_of_part(index: tf.Tensor) -> tuple:
        rows = index * size + tf.range(size)
        return tf.nest.map_structure(
            lambda values: None if values is None else tf.gather(values, rows), batch
        )

    def add_gradients(index: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        added = list(sums)
        for position, gradient in enumerate(gradients_of(rows_of_part(index), count)):
            if gradient is not None:
                added[position] += tf.cast(gradient, tf.float32)
        return index + 1, *added

    # Not `tf.zeros`: the graph optimizer would make them constants, which are never freed and to
    # which nothing can be added in place.
    zeros = [
        tf.raw_ops.Empty(shape=variable.shape, dtype=tf.float32, init=True)
        for variable in variables
    ]
    _, *sums = tf.while_loop(
        lambda index, *sums: index < count,
        add_gradients,
        (tf.constant(0), *zeros),
        parallel_iterations=1,  # otherwise several micro-batches would be in memory
        maximum_iterations=count,
    )
    return [tf.cast(total, variable.dtype) for total, variable in zip(sums, variables, strict=True)]


def wait_until_computed(results: object) -> None:
    """Does nothing: on TensorFlow a step returns when its results are computed."""


def with_model(function: Callable[..., Any], model: keras.Model) -> Callable[..., Any]:
    """Binds a model to the first argument of a function; see `jax.with_model`."""
    return functools.partial(function, model)


def traced_once(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Makes a graph of a function, which is traced once for all shapes that fit a signature."""
    return tf.function(function, input_signature=signature)
