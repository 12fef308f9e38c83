"""Links, and directories of somebody else, where a command writes: nothing is lost by them."""

import contextlib
import os
import pickle
import stat
import time

import numpy as np
import pytest

from data_prep.beam.shards import FileSummary, read_spill, write_spill
from data_prep.beam.worker import WorkDirectory
from data_prep.blocks.sequences import Block, Record
from spanbert_tf.data.manifest import RECORDS
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.outputs import OutputKind, make_unfinished
from spanbert_tf.files.writing import whole_file, write_directory, write_text
from spanbert_tf.training.run_directory import RunDirectory

KIND = OutputKind("a kind", "marker")


def write_marker(directory):
    write_text(os.path.join(directory, "marker"), "new")


def contents(directory):
    """Path → text, or what a link leads to, of all below."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_file_is_not_written_through_a_link(tmp_path):
    """Of the names that a file had until it was finished, and of its own."""
    (tmp_path / "precious").write_text("precious")
    for name in ("answers.json.incomplete", "answers.json"):
        (tmp_path / name).symlink_to("precious")
    write_text(str(tmp_path / "answers.json"), "answers")
    assert contents(tmp_path) == {
        "precious": "precious",
        "answers.json": "answers",
        "answers.json.incomplete": "precious",
    }


def test_two_writers_of_a_file_do_not_share_a_name(tmp_path):
    path = str(tmp_path / "file")
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert contents(tmp_path) == {"file": "first"}


def test_a_link_that_is_put_in_place_of_an_unfinished_file_is_not_written_through(tmp_path):
    """It was: the new file's name was opened once more."""
    (tmp_path / "precious").write_text("precious")
    with whole_file(tmp_path / "file") as file:
        [unfinished] = tmp_path.glob("file.*")
        unfinished.unlink()
        unfinished.symlink_to("precious")
        file.write(b"new")
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_a_kill_left_is_removed_later_if_it_is_ours(tmp_path):
    left = "metrics.jsonl.0123456789abcdef.incomplete"
    names = [left, "metrics.jsonl.incomplete", "mine.incomplete", "a.0123.incomplete"]
    for name in names:
        (tmp_path / name).write_text(name)
    write_text(str(tmp_path / "file"), "x")
    assert len(contents(tmp_path)) == len(names) + 1  # that of a moment ago may be being written
    for name in names:
        os.utime(tmp_path / name, (0, time.time() - 4_000))
    write_text(str(tmp_path / "file"), "x")
    assert sorted(contents(tmp_path)) == sorted({*names, "file"} - {left})


@pytest.mark.parametrize(
    "mask, of_file, of_directory", [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_outputs_have_the_modes_of_the_umask(mask, of_file, of_directory, tmp_path):
    with umask(mask):
        write_text(str(tmp_path / "file"), "x")
        write_directory(str(tmp_path / "output"), write_marker, KIND)
    modes = {
        path: stat.S_IMODE((tmp_path / path).stat().st_mode)
        for path in ("file", "output", "output/marker")
    }
    assert modes == {"file": of_file, "output": of_directory, "output/marker": of_file}


def test_nobody_else_can_enter_what_is_unfinished(tmp_path):
    def write(directory):
        above = os.stat(os.path.dirname(directory))
        assert stat.S_IMODE(above.st_mode) == 0o700
        write_marker(directory)

    with umask(0):
        write_directory(str(tmp_path / "output"), write, KIND)
    assert contents(tmp_path) == {"output/marker": "new"}


def directory_of_the_users(path):
    path.mkdir()
    (path / "mine").write_text("mine")


def link_to_a_directory(path):
    directory_of_the_users(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def marked_link(path):
    """A directory with our mark, in which a link leads to the user's."""
    link_to_a_directory(path.parent / "link")
    os.rename(
        make_unfinished(str(path.parent / "other"), "output"), path.parent / "elsewhere" / "x"
    )
    path.symlink_to("elsewhere/x")


@pytest.mark.parametrize("lies_there", [directory_of_the_users, link_to_a_directory, marked_link])
@pytest.mark.parametrize("name", ["output.incomplete", "output.replaced"])
@pytest.mark.parametrize("of_beam", [False, True])
def test_directories_of_these_names_are_left_alone(of_beam, name, lies_there, tmp_path):
    """The second name was that of an earlier output while the new one took its place."""
    lies_there(tmp_path / name)
    before = contents(tmp_path)
    output = str(tmp_path / "output")
    refused = pytest.raises(BadInputError, match=r"output\.incomplete: exists already, and")
    with refused if name.endswith("incomplete") else contextlib.nullcontext():
        if of_beam:
            WorkDirectory(output, RECORDS).create()
        else:
            write_directory(output, write_marker, KIND, overwrite=True)
    assert before.items() <= contents(tmp_path).items()
    assert os.path.lexists(tmp_path / name)
    assert not (tmp_path / "output" / "mine").exists()


def test_another_users_directory_is_not_taken_over(tmp_path, monkeypatch):
    """Even with the mark; what is in it may be changed at any time."""
    output = str(tmp_path / "output")
    left = make_unfinished(output, "results")
    (tmp_path / "output.incomplete" / "results" / "file-0").write_text("{}")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(BadInputError, match="no directory that a command of yours left"):
        WorkDirectory(output, RECORDS).create()
    assert os.path.exists(os.path.join(left, "results", "file-0"))


def test_what_our_own_killed_command_left_is_removed(tmp_path):
    output = str(tmp_path / "output")
    left = make_unfinished(output, "output", "spill")
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", os.path.join(left, "output", "marker"))
    write_directory(output, write_marker, KIND)
    assert contents(tmp_path) == {"output/marker": "new", "precious": "precious"}


def test_results_are_not_unpickled(tmp_path):
    """Another user's result would run as this one, as it did while results were pickles."""

    class Intruder:
        def __reduce__(self):
            return open, (str(tmp_path / "intruded"), "w")

    directory = WorkDirectory(str(tmp_path / "output"), RECORDS)
    directory.create()
    for name in ("results/file-0", "spill/0"):
        with open(directory.join(*name.split("/")), "wb") as file:
            pickle.dump(Intruder(), file)
    with pytest.raises(BadInputError, match="not JSON"):
        directory.read_result("file-0", FileSummary)
    with contextlib.suppress(Exception):
        list(read_spill(directory.join("spill", "0"), [(0, 0, 1_000)]))
    assert not (tmp_path / "intruded").exists()


@pytest.mark.parametrize("num_annotations", [0, 1, 2])
def test_spilled_records_come_back_as_they_were(num_annotations, tmp_path):
    random = np.random.default_rng(num_annotations)

    def block():
        spans = [random.bytes(size * n) for n in range(num_annotations) for size in (2, 1)]
        ids, *lists = (random.bytes(int(random.integers(70_000))) for _ in range(5))
        numbers = int(random.integers(2**40)), int(random.integers(2**31))
        return Block(*numbers, ids, 2**33, (*lists, *spans))

    records = [
        Record(2**64 - 1 - n, 2**63 - 1, n, block(), block() if n % 2 else None, n % 2)
        for n in range(20)
    ]
    path = str(tmp_path / "spill")
    segments = write_spill(path, records, num_shards=3)
    found = [
        list(read_spill(path, [segment for segment in segments if segment.shard == shard]))
        for shard in range(3)
    ]
    assert found == [[r for r in records if r.order_key % 3 == shard] for shard in range(3)]


def run_directory(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("x")
    directory_of_the_users(tmp_path / "elsewhere")
    return run


@pytest.mark.parametrize("name", ["preset", "checkpoints", "logs", "metrics.jsonl", "logs/train"])
def test_a_run_with_a_link_is_refused_before_it_goes_on(name, tmp_path):
    """Finishing such a run emptied what `preset` led to; `metrics.jsonl` was added to."""
    run = run_directory(tmp_path)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInputError, match=f"{name}: is a link"):
        RunDirectory(str(run)).check_content()
    assert contents(tmp_path / "elsewhere") == {"mine": "mine"}


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "checkpoints/best-00000004"])
def test_a_run_with_a_pipe_is_refused_before_it_goes_on(name, tmp_path):
    """Whoever opens it waits for ever."""
    run = run_directory(tmp_path)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    (run / "config.yaml").exists() or (run / "config.yaml").write_text("x")
    with pytest.raises(BadInputError, match=f"{name}': is no regular file but a pipe"):
        RunDirectory(str(run)).check_content()


def test_what_a_run_replaces_must_be_what_it_is_called(tmp_path):
    run, name = run_directory(tmp_path), "preset"
    directory_of_the_users(run / name)
    with pytest.raises(BadInputError, match=f"{name}: exists already and holds other things"):
        RunDirectory(str(run)).check_content()
    assert contents(run) == {"config.yaml": "x", f"{name}/mine": "mine"}


def test_a_run_may_be_named_by_a_link(tmp_path):
    """As one on another disk."""
    run_directory(tmp_path)
    (tmp_path / "link").symlink_to("run")
    RunDirectory(str(tmp_path / "link")).check_content()


def test_a_part_of_a_run_is_not_written_through_a_link(tmp_path):
    """Should it appear while the run goes on."""
    directory_of_the_users(tmp_path / "elsewhere")
    (tmp_path / "preset").symlink_to("elsewhere")

    with pytest.raises(BadInputError, match="preset: is a link"):
        write_directory(str(tmp_path / "preset"), write_marker, KIND, of_run=True)
    (tmp_path / "preset").unlink()

    def write(directory):
        write_marker(directory)
        (tmp_path / "preset").symlink_to("elsewhere")

    with pytest.raises(BadInputError, match="preset: is a link"):
        write_directory(str(tmp_path / "preset"), write, KIND, of_run=True)
    assert contents(tmp_path / "elsewhere") == {"mine": "mine"}


@pytest.mark.parametrize("name", ["preset", "checkpoints/checkpoint.json"])
def test_a_run_that_was_killed_while_it_wrote_goes_on(name, tmp_path):
    run = run_directory(tmp_path)
    (run / "checkpoints").mkdir()
    make_unfinished(str(run / name), "output")
    (run / f"{name}.0123456789abcdef.incomplete").write_text("half")
    RunDirectory(str(run)).check_content()
