"""The training step on TensorFlow: its result does not depend on how the global batch is shared.

B rows of a replica, N micro-batches that they are cut into.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from tensorflow.python.eager import backprop

from spanbert_tf.models.micro_batches import add_up_on_tensorflow

_SEED_STATE = "seed_generator_state"
_REPLICA_STRIDE = 0x9E3779B9  # far apart in the first half of a seed
_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_Gradients = list[tf.Tensor | tf.IndexedSlices | None]


class TrainStep:
    """The step of `fit` and of the commands, under any `tf.distribute` strategy; for `Objectives`.

    The targets of the whole global batch are counted before the first gradient is taken, so each
    replica and each micro-batch contributes its share of one mean. Replicas draw different dropout
    masks; Keras gives all of them the same. The optimizer adds up over the replicas: this project's
    `AdamW` before it clips, Keras' own after. A model that was compiled with a loss is trained by
    Keras' own step.
    """

    _accumulation_steps = 1
    _compiles_replicas = False

    def compile(
        self,
        *args: object,
        accumulation_steps: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs,
    ) -> None:
        """Configures the model for training, as `keras.Model.compile`.

        Args:
            *args: as for `keras.Model.compile`.
            accumulation_steps: N, how many micro-batches each replica's rows are cut into to save
                memory, or more of them where they do not divide; one update for all.
            jit_compile: whether XLA compiles the step; on mirrored replicas forward and backward
                of each, without the update, whose all-reduce it cannot compile on processors.
            **kwargs: as for `keras.Model.compile`.
        """
        if isinstance(self.distribute_strategy, tf.distribute.TPUStrategy):
            jit_compile = False  # it compiles what it runs; once more inside fails (keras #19448)
        elif jit_compile == "auto" and self.distribute_strategy.num_replicas_in_sync > 1:
            jit_compile = False
        compiles = bool(jit_compile) and kwargs.get("loss") is None
        self._compiles_replicas = compiles and isinstance(self.distribute_strategy, _MIRRORED)
        self._accumulation_steps = accumulation_steps
        self._make_forward_and_backward()
        jit_compile = False if self._compiles_replicas else jit_compile
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def hold(self, variables: Sequence[keras.Variable]) -> None:
        """Leaves variables as they are from the next `fit` on, and trains all others again.

        Args:
            variables: those to hold; none: all that can be trained are.
        """
        self._held = frozenset()
        if self.built and not getattr(getattr(self, "optimizer", None), "built", True):
            with self.distribute_strategy.scope():  # for all, so that it knows what is held now
                self.optimizer.build(self.trainable_variables)
        self._held = frozenset(map(id, variables))
        # Graphs that are there already train the former variables.
        self._make_forward_and_backward()
        self.train_function = None

    def _make_forward_and_backward(self) -> None:
        compute = self._compute_gradients
        if self._compiles_replicas:
            compute = tf.function(compute, jit_compile=True, reduce_retracing=True)
        self._forward_and_backward = compute

    def _make_function(self, step_function: Callable[[object], dict]) -> Callable[..., dict]:
        """As in Keras, whose own loop of steps fails under a strategy (keras #19246).

        The loop is on the device, of as many steps as `steps_per_execution` says when it is called;
        the results are those of the global batches. A step on a single device, looped or not, is
        in the graph that takes its batch: a function around it is one more graph of all variables,
        in which TensorFlow merges other factors and so rounds otherwise. Threads of replicas would
        not wait for the batch, and XLA compiles what it is given.
        """
        is_single = isinstance(self._distribute_strategy, tf.distribute.OneDeviceStrategy | None)
        runs_inline = is_single and not self.jit_compile

        @tf.autograph.experimental.do_not_convert
        def without_results(data: object) -> None:
            step_function(data)  # what it returns are means of one replica's rows

        def run_step(batch: object) -> None:
            self.distribute_strategy.run(without_results, args=(batch,))

        def take_next(iterator: Iterator, number: object) -> None:
            batch = iterator.get_next()
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                num_done.assign(number)
                (run_step if runs_inline else run_batch)(batch)

        def run_next(iterator: Iterator) -> dict[str, tf.Tensor]:
            take_next(iterator, 1)
            return self.get_metrics_result()

        def run_steps(iterator: Iterator, num_steps: tf.Tensor) -> dict[str, tf.Tensor]:
            def run_one(number: tf.Tensor) -> tuple[tf.Tensor]:
                take_next(iterator, number + 1)
                return (number + 1,)

            num_done.assign(0)
            tf.while_loop(lambda number: number < num_steps, run_one, (0,), parallel_iterations=1)
            return self.get_metrics_result()

        run_step = run_batch = self._autoconvert_optionals(run_step)
        loops = self.steps_per_execution > 1
        with tf.init_scope():
            num_done = tf.Variable(0, trainable=False)
        if not self.run_eagerly:
            function_of = functools.partial(tf.function, autograph=False, reduce_retracing=True)
            # Inlined by TensorFlow, it would do what reads no data once more where they end.
            options = {"experimental_attributes": {"_noinline": True}}
            run_batch = function_of(run_step, jit_compile=self.jit_compile, **options)
            run_next, run_steps = map(function_of, (run_next, run_steps))

        def function(iterator: Iterator) -> dict[str, tf.Tensor]:
            if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                for batch in itertools.islice(iterator, self.steps_per_execution):
                    run_batch(batch)
                return self.get_metrics_result()
            if not loops and self.steps_per_execution == 1:
                return run_next(iterator)
            try:
                return run_steps(iterator, tf.constant(self.steps_per_execution))
            except tf.errors.OutOfRangeError:
                if not int(num_done):
                    raise
                return self.get_metrics_result()  # of what was left

        return function

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """One update from the rows of this replica."""
        if self._objective_metrics is None:  # compiled with another loss
            return super().train_step(data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        counts = self._global_target_counts(batch)
        if self._accumulation_steps == 1:
            gradients = self._gradients(batch, counts)
        else:
            gradients = add_up_on_tensorflow(
                lambda part, number: self._gradients(part, counts, number),
                batch,
                self._accumulation_steps,
                self.trainable_variables,
            )
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.get_metrics_result()

    def test_step(self, data: object) -> dict[str, tf.Tensor]:
        """The metrics of the rows of this replica."""
        if self._objective_metrics is None:
            return super().test_step(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self(x, training=False)
        sums = self.objective_sums(x, outputs, y, sample_weight)
        self._update_metrics((x, y, sample_weight), outputs, sums, self._further_loss())
        return self.get_metrics_result()

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        """As in Keras, where something is not built; Keras 3.15 fails with several workers."""
        if self._objective_metrics is None or self._compile_metrics is not None:
            super()._maybe_symbolic_build(iterator, data_batch)

    def make_train_function(self, force: bool = False) -> Callable[..., dict]:
        """As in Keras; a step that found no variables of the optimizer would be traced twice."""
        is_built = all(layer.built for layer in self._flatten_layers())  # or variables are to come
        if is_built and self.optimizer is not None and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def _global_target_counts(self, batch: tuple) -> dict[str, tf.Tensor]:
        """How many targets each objective has in the global batch; 1 in place of none."""
        x, y, sample_weight = batch
        counts = self.target_counts(x, y, sample_weight)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            counts = context.all_reduce(tf.distribute.ReduceOp.SUM, counts)
        return {name: tf.where(count == 0.0, 1.0, count) for name, count in counts.items()}

    def _gradients(
        self, batch: tuple, num_targets: dict[str, tf.Tensor], count: int | tf.Tensor = 1
    ) -> _Gradients:
        """Gradients of the share of the loss of one of `count` batches; updates the metrics.

        The replica's number is part of each random seed while they are computed.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        shift = tf.stack([tf.cast(replica, tf.int64) * _REPLICA_STRIDE, 0])  # [2]
        states = self._seed_states()
        seeds = [state.value + tf.cast(shift, state.value.dtype) for state in states]
        gradients, seeds, *found = self._forward_and_backward(batch, num_targets, seeds, count)
        for state, seed in zip(states, seeds, strict=True):
            state.assign(seed - tf.cast(shift, seed.dtype))
        self._update_metrics(batch, *found)
        return gradients

    def _seed_states(self) -> list[keras.Variable]:
        return [variable for variable in self.variables if variable.name == _SEED_STATE]

    def _compute_gradients(
        self,
        batch: tuple,
        num_targets: dict[str, tf.Tensor],
        seeds: list[tf.Tensor],
        count: int | tf.Tensor,
    ) -> tuple:
        """Gradients, the seeds afterwards, and what the metrics need; changes no variable."""
        x, y, sample_weight = batch
        states = self._seed_states()
        mapping = list(zip(states, seeds, strict=True))
        with tf.GradientTape() as tape:
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                outputs = self(x, training=True)
            further_loss = self._further_loss(*scope.losses)
            sums = self.objective_sums(x, outputs, y, sample_weight)
            loss = sum(part.loss / num_targets[name] for name, part in sums.items())
            if further_loss is not None:
                loss += further_loss / tf.cast(count, further_loss.dtype)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        seeds = [scope.get_current_value(state) for state in states]
        # Outputs are large, and hardly ever needed.
        return gradients, seeds, outputs if self._compile_metrics else None, sums, further_loss


def add_in_order(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """The sum of gradients of one value; TensorFlow's of rows of tables alone, and of lists."""
    are_rows = all(isinstance(one, tf.IndexedSlices) for one in gradients)
    if are_rows or gradients[0].dtype == tf.variant:
        return backprop._aggregate_grads(gradients)
    return functools.reduce(tf.add, map(tf.convert_to_tensor, gradients))
