"""Pipes and devices where files are expected, and checkpoints that tell of more than they hold."""

import functools
import json
import multiprocessing.pool
import os
import pathlib
import shutil
import signal

import pytest
import tensorflow as tf
from torch_models import save_torch_model, torch_model
from writing_commands import BESIDE, INSIDE

from data_prep.text.storage import find_files
from spanbert_tf import predictor
from spanbert_tf.cli import cli
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.data.manifest import language_of_records
from spanbert_tf.data.tfrecords import load_lengths
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import refuse_no_preset, refuse_other_records
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.preset import Preset
from spanbert_tf.serving.loading import load_export
from spanbert_tf.tasks.prediction import Predictor, predict_lines
from spanbert_tf.text.chosen_vocabulary import load_vocabulary_of_preset
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, load_vocabulary


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint of each format, by its name."""
    directory = tmp_path_factory.mktemp("checkpoints")
    huggingface = str(save_torch_model(torch_model(), directory / "huggingface"))
    for kind in ("keras", "tf1"):
        convert_checkpoint("huggingface", kind, huggingface, str(directory / kind))
    return directory


@pytest.fixture(autouse=True)
def waits_end():
    """A reader of a pipe waits for ever."""

    def end(number, frame):
        pytest.fail("waits")  # no OSError, which would be caught where a file is read

    former = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 120)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def regular_files(directory):
    return [path for path in sorted(directory.rglob("*")) if path.is_file()]


def commands_with(preset, directory):
    """Commands that read a preset, or the directory of a model of Hugging Face in its place."""
    text, output = directory / "text", str(directory / "out")
    text.write_text("A text.\n")
    commands = [
        ["predict", "--input", str(text), "--format", "text", "--output", output],
        ["export", "--output", output],
        ["prepare", "pretraining", "--input", str(text), "--output", output],
        ["vocabulary", "extend", "--input", str(text), "--size", "1", "--output", output],
    ]
    return [
        functools.partial(cli, [*command, "--preset", str(preset)], standalone_mode=False)
        for command in commands
    ]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("kind", ["huggingface", "keras", "tf1"])
def test_pipes_and_devices_are_named_and_not_opened(kind, make, whole, tmp_path):
    source = pathlib.Path(shutil.copytree(whole / kind, tmp_path / kind))
    for path in regular_files(source):
        content = path.read_bytes()
        path.unlink()
        make(path)
        doors = [lambda: convert_checkpoint(kind, "keras", str(source), str(tmp_path / "out"))]
        if kind != "tf1":
            doors += commands_with(source, tmp_path)
        if kind == "keras":
            doors += [lambda: Predictor(str(source))]
            doors += [lambda: load_vocabulary_of_preset(str(source))]
            doors += [
                lambda: Preset(source).encoder(),
                lambda: Preset(source).tokenizer,
            ]
        for door in doors:
            signal.setitimer(signal.ITIMER_REAL, 20)
            with pytest.raises(BadInputError, match="is no regular file") as caught:
                door()
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        path.unlink()
        path.write_bytes(content)
    assert not (tmp_path / "out").exists()


def linked(source, folder, outside):
    """A copy of a folder whose files are links to copies of them in another one."""
    for path in regular_files(source):
        file = outside / path.relative_to(source)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, file)
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(file, target.parent))
    return folder


def blobs_of(source, repository):
    """The layout of the Hub's cache: a snapshot's files are links to the repository's blobs."""
    snapshot = repository / "snapshots" / "0123abc"
    (repository / "blobs").mkdir(parents=True)
    for number, path in enumerate(regular_files(source)):
        blob = repository / "blobs" / f"{number:040x}"
        shutil.copy(path, blob)
        target = snapshot / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(blob, target.parent))
    return snapshot


@pytest.mark.parametrize("kind", ["huggingface", "keras"])
def test_links_that_stay_inside_and_the_hubs_are_read(kind, whole, tmp_path):
    source = pathlib.Path(shutil.copytree(whole / kind, tmp_path / "source"))
    inside = linked(whole / kind, tmp_path / "inside", tmp_path / "inside" / "more")
    if kind == "keras":
        shutil.move(source / "assets", source / "more")
        (source / "assets").symlink_to("more")
    for number, folder in enumerate([source, inside, blobs_of(whole / kind, tmp_path / "hub")]):
        if kind == "keras":
            preset = Preset(folder)
            assert preset.tokenizer.vocabulary_size() > 0
            assert preset.encoder().num_layers == 2
        else:
            convert_checkpoint(kind, "keras", str(folder), str(tmp_path / f"out{number}"))


@pytest.mark.parametrize("kind", ["huggingface", "keras", "tf1"])
def test_links_that_lead_out_are_named_and_not_followed(kind, whole, tmp_path):
    """Among them one to the other side of the Hub's cache, and a folder."""
    source = pathlib.Path(shutil.copytree(whole / kind, tmp_path / "snapshots" / kind))
    outside = pathlib.Path(shutil.copytree(whole / kind, tmp_path / "outside"))
    links = [(path, outside / path.relative_to(source)) for path in regular_files(source)]
    if kind == "keras":
        links += [(source / "assets", outside / "assets")]
        links += [(source / "assets" / "tokenizer", outside / "assets" / "tokenizer")]
    for path, target in links:
        aside = path.rename(tmp_path / "aside")
        path.symlink_to(target)
        doors = [lambda: convert_checkpoint(kind, "huggingface", str(source), str(tmp_path / "x"))]
        if kind == "keras":
            doors += [
                lambda: SpanBertTokenizer.from_preset(str(source)),
                lambda: SpanBertBackbone.from_preset(str(source), load_weights=False),
                lambda: Preset(str(source)).encoder(),
                lambda: Predictor(str(source)),
                lambda: load_vocabulary_of_preset(str(source)),
            ]
        for door in doors:
            with pytest.raises(BadInputError, match="links lead out of it") as caught:
                door()
            assert f"{path} -> {target}" in str(caught.value) and "\n" not in str(caught.value)
        path.unlink()
        aside.rename(path)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["checkpoint", "variables.index", "variables.data-00000-of-00001"])
def test_pipes_below_variables_are_named_and_not_opened(name, tmp_path):
    """Of an encoder for TensorFlow Hub."""
    variables = tmp_path / "encoder" / "variables"
    variables.mkdir(parents=True)
    (variables / "variables.index").touch()
    (variables / name).unlink(missing_ok=True)
    os.mkfifo(variables / name)
    signal.setitimer(signal.ITIMER_REAL, 20)
    with pytest.raises(BadInputError, match=f"variables/{name}': is no regular file"):
        convert_checkpoint("tfhub", "keras", str(tmp_path / "encoder"), str(tmp_path / "out"))


EXPORT = (
    "saved_model.pb",
    "assets/vocabulary.txt",
    "assets.extra/pipeline.json",
    "assets.extra/vocabulary.txt",
    "variables/variables.index",
)


@pytest.mark.parametrize("name", EXPORT)
@pytest.mark.parametrize("is_pipe", [True, False])
def test_files_of_an_export_are_looked_at_before_one_is_opened(name, is_pipe, tmp_path):
    export = tmp_path / "export"
    for file in EXPORT:
        path = export / "1" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = export / "1" / name
    path.unlink()
    if is_pipe:
        os.mkfifo(path)
        expected = "is no regular file"
    else:
        (tmp_path / "outside").touch()
        path.symlink_to(tmp_path / "outside")
        expected = "links lead out of it"
    if is_pipe and name == "saved_model.pb":
        return  # without this file it is no export, and none is looked for
    for door in (lambda: load_export(str(export / "1")), lambda: predictor(str(export))):
        signal.setitimer(signal.ITIMER_REAL, 20)
        with pytest.raises(BadInputError, match=expected) as caught:
            door()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_pipes_beside_records_are_not_waited_for(tmp_path):
    for name in ("squad_info.json", "config.json", "inner/config.json", "rows.lengths.npy"):
        path = tmp_path / "records" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    signal.setitimer(signal.ITIMER_REAL, 20)
    assert language_of_records(tmp_path / "records") is None
    with pytest.raises(BadInputError, match=r"rows\.lengths\.npy: cannot be read"):
        load_lengths(str(tmp_path / "records" / "rows.tfrecord"))
    for look in (refuse_no_preset, functools.partial(refuse_other_records, task="coreference")):
        with pytest.raises(BadInputError):
            look(str(tmp_path / "records"))


@pytest.mark.parametrize("rows", [19, 2**36, 2**59])
def test_tensors_of_tf1_that_are_larger_than_their_file(rows, whole, tmp_path):
    """One row lies there, of so many that the index tells of."""
    source = pathlib.Path(shutil.copytree(whole / "tf1", tmp_path / "tf1"))
    for path in source.glob("*.ckpt*"):
        path.unlink()
    tf.raw_ops.SaveV2(
        prefix=str(source / "bert_model.ckpt"),
        tensor_names=["bert/embeddings/word_embeddings"],
        shape_and_slices=[f"{rows} 8 0,1:0,8"],
        tensors=[tf.zeros([1, 8])],
    )
    with pytest.raises(BadInputError, match=rf"tells of {rows * 32:,} bytes .* hold 32;"):
        convert_checkpoint("tf1", "keras", str(source), str(tmp_path / "out"), lowercase=False)


def test_a_file_of_the_index_alone_is_no_checkpoint(whole, tmp_path):
    source = pathlib.Path(shutil.copytree(whole / "tf1", tmp_path / "tf1"))
    (data,) = source.glob("*.data-*")
    data.unlink()
    assert json.loads((source / "bert_config.json").read_text())
    with pytest.raises(BadInputError, match="hold 0; copy all of them again"):
        convert_checkpoint("tf1", "keras", str(source), str(tmp_path / "out"), lowercase=False)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/null", path)])
@pytest.mark.parametrize("command", [*BESIDE, *INSIDE], ids=" ".join)
def test_no_command_writes_to_a_pipe_or_a_device(command, make, tmp_path, monkeypatch):
    """It would wait for a reader, or put a file in the device's place; nothing is left beside."""
    monkeypatch.chdir(tmp_path)
    make("OUT")
    with pytest.raises(BadInputError, match=r"^OUT: is a pipe, a device or the like"):
        cli(command, standalone_mode=False)
    assert os.listdir(tmp_path) == ["OUT"]


def test_devices_without_end_are_not_read():
    predict = functools.partial(predict_lines, "no preset", output="-")
    for read in (load_vocabulary, read_text_file, find_files, predict):
        with pytest.raises(BadInputError, match=r"^/dev/zero: is a device, which may have no end"):
            read("/dev/zero")


def test_pipes_that_a_user_names_are_read(tmp_path):
    """As of `<(zcat vocab.txt.gz)`."""
    path = tmp_path / "vocabulary"
    os.mkfifo(path)
    text = "".join(f"{piece}\n" for piece in (*SPECIAL_TOKENS, "a"))
    with multiprocessing.pool.ThreadPool(1) as threads:
        written = threads.apply_async(path.write_text, [text])
        assert load_vocabulary(path) == [*SPECIAL_TOKENS, "a"]
        written.get(timeout=60)
