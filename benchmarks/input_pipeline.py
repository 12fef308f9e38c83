"""Whether the input holds training back: `fit` on the real pipeline beside `fit` on one batch.

    python -m benchmarks.input_pipeline [--rounds N] [--steps N]

Both train the model of `spanbert_tiny` on the quickstart's text. One reads, shuffles, parses and
masks records as `spanbert-tf pretrain` does, the other has one batch in memory. They take turns;
the table shows medians over the rounds. On a CPU the pipeline and the model share the cores, so
this is the hardest case: the model is tiny, and nothing is computed elsewhere.
"""

import os
import statistics
import tempfile
import time

import click

from benchmarks.machine import describe_machine

LIMIT = 0.05
WARM_UP_STEPS = 10  # of each fit: until the first window of records is read


@click.command()
@click.option("--rounds", default=7, show_default=True, help="Times that each is measured.")
@click.option("--steps", default=100, show_default=True, help="Steps that are timed in a round.")
def main(rounds: int, steps: int) -> None:
    from spanbert_tf.config import load_config
    from spanbert_tf.pretraining.datasets import configured_dataset
    from spanbert_tf.pretraining.model import compiled_pretrainer
    from spanbert_tf.studies.quickstart import CONFIG

    print(describe_machine())
    config = load_config(CONFIG)
    with tempfile.TemporaryDirectory() as directory:
        records = write_records(directory, config.data.sequence_length)
        model = compiled_pretrainer(config, vocabulary_size_of(records))
        pipeline = configured_dataset(config, records, split="train", seed=0)
        inputs = {
            "real pipeline": pipeline,
            "one cached batch": pipeline.take(1).cache().repeat(),
        }
        milliseconds = {name: [] for name in inputs}
        for round_number in range(rounds + 1):
            for name, dataset in inputs.items():
                duration = seconds_a_step(model, dataset, steps)
                if round_number:  # the first one traces and compiles
                    milliseconds[name].append(1000 * duration)
    for name, values in milliseconds.items():
        rows = 1000 * config.training.batch_size / statistics.median(values)
        print(f"{name:18}{statistics.median(values):8.1f} ms a step{rows:10,.0f} rows/s")
    medians = [statistics.median(values) for values in milliseconds.values()]
    overhead = medians[0] / medians[1] - 1
    print(f"the pipeline adds {overhead:.1%} (goal: at most {LIMIT:.0%})")


def write_records(directory: str, sequence_length: int) -> str:
    """Writes the quickstart's text, vocabulary and records; returns the directory of the last."""
    from data_prep.beam.writing import write_pretraining_records
    from data_prep.text.vocabulary import write_vocabulary
    from spanbert_tf.studies.quickstart import VOCABULARY_SIZE, write_python_texts

    text, vocabulary, records = (
        os.path.join(directory, name) for name in ("text", "vocab.txt", "records")
    )
    write_python_texts(text)
    write_vocabulary(f"{text}/*.txt", vocabulary, vocabulary_size=VOCABULARY_SIZE)
    write_pretraining_records(
        f"{text}/*.txt", vocabulary=vocabulary, output=records, sequence_length=sequence_length
    )
    return records


def vocabulary_size_of(records: str) -> int:
    """Entries of the vocabulary of a set of records."""
    from spanbert_tf.data.manifest import PretrainingManifest

    return PretrainingManifest.load(records).vocabulary_size


def seconds_a_step(model: object, dataset: object, steps: int) -> float:
    """Seconds of a step of `fit`, start-up apart."""
    import keras

    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            times.append(time.perf_counter())

    model.fit(
        dataset,
        steps_per_epoch=WARM_UP_STEPS + steps,
        callbacks=[Clock()],
        shuffle=False,
        verbose=0,
    )
    return (times[-1] - times[WARM_UP_STEPS - 1]) / steps


if __name__ == "__main__":
    main()
