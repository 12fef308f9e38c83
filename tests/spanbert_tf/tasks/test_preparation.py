"""The one writer of all tasks' records, by a task of its own."""

import json
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from typing_extensions import TypedDict

from spanbert_tf.data.records import Records, TaskManifest
from spanbert_tf.data.tfrecords import load_lengths
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks import preparation
from spanbert_tf.tasks.named_entities.rows import READERS, write_entities
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class NumberLine(TypedDict):
    number: int


class CountingManifest(TaskManifest):
    task: ClassVar[str] = "counting"
    line_files: ClassVar = {"numbers.jsonl": (NumberLine, "rows")}


class Counting(RowMaker):
    """Rows of 1, 2, 3, … of the vocabulary's last entries."""

    manifest_class, title = CountingManifest, "records of counting"

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.counts["odd"] = 0

    def rows(self, pieces, text_rules, sequence_length):
        pack = RowPacker(pieces)
        for number in range(1, self.count + 1):
            ids = np.arange(len(pieces) - number, len(pieces))
            token_ids, second_start = pack(ids[: sequence_length - 2])
            self.lines["numbers.jsonl"].append({"number": number})
            self.counts["odd"] += number % 2
            numbers = {"second": second_start, "half": number / 2}
            yield Row(numbers, {"token_ids": token_ids, "twice": (2 * ids).astype("<u4")})


def write_vocabulary(path, size):
    pieces = [*SPECIAL, *(f"w{number}" for number in range(size - len(SPECIAL)))]
    path.write_text("".join(f"{piece}\n" for piece in pieces))
    return str(path)


@pytest.mark.parametrize(("size", "dtype"), [(2**16, "<u2"), (2**16 + 1, "<u4")])
def test_what_a_maker_yields_is_what_is_stored(size, dtype, tmp_path, capsys):
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", size)
    output = tmp_path / "out"
    manifest = write_task_records(
        Counting(3), f"{output}/", vocabulary=vocabulary, lowercase=True, sequence_length=4
    )
    assert manifest.counts == {"rows": 3, "tokens": 3 + 4 + 4, "odd": 2}
    assert capsys.readouterr().out.startswith(f"{output}: 3 rows, 11 tokens, ")
    last = size - 1
    expected = [([2, last, 3], 0.5), ([2, last - 1, last, 3], 1), ([2, last - 2, last - 1, 3], 1.5)]
    rows = list(tf.data.TFRecordDataset(str(output / "rows.tfrecord")).as_numpy_iterator())
    for number, (raw, (ids, half)) in enumerate(zip(rows, expected, strict=True), start=1):
        features = tf.train.Example.FromString(raw).features.feature
        stored = {name: values.bytes_list.value[0] for name, values in features.items()
                  if values.bytes_list.value}  # fmt: skip
        assert np.frombuffer(stored["token_ids"], dtype).tolist() == ids
        twice = [2 * (size - number + place) for place in range(number)]
        assert np.frombuffer(stored["twice"], "<u4").tolist() == twice
        assert features["second"].int64_list.value == [len(ids)]
        assert features["half"].float_list.value == [half]
    assert load_lengths(str(output / "rows.tfrecord")).tolist() == [3, 4, 4]
    records = Records.of(str(output), CountingManifest)  # all files are as the manifest says
    assert records.lines("numbers.jsonl") == [{"number": number} for number in (1, 2, 3)]
    assert len(records.vocabulary) == size
    assert json.loads((output / "counting_info.json").read_text())["strip_accents"] is True


def test_nothing_is_left_of_rows_that_cannot_be_made(tmp_path):
    class Failing(Counting):
        def rows(self, pieces, text_rules, sequence_length):
            yield from super().rows(pieces, text_rules, sequence_length)
            raise BadInputError("in.txt: line 7: is odd")

    vocabulary = write_vocabulary(tmp_path / "vocab.txt", 20)
    options = {"vocabulary": vocabulary, "sequence_length": 8}
    with pytest.raises(BadInputError, match=r"in\.txt: line 7"):
        write_task_records(Failing(2), tmp_path / "out", lowercase=True, **options)
    with pytest.raises(MismatchError, match="give --lowercase"):
        write_task_records(Counting(2), tmp_path / "out", lowercase=False, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null/rows.tfrecord"])
def test_what_tensorflow_cannot_write_is_an_os_error(path):
    """`write_directory` makes a line of it that names the output."""
    with pytest.raises(OSError):
        preparation._write_rows(path, [Row({}, {"token_ids": np.zeros(1_000_000, "int32")})], "u2")


@pytest.mark.parametrize(
    ("width", "config"), [(512, "named_entities_small"), (514, "named_entities")]
)
def test_the_next_command_has_the_configuration_for_the_size_of_the_encoder(
    width, config, tmp_path, capsys
):
    words = tmp_path / "words.conll"
    words.write_text("Ann B-PER\nsat O\n\n")
    vocabulary = [*SPECIAL, "ann", "sat"]
    backbone = SpanBertBackbone(len(vocabulary), 1, 2, width, 8, max_sequence_length=16)
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    write_preset(backbone, str(tmp_path / "preset"), tokenizer=tokenizer)
    write_entities(
        READERS["conll"](str(words)),
        str(tmp_path / "records"),
        preset=str(tmp_path / "preset"),
        sequence_length=16,
    )
    assert f"finetune --config {config} " in capsys.readouterr().out
