"""Where a command's time goes before and in its first batch.

    python -m benchmarks.start_up evaluate --preset PRESET --data RECORDS
    python -m benchmarks.start_up finetune --config C --preset PRESET --data RECORDS --output RUN

The arguments are those of `spanbert-tf`; records are of a task whose records are rows (text
classification, relations, entities). Processor seconds of the process, which other work on the
machine disturbs less than the clock. The command is left when its first batch is done; `export`,
which has none, runs to its end.
"""

import os
import resource
import sys
from collections.abc import Iterator
from typing import NoReturn


class _Watch:
    """Prints how many processor seconds each part took."""

    def __init__(self) -> None:
        self._before = 0.0

    def mark(self, part: str) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = usage.ru_utime + usage.ru_stime
        print(f"{now - self._before:6.2f} s  {part}  ({now:.2f} s in all)", flush=True)
        self._before = now

    def leave(self, part: str) -> NoReturn:
        self.mark(part)
        os._exit(0)  # whatever else is to come


def _watch_first_batch(watch: _Watch) -> None:
    """Marks the first batch of predictions or of training."""
    import spanbert_tf.tasks.task
    from spanbert_tf.training.watch import Watch

    def first_batch(batches: Iterator, *arguments: object, **options: object) -> Iterator:
        for batch in batches:
            watch.mark("this project, loading the preset, opening the records")
            yield batch
            watch.leave("first batch, its graph included")

    def begin(self: Watch, *arguments: object, **options: object) -> None:
        watch.mark("this project, loading the preset, opening the records")

    def end(self: Watch, *arguments: object, **options: object) -> None:
        watch.leave("first step, its graph included")

    spanbert_tf.tasks.task.show_progress = first_batch
    Watch.on_train_batch_begin, Watch.on_train_batch_end = begin, end


def main() -> None:
    from spanbert_tf.cli import cli
    from spanbert_tf.command_line import quiet_libraries, run_command
    from spanbert_tf.lazy import import_keras

    quiet_libraries()
    watch = _Watch()
    watch.mark("Python and the command line")
    import_keras()
    watch.mark("TensorFlow and Keras")
    _watch_first_batch(watch)
    try:
        run_command(cli, "spanbert-tf", sys.argv[1:])
    finally:
        watch.mark("the rest")


if __name__ == "__main__":
    main()
