"""One writer an output: real processes, and locks that others left."""

import dataclasses
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

import click
import pytest

from spanbert_tf.cli import cli
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files import locks
from spanbert_tf.files.locks import writing

_HOLD = """
import sys
from spanbert_tf.files.locks import writing
with writing(sys.argv[1], "spanbert-tf hold", inside=sys.argv[2] == "inside"):
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


def leave_lock(output, *, age=0.0, **changes):
    """Writes a lock as another process would, with some of what it says changed."""
    said = locks._content("spanbert-tf pretrain")
    locks._own.discard(locks._identity(said))  # it is to be another process's
    held = locks._parsed(said)
    content = json.dumps(dataclasses.asdict(dataclasses.replace(held, **changes)))
    path = lock_path(output)
    path.write_text(content)
    os.utime(path, (time.time() - age,) * 2)
    return content


@_PLACES
def test_the_second_is_told_who_writes_and_nothing_is_left_at_the_end(tmp_path, place):
    output = tmp_path / "new" / "deeper" / "output"
    holder = start_holder(output, place)
    other_spelling = os.path.join(tmp_path, "new", ".", "deeper", "..", "deeper", "output", "")
    with (
        pytest.raises(BadInputError) as refused,
        writing(other_spelling, "x", inside=place == "inside"),
    ):
        pass
    message = str(refused.value)
    assert "\n" not in message
    assert f"spanbert-tf hold (process {holder.pid} on {os.uname().nodename}, since 20" in message
    holder.communicate("")
    assert holder.returncode == 0
    assert all_below(tmp_path) == []
    with writing(output, "x", inside=place == "inside"):
        assert lock_path(output, place).is_file()
    assert all_below(tmp_path) == []


@_PLACES
def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path, place):
    output = tmp_path / "output"
    holder = start_holder(output, place)
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    assert lock_path(output, place).is_file()
    with writing(output, "x", inside=place == "inside"):
        said = json.loads(lock_path(output, place).read_text())
        assert said["process"] == os.getpid()
    holder.communicate()
    assert all_below(tmp_path) == (["output"] if place == "inside" else [])  # empty


_KILLED = """
import os, signal, sys
from spanbert_tf.files.locks import writing
name, is_done = sys.argv[2], sys.argv[3] == "True"
real = getattr(os, name)
def killed(*arguments):
    if is_done:
        real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, name, killed)
with writing(sys.argv[1], "x"):
    pass
"""


@pytest.mark.parametrize(
    ("function", "is_done", "leaves_ticket"),
    [
        ("link", False, False),
        ("link", True, True),
        ("replace", False, True),
        ("replace", True, True),
    ],
)
def test_what_a_command_leaves_that_is_killed_as_it_takes_over(
    tmp_path, function, is_done, leaves_ticket
):
    """Before its first `link`; when it has its ticket; before it has the lock, and after."""
    output, other = tmp_path / "output", tmp_path / ".output.lock.other"
    leave_lock(output, started="1")
    other.touch()
    arguments = [sys.executable, "-c", _KILLED, str(output), function, str(is_done)]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    left = {path.name.removeprefix(".output.lock") for path in tmp_path.iterdir()} - {"", ".other"}
    assert left
    assert any(re.fullmatch(r"\.[0-9a-f]{16}", name) for name in left) == leaves_ticket
    with writing(output, "x"):
        assert set(tmp_path.iterdir()) == {lock_path(output), other}
    assert set(tmp_path.iterdir()) == {other}


def test_a_stopped_process_on_this_machine_still_holds(tmp_path):
    output = tmp_path / "output"
    holder = start_holder(output)
    holder.send_signal(signal.SIGSTOP)
    os.utime(lock_path(output), (1, 1))
    with pytest.raises(BadInputError, match=f"process {holder.pid} "), writing(output, "x"):
        pass
    holder.send_signal(signal.SIGCONT)
    holder.communicate("")


def test_another_hosts_lock_counts_by_its_sign_of_life(tmp_path):
    output = tmp_path / "output"
    leave_lock(output, age=40, machine="other", host="node7", process=12)
    with (
        pytest.raises(BadInputError, match=r"process 12 on node7, .* 40 s ago"),
        writing(output, "x"),
    ):
        pass
    leave_lock(output, age=61, machine="other", host="node7")
    with writing(output, "x"):
        assert "node7" not in lock_path(output).read_text()
    assert all_below(tmp_path) == []


def test_a_process_number_that_another_process_has_now_is_no_holder(tmp_path):
    leave_lock(tmp_path / "output", started="1")
    with writing(tmp_path / "output", "x"):
        pass
    assert all_below(tmp_path) == []


@pytest.mark.parametrize(
    "content", ["", "no JSON", "[" * 4000, "{}", '{"process": true}', "null", "\0" * 9000]
)
def test_what_says_nothing_counts_by_its_time(tmp_path, content):
    output = tmp_path / "output"
    path = lock_path(output)
    path.write_text(content)
    with (
        pytest.raises(BadInputError, match="is being written by another command"),
        writing(output, "x"),
    ):
        pass
    os.utime(path, (time.time() - 61,) * 2)
    with writing(output, "x"):
        pass
    assert all_below(tmp_path) == []


def test_a_lock_that_is_none_is_not_followed_and_prints_no_control_characters(tmp_path):
    output, precious = tmp_path / "output", tmp_path / "precious"
    precious.write_text("precious")
    lock_path(output).symlink_to(precious)
    with (
        pytest.raises(BadInputError, match=r"\.output\.lock: is a link and no lock"),
        writing(output, "x"),
    ):
        pass
    assert precious.read_text() == "precious"
    lock_path(output).unlink()
    os.mkfifo(lock_path(output))
    with pytest.raises(BadInputError, match="is no file that a command made"), writing(output, "x"):
        pass
    lock_path(output).unlink()
    leave_lock(output, machine="other", host="\x1b[2J\nnode\u202e7")
    with pytest.raises(BadInputError) as refused, writing(output, "x"):
        pass
    assert str(refused.value).split("ago")[0].isprintable()


def test_a_link_to_another_place_is_locked_there(tmp_path):
    elsewhere = tmp_path / "disk" / "elsewhere"
    elsewhere.mkdir(parents=True)
    (tmp_path / "output").symlink_to(elsewhere)
    with writing(tmp_path / "output", "x"):
        assert lock_path(elsewhere).is_file()
        assert not lock_path(tmp_path / "output").exists()


def test_a_thread_may_hold_twice_what_another_thread_may_not(tmp_path):
    output = tmp_path / "output"

    def hold():
        with writing(output, "x"):
            pass

    with multiprocessing.pool.ThreadPool(1) as threads, writing(output, "x"):
        with writing(output, "y"):
            pass
        assert lock_path(output).is_file()
        with pytest.raises(BadInputError, match=f"process {os.getpid()} "):
            threads.apply(hold)
    assert all_below(tmp_path) == []


_RECORDS = ["--input", "missing", "--vocabulary", "missing", "--output", "OUT"]
_COMMANDS = [
    ["prepare", "vocabulary", "--vocabulary-size", "999", "--input", "missing", "--output", "OUT"],
    ["prepare", "pretraining", *_RECORDS],
    *(["prepare", name, *_RECORDS] for name in ("squad", "mrqa", "coreference", "tacred")),
    ["prepare", "semeval2010", *_RECORDS],
    ["prepare", "named_entities", *_RECORDS, "--format", "conll2003"],
    ["prepare", "glue", *_RECORDS, "--task", "rte"],
    ["prepare", "classification", *_RECORDS, "--text-column", "a", "--label-column", "b"],
    ["prepare", "repair", ".", "OUT"],
    ["convert", "--from", "tf1", "--to", "keras", "missing", "OUT"],
    ["export", "--preset", "missing", "--output", "OUT"],
    ["predict", "--preset", "missing", "--input", "missing", "--output", "OUT"],
    ["evaluate", "--preset", "missing", "--data", ".", "--report", "OUT"],
    ["inspect", ".", "--png", "OUT"],
    ["glue", ".", "--submission", "OUT"],
]
_COMMANDS_INSIDE = [
    ["pretrain", "--config", "spanbert_tiny", "--data", ".", "--output", "OUT"],
    ["finetune", "--config", "rte", "--preset", "missing", "--data", ".", "--output", "OUT"],
    ["compare", "--configs", "missing", "--data", ".", "--steps", "1", "--output", "OUT"],
    ["quickstart", "--input", "missing", "--output", "OUT"],
]


@pytest.mark.parametrize(
    ("place", "commands"), [("beside", _COMMANDS), ("inside", _COMMANDS_INSIDE)]
)
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


@pytest.mark.parametrize("command", [*_COMMANDS, *_COMMANDS_INSIDE], ids=" ".join)
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
    program = _HOLD.replace("import sys", "import sys\nfrom spanbert_tf import signals")
    program = program.replace("with writing", "with signals.second_signal_ends(), writing")
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
            with writing(output, "racer"):
                wins[number] += 1  # by one process at a time, if the lock is right
                barrier.wait()
        except BadInputError:
            barrier.wait()
        if (
            barrier.wait() == 0 and is_left
        ):  # the next round begins with the lock of a process that is gone
            leave_lock(output, started="1", token=str(number))


@pytest.mark.parametrize("is_left", [True, False])
def test_of_several_that_begin_at_once_exactly_one_holds(tmp_path, is_left):
    racers, rounds, output = 4, 200, tmp_path / "output"
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(racers, timeout=60), context.Array("i", rounds)
    if is_left:
        leave_lock(output, started="1")
    arguments = (output, barrier, wins, rounds, is_left)
    processes = [context.Process(target=_race, args=arguments) for _ in range(racers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert list(wins) == [1] * rounds
