"""One row through the export of each format: size, difference and latency by its own runtime.

    python -m benchmarks.runtimes --vocabulary vocab.txt [--length 128] [--rounds 20]

A text classifier of base shape with random weights. Each runtime is a process of its own with two
threads, and takes the same row of ids; TensorFlow's difference is 0 by definition.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import click
import numpy as np

from benchmarks.machine import describe_machine

THREADS, WARM_UP = 2, 3


@click.command()
@click.option("--vocabulary", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--length", default=128, show_default=True, help="Positions of the row.")
@click.option("--rounds", default=20, show_default=True, help="Rows that are timed.")
def main(vocabulary: str, length: int, rounds: int) -> None:
    formats = {
        "saved_model": (),
        "onnx": (),
        "litert": ("--sequence-length", str(length)),
        "litert, int8": ("--sequence-length", str(length), "--int8"),
    }
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        preset = os.path.join(directory, "preset")
        _write_preset(vocabulary, preset, length)
        rows, medians, answers = [], {}, {}
        for number, (name, options) in enumerate(formats.items(), start=1):
            output = os.path.join(directory, str(number))
            _export(preset, output, name.partition(",")[0], options)
            path = os.path.join(output, "1")
            found = _run_child(name.partition(",")[0], path, length, rounds)
            medians[name], answers[name] = found["p50"], np.array(found["answer"])
            rows.append((name, _size(path)))
        for name, size in rows:
            difference = np.abs(answers[name] - answers["saved_model"]).max()
            print(
                f"{name:14}{size / 1e6:8.1f} MB{1000 * medians[name]:8.1f} ms "
                f"{medians['saved_model'] / medians[name]:6.2f} x{difference:10.1e}"
            )


def _write_preset(vocabulary: str, preset: str, length: int) -> None:
    import keras

    from spanbert_tf import models
    from spanbert_tf.presets.writing import write_preset

    keras.utils.set_random_seed(0)
    tokenizer = models.SpanBertTokenizer(vocabulary)
    size = tokenizer.vocabulary_size()
    backbone = models.SpanBertBackbone(size, 12, 12, 768, 3072)
    preprocessor = models.SpanBertTextClassifierPreprocessor(tokenizer, length)
    model = models.SpanBertTextClassifier(backbone, 3, preprocessor)
    model.is_head_trained = True
    write_preset(model, preset)


def _export(preset: str, output: str, name: str, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "spanbert_tf.cli", "export", "--preset", preset]
    ids = ("--without-text-ops",) if name == "saved_model" else ("--format", name)
    subprocess.run([*command, "--output", output, *ids, *options], check=True)


def _size(path: str) -> int:
    of_model = re.compile(r"model\.\w+|saved_model\.pb|variables\..*")
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
        if of_model.fullmatch(name)
    )


def _run_child(name: str, path: str, length: int, rounds: int) -> dict:
    arguments = ("--child", name, path, str(length), str(rounds))
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.runtimes", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(child.stdout.splitlines()[-1])


def _child(name: str, path: str, length: int, rounds: int) -> None:
    ids = np.random.default_rng(0).integers(1000, 20_000, (1, length)).astype("int32")
    row = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    answer = {
        "saved_model": _saved_model,
        "onnx": _onnx,
        "litert": _litert,
    }[name](path)
    seconds = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        found = answer(row)
        seconds.append(time.perf_counter() - start)
    p50 = statistics.median(seconds[WARM_UP:])
    print(json.dumps({"p50": p50, "answer": np.asarray(found).tolist()}))


Answer = Callable[[dict[str, np.ndarray]], np.ndarray]


def _saved_model(path: str) -> Answer:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    model = tf.saved_model.load(path)
    run = model.signatures["serving_default"]
    return lambda row: run(**{name: tf.constant(ids) for name, ids in row.items()})["probabilities"]


def _onnx(path: str) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(os.path.join(path, "model.onnx"), options)
    return lambda row: session.run(["probabilities"], row)[0]


def _litert(path: str) -> Answer:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(os.path.join(path, "model.tflite"), num_threads=THREADS)
    run = interpreter.get_signature_runner()
    return lambda row: run(**row)["probabilities"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
