"""What commands do where their output exists already: nothing of the user's is ever lost."""

import json
import os
import pathlib

import keras
import pytest

from spanbert_tf.cli import main
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.lock import output_lock
from spanbert_tf.files.output import FileKind, Output, OutputKind
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset

WORDS = ["ann", "bob", "has", "the", "cat", "dog", "who", "?", ".", "A", "##nn", "B", "##ob"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONTEXT = "Ann has the cat. Bob has the dog."
LENGTH = 40


def run(*arguments):
    """Runs a command in this process; returns its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Text, questions in two formats, their records, and presets."""
    directory = tmp_path_factory.mktemp("inputs")
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    # Documents enough that one of them is held out.
    (directory / "text").write_text("\n=\n".join([f"{CONTEXT} {CONTEXT}"] * 40))
    asked = {"id": "1", "question": "who has the cat?"}
    paragraph = {
        "context": CONTEXT,
        "qas": [{**asked, "answers": [{"text": "Ann", "answer_start": 0}]}],
    }
    squad = {"version": "1.1", "data": [{"title": "", "paragraphs": [paragraph]}]}
    (directory / "squad.json").write_text(json.dumps(squad))
    answer = {"text": "Ann", "char_spans": [[0, 2]], "token_spans": [[0, 0]]}
    passage = {
        "context": CONTEXT,
        "qas": [{"qid": "1", **asked, "answers": ["Ann"], "detected_answers": [answer]}],
    }
    lines = [{"header": {"dataset": "made up", "split": "dev"}}, passage]
    (directory / "mrqa.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert run(*commands(directory)["squad"](directory / "records"), "--question-first") == 0
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 64, max_sequence_length=LENGTH)
    tokenizer = SpanBertTokenizer(VOCABULARY)
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer, sequence_length=LENGTH, question_first=True
    )
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor)
    answerer.is_head_trained = True  # as far as `predict` can tell
    write_preset(answerer, str(directory / "answerer"))
    masked_lm = SpanBertMaskedLM(
        backbone, SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=LENGTH)
    )
    masked_lm.is_head_trained = True
    masked_lm.set_weights([weight + 0.1 for weight in masked_lm.get_weights()])
    write_preset(masked_lm, str(directory / "masked_lm"))
    write_preset(backbone, str(directory / "encoder"), tokenizer=tokenizer)
    return directory


def commands(inputs):
    """Name → the arguments of a command, given its output."""
    vocabulary = ("--vocabulary", inputs / "vocab.txt")
    rows = (*vocabulary, "--sequence-length", LENGTH, "--stride", 8)

    def converted(target):
        return lambda output: (
            *("convert", "--from", "keras", "--to", target),
            # A model of texts is not written as such a preset again.
            *(inputs / ("encoder" if target == "keras" else "masked_lm"), output),
        )

    return {
        "pretraining": lambda output: (
            *("prepare", "pretraining", "--input", inputs / "text", *vocabulary),
            *("--sequence-length", LENGTH, "--document-separator", "=", "--output", output),
        ),
        "squad": lambda output: (
            *("prepare", "squad", "--input", inputs / "squad.json", *rows, "--output", output),
        ),
        "mrqa": lambda output: (
            *("prepare", "mrqa", "--input", inputs / "mrqa.jsonl", *rows, "--output", output),
        ),
        "predict": lambda output: (
            *("predict", "--preset", inputs / "answerer", "--data", inputs / "records"),
            *("--output", output),
        ),
        **{target: converted(target) for target in ("keras", "keras_bert", "huggingface", "tf1")},
        "vocabulary": lambda output: (
            *("prepare", "vocabulary", "--input", inputs / "text", "--vocabulary-size", 100),
            *("--output", output),
        ),
        "report": lambda output: (
            *("evaluate", "--baseline", "--data", inputs / "records", "--report", output),
        ),
    }


FILES = ["vocabulary", "report"]
DIRECTORIES = [
    *("pretraining", "squad", "mrqa", "predict"),
    *("keras", "keras_bert", "huggingface", "tf1"),
]


def contents(path):
    """Each file below a path, or the path itself: name → bytes."""
    files = [path] if path.is_file() else path.rglob("*")
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def refused(words, path, capfd, *arguments):
    """Runs a command that must end with status 2 and one line, and must change nothing."""
    before = contents(path.parent)
    capfd.readouterr()
    assert run(*arguments) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and words in error and str(path) in error
    assert contents(path.parent) == before


@pytest.mark.parametrize("name", [*DIRECTORIES, *FILES])
@pytest.mark.parametrize("more", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_what_is_no_earlier_output_is_never_replaced(name, more, inputs, tmp_path, capfd):
    output = tmp_path / "output"
    command = [*commands(inputs)[name](output), *more]
    output.write_text("mine")
    refused("holds other things", output, capfd, *command)
    output.unlink()
    (output / "a" / "b").mkdir(parents=True)
    (output / "a" / "b" / "mine").write_text("mine")
    words = "is a directory; name a file" if name in FILES else "holds other things"
    refused(words, output, capfd, *command)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", [*DIRECTORIES, *FILES])
def test_an_earlier_output_is_replaced_when_asked_for(name, inputs, tmp_path, capfd):
    output = tmp_path / "output"
    assert run(*commands(inputs)[name](f"{output}//")) == 0  # slashes at the end mean nothing
    assert os.listdir(tmp_path) == ["output"]
    assert output.is_file() == (name in FILES)
    command = commands(inputs)[name](f"{output}/")
    refused("--overwrite", output, capfd, *command)
    assert run(*command, "--overwrite") == 0
    assert os.listdir(tmp_path) == ["output"]
    if name not in FILES:
        below = output / "assets"
        below.mkdir(exist_ok=True)
        (below / "mine").write_text("mine")
        refused("holds other things", output, capfd, *command, "--overwrite")


KIND = OutputKind("a kind", "marker", ("part-*",))


def write_marker(directory):
    with open(os.path.join(directory, "marker"), "w") as file:
        file.write("new")


def write_output(path, write):
    """Replaces a directory by what `write` makes of an empty one."""
    with Output(path, KIND, overwrite=True).written() as directory:
        write(directory)


def test_a_link_to_a_directory_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):
        write_output(tmp_path / "link", write_marker)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "marker").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_kill_between_the_renames_loses_nothing(tmp_path):
    """The earlier output lies aside then, and is put back before anything else."""
    output = Output(tmp_path / "output", KIND)
    output.create("earlier")
    pathlib.Path(output.aside, "earlier", "marker").write_text("earlier")

    def fail(directory):
        raise OSError(28, "No space left on device")

    with pytest.raises(Exception, match="No space left"):
        write_output(tmp_path / "output", fail)
    assert contents(tmp_path) == {str(tmp_path / "output" / "marker"): b"earlier"}


def test_a_directory_that_fills_during_the_work_is_left_alone(tmp_path):
    output = tmp_path / "output"

    def write(directory):
        write_marker(directory)
        output.mkdir()
        (output / "mine").write_text("mine")

    with pytest.raises(Exception, match="holds other things"):
        write_output(output, write)
    assert contents(output) == {str(output / "mine"): b"mine"}


def test_a_part_of_another_output_replaces_whatever_has_its_name(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    (output / "mine").write_text("mine")
    with Output(output).written() as directory:
        write_marker(directory)
    assert contents(output) == {str(output / "marker"): b"new"}


def test_an_output_below_a_file_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception, match="file is no directory"):
        Output(tmp_path / "file" / "a" / "b", KIND).check()


def test_a_mount_point_is_refused_before_the_work(tmp_path):
    """As `docker run --volume` gives one: nothing can be renamed to it."""
    mount = "/proc"
    if not os.path.ismount(mount):
        pytest.skip(f"{mount} is no mount point")
    (tmp_path / "link").symlink_to(mount)
    for output in (mount, str(tmp_path / "link")):
        with pytest.raises(BadInputError, match=f"{output}: is a mount point.*{output}/output"):
            Output(output, KIND, overwrite=True).check()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_is_a_link_to_nothing_is_refused(overwrite, tmp_path):
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(BadInputError, match=r"link: is a link to nothing \(gone\)"):
        Output(tmp_path / "link", FileKind("a file", os.path.isfile), overwrite=overwrite).check()
    assert os.readlink(tmp_path / "link") == "gone"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_the_directory_that_one_is_in_is_no_output(overwrite, inputs, tmp_path, monkeypatch, capfd):
    """It would be taken away: by the renaming, from the command and from the shell."""
    monkeypatch.chdir(tmp_path)
    words = ["--input", inputs / "squad.json", "--vocabulary", inputs / "vocab.txt", "--lowercase"]
    assert run("prepare", "squad", *words, "--output", ".", *overwrite) == 2
    assert capfd.readouterr().err == (
        "spanbert-tf: .: is the directory you are in; name another output\n"
    )
    assert not [*tmp_path.iterdir(), *tmp_path.parent.glob(f"*{tmp_path.name}*.incomplete")]


def test_a_run_is_not_made_where_a_link_leads_to_nothing(tmp_path):
    """A disk that is not mounted: the run would fill what lies below its mount point."""
    (tmp_path / "runs").symlink_to("disk/runs")
    said = r"runs: is a link to nothing \(disk/runs\); remove it or name another output"
    with pytest.raises(BadInputError, match=said), output_lock(tmp_path / "runs", "a", inside=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
