"""Kills `prepare` and `pretrain` at random moments, and counts what was damaged or differs.

    python -m benchmarks.survival [--kills 50] [--devices 2]

Half of the kills meet `prepare pretraining`: after each, the output must be absent or the very
bytes of a run that nothing disturbed. The others meet `pretrain`, dropout on, which is started
again and again: five kills a run, whose last checkpoint must hold the very bytes of a run that was
never killed. Kills are SIGKILL, at moments spread evenly over the time that a run takes.
"""

import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import click

from benchmarks.input_pipeline import write_records
from benchmarks.machine import describe_machine

KILLS_A_RUN = 5
_TINY = {
    "model.num_layers": 2,
    "model.hidden_dim": 64,
    "model.num_heads": 2,
    "model.intermediate_dim": 128,
    "optimizer.warmup_steps": 2,
    "training.steps": 60,
    "training.schedule_steps": 100,
    "training.batch_size": 4,
    "training.evaluate_every": 20,
    "training.evaluate_batches": 2,
    "training.checkpoint_every_steps": 5,
    "data.sequence_length": 64,
}


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--devices", default=1, show_default=True, help="Replicas of the training runs.")
def main(kills: int, devices: int) -> None:
    print(describe_machine())
    source = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        records = write_records(directory, sequence_length=64)
        _survive_preparation(directory, kills // 2, source)
        _survive_training(directory, records, kills - kills // 2, devices, source)


def run_and_kill(command: Sequence[str], seconds: float | None) -> bool:
    """Runs a command, or kills it after so many seconds; returns whether it came to its end."""
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return False
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    return True


def _timed(command: Sequence[str]) -> float:
    start = time.monotonic()
    run_and_kill(command, None)
    return time.monotonic() - start


def _survive_preparation(directory: str, kills: int, source: random.Random) -> None:
    def command(output: str) -> list[str]:
        arguments = ["prepare", "pretraining", "--input", f"{directory}/text/*.txt"]
        arguments += ["--vocabulary", f"{directory}/vocab.txt", "--sequence-length", "64"]
        return [sys.executable, "-m", "spanbert_tf.cli", *arguments, "--output", output]

    expected, output = f"{directory}/undisturbed", f"{directory}/killed"
    duration = _timed(command(expected))
    damaged = whole = 0
    for _ in range(kills):
        run_and_kill(command(output), source.uniform(0, duration))
        if os.path.exists(output):
            whole += 1
            damaged += not _same_files(expected, output)
            shutil.rmtree(output)
    print(f"prepare: {kills} kills, {whole} outputs were there, {damaged} damaged (goal 0)")


def _same_files(expected: str, found: str) -> bool:
    names = sorted(os.listdir(expected))
    _, different, missing = filecmp.cmpfiles(expected, found, names, shallow=False)
    return sorted(os.listdir(found)) == names and not different and not missing


def _survive_training(
    directory: str, records: str, kills: int, devices: int, source: random.Random
) -> None:
    def command(output: str) -> list[str]:
        arguments = ["pretrain", "--config", "spanbert_base", "--data", records]
        for key, value in _TINY.items():
            arguments += ["--set", f"{key}={value}"]
        if devices > 1:
            arguments += ["--devices", str(devices), "--set", "training.strategy=mirrored"]
        return [sys.executable, "-m", "spanbert_tf.cli", *arguments, "--output", output]

    expected = f"{directory}/straight"
    duration = _timed(command(expected))
    differing = done = num_runs = 0
    while done < kills:
        output = f"{directory}/run{num_runs}"
        num_runs += 1
        for _ in range(min(KILLS_A_RUN, kills - done)):
            done += not run_and_kill(command(output), source.uniform(0.3, 1) * duration)
        run_and_kill(command(output), None)
        differing += last_weights(output) != last_weights(expected)
    print(f"pretrain on {devices}: {done} kills in {num_runs} runs, {differing} differ (goal 0)")


def last_weights(run: str) -> bytes:
    """All variables of a run's last checkpoint."""
    newest = max(os.listdir(f"{run}/checkpoints"))
    with open(f"{run}/checkpoints/{newest}/state.safetensors", "rb") as file:
        return file.read()


if __name__ == "__main__":
    main()
