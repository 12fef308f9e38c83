"""The process that looks after a worker."""

import io
import signal
import subprocess
import sys
import time
import types

import pytest

from spanbert_tf.supervision import _Worker, run_child

PARENT = """
import sys
from spanbert_tf.signals import second_signal_ends
from spanbert_tf.supervision import run_child
with second_signal_ends():
    print("status", run_child([sys.executable, "-c", sys.argv[1]]), flush=True)
"""
CHILD = """
import signal, sys, time
def end(number, frame):
    time.sleep(1)  # a checkpoint
    print("child has ended", flush=True)
    sys.exit({status})
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("num_signals", [1, 2])
@pytest.mark.parametrize(("status", "said"), [(0, "status 0\n"), (3, "")])
def test_a_signal_to_the_parent_alone_ends_the_child_first(num_signals, status, said):
    """A second one is the child's, too: whatever it does then, it is not left behind."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD.format(status=status)],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        for _ in range(num_signals):
            parent.send_signal(signal.SIGTERM)
            time.sleep(0.6)  # longer than one request lasts
        rest = parent.stdout.read()
    assert "child has ended\n" in rest and rest.endswith(said or "child has ended\n")
    assert parent.returncode == status


def test_a_child_that_a_signal_ends_ends_its_parent_as_that_would_have():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, "import time; print('ready', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGTERM)
        assert parent.stdout.read() == ""
    assert parent.returncode == 128 + signal.SIGTERM


def test_handlers_are_as_before_a_child_was_run():
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    assert run_child([sys.executable, "-c", "import sys; sys.exit(5)"]) == 5
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_worker_is_read_also_where_nobody_reads_what_it_says(monkeypatch):
    """As of `2>&1 | tee log` whose `tee` was ended; unread, the worker would wait for ever."""

    class Closed(io.RawIOBase):
        def write(self, data):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(buffer=Closed(), flush=Closed().flush))
    lines = iter([b"one\n", b"spanbert-tf: two\n", b"three\n"])
    worker = _Worker.__new__(_Worker)
    worker.process, worker._shows_all = types.SimpleNamespace(stderr=lines), False
    worker._pass_on()
    assert list(lines) == [] and not worker.has_said_why
