"""`prepare pretraining` after a kill: it goes on with what is whole, and writes the same bytes."""

import errno
import os
import pathlib
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

import data_prep.beam.pipeline
import data_prep.beam.steps
from data_prep.beam.job import Job
from data_prep.beam.writing import write_pretraining_records
from data_prep.blocks.records import RecordOptions
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output
from spanbert_tf.text.vocabulary import TextRules

OPTIONS = {"sequence_length": 64, "num_shards": 3, "validation_fraction": 0.2}
NUM_FILES = 5


class Killed(BaseException):
    """Stands for a kill."""


def directory_bytes(directory):
    return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}


@pytest.fixture(scope="module")
def expected(corpus, letters_vocabulary, tmp_path_factory):
    output = tmp_path_factory.mktemp("expected") / "records"
    write(corpus[0], letters_vocabulary, output)
    return directory_bytes(output)


def write(texts, vocabulary, output, **others):
    pattern = str(pathlib.Path(texts) / "*")
    return write_pretraining_records(
        pattern, vocabulary=vocabulary, output=str(output), **(OPTIONS | others)
    )


def kill_at(monkeypatch, place, name, number, act):
    """Calls `act` and stops a function at its call of that number, and leaves all that was made."""
    calls = []
    function = getattr(place, name)

    def stopped(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        return function(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, stopped)
        patch.setattr(Output, "discard", lambda output: None)
        with pytest.raises(Killed):
            act()


@pytest.fixture
def steps_called(monkeypatch):
    """Names of the steps whose work was done."""
    called = []
    for name, place in {"FileRecords": "files", "_write_file": "shards"}.items():
        function = getattr(data_prep.beam.steps, name)

        def noted(*arguments, function=function, place=place):
            called.append(place)
            return function(*arguments)

        monkeypatch.setattr(data_prep.beam.steps, name, noted)
    return called


@pytest.mark.parametrize(
    ("name", "number", "num_files", "num_done"),
    [
        ("write_spill", 1, NUM_FILES, 0),
        ("write_spill", 3, 3, 2),
        ("held_out_records", 1, 0, 5),
        ("read_spill", 1, 0, 5),
        ("_count_unigrams", 2, 0, 6),
    ],
)
def test_what_is_whole_is_not_done_again(
    name, number, num_files, num_done,
    expected, corpus, letters_vocabulary, tmp_path, monkeypatch, steps_called, capsys
):  # fmt: skip
    def act():
        write(corpus[0], letters_vocabulary, tmp_path / "records")

    place = data_prep.beam.writing if name == "held_out_records" else data_prep.beam.steps
    kill_at(monkeypatch, place, name, number, act)
    steps_called.clear()
    act()
    assert steps_called.count("files") == num_files
    assert directory_bytes(tmp_path / "records") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["records"]
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        f"{tmp_path}/records: goes on where it stopped; {min(num_done, 5)} files or parts of "
        f"files are read, {max(num_done - 5, 0)} of 3 shards are written"
    )


@pytest.mark.parametrize("number", range(1, 7))
def test_a_kill_while_shards_are_renamed(
    number, expected, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    def act():
        write(corpus[0], letters_vocabulary, tmp_path / "records")

    kill_at(monkeypatch, os, "rename", number, act)
    act()
    assert directory_bytes(tmp_path / "records") == expected


def test_a_runner_of_beam_goes_on(expected, corpus, letters_vocabulary, tmp_path, monkeypatch):
    def act(**others):
        write(corpus[0], letters_vocabulary, tmp_path / "records", **others)

    kill_at(monkeypatch, data_prep.beam.steps, "read_spill", 1, act)
    act(beam_arguments=["--runner=FnApiRunner"])
    assert directory_bytes(tmp_path / "records") == expected


def changed_option(texts, monkeypatch):
    return {"sequence_length": 32}


def changed_input(texts, monkeypatch):
    (texts / "wiki_02").write_text((texts / "wiki_01").read_text())
    return {}


def touched_input(texts, monkeypatch):
    os.utime(texts / "wiki_02", (1, 1))
    return {}


def missing_input(texts, monkeypatch):
    (texts / "wiki_02").unlink()
    return {}


def changed_code(texts, monkeypatch):
    folder = texts.parent / "code"
    folder.mkdir()
    (folder / "module.py").write_text("CONSTANT = 1\n")
    monkeypatch.setattr(data_prep, "__path__", [*data_prep.__path__, str(folder)])
    return {}


def changed_parameters(texts, monkeypatch):
    folder = texts.parent / "code"
    folder.mkdir()
    (folder / "xx.json").write_text("{}\n")
    monkeypatch.setattr(data_prep, "__path__", [*data_prep.__path__, str(folder)])
    return {}


CHANGES = (
    changed_option, changed_input, touched_input, missing_input, changed_code, changed_parameters
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_other_work_begins_anew(change, corpus, letters_vocabulary, tmp_path, monkeypatch, capsys):
    texts = shutil.copytree(corpus[0], tmp_path / "texts")

    def act(**others):
        write(texts, letters_vocabulary, tmp_path / "records", **others)

    kill_at(monkeypatch, data_prep.beam.steps, "read_spill", 1, act)
    options = change(texts, monkeypatch)
    act(**options)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        f"{tmp_path}/records: begins anew, since the command that stopped had other options, "
        "inputs or code"
    )
    write(texts, letters_vocabulary, tmp_path / "again", **options)
    assert directory_bytes(tmp_path / "records") == directory_bytes(tmp_path / "again")


def test_work_with_another_spacy_model_begins_anew(tmp_path):
    """A model that lies in a directory has no version."""
    model = tmp_path / "model" / "ner"
    model.mkdir(parents=True)
    (model / "weights").write_bytes(bytes(10))
    options = RecordOptions((), TextRules.of(False), 64, "single", spacy_model=str(model.parent))
    job = Job("", "", options, 1, 0)
    made_from = data_prep.beam.writing._made_from(job, [])
    digests = {data_prep.beam.writing._digest(job, made_from, [])}
    assert data_prep.beam.writing._digest(job, made_from, []) in digests
    (model / "weights").write_bytes(bytes(11))
    assert data_prep.beam.writing._digest(job, made_from, []) not in digests


@pytest.mark.parametrize(("language", "is_split_by_icu"), [("en", False), ("zh", True)])
def test_records_tell_the_version_of_what_split_their_sentences(language, is_split_by_icu):
    options = RecordOptions((), TextRules.of(False, language=language), 64, "single")
    versions = data_prep.beam.writing._made_from(Job("", "", options, 1, 0), []).versions
    assert ("icu4py" in versions) == is_split_by_icu


@pytest.mark.parametrize("runner", [(), ("--runner=FnApiRunner",)])
def test_an_input_that_is_removed_while_it_is_read_is_named(
    runner, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    texts = shutil.copytree(corpus[0], tmp_path / "texts")
    write_shard = data_prep.beam.writing.write_shard

    def remove_and_write(*arguments):
        (texts / "wiki_02").unlink(missing_ok=True)
        return write_shard(*arguments)

    monkeypatch.setattr(data_prep.beam.writing, "write_shard", remove_and_write)
    with pytest.raises(BadInputError, match=f"^{texts}/wiki_02: cannot be found any more"):
        write(texts, letters_vocabulary, tmp_path / "records", beam_arguments=runner)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.mark.parametrize("num_bytes", [0, 100, 10**6])
def test_an_input_that_is_changed_while_it_is_read_is_named(
    num_bytes, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    texts = shutil.copytree(corpus[0], tmp_path / "texts")
    spill = data_prep.beam.steps.write_spill

    def write_spill(*arguments):
        spill(*arguments)
        os.truncate(texts / "wiki_02", num_bytes)

    monkeypatch.setattr(data_prep.beam.steps, "write_spill", write_spill)
    with pytest.raises(BadInputError, match="wiki_02: "):
        write(texts, letters_vocabulary, tmp_path / "records")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


class Intruder:
    """Makes a directory when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize("name", ["0", "parts-0", "shards-0"])
def test_a_stranger_s_pickle_in_the_folder_is_not_loaded(
    name, expected, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    """An archive of texts may have `records.incomplete` in it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    output = tmp_path / "records"

    def act():
        write(corpus[0], letters_vocabulary, output)

    kill_at(monkeypatch, data_prep.beam.steps, "_count_unigrams", 2, act)
    path = tmp_path / "records.incomplete" / "spill" / name
    index = pickle.dumps(Intruder())
    path.write_bytes(index + bytes(8))
    if name == "0":
        with pytest.raises(BadInputError, match=r"spill/0: is damaged and was removed"):
            act()
    act()
    assert directory_bytes(output) == expected
    assert not list((tmp_path / "work").iterdir())


def last_change(path):
    """When the content, the names and the rights of a file or folder last changed, and its size."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


@pytest.mark.parametrize("place", ["spill", "output", "output/train-0", "spill/0", "work"])
def test_links_in_the_folder_are_not_gone_through(
    place, expected, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    def act():
        write(corpus[0], letters_vocabulary, tmp_path / "records")

    kill_at(monkeypatch, data_prep.beam.steps, "_count_unigrams", 2, act)
    path = tmp_path / "records.incomplete" / place
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = last_change(tmp_path / "elsewhere")
    act()
    assert directory_bytes(tmp_path / "records") == expected
    assert not any(path.is_symlink() for path in (tmp_path / "records").iterdir())
    assert last_change(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("num_done", [0, 2])
def test_a_full_disk_keeps_what_is_whole(
    num_done, expected, corpus, letters_vocabulary, tmp_path, monkeypatch, steps_called
):
    output = tmp_path / "records"
    spill = data_prep.beam.steps.write_spill
    calls = []

    def write_spill(path, *arguments):
        calls.append(path)
        if len(calls) > num_done:
            pathlib.Path(path).write_bytes(bytes(1000))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        spill(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(data_prep.beam.steps, "write_spill", write_spill)
        with pytest.raises(BadInputError, match="No space left on device") as raised:
            write(corpus[0], letters_vocabulary, output)
    assert ("run the same command" in str(raised.value)) == (num_done > 0)
    assert output.with_name("records.incomplete").exists() == (num_done > 0)
    assert not list(tmp_path.glob("records.incomplete/spill/unfinished-*"))
    steps_called.clear()
    write(corpus[0], letters_vocabulary, output)
    assert steps_called.count("files") == NUM_FILES - num_done
    assert directory_bytes(output) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


class FullDisk:
    """A step that finds the disk full when some parts are done; picklable, as runners need it."""

    def __init__(self, directory, num_done):
        self.directory = directory
        self.num_done = num_done

    def __call__(self, job, show, *arguments):
        if len(list(pathlib.Path(self.directory).glob("spill/parts-*"))) >= self.num_done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return data_prep.beam.steps.spill_part(job, show, *arguments)


@pytest.mark.parametrize("can_tell", [True, False])
@pytest.mark.parametrize("num_done", [0, 2])
def test_a_full_disk_under_a_runner_keeps_what_is_whole(
    num_done, can_tell, expected, corpus, letters_vocabulary, tmp_path, monkeypatch, steps_called
):
    """Also where even the message about it cannot be written."""
    output = tmp_path / "records"
    kept = f"{output}.incomplete"

    def cannot_write(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(data_prep.beam.writing, "spill_part", FullDisk(kept, num_done))
        if not can_tell:
            patch.setattr(data_prep.beam.pipeline, "_write_failure", cannot_write)
        with pytest.raises(BadInputError, match="No space left on device") as raised:
            write(corpus[0], letters_vocabulary, output, beam_arguments=["--runner=FnApiRunner"])
    assert str(raised.value).endswith(f"it goes on with the work in {kept}") == (num_done > 0)
    assert os.path.exists(kept) == (num_done > 0)
    steps_called.clear()
    write(corpus[0], letters_vocabulary, output)
    assert steps_called.count("files") == NUM_FILES - num_done
    assert directory_bytes(output) == expected


def command(texts, vocabulary, output, *others):
    return [sys.executable, "-m", "spanbert_tf.cli", "prepare", "pretraining",
            "--input", f"{texts}/*", "--vocabulary", vocabulary, "--output", str(output),
            "--sequence-length", "64", "--num-shards", "3", "--validation-fraction", "0.2",
            *others]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_kills_at_any_moment(num_processes, expected, corpus, letters_vocabulary, tmp_path):
    """Later and later after the work has begun, until a command comes to its end."""
    output = tmp_path / "records"
    words = command(corpus[0], letters_vocabulary, output, "--num-processes", str(num_processes))
    source = random.Random(num_processes)
    for _ in range(4):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not os.path.exists(f"{output}.incomplete/work") and process.poll() is None:
            time.sleep(0.01)
        time.sleep(source.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not output.exists():
        subprocess.run(words, check=True, capture_output=True)
    assert directory_bytes(output) == expected
    left = {path.name for path in tmp_path.iterdir()} - {".records.lock"}
    assert left == {"records"}


def wait_for_parts(process, output):
    while not list(output.parent.glob(f"{output.name}.incomplete/spill/parts-*")):
        assert process.poll() is None
        time.sleep(0.001)


@pytest.fixture
def many_texts(corpus, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(60):
        for path in corpus[0].iterdir():
            shutil.copy(path, texts / f"{number}-{path.name}")
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_sigterm_leaves_what_is_whole(num_processes, many_texts, letters_vocabulary, tmp_path):
    """Batch systems send it. After Ctrl-C nothing is left."""
    output = tmp_path / "records"
    words = command(many_texts, letters_vocabulary, output, f"--num-processes={num_processes}")
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for_parts(process, output)
    process.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    num_done = len(list(tmp_path.glob("records.incomplete/spill/parts-*")))
    assert num_done > 0
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    told = re.search(r"goes on where it stopped; (\d+) files or parts of files", done.stdout)
    # Each worker may complete its part after the command has ended.
    num_workers = num_processes if num_processes > 1 else 0
    assert num_done <= int(told[1]) <= num_done + num_workers


@pytest.mark.slow
def test_a_killed_process_leaves_what_is_whole(many_texts, letters_vocabulary, tmp_path):
    """As the kernel kills one that takes too much memory."""
    output = tmp_path / "records"
    words = command(many_texts, letters_vocabulary, output)
    process = subprocess.Popen(
        [*words, "--num-processes=2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_for_parts(process, output)
    children = psutil.Process(process.pid).children(recursive=True)
    [victim, *_] = [child for child in children if "LokyProcess" in str(child.cmdline())]
    victim.kill()
    _, errors = process.communicate()
    assert process.returncode == 2
    line = errors.splitlines()[-1]
    assert "--num-processes 2: a process was killed, perhaps for want of memory; take fewer" in line
    assert line.endswith(f"it goes on with the work in {output}.incomplete")
    num_done = len(list(tmp_path.glob("records.incomplete/spill/parts-*")))
    assert num_done > 0
    assert not list(tmp_path.glob("records.incomplete/spill/unfinished-*"))
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert f"goes on where it stopped; {num_done} files or parts of files" in done.stdout
    subprocess.run(command(many_texts, letters_vocabulary, tmp_path / "again"), check=True)
    assert directory_bytes(output) == directory_bytes(tmp_path / "again")


@pytest.mark.slow
def test_a_full_disk_while_it_goes_on(expected, corpus, letters_vocabulary, tmp_path, monkeypatch):
    """One line, and what is whole stays; the next command goes on with it."""
    output = tmp_path / "records"
    kill_at(
        monkeypatch, data_prep.beam.steps, "read_spill", 1,
        lambda: write(corpus[0], letters_vocabulary, output),
    )  # fmt: skip
    words = command(corpus[0], letters_vocabulary, output)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))

    full = subprocess.run(
        words, preexec_fn=limit, capture_output=True, text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert full.returncode == 2
    assert full.stderr.splitlines()[-1].endswith(
        f"{output}: cannot be written (File too large); free some space and run the same command: "
        f"it goes on with the work in {output}.incomplete"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["records.incomplete"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "goes on where it stopped; 5 files or parts of files are read" in done.stdout
    assert directory_bytes(output) == expected


# A worker process in its first moments; it is given the number of a process that is not there.
STARTED = """
import time, types
from data_prep.beam.processes import _start_process

_start_process(None, types.SimpleNamespace(send=None), parent=2**22)
time.sleep(60)
"""


def test_a_process_whose_parent_was_killed_before_it_has_started_ends():
    command = [sys.executable, "-c", STARTED]
    child = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (child.returncode, child.stderr) == (1, "")  # and not by an error
