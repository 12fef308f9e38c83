"""Signals that end a command, and children that it starts."""

import io
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from spanbert_tf.process import _Worker, run_child

# A command whose main thread waits inside TensorFlow, for ever.
HANGING = """
import signal, sys
import tensorflow as tf
import spanbert_tf.cli, spanbert_tf.config, spanbert_tf.process

spanbert_tf.process._ONE_REQUEST_SECONDS = 5  # a busy machine's "at once"

def hang(*arguments, **options):
    if sys.argv[1] == "handled":  # as in training
        signal.signal(signal.SIGTERM, lambda *arguments: None)
    queue = tf.queue.FIFOQueue(1, tf.int32)
    print("hangs", flush=True)
    queue.dequeue()

signal.signal(signal.SIGINT, signal.default_int_handler)
spanbert_tf.config.load_run_config = hang
spanbert_tf.cli.main(["pretrain", "--config", "c", "--data", ".", "--output", "run"])
"""


def hanging_command(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "hangs\n"
    time.sleep(1)  # until it does
    return process


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_a_command_that_hangs(sent):
    process = hanging_command("handled")
    process.send_signal(sent)
    # Another that follows at once is the same request, as of `timeout` to a process and its group.
    time.sleep(0.05)
    process.send_signal(sent)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(6)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert errors.strip() == "spanbert-tf: ended at once by the second signal"


ENDING = """
import os, sys
from spanbert_tf.process import end_process

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
end_process("the line that nobody reads", 7)
"""


def test_a_process_ends_also_where_nobody_reads_its_last_line():
    """`command 2>&1 | tee log`, of which Ctrl-C ended `tee`."""
    assert subprocess.run([sys.executable, "-c", ENDING]).returncode == 7


def test_the_first_sigterm_ends_a_command_that_does_not_handle_it():
    process = hanging_command("plain")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_signals_of_a_forked_process_are_its_own():
    """A child that inherits the file would tell its parent of its own signals."""
    program = """
import os, signal, time
from spanbert_tf.process import second_signal_ends

with second_signal_ends():
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, lambda *arguments: None)
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
        os._exit(0)
    os.waitpid(child, 0)
    print("alive", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    (child,) = (
        int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == process.pid
    )
    for _ in range(2):
        os.kill(child, signal.SIGTERM)
        time.sleep(0.7)
    os.kill(child, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "alive\n")


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


PARENT = """
import sys
from spanbert_tf.process import run_child, second_signal_ends
with second_signal_ends():
    print("status", run_child([sys.executable, "-c", sys.argv[1]]), flush=True)
"""
# The signal may arrive before `print` has returned, and a handler that prints then would fail.
CHILD = """
import os, signal, sys, time
def end(number, frame):
    time.sleep(1)  # a checkpoint
    os.write(1, b"child has ended\\n")
    sys.exit({status})
signal.signal(signal.SIGTERM, end)
os.write(1, b"ready\\n")
time.sleep(60)
"""


@pytest.mark.parametrize(("num_signals", "status", "said"), [(1, 3, ""), (2, 0, "status 0\n")])
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
    worker._show_errors()
    assert list(lines) == [] and not worker.has_said_why
