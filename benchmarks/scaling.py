"""What several devices, checkpoints, a restart and `fit` itself cost.

    python -m benchmarks.scaling [--records-of-epoch 1000000]
    [KERAS_BACKEND=jax] python -m benchmarks.scaling --executions

Tokens a second of the model of `spanbert_tiny` on 1 and 2 mirrored replicas (logical devices of
this processor, which share its cores: this shows the overhead, not a gain) and on 1 and 2 worker
processes over loopback; the share of a step that the all-reduce of the gradients takes; how long a
checkpoint of the base model holds training up; the time to the first batch after a restart at the
end of an epoch; what `fit` adds to its bare step function, and `training.deterministic` to a step.
Medians over the steps.

With `--executions` instead what a step of a model of width 8 takes of `fit`, which is little else
than its launch, by the number of steps of an execution: the least of five medians, interleaved.
"""

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import click

from benchmarks.input_pipeline import vocabulary_size_of, write_records
from benchmarks.machine import describe_machine, free_port

STEPS, WARM_UP_STEPS = 60, 5
EXECUTIONS = (1, 8, 32)  # steps of each
_BASE_VOCABULARY = 28_996


@click.command()
@click.option("--records-of-epoch", default=1_000_000, show_default=True)
@click.option("--executions", is_flag=True, help="Only steps by their number in an execution.")
def main(records_of_epoch: int, executions: bool) -> None:
    import tensorflow as tf

    processor = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(processor, two)
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        records = write_records(directory, sequence_length=64)
        if executions:
            _show_executions(records)
            return
        _show_replicas(records)
        _show_workers(directory, records)
        _show_fit(records)
        _show_checkpoint(directory)
        _show_restart(directory, records_of_epoch)
        _show_determinism(records)


def _show_replicas(records: str) -> None:
    import tensorflow as tf

    for num_devices in (1, 2):
        devices = [f"CPU:{number}" for number in range(num_devices)]
        strategy = tf.distribute.MirroredStrategy(devices)
        config, model, batches = _model_and_batches(records, strategy)
        iterator = iter(strategy.experimental_distribute_dataset(batches))
        model.make_train_function()
        step = _median_seconds(functools.partial(model.train_function, iterator), STEPS)
        tokens = config.training.batch_size * config.data.sequence_length / step
        share = _all_reduce_seconds(strategy, model) / step if num_devices > 1 else 0
        print(f"{num_devices} mirrored: {tokens:,.0f} positions/s, {share:.1%} of it all-reduce")


def _all_reduce_seconds(strategy: object, model: object) -> float:
    import tensorflow as tf

    gradients = [tf.zeros(variable.shape) for variable in model.trainable_variables]

    @tf.function
    def reduce_gradients() -> object:
        def of_replica() -> object:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        return strategy.run(of_replica)

    return _median_seconds(reduce_gradients, STEPS)


def _show_workers(directory: str, records: str) -> None:
    for count in (1, 2):
        run = os.path.join(directory, f"workers{count}")
        addresses = [f"localhost:{free_port()}" for _ in range(count)]
        command = [sys.executable, "-m", "spanbert_tf.cli", "pretrain", "--config"]
        command += ["spanbert_tiny", "--data", records, "--output", run]
        for setting in (
            "training.strategy=multi_worker",
            f"training.steps={4 * STEPS}",
            f"training.log_every={STEPS // 2}",
            f"training.evaluate_every={4 * STEPS}",
            "training.evaluate_batches=1",
        ):
            command += ["--set", setting]
        workers = []
        for number in range(count):
            task = {"type": "worker", "index": number}
            cluster = {"cluster": {"worker": addresses}, "task": task}
            environment = {**os.environ, "TF_CONFIG": json.dumps(cluster)}
            quiet = subprocess.DEVNULL
            workers.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
        statuses = [worker.wait() for worker in workers]
        if any(statuses):
            raise RuntimeError("a worker failed")
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
        print(f"{count} workers: {statistics.median(speeds[1:]):,.0f} tokens/s")


def _show_fit(records: str) -> None:
    import keras
    import tensorflow as tf

    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            times.append(time.perf_counter())

    _, model, batches = _model_and_batches(records, tf.distribute.get_strategy())
    cached = batches.take(1).cache().repeat()
    iterator = iter(cached)
    model.make_train_function()
    bare, fitted = [], []
    for _ in range(5):
        bare.append(_median_seconds(lambda: model.train_function(iterator), STEPS))
        times.clear()
        model.fit(cached, steps_per_epoch=STEPS, callbacks=[Clock()], shuffle=False, verbose=0)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        fitted.append(statistics.median(gaps[WARM_UP_STEPS:]))
    overhead = statistics.median(fitted) / statistics.median(bare) - 1
    print(f"fit adds {overhead:.1%} to its bare step (goal: at most 3%)")


def _show_executions(records: str) -> None:
    import keras
    import tensorflow as tf

    strategies = {"one device": tf.distribute.get_strategy()}
    if keras.backend.backend() == "tensorflow":
        strategies["two replicas"] = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    width = ["model.num_layers=1", "model.hidden_dim=8", "model.intermediate_dim=8"]
    width += ["model.num_heads=1", "training.batch_size=2"]
    width += ["training.log_every=32", "training.evaluate_every=32"]
    for name, strategy in strategies.items():
        steps = {}
        for number in EXECUTIONS:
            overrides = [*width, f"training.steps_per_execution={number}"]
            _, model, batches = _model_and_batches(records, strategy, overrides)
            steps[number] = functools.partial(_fitted_seconds, model, batches, number)
        rounds = [{number: step() for number, step in steps.items()} for _ in range(5)]
        for number in steps:
            least = min(seconds[number] for seconds in rounds)
            print(f"{keras.backend.backend()}, {name}: {1000 * least:.2f} ms a step by {number}")


def _fitted_seconds(model: object, batches: object, number: int) -> float:
    """Of a step by `fit`, in executions of so many."""
    import keras

    times: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.perf_counter())
    )
    cached = batches.take(1).cache().repeat()
    num_steps = number * (WARM_UP_STEPS + max(STEPS // number, 5))
    model.fit(cached, steps_per_epoch=num_steps, callbacks=[clock], shuffle=False, verbose=0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps[WARM_UP_STEPS:]) / number


def _show_checkpoint(directory: str) -> None:
    from spanbert_tf.config import load_config
    from spanbert_tf.pretraining.model import compiled_pretrainer
    from spanbert_tf.training.checkpoints import Best, Checkpoints

    model = compiled_pretrainer(load_config("spanbert_base"), _BASE_VOCABULARY)
    checkpoints = Checkpoints(
        os.path.join(directory, "checkpoints"), model, best=Best("loss", "min"), max_to_keep=1
    )
    held, written = [], []
    for step in (1, 2, 3):
        start = time.perf_counter()
        checkpoints.save(step)
        held.append(time.perf_counter() - start)
        checkpoints.wait()
        written.append(time.perf_counter() - start)
    print(
        f"a checkpoint of the base model holds training up for {statistics.median(held):.3f} s "
        f"(goal: at most 0.5), and is written {statistics.median(written):.1f} s later"
    )


def _show_restart(directory: str, num_records: int) -> None:
    import tensorflow as tf

    from spanbert_tf.data.stream import training_chunks

    files = [os.path.join(directory, f"epoch-{number}.tfrecord") for number in range(16)]
    for path in files:
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(num_records // len(files)):
                writer.write(bytes(1_100))  # as a record of 512 positions
    start = time.perf_counter()
    chunks = training_chunks(files, num_records, seed=0, first_record=num_records - 256)
    next(iter(chunks))
    seconds = time.perf_counter() - start
    print(
        f"the first records after a restart at the end of an epoch of {num_records:,} come after "
        f"{seconds:.1f} s (goal: at most 10 s)"
    )


def _show_determinism(records: str) -> None:
    import tensorflow as tf

    def seconds_of_step() -> float:
        _, model, batches = _model_and_batches(records, tf.distribute.get_strategy())
        iterator = iter(batches.take(1).cache().repeat())
        model.make_train_function()
        return _median_seconds(lambda: model.train_function(iterator), STEPS)

    free = seconds_of_step()
    tf.config.experimental.enable_op_determinism()  # cannot be undone in this process
    cost = seconds_of_step() / free - 1
    print(f"training.deterministic adds {cost:.1%} to a step")


def _model_and_batches(records: str, strategy: object, overrides: Sequence[str] = ()) -> tuple:
    from spanbert_tf.config import load_config
    from spanbert_tf.pretraining.datasets import configured_dataset
    from spanbert_tf.pretraining.model import compiled_pretrainer

    config = load_config("spanbert_tiny", overrides)
    with strategy.scope():
        model = compiled_pretrainer(config, vocabulary_size_of(records))
    return config, model, configured_dataset(config, records, split="train")


def _median_seconds(call: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(WARM_UP_STEPS + count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP_STEPS:])


if __name__ == "__main__":
    main()
