"""Commands of `spanbert-tf` under `KERAS_BACKEND=jax`, in a process of their own."""

import json
import os
import subprocess
import sys
import tempfile

# What XLA compiles for one test is there for the next ones: it takes most of the time of a run.
_COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
ON_JAX = {
    "KERAS_BACKEND": "jax",
    "JAX_COMPILATION_CACHE_DIR": _COMPILED.name,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # Little time for compiling what runs a few times.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
_PROGRAM = """
import json, sys
from spanbert_tf.cli import main

for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print("status", end.code or 0, flush=True)
"""


def run_on_jax(*commands):
    """Runs commands one after the other in one process, which imports JAX once.

    Returns the finished process, and the exit status of each command.
    """
    words = json.dumps([list(map(str, command)) for command in commands])
    child = subprocess.run(
        [sys.executable, "-c", _PROGRAM, words],
        capture_output=True,
        text=True,
        env=os.environ | ON_JAX,
    )
    lines = child.stdout.splitlines()
    statuses = [int(line.split()[1]) for line in lines if line.startswith("status ")]
    assert len(statuses) == len(commands), child.stderr
    return child, statuses
