"""Small inputs that ask for much memory or time are refused in one line, and cost little."""

import dataclasses
import gzip
import io
import itertools
import json
import pathlib
import shutil
import struct
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
import torch

from benchmarks.process_memory import peak_above
from data_prep.beam.writing import write_pretraining_records
from data_prep.repair import repair_records
from spanbert_tf.config.settings import parse_override, read_settings
from spanbert_tf.conversion.checkpoint import SIZE_NAMES, Checkpoint, checked_checkpoint
from spanbert_tf.conversion.convert import with_positions
from spanbert_tf.conversion.names import PLACE_TABLE
from spanbert_tf.conversion.torch_files import read_pickled
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.tfrecords import check_frames, masked_checksum, read_records
from spanbert_tf.data.windows import WindowPacker
from spanbert_tf.errors import SpanBertError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.preset import PresetFiles
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.preset import Preset
from spanbert_tf.pretraining.model import (
    INITIAL_ENCODER,
    check_initial_encoder,
    mix_with_initial,
)
from spanbert_tf.tasks.question_answering.files import Question, QuestionSet
from spanbert_tf.tasks.question_answering.graph import WindowSpans, best_candidates
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, QuestionRows
from spanbert_tf.text.vocabulary import TextRules

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


def test_a_long_passage_takes_memory_in_proportion_to_its_length():
    # Each token once a window would be 0.75 GiB.
    packer = WindowPacker(1, 2, 0, sequence_length=64, stride=8, max_question_tokens=8)
    passage = tf.RaggedTensor.from_row_lengths(tf.range(40_000) % 90 + 5, [40_000])
    packed = []
    packer(tf.ragged.constant([[3]]), passage[:, :9])
    used = peak_above(lambda: packed.append(packer(tf.ragged.constant([[3]]), passage)))
    assert len(packed[0].token_ids) == 1 + -(-(40_000 - 60) // 8)
    assert used < 0.2


def test_windows_of_a_long_passage_are_packed_a_few_at_a_time():
    """All of them, of a token each, would be 1.5 GiB."""
    packer = WindowPacker(1, 2, 0, sequence_length=64, stride=1, max_question_tokens=8)
    passage = tf.RaggedTensor.from_row_lengths(tf.range(400_000) % 90 + 5, [400_000])
    planned, packed = [], []

    def pack():
        planned.append(packer.plan(tf.ragged.constant([[3]]), passage))
        packed.append(planned[0].pack(tf.constant([0, 200_000, 399_939, 399_940])))

    assert peak_above(pack) < 0.1
    assert planned[0].num_windows == 399_941
    tokens = packed[0].passage_tokens.numpy()
    assert tokens[:, 1].tolist() == [0, 200_000, 399_939, 399_940]
    assert packed[0].has_most_context.numpy().sum(axis=1).tolist() == [31, 1, 1, 30]


def test_rows_of_a_long_passage_are_written_a_few_at_a_time():
    """All of them, 400,000 rows, would be several GiB."""
    question = Question("1", "a", 0, (), ())
    questions = QuestionSet("x", ["a " * 400_000], [question])
    options = QuestionOptions(sequence_length=64, stride=1, has_unanswerable=True)
    rows = QuestionRows(questions, options).rows(VOCABULARY, TextRules.of(False), 64)
    some = []
    next(QuestionRows(questions, options).rows(VOCABULARY, TextRules.of(False), 64))
    used = peak_above(lambda: some.extend(itertools.islice(rows, 2000)))
    assert [row.lists["offset_starts"][0] for row in some] == list(range(0, 4000, 2))
    assert used < 0.3


def test_answers_of_a_long_passage_are_cut_a_few_at_a_time():
    num_spans, length = 150, 4_000_000  # 0.6 GB, were the passage copied for each
    starts = np.arange(num_spans, dtype="int32") * 26_000
    text = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", "uint8").repeat(1_000)
    passage = np.resize(text, length)
    for place, start in enumerate(starts):
        passage[start : start + 3] = list(f"{place:03}".encode())
    spans = WindowSpans(
        tf.zeros([1], tf.int32),
        tf.range(num_spans, 0, -1, tf.float32)[tf.newaxis],
        starts[np.newaxis],
        starts[np.newaxis] + 3,
        tf.zeros([1]),
    )
    contexts, found = tf.constant([passage.tobytes()]), []
    used = peak_above(
        lambda: found.append(best_candidates(contexts, spans, num_candidates=150, unit="BYTE"))
    )
    assert found[0].texts[0].numpy().tolist() == [f"{n:03}".encode() for n in range(num_spans)]
    assert used < 0.25


def refusal(call, *arguments, gibibytes=0.25):
    """The one line that a call ends with, which takes little memory."""
    caught = []

    def run():
        with pytest.raises(SpanBertError) as error:
            call(*arguments)
        caught.append(error.value)

    assert peak_above(run) < gibibytes
    assert "\n" not in str(caught[0])
    return str(caught[0])


NESTED_ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text, message",
    [
        (NESTED_ALIASES, "line 1: not YAML: anchors (&) and aliases (*) are not read"),
        ("a: 1\nb: *a\n", "line 2: not YAML: anchors (&) and aliases (*) are not read"),
        ("a: " + "[" * 100_000, "line 1: not YAML: is nested deeper than 32 levels"),
        ("a: " + "9" * 60_000, "line 1: not YAML: a number or date of 60,000 characters"),
        ("a: 1" + ":10" * 27_000, "line 1: not YAML: a number or date of 81,001 characters"),
        ("a: 1\n" * 300_000, "is larger than 1 MiB"),
    ],
    ids=["aliases of aliases", "alias", "nested", "digits", "base 60", "size"],
)
def test_configurations_are_small(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal(read_settings, str(path), 0).startswith(f"{path}: {message}")


def test_a_value_of_the_command_line_is_small():
    assert "is not YAML" in refusal(parse_override, "training.steps=1" + ":10" * 27_000)
    assert "is not YAML" in refusal(parse_override, "training.steps=[&a [1], *a]")


def test_long_text_stands_in_a_configuration(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a:\n  b: " + "x" * 10_000 + "\n  c: [1e-4, '99']\n")
    settings = read_settings(str(path), 0)
    assert settings["a.b"].value == "x" * 10_000 and settings["a.c"].value == [1e-4, "99"]


def test_what_a_compressed_file_unpacks_to_has_a_limit(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(1 << 22))  # 400 MiB, of 1.8 MB
    assert path.stat().st_size < 2_000_000
    assert "unpacks to more than 7" in refusal(read_text_file, str(path))
    # What is only much smaller is read: a table padded with spaces.
    path.write_bytes(gzip.compress(("word" + " " * 60 + "\n").encode() * 200_000))
    assert len(read_text_file(str(path))) == 65 * 200_000


def with_frame_of(num_bytes, records, target):
    """Records whose first shard ends with a frame that states so many bytes; all sums are right."""
    shutil.copytree(records, target)
    path = target / "dataset_info.json"
    manifest = json.loads(path.read_text())
    shard = next(shard for shard in manifest["shards"] if shard["split"] == "train")
    length = struct.pack("<Q", num_bytes)
    file = target / shard["file"]
    file.write_bytes(file.read_bytes() + length + masked_checksum(length) + b"xxxx")
    shard |= {"sha256": sha256(file), "num_bytes": file.stat().st_size}
    shard["num_records"] += 1
    path.write_text(json.dumps(manifest))
    return str(target), str(file)


@pytest.mark.parametrize("num_bytes", [2**40, 2**63, 2**64 - 1])
def test_a_record_is_no_longer_than_its_file(num_bytes, tiny_records, tmp_path, capsys):
    directory, file = with_frame_of(num_bytes, tiny_records, tmp_path / "records")
    message = refusal(PretrainingManifest.load, directory)
    assert message.startswith(f"{file}: record ") and f"have {num_bytes:,} bytes" in message
    # The records before it are whole.
    manifest = PretrainingManifest.load(directory, check_sizes=False)
    repaired = repair_records(directory, str(tmp_path / "repaired"))
    assert repaired.num_records("train") == manifest.num_records("train") - 1
    assert capsys.readouterr().out.startswith(f"{file}: 1 damaged records are left out")
    PretrainingManifest.load(tmp_path / "repaired")


def test_whole_frames_pass(tiny_records):
    files = [str(path) for path in pathlib.Path(tiny_records).glob("*.tfrecord")]
    check_frames(files)
    expected = [record.numpy() for record in tf.data.TFRecordDataset(files)]
    assert [record for path in files for record in read_records(path)] == [
        (record, None) for record in expected
    ]


@pytest.fixture(scope="module")
def tiny_preset(tmp_path_factory):
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 2, 8, 16, max_sequence_length=16)
    preset = tmp_path_factory.mktemp("presets") / "preset"
    backbone.save_to_preset(str(preset))
    SpanBertTokenizer(VOCABULARY, lowercase=True).save_to_preset(str(preset))
    return preset


@pytest.fixture
def preset(tiny_preset, tmp_path):
    return pathlib.Path(shutil.copytree(tiny_preset, tmp_path / "preset"))


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 10**8},
        {"num_layers": 200},
        {"hidden_dim": 10**6},
        {"intermediate_dim": 10**8},
        {"vocabulary_size": 10**9},
        {"max_sequence_length": 10**9},
    ],
    ids=str,
)
def test_a_preset_is_no_larger_than_its_weights(sizes, preset):
    path = preset / "config.json"
    description = json.loads(path.read_text())
    description["config"] |= sizes
    path.write_text(json.dumps(description))
    message = refusal(Preset(preset).encoder)
    assert message.startswith(f"{preset}: its sizes (") and "are those of another model" in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_deep_json_in_a_preset_is_one_line(name, preset):
    (preset / name).write_text("[" * 100_000 + "]" * 100_000)
    for load in (Preset(preset).encoder, lambda: Preset(preset).tokenizer):
        assert str(preset) in refusal(load)


def test_a_checkpoint_has_no_more_layers_than_arrays():
    sizes = dict.fromkeys((*SIZE_NAMES,), 4) | {"num_layers": 2**31, "position_embeddings": "x"}
    checkpoint = Checkpoint("here", sizes, {"a": np.zeros(1)}, [], TextRules.of(True, None))
    assert refusal(checked_checkpoint, checkpoint).startswith("here: the configuration says 2,147,")
    # Which positions it reads is found out first, and asks for the names of all parts.
    del sizes["position_embeddings"]
    arrays = {PLACE_TABLE: np.zeros((4, 4))}
    checkpoint = dataclasses.replace(checkpoint, sizes=sizes, arrays=arrays)
    message = refusal(with_positions, checkpoint, None)
    assert message.startswith("here: the configuration says 2,147,")


def test_a_tensor_is_no_larger_than_its_storage(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1).expand(2**16, 2**16)}, path)
    assert "'a' says 4,294,967,296 values and holds fewer" in refusal(read_pickled, str(path))
    torch.save({"a": torch.ones(4, 4).t()[1:]}, path)  # another order is none of the kind
    assert read_pickled(str(path))["a"].shape == (3, 4)


def read_heads(directory):
    (directory / "config.json").write_text('{"class_name": "SpanBertBackbone"}')
    return PresetFiles(directory).heads


def test_arrays_are_no_larger_than_their_file(tmp_path):
    path = tmp_path / "pretraining_heads.npz"
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (2**20, 2**20)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header.getvalue())
    assert "an array of 4,398,046,511,104 bytes in" in refusal(read_heads, tmp_path)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a", "w") as file,
    ):
        for _ in range(100):
            file.write(bytes(1 << 22))
    assert "unpacks to 419,430,400 bytes" in refusal(read_heads, tmp_path)
    np.savez(path, a=np.arange(3.0), b=np.ones((2, 2), "float32"))
    assert read_heads(tmp_path)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["(" * 5_000, "{'descr': ", "\x00", "{}", "{'a' 'b'", '"""'])
def test_heads_of_arrays_that_are_no_python(text, tmp_path):
    """NumPy reads them by Python's own tokenizer, whose errors are of all kinds."""
    head = np.lib.format.magic(1, 0) + struct.pack("<H", len(text)) + text.encode()
    with zipfile.ZipFile(tmp_path / "pretraining_heads.npz", "w") as archive:
        archive.writestr("a.npy", head)
    assert "pretraining_heads.npz is damaged (" in refusal(read_heads, tmp_path)


def test_what_an_encoder_began_with_is_no_larger_than_its_file(tmp_path):
    path = tmp_path / INITIAL_ENCODER
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("arr_0.npy", "w") as file,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (100 << 20,)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(100):
            file.write(bytes(1 << 22))
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 16, max_sequence_length=16)
    run = str(tmp_path)
    for call in (
        lambda: check_initial_encoder(0.25, run, None, is_new=False),
        lambda: mix_with_initial(backbone, run, 0.25),
    ):
        assert "is damaged (unpacks to 419,430,528 bytes); set training." in refusal(call)
    np.savez(path, *(np.zeros(3) for _ in backbone.get_weights()))
    message = refusal(mix_with_initial, backbone, run, 0.25)
    assert "its arrays are not those of the encoder" in message


def test_arrays_of_hdf5_are_no_larger_than_their_file(preset):
    """Of two gigabytes nothing lies there; where HDF5 packs them, a little does."""
    path = preset / "model.weights.h5"
    whole = path.read_bytes()
    for options in ({}, {"fillvalue": 1}, {"compression": "gzip"}):
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            file.create_dataset("vars/0", (2 * 10**9,), "uint8", chunks=(2**20,), **options)
            file["vars/0"][: 2**20] = 1
        message = refusal(Preset(preset).encoder)
        assert message.startswith(f"{preset}: model.weights.h5 tells of 2,000,0")
    path.write_bytes(whole)
    Preset(str(preset)).encoder()


def test_the_state_of_a_head_is_one_value(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as store:
        store.create_dataset("is_head_trained", (2 * 10**9,), "uint8", chunks=(2**20,))
        backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 16, max_sequence_length=16)
        task = SpanBertTextClassifier(backbone, num_classes=2)
        with pytest.raises(ValueError, match="has shape"):
            task.load_own_variables(store)


@pytest.mark.parametrize(
    "text", ["a", "[", "<a>", "\u0301"], ids=["word", "brackets", "tags", "marks"]
)
def test_a_megabyte_without_a_space_is_prepared_and_read(text, tmp_path):
    vocabulary, source = tmp_path / "vocab.txt", tmp_path / "text"
    vocabulary.write_text("\n".join([*VOCABULARY, "[", "<", ">", "A", "."]))
    text *= 2**20 // len(text.encode())
    source.write_text(f"{text}\n\n" + "A a. a a a.\n\n" * 40)
    options = {"vocabulary": str(vocabulary), "sequence_length": 32}
    used = peak_above(
        lambda: write_pretraining_records(str(source), output=str(tmp_path / "out"), **options)
    )
    assert used < 1 and PretrainingManifest.load(tmp_path / "out").num_records("train") > 0
    tokenizer = SpanBertTokenizer(vocabulary.read_text().split("\n"))
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, sequence_length=32)
    packed = []
    assert peak_above(lambda: packed.append(preprocessor([text]))) < 0.5
    assert packed[0]["token_ids"].shape == (1, 32)
