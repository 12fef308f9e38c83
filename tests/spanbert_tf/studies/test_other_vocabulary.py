"""Records with the pieces of another vocabulary, against those that `prepare` writes with it."""

import itertools
import random
import string

import pytest

from data_prep.beam.writing import write_pretraining_records
from spanbert_tf.data.examples import read_example
from spanbert_tf.data.manifest import DATASET_INFO_FILE, TOKEN_IDS, PretrainingManifest
from spanbert_tf.data.tfrecords import read_records
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.studies.held_out_text import join_words
from spanbert_tf.studies.other_vocabulary import write_with_vocabulary

LETTERS = string.ascii_lowercase
SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS, *(f"##{x}" for x in LETTERS)]
WORDS = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
random.Random(0).shuffle(WORDS)
LARGE = [*SMALL, *WORDS[::2]]  # every second word is one piece


@pytest.fixture
def prepare(tmp_path):
    """A function that writes records of documents with a vocabulary."""
    text = tmp_path / "text"

    def write(documents, vocabulary, name, **options):
        text.write_text("\n---\n".join(documents))
        (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        return write_pretraining_records(
            text,
            vocabulary=tmp_path / "vocab.txt",
            output=str(tmp_path / name),
            document_separator="---",
            lowercase=True,
            sequence_length=64,
            **options,
        )

    return write


def documents_of(num_documents, num_sentences):
    """Documents of sentences of four words; no word occurs twice."""
    words = iter(WORDS)
    return [
        "\n\n".join(
            " ".join(itertools.islice(words, 4)).capitalize() + "." for _ in range(num_sentences)
        )
        for _ in range(num_documents)
    ]


@pytest.mark.parametrize(("before", "after"), [(LARGE, SMALL), (SMALL, LARGE)])
def test_records_of_short_documents_are_those_of_prepare(before, after, prepare, tmp_path):
    documents = documents_of(60, 4)  # each is one record with either vocabulary
    options = {"validation_fraction": 0.2, "num_shards": 2}
    prepare(documents, before, "records", **options)
    expected = prepare(documents, after, "expected", **options)
    output = tmp_path / "output"
    write_with_vocabulary(str(tmp_path / "records"), SpanBertTokenizer(after), str(output), 60)
    found = PretrainingManifest.load(output)
    assert (found.shards, found.unigram_counts_hash) == (
        expected.shards,
        expected.unigram_counts_hash,
    )
    names = {path.name for path in output.iterdir()}
    assert len(names) == 11
    for name in names - {DATASET_INFO_FILE}:
        assert (output / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert found.damage(output) is None


def words_of(directory, split):
    """Words of the records of a split, without those that a row may have cut."""
    manifest = PretrainingManifest.load(directory)
    vocabulary = manifest.vocabulary(directory)
    words = set()
    for path in manifest.files(str(directory), split):
        for serialized, _ in read_records(path):
            ids = read_example(serialized, manifest.stored())[TOKEN_IDS]
            words |= set(join_words([vocabulary[index] for index in ids])[:-1])
    return words - {"."}


def test_held_out_text_of_a_long_document_is_in_no_training_record(prepare, tmp_path):
    """Of records that `prepare` writes with the other vocabulary it is."""
    (document,) = documents_of(1, 400)
    for vocabulary, name in ((LARGE, "records"), (SMALL, "other")):
        prepare([document], vocabulary, name, validation_fraction=0.1)
    held_out = words_of(tmp_path / "records", "validation")
    assert held_out & words_of(tmp_path / "other", "train")
    output = tmp_path / "output"
    write_with_vocabulary(str(tmp_path / "records"), SpanBertTokenizer(SMALL), str(output), 999)
    assert not held_out & words_of(output, "train")
    assert words_of(output, "validation") <= held_out
    assert PretrainingManifest.load(output).damage(output) is None


def test_no_more_shards_are_read_than_are_needed(prepare, tmp_path):
    manifest = prepare(documents_of(60, 4), LARGE, "records", validation_fraction=0.2, num_shards=6)
    first, *others = [shard for shard in manifest.shards if shard.split == "train"]
    assert others
    output = tmp_path / "output"
    tokenizer = SpanBertTokenizer(SMALL)
    write_with_vocabulary(str(tmp_path / "records"), tokenizer, str(output), first.num_records)
    assert PretrainingManifest.load(output).num_records("train") == first.num_records
