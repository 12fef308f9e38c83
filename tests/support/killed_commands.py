"""Runs a command, kills it in each of its stages, and lets it end. One process imports for all.

    python killed_commands.py '[["adapt", …], ["run/checkpoints/*", …]]'

Each attempt is a fork of this process, which has imported all that the command needs and computed
nothing: TensorFlow has no threads yet.
"""

import glob
import importlib
import json
import os
import signal
import sys
import time

from spanbert_tf.cli import main


def start(arguments):
    """Starts the command in a process group of its own."""
    child = os.fork()
    if child:
        os.setpgid(child, child)  # here, too: it may be killed before it has come so far
        return child
    os.setpgid(0, 0)
    status = 1
    try:
        main(arguments)
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_and_kill(arguments, stages):
    """Kills the command with its children as soon as a path of each stage exists."""
    for stage in stages:
        child = start(arguments)
        while not glob.glob(stage, include_hidden=True):
            ended, status = os.waitpid(child, os.WNOHANG)
            assert not ended, f"ended with status {status} before {stage}"
            time.sleep(0.001)
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status == signal.SIGKILL, stage
        print("killed at", stage, flush=True)
    _, status = os.waitpid(start(arguments), 0)
    assert status == 0


if __name__ == "__main__":
    module, commands = json.loads(sys.argv[1])
    importlib.import_module(module)
    for arguments, stages in commands:
        run_and_kill(arguments, stages)
