"""Links, and directories of the user, where a command writes: nothing is lost by them."""

import contextlib
import os
import shutil
import stat

import pytest

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output, OutputKind, whole_file, write_text
from spanbert_tf.training.run_directory import RunDirectory

KIND = OutputKind("a kind", "marker")


def write_output(path):
    with Output(path, KIND, overwrite=True).written() as directory:
        write_text(os.path.join(directory, "marker"), "new")


def left_by_a_kill(path, *names):
    """The directory in which a killed command wrote an output, with these directories in it."""
    output = Output(path)
    output.create(*names)
    return output.aside


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
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "answers.json").symlink_to("precious")
    write_text(str(tmp_path / "answers.json"), "answers")
    assert contents(tmp_path) == {"precious": "precious", "answers.json": "answers"}


def test_an_output_is_written_wherever_a_kill_fell(tmp_path, monkeypatch):
    """Killed before or after each call that makes or removes a file, a command can be repeated."""

    class Killed(BaseException):
        pass

    class Countdown:
        def __init__(self, left):
            self.left = left

        def wrap(self, function):
            def counted(*arguments, **options):
                if self.left == 0:
                    raise Killed
                self.left -= 1
                return function(*arguments, **options)

            return counted

    calls = ("mkdir", "rmdir", "unlink", "rename", "replace")
    kills = 0
    for left in range(100):
        path = tmp_path / str(left)
        write_output(path)  # an earlier output, which is replaced
        countdown = Countdown(left)
        with monkeypatch.context() as patch:
            for name in calls:
                patch.setattr(os, name, countdown.wrap(getattr(os, name)))
            try:
                write_output(path)
            except Killed:
                kills += 1
            else:
                break
        write_output(path)
        assert contents(path) == {"marker": "new"}
        assert os.listdir(tmp_path) == [str(left)]
        shutil.rmtree(path)
    assert kills > 5


def test_work_whose_removal_was_killed_does_not_go_on(tmp_path, monkeypatch):
    output = Output(tmp_path / "records")
    output.create("spill")
    output.note_work("digest")
    (tmp_path / "records.incomplete" / "spill" / "part").touch()
    assert output.left_work("spill") == "digest"

    def kill(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", kill)
        output.discard()
    assert output.left_work("spill") is None


@pytest.mark.parametrize("is_link", [False, True])
def test_what_has_the_name_of_an_unfinished_file_is_left_alone(is_link, tmp_path):
    (tmp_path / "precious").write_text("precious")
    name = "answers.json.incomplete"
    if is_link:
        (tmp_path / name).symlink_to("precious")
    else:
        (tmp_path / name).write_text("precious")
    with pytest.raises(BadInputError, match=f"{name}: exists already, and is no directory"):
        write_text(str(tmp_path / "answers.json"), "answers")
    assert contents(tmp_path) == {"precious": "precious", name: "precious"}


def test_a_file_is_as_before_until_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("earlier")
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"half")
        raise KeyError
    assert contents(tmp_path) == {"file": "earlier"}
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "earlier"
    assert contents(tmp_path) == {"file": "new"}


def test_what_a_kill_left_of_a_file_is_removed_when_it_is_written_again(tmp_path):
    left = left_by_a_kill(tmp_path / "file")
    with open(os.path.join(left, "output"), "w") as file:
        file.write("half")
    write_text(tmp_path / "file", "whole")
    assert os.listdir(tmp_path) == ["file"]
    assert contents(tmp_path) == {"file": "whole"}


@pytest.mark.parametrize(
    "mask, of_file, of_directory", [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_outputs_have_the_modes_of_the_umask(mask, of_file, of_directory, tmp_path):
    with umask(mask):
        write_text(str(tmp_path / "file"), "x")
        write_output(tmp_path / "output")
    modes = {
        path: stat.S_IMODE((tmp_path / path).stat().st_mode)
        for path in ("file", "output", "output/marker")
    }
    assert modes == {"file": of_file, "output": of_directory, "output/marker": of_file}


def directory_of_the_users(path):
    path.mkdir()
    (path / "mine").write_text("mine")


def link_to_a_directory(path):
    directory_of_the_users(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def marked_link(path):
    """A directory with our mark, in which a link leads to the user's."""
    link_to_a_directory(path.parent / "link")
    os.rename(left_by_a_kill(str(path.parent / "other"), "output"), path.parent / "elsewhere" / "x")
    path.symlink_to("elsewhere/x")


@pytest.mark.parametrize("lies_there", [directory_of_the_users, link_to_a_directory, marked_link])
@pytest.mark.parametrize("name", ["output.incomplete", "output.replaced"])
def test_directories_of_these_names_are_left_alone(name, lies_there, tmp_path):
    """The second name was that of an earlier output while the new one took its place."""
    lies_there(tmp_path / name)
    before = contents(tmp_path)
    output = str(tmp_path / "output")
    refused = pytest.raises(BadInputError, match=r"output\.incomplete: exists already, and")
    with refused if name.endswith("incomplete") else contextlib.nullcontext():
        write_output(output)
    assert before.items() <= contents(tmp_path).items()
    assert os.path.lexists(tmp_path / name)
    assert not (tmp_path / "output" / "mine").exists()


def test_what_our_own_killed_command_left_is_removed(tmp_path):
    output = str(tmp_path / "output")
    left = left_by_a_kill(output, "output", "spill")
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", os.path.join(left, "output", "marker"))
    write_output(output)
    assert contents(tmp_path) == {"output/marker": "new", "precious": "precious"}


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


@pytest.mark.parametrize("name", ["preset", "checkpoints/checkpoint.json"])
def test_a_run_that_was_killed_while_it_wrote_goes_on(name, tmp_path):
    run = run_directory(tmp_path)
    (run / "checkpoints").mkdir()
    left_by_a_kill(str(run / name), "output")
    (run / f"{name}.0123456789abcdef.incomplete").write_text("half")
    RunDirectory(str(run)).check_content()
