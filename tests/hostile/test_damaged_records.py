"""Records that are damaged, or a stranger's: each command refuses them with one line."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import torch

from benchmarks.damaged_records import (
    CONFIGURATIONS,
    DAMAGES,
    change_record,
    commands,
    damaged_examples,
    stored_features,
    write_all_records,
    write_presets,
)
from spanbert_tf.cli import main
from spanbert_tf.config.settings import parse_override, read_settings
from spanbert_tf.conversion.torch_files import read_pickled
from spanbert_tf.data.batches import PackedRows
from spanbert_tf.data.examples import example_fault
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.rows import parse_records
from spanbert_tf.data.tfrecords import lengths_path, load_lengths, read_records, save_lengths
from spanbert_tf.errors import SpanBertError
from spanbert_tf.files.contents import checksums
from spanbert_tf.tasks.coreference.dataset import parse_documents
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.inspection import inspect_records
from spanbert_tf.tasks.lookup import open_records, task_of_records
from spanbert_tf.tasks.prediction import run_prediction
from spanbert_tf.tasks.question_answering.answers import answer_questions
from spanbert_tf.tasks.question_answering.graph import WindowSpans
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.training.checkpoint_files import find_damage

LINES = {  # of a task, what its rows were made of
    "question_answering": "questions.jsonl",
    "text_classification": "examples.jsonl",
    "named_entities": "sentences.jsonl",
    "relation_extraction": "examples.jsonl",
    "coreference": "documents.jsonl",
}
LENGTH = 32  # of the rows that `write_all_records` writes
WITH_BASELINE = ("question_answering", "text_classification", "regression", "coreference")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_all_records(tmp_path_factory.mktemp("records"))


@pytest.fixture
def copy(whole, tmp_path):
    """Copies the records of a kind."""

    def copy(kind):
        return pathlib.Path(shutil.copytree(whole[kind], tmp_path / kind))

    return copy


def refusal(call, *arguments):
    """The one line that a call ends with."""
    with pytest.raises(SpanBertError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_manifest(directory, change):
    """Changes the description of a task's records."""
    (path,) = directory.glob("*_info.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize("kind", LINES)
def test_a_lost_line_is_refused_by_every_command(kind, copy):
    data = copy(kind)
    DAMAGES["a line lost"](data / LINES[kind])
    config = load_task_config(CONFIGURATIONS[kind][0])
    calls = [
        lambda: inspect_records(str(data), "spanbert_base"),
        lambda: run_prediction("no preset", str(data), str(data / "predictions")),
        lambda: run_finetuning(config, "no preset", str(data), str(data / "run")),
    ]
    if kind in WITH_BASELINE:
        calls.append(lambda: run_evaluation(None, [str(data)]))
    for call in calls:
        message = refusal(call)
        assert message.startswith(f"{data / LINES[kind]}: has ") and "copy it again" in message
    assert not (data / "run").exists()


def test_the_command_line_ends_with_2_and_one_line(copy, capfd):
    data = copy("coreference")
    DAMAGES["a line lost"](data / "documents.jsonl")
    with pytest.raises(SystemExit) as end:
        main(["evaluate", "--baseline", "--data", str(data)])
    assert end.value.code == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert f"{data / 'documents.jsonl'}: has " in error and "Traceback" not in error


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_to_every_file_is_refused(damage, whole, copy):
    for kind in LINES:
        data = copy(kind)
        for name in sorted(os.listdir(data)):
            DAMAGES[damage](data / name)
            assert str(data) in refusal(open_records, str(data))
            path = data / name
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            shutil.copy(whole[kind] / name, path)
        open_records(str(data))  # whole again


@pytest.mark.parametrize("damage", ["a pipe", "a link to /dev/zero", "a directory"])
def test_pretraining_records_are_regular_files(damage, whole, copy):
    data = copy("pretraining")
    for name in sorted(os.listdir(data)):
        DAMAGES[damage](data / name)
        message = refusal(lambda: PretrainingManifest.load(data).unigram_counts(data))
        assert str(data / name) in message or name == "dataset_info.json"
        path = data / name
        path.rmdir() if path.is_dir() else path.unlink()
        shutil.copy(whole["pretraining"] / name, path)


def test_a_damaged_shard_of_the_right_size_is_named_by_inspect(copy):
    data = copy("pretraining")
    (shard,) = data.glob("train-*.tfrecord")
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    assert refusal(inspect_records, str(data), "spanbert_base").startswith(f"{shard}: record 0 ")


def graph_of(kind, directory):
    """What reads one record of a kind in a graph, as all commands do."""
    spec = tf.TensorSpec([1], tf.string)
    if kind == "pretraining":
        manifest = PretrainingManifest.load(directory)
        names = [
            name for name, one in manifest.stored().items() if one.is_list and name != "token_ids"
        ]
        read = lambda serialized: parse_records(serialized, manifest, tuple(names))  # noqa: E731
    elif kind == "coreference":
        manifest = open_records(str(directory)).manifest
        width = tf.constant(LENGTH * 8)
        read = lambda serialized: parse_documents(manifest, 0, None, serialized, width)  # noqa: E731
    else:
        manifest = open_records(str(directory)).manifest
        task, rows = task_of_records(str(directory)), PackedRows(manifest, 0)
        read = lambda serialized: task.parse(rows, serialized, tf.constant(LENGTH))  # noqa: E731
    return tf.function(read, input_signature=[spec], autograph=False)


@pytest.mark.parametrize("kind", [*CONFIGURATIONS, "pretraining"])
def test_what_graphs_refuse_of_a_record_is_what_the_rule_names(kind, whole):
    """Both are to find the same; and nothing in whole records."""
    read, stored = graph_of(kind, whole[kind]), stored_features(whole[kind])
    path = str(min(whole[kind].glob("*.tfrecord")))
    records = [record for record, _ in read_records(path)]
    for record in records:
        assert example_fault(record, stored) is None
        read(tf.constant([record]))
    for done, damaged in damaged_examples(records[1], stored):
        try:
            read(tf.constant([damaged]))
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            assert example_fault(damaged, stored), done
        else:
            harmless = example_fault(damaged, stored) is None
            # Lists that are too short are read as if they were padded; their lengths lie beside.
            assert harmless or done.endswith(("shorter", "longer")), done


def with_last_id(values, last_id):
    values[0] = values[0][:-2] + last_id


DAMAGED_RECORDS = {  # what is done to record 1, and how the rule says it
    "no Example": (lambda example: b"\xff\xfe no Example", "it is no tf.train.Example"),
    "a feature lost": (lambda example: example.pop("token_ids"), "it lacks token_ids"),
    "another type": (
        lambda example: example["token_ids"].float_list.value.append(1.0),
        "token_ids is stored as float_list, not as bytes_list",
    ),
    "beyond the vocabulary": (
        lambda example: with_last_id(example["token_ids"].bytes_list.value, b"\xff\xff"),
        "token_ids holds 65,535, not a number from 0 to 21",
    ),
}


def damage_inside(directory, damage):
    """Damages record 1 of a file, and has every checksum say so; returns the message to expect."""
    change, fault = DAMAGED_RECORDS[damage]

    def changed(record):
        example = tf.train.Example.FromString(record)
        done = change(example.features.feature)
        return done if isinstance(done, bytes) else example.SerializeToString()

    path = change_record(directory, changed)
    return f"{path}: record 1 (from 0) is damaged ({fault}); "


@pytest.mark.parametrize("kind", [*LINES, "pretraining"])
def test_inspect_names_a_record_that_is_damaged_inside_right_checksums(kind, copy):
    data = copy(kind)
    said = damage_inside(data, "beyond the vocabulary")
    message = refusal(lambda: inspect_records(str(data), "spanbert_base", num_examples=8))
    assert message.startswith(said)


@pytest.fixture(scope="module")
def presets(whole, tmp_path_factory):
    return write_presets(tmp_path_factory.mktemp("presets"), whole)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("damage", DAMAGED_RECORDS)
@pytest.mark.parametrize("kind", LINES)
def test_no_command_ends_in_an_error_of_tensorflow(kind, damage, copy, presets, tmp_path):
    """But in one line that names the record."""
    data = copy(kind)
    said = damage_inside(data, damage)
    readers = commands(kind, data, presets, tmp_path)
    names = ["evaluate", "predict", "finetune"]
    if kind == "coreference" and damage != "no Example":
        names.pop()  # its step takes a minute to compile, and one of them will do
    for name in names:
        message = refusal(readers[name])
        assert message.startswith(said), name
    assert not (tmp_path / f"{kind}-predictions").exists()
    assert not (tmp_path / "run" / "preset").exists()


@pytest.mark.parametrize("key", ["bytes", "sha256"])
@pytest.mark.parametrize("value", [None, "12", -1, 1.5, 2**70, [1], {"x": 1}, "missing"])
def test_entries_of_a_description_are_checked(key, value, copy):
    def change(manifest):
        entry = manifest["files"]["examples.jsonl"]
        entry.pop(key) if value == "missing" else entry.update({key: value})

    data = copy("text_classification")
    path = with_manifest(data, change)
    message = refusal(open_records, str(data))
    is_text = key == "sha256" and value == "12"
    place = "examples.jsonl" if is_text else f'{path}: files."examples.jsonl".{key}: '
    assert place in message


@pytest.mark.parametrize("name", ["/dev/zero", "../../x", "/etc/passwd", "a/b", "..", "", "a\nb"])
def test_names_of_other_places_are_not_opened(name, copy):
    entry = {"bytes": 0, "sha256": "x"}
    data = copy("text_classification")
    with_manifest(data, lambda manifest: manifest["files"].update({name: entry}))
    assert f"{name!r}: is no file's name" in refusal(open_records, str(data))


def test_pipes_and_devices_in_a_checkpoint_are_damage(tmp_path):
    """Its description names no file."""
    state = tmp_path / "state.safetensors"
    (tmp_path / "checkpoint.json").write_text(json.dumps({"step": 1, "sha256": "x"}))
    os.mkfifo(state)
    assert find_damage(str(tmp_path)) == f"{state.name} cannot be read (no regular file)"
    state.unlink()
    state.symlink_to("/dev/zero")
    assert find_damage(str(tmp_path)) == f"{state.name} cannot be read (no regular file)"


def test_a_description_must_tell_of_all_files(copy):
    data = copy("question_answering")
    path = with_manifest(data, lambda manifest: manifest["files"].pop("contexts.jsonl"))
    assert refusal(open_records, str(data)).startswith(f"{path}: files: lacks contexts.jsonl;")
    with_manifest(data, lambda manifest: manifest.pop("files"))
    assert refusal(open_records, str(data)).startswith(f"{path}: files: is missing;")


def test_lines_that_were_never_counted_are_refused(copy):
    """The checksums are right, and still the files do not belong together."""
    for kind, name in LINES.items():
        data = copy(kind)
        DAMAGES["a line lost"](data / name)
        with_manifest(
            data,
            lambda manifest, data=data: manifest.update(files=checksums(data, manifest["files"])),
        )
        message = refusal(open_records(str(data)).lines, name)
        assert message.startswith(f"{data / name}: holds 3 lines, and ")


def test_contexts_that_are_shorter_than_their_windows(copy):
    data = copy("question_answering")
    (data / "contexts.jsonl").write_text('"the"\n"the"\n')
    with_manifest(data, lambda manifest: manifest.update(files=checksums(data, manifest["files"])))
    owners = np.arange(4, dtype="int32")
    ends = np.array([[3], [3], [3], [4]], "int32")
    columns = (owners, np.ones([4, 1], "f4"), 0 * ends, ends, np.zeros(4, "f4"))
    windows = [WindowSpans(*values) for values in zip(*columns, strict=True)]
    message = refusal(answer_questions, open_records(str(data)), windows, 1)
    assert message.startswith(f"{data}: question '3': a window shows more than its context holds;")


@pytest.mark.parametrize("head", [b"(", b"{'descr': (", b"{'descr': '<i4'}", b"\xff", b"[" * 9000])
def test_a_damaged_head_of_the_lengths(head, tmp_path):
    rows = tmp_path / "rows.tfrecord"
    save_lengths(lengths_path(str(rows)), [3, 4])
    path = tmp_path / "rows.lengths.npy"
    content = path.read_bytes()
    head = head[: len(content) - 10]
    path.write_bytes(content[:10] + head + content[10 + len(head) :])
    assert refusal(load_lengths, str(rows)).startswith(f"{path}: ")


def test_lengths_of_more_rows_than_memory_holds(tmp_path):
    path = tmp_path / "rows.lengths.npy"
    with open(path, "wb") as file:
        head = {"descr": "<i4", "fortran_order": False, "shape": (2**60,)}
        np.lib.format.write_array_header_1_0(file, head)
    assert refusal(load_lengths, str(tmp_path / "rows.tfrecord")).startswith(f"{path}: ")


def test_sparse_tensors_of_pytorch(tmp_path):
    path = str(tmp_path / "pytorch_model.bin")
    torch.save({"dense": torch.ones(2), "odd": torch.eye(2).to_sparse()}, path)
    assert refusal(read_pickled, path).startswith(f"{path}: 'odd' is a sparse")


@pytest.mark.parametrize("value", ["!!timestamp x", "!!int ''", "!!bool x", "!!float _"])
def test_values_of_yaml_that_are_none(value, tmp_path):
    assert refusal(parse_override, f"training.steps={value}").startswith("--set training.steps=")
    path = tmp_path / "config.yaml"
    path.write_text(f"training:\n  steps: {value}\n")
    assert refusal(read_settings, str(path), 0).startswith(f"{path}: line 2: not YAML: ")
