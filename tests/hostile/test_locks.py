"""One writer an output: real processes, and locks that others left."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import click
import pytest
from writing_commands import BESIDE, INSIDE

from spanbert_tf.cli import cli
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.lock import output_lock

_HOLD = """
import sys
from spanbert_tf.files.lock import output_lock
with output_lock(sys.argv[1], "spanbert-tf hold", inside=sys.argv[2] == "inside"):
    print("held", flush=True)
    sys.stdin.read()
"""
_PLACES = pytest.mark.parametrize("place", ["inside", "beside"])


def start_holder(output, place="beside"):
    """A process that holds an output until its standard input ends."""
    arguments = [sys.executable, "-c", _HOLD, str(output), place]
    holder = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def all_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def lock_path(output, place="beside"):
    return output / ".lock" if place == "inside" else output.with_name(f".{output.name}.lock")


def leave_lock(output, content="{}"):
    """A lock's file that nothing holds, as a killed command leaves it."""
    lock_path(output).write_text(content)


@_PLACES
def test_the_second_is_told_who_writes_and_nothing_is_left_at_the_end(tmp_path, place):
    output = tmp_path / "new" / "deeper" / "output"
    holder = start_holder(output, place)
    other_spelling = os.path.join(tmp_path, "new", ".", "deeper", "..", "deeper", "output", "")
    with (
        pytest.raises(BadInputError) as refused,
        output_lock(other_spelling, "x", inside=place == "inside"),
    ):
        pass
    message = str(refused.value)
    assert "\n" not in message
    assert f"spanbert-tf hold (process {holder.pid} on {os.uname().nodename}, since 20" in message
    assert f"; its lock is {lock_path(tmp_path / 'new' / 'deeper' / 'output', place)})" in message
    holder.communicate("")
    assert holder.returncode == 0
    assert all_below(tmp_path) == []
    with output_lock(output, "x", inside=place == "inside"):
        assert lock_path(output, place).is_file()
    assert all_below(tmp_path) == []


@_PLACES
def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path, place):
    output = tmp_path / "output"
    holder = start_holder(output, place)
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    assert lock_path(output, place).is_file()
    with output_lock(output, "x", inside=place == "inside"):
        said = json.loads(lock_path(output, place).read_text())
        assert said["process"] == os.getpid()
    holder.communicate()
    assert all_below(tmp_path) == (["output"] if place == "inside" else [])  # empty


def test_a_stopped_process_still_holds(tmp_path):
    output = tmp_path / "output"
    holder = start_holder(output)
    holder.send_signal(signal.SIGSTOP)
    os.utime(lock_path(output), (1, 1))
    with pytest.raises(BadInputError, match=f"process {holder.pid} "), output_lock(output, "x"):
        pass
    holder.send_signal(signal.SIGCONT)
    holder.communicate("")


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", "[" * 4000, "null", '{"process": 1, "command": "init"}', "\0" * 9000],
)
def test_no_text_and_no_time_of_a_file_hold(tmp_path, content):
    """The kernel holds a lock: not a file of the year 2100, nor one that names process 1."""
    output = tmp_path / "output"
    leave_lock(output, content)
    os.utime(lock_path(output), (4_102_444_800,) * 2)
    with output_lock(output, "x"):
        assert json.loads(lock_path(output).read_text())["process"] == os.getpid()
    assert all_below(tmp_path) == []


def test_a_holder_is_described_without_control_characters(tmp_path):
    """By whatever its file says, and by nothing where that says nothing."""
    output = tmp_path / "output"
    holder = start_holder(output)
    said = {"command": "\x1b[2J", "process": 7, "host": "\nnode\u202e7", "since": "y" * 999}
    for content, shown in ((json.dumps(said), "?[2J (process 7 on ?node?7"), ("{", "another")):
        lock_path(output).write_text(content)
        with pytest.raises(BadInputError) as refused, output_lock(output, "x"):
            pass
        message = str(refused.value)
        assert str(lock_path(output)) in message
        assert f"is being written by {shown}" in message and message.isprintable()
        assert len(message) < 600
    holder.communicate("")
    assert all_below(tmp_path) == []


def test_what_is_no_lock_is_refused_and_not_followed(tmp_path):
    output, precious = tmp_path / "output", tmp_path / "precious"
    precious.write_text("precious")
    path = lock_path(output)
    path.symlink_to(precious)
    with pytest.raises(BadInputError, match=r"\.output\.lock: is a link"), output_lock(output, "x"):
        pass
    assert precious.read_text() == "precious"
    path.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(path)
        with (
            pytest.raises(BadInputError, match="is no file that a command"),
            output_lock(output, "x"),
        ):
            pass
        path.rmdir() if path.is_dir() else path.unlink()


def _refused_as_another_user(output, told):
    """Sends what a user who may not write to a lock is told."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        with output_lock(output, "x"):
            told.put("held")
    except BadInputError as error:
        told.put(str(error))


def test_the_lock_of_another_user_is_named():
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    # The process's own temporary directory is closed to others.
    with tempfile.TemporaryDirectory(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]) as directory:
        os.chmod(directory, 0o777)
        output = pathlib.Path(directory) / "output"
        with output_lock(output.with_name("other"), "x"):  # whatever is imported late is, as root
            pass
        leave_lock(output)
        lock_path(output).chmod(0o444)
        other = context.Process(target=_refused_as_another_user, args=(output, told))
        other.start()
        other.join()
        assert told.get() == (
            f"{lock_path(output)}: is another user's lock, left or held; remove it"
        )


def test_without_locks_of_the_file_system_the_message_names_the_file(tmp_path, monkeypatch):
    def missing(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", missing)
    output = tmp_path / "output"
    with output_lock(output, "x"):
        assert lock_path(output).is_file()
    assert all_below(tmp_path) == []
    lock_path(output).write_text("7\nanother host\n")
    with (
        pytest.raises(BadInputError, match=r"\.output\.lock: another command .* remove this file"),
        output_lock(output, "x"),
    ):
        pass
    lock_path(output).unlink()
    with output_lock(output, "x"):
        pass


def test_a_removed_lock_is_not_that_of_the_next_holder(tmp_path):
    """Whoever removes a lock by hand has two commands write; each removes its own file alone."""
    output = tmp_path / "output"
    with contextlib.ExitStack() as second:
        with output_lock(output, "x"):
            lock_path(output).unlink()
            holder = start_holder(output)
        assert lock_path(output).is_file()
        second.callback(holder.communicate, "")
    assert all_below(tmp_path) == []


def test_a_link_to_another_place_is_locked_there(tmp_path):
    elsewhere = tmp_path / "disk" / "elsewhere"
    elsewhere.mkdir(parents=True)
    (tmp_path / "output").symlink_to(elsewhere)
    with output_lock(tmp_path / "output", "x"):
        assert lock_path(elsewhere).is_file()
        assert not lock_path(tmp_path / "output").exists()


def test_a_thread_may_hold_twice_what_another_thread_may_not(tmp_path):
    output = tmp_path / "output"

    def hold():
        with output_lock(output, "x"):
            pass

    with multiprocessing.pool.ThreadPool(1) as threads, output_lock(output, "x"):
        with output_lock(output, "y"):
            pass
        assert lock_path(output).is_file()
        with pytest.raises(BadInputError, match=f"process {os.getpid()} "):
            threads.apply(hold)
    assert all_below(tmp_path) == []


@pytest.mark.parametrize(("place", "commands"), [("beside", BESIDE), ("inside", INSIDE)])
def test_every_command_is_refused_before_it_reads_anything(tmp_path, monkeypatch, place, commands):
    monkeypatch.chdir(tmp_path)
    holder = start_holder("OUT", place)
    for command in commands:
        with pytest.raises(BadInputError, match=f"^OUT: is being .* hold .process {holder.pid} on"):
            cli(command, standalone_mode=False)
    holder.communicate("")
    for command in commands:  # what is wrong with them is told otherwise, and leaves nothing
        with pytest.raises((BadInputError, ConfigurationError, click.UsageError)) as refused:
            cli(command, standalone_mode=False)
        assert "is being written" not in str(refused.value)
    assert all_below(tmp_path) == []


@pytest.mark.parametrize("command", [*BESIDE, *INSIDE], ids=" ".join)
def test_no_command_makes_a_folder_of_the_name_of_another_file_system(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    command = [word.replace("OUT", "gs://bucket/out") for word in command]
    with pytest.raises(BadInputError, match="gs://bucket/out: is on another file system; mount"):
        cli(command, standalone_mode=False)
    assert all_below(tmp_path) == []


def test_records_of_another_file_system_are_refused_by_name():
    with pytest.raises(BadInputError, match="gs://bucket/records: is on another file system"):
        cli(["inspect", "gs://bucket/records"], standalone_mode=False)
    with pytest.raises(BadInputError, match="gs://bucket/records: is on another file system"):
        PretrainingManifest.load("gs://bucket/records")


def test_sigterm_gives_the_lock_free(tmp_path):
    output = tmp_path / "output"
    program = _HOLD.replace("import sys", "import sys\nfrom spanbert_tf import process")
    program = program.replace("with output", "with process.second_signal_ends(), output")
    arguments = [sys.executable, "-c", program, str(output), "beside"]
    holder = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.terminate()
    holder.communicate()
    assert holder.returncode == 128 + signal.SIGTERM
    assert all_below(tmp_path) == []


def _race(output, barrier, wins, rounds, is_left):
    """Takes part in rounds; whoever holds the output says so, and waits until all have tried."""
    for number in range(rounds):
        barrier.wait()
        try:
            with output_lock(output, "racer"):
                wins[number] += 1  # by one process at a time, if the lock is right
                barrier.wait()
        except BadInputError:
            barrier.wait()
        if barrier.wait() == 0 and is_left:  # the next round begins with what a killed one left
            leave_lock(output)


@pytest.mark.parametrize("is_left", [True, False])
def test_of_several_that_begin_at_once_exactly_one_holds(tmp_path, is_left):
    racers, rounds, output = 4, 200, tmp_path / "output"
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(racers, timeout=60), context.Array("i", rounds)
    if is_left:
        leave_lock(output)
    arguments = (output, barrier, wins, rounds, is_left)
    processes = [context.Process(target=_race, args=arguments) for _ in range(racers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert list(wins) == [1] * rounds


def _hold_and_let_go(output, guard, times, held):
    """Holds an output whenever it can; two that held it at once would meet at the guard."""
    for _ in range(times):
        with contextlib.suppress(BadInputError), output_lock(output, "racer"):
            os.mkdir(guard)
            held.value += 1
            os.rmdir(guard)


@pytest.mark.slow
def test_never_two_hold_at_once_though_the_file_comes_and_goes(tmp_path):
    context = multiprocessing.get_context("fork")
    held = context.Value("i")
    arguments = (tmp_path / "output", tmp_path / "guard", 500, held)
    processes = [context.Process(target=_hold_and_let_go, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert held.value > 0 and all_below(tmp_path) == []
