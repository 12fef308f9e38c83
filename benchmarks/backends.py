"""The same commands on TensorFlow and on JAX, in turns, on this processor.

    python -m benchmarks.backends [--coreference FILE] [--rounds 3]

Pre-training with dropout as published and without that of attention's weights, of a small encoder
(4 layers of width 256, 16 rows of 128) and of the base encoder (4 rows of 128); with a file of
documents also fine-tuning for coreference on the small encoder, each document twice. Of each
command the tokens a second (the median of the lines of `metrics.jsonl`, without the first ones)
and the seconds from the start of the process to its first line and to its end. Medians of rounds.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import click

from benchmarks.input_pipeline import write_records
from benchmarks.machine import describe_machine

BACKENDS = ("tensorflow", "jax")
_PROGRAM = (sys.executable, "-m", "spanbert_tf.cli")
_SMALL = {
    "model.dropout": 0.1,
    "model.num_layers": 4,
    "model.hidden_dim": 256,
    "model.num_heads": 4,
    "model.intermediate_dim": 1024,
    "training.batch_size": 16,
    "training.steps": 60,
}
_BASE = {"training.batch_size": 4, "training.steps": 8}
_EXACT = {"model.attention_dropout": 0.0}
_PRETRAINING = {
    "pre-training, small": ("spanbert_tiny", _SMALL),
    "pre-training, small, no dropout of attention's weights": ("spanbert_tiny", _SMALL | _EXACT),
    "pre-training, base": ("spanbert_base", _BASE),
    "pre-training, base, no dropout of attention's weights": ("spanbert_base", _BASE | _EXACT),
}


@click.command()
@click.option("--coreference", help="Documents, as for `prepare coreference`.")
@click.option("--rounds", default=3, show_default=True)
def main(coreference: str | None, rounds: int) -> None:
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        records = write_records(directory, sequence_length=128)
        commands = {
            title: _pretrain(config, records, settings)
            for title, (config, settings) in _PRETRAINING.items()
        }
        if coreference:
            preset = os.path.join(directory, "small")
            small = _pretrain("spanbert_tiny", records, _SMALL | {"training.steps": 1})
            _timed(small, "tensorflow", preset)
            vocabulary = f"{preset}/preset/assets/tokenizer/vocabulary.txt"
            documents = os.path.join(directory, "documents")
            prepare = ["prepare", "coreference", "--input", coreference, "--output", documents]
            prepare += ["--vocabulary", vocabulary, "--sequence-length", "128"]
            prepare += ["--max-training-segments", "2"]
            subprocess.run([*_PROGRAM, *prepare], check=True, stdout=subprocess.DEVNULL)
            commands["coreference, small"] = _finetune(documents, f"{preset}/preset")
        for title, command in commands.items():
            found: dict[str, list] = {backend: [] for backend in BACKENDS}
            for _ in range(rounds):
                for backend in BACKENDS:
                    output = os.path.join(directory, "run")
                    found[backend].append(_timed(command, backend, output))
                    shutil.rmtree(output)
            for backend, runs in found.items():
                speed, first, whole = (
                    statistics.median(values) for values in zip(*runs, strict=True)
                )
                print(
                    f"{title}, {backend}: {speed:,.0f} tokens/s, first line after {first:.1f} s, "
                    f"the whole {whole:.0f} s",
                    flush=True,
                )


def _pretrain(config: str, records: str, settings: dict) -> list[str]:
    settings = {
        **settings,
        "data.sequence_length": 128,
        "model.max_sequence_length": 128,
        "training.log_every": 1,
        "training.evaluate_every": settings["training.steps"],
        "training.evaluate_batches": 1,
        "optimizer.warmup_steps": 0,
        "training.schedule_steps": 100,
        "training.precision": "float32",
    }
    return ["pretrain", "--config", config, "--data", records, *_set(settings)]


def _finetune(records: str, preset: str) -> list[str]:
    settings = {
        "data.sequence_length": 128,
        "training.log_every": 10,
        "training.epochs": 2,
        "training.precision": "float32",
    }
    command = ["finetune", "--config", "coreference_small", "--preset", preset]
    return [*command, "--data", records, *_set(settings)]


def _set(settings: dict) -> list[str]:
    return ["--set", *(f"{name}={json.dumps(value)}" for name, value in settings.items())]


def _timed(command: Sequence[str], backend: str, output: str) -> tuple[float, float, float]:
    """Tokens a second, seconds to the first line of metrics, and to the end."""
    begin = time.perf_counter()
    words = [*_PROGRAM, *command, "--output", output]
    process = subprocess.Popen(
        words,
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = pathlib.Path(output, "metrics.jsonl")
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    first = time.perf_counter() - begin
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)}: {errors}")
    whole = time.perf_counter() - begin
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return statistics.median(speeds[len(speeds) // 4 :]), first, whole


if __name__ == "__main__":
    main()
