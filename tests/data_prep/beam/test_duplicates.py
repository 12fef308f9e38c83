"""Duplicates: what is left out is what plain Python leaves out."""

import collections
import pathlib
import random
import tracemalloc

import pytest
import written_records
from hypothesis import given, settings
from hypothesis import strategies as st

import data_prep.beam.duplicates
from data_prep.beam.duplicates import count_ranges, find_duplicates, read_duplicates, write_hashes
from data_prep.beam.job import Job
from data_prep.beam.writing import write_pretraining_records
from data_prep.blocks.records import RecordOptions
from data_prep.text.cutting import FilePart
from data_prep.text.storage import find_files
from spanbert_tf.text.vocabulary import TextRules

OPTIONS = {"sequence_length": 64, "num_shards": 3, "validation_fraction": 0}
SPACES = (" ", "  ", " \t", "\u00a0", "\u3000 ")


def make_texts(source):
    """Files → documents → paragraphs, many of which occur twice."""
    sentences = [f"{'abcdefg'[number % 7] * (number % 5 + 1)} is it {'no ' * number}." for number
                 in range(12)]  # fmt: skip
    documents = [source.choices(sentences, k=source.randint(1, 3)) for _ in range(8)]
    shared = [source.choices(documents, k=source.randint(5, 20)) for _ in range(4)]
    return [[*some, [f"Only {'x' * number} has this."]] for number, some in enumerate(shared, 1)]


def with_other_spaces(text, source):
    return "".join(source.choice(SPACES) if letter == " " else letter for letter in text)


def write_texts(texts, directory, source=None):
    """Writes files of WikiExtractor's text, with a title in each document."""
    directory.mkdir()
    for number, documents in enumerate(texts):
        content = ""
        for index, paragraphs in enumerate(documents):
            if source is not None:
                paragraphs = [with_other_spaces(text, source) for text in paragraphs]
            lines = "\n\n".join([f"Title {index}", *paragraphs])
            content += f'<doc id="{index}" title="Title {index}">\n{lines}\n\n</doc>\n'
        (directory / f"wiki_{number}").write_text(content)
    return str(directory / "*")


def without_documents(texts):
    """The documents that no earlier one equals, and how many of each file are left out."""
    seen = set()
    kept = []
    for documents in texts:
        kept.append([])
        for paragraphs in documents:
            words = tuple(" ".join(paragraphs).split())
            if words not in seen:
                kept[-1].append(paragraphs)
            seen.add(words)
    return kept, [len(a) - len(b) for a, b in zip(texts, kept, strict=True)]


def without_paragraphs(texts):
    seen = set()
    kept = []
    counts = []
    for documents in texts:
        kept.append([])
        counts.append(0)
        for paragraphs in documents:
            kept[-1].append([])
            for text in paragraphs:
                if text in seen:
                    counts[-1] += 1
                else:
                    kept[-1][-1].append(text)
                seen.add(text)
    return kept, counts


def read(output, manifest):
    records = written_records.read_records(output, manifest)
    for record in records:
        del record["record_id"]
    return sorted(records, key=lambda record: sorted(record.items()))


@pytest.mark.parametrize(
    ("unit", "oracle"), [("documents", without_documents), ("paragraphs", without_paragraphs)]
)
def test_the_first_of_equal_texts_is_kept(unit, oracle, letters_vocabulary, tmp_path, capsys):
    source = random.Random(4)
    texts = make_texts(source)
    kept, counts = oracle(texts)
    with_duplicates = write_texts(texts, tmp_path / "texts", source)
    others = OPTIONS | {"vocabulary": letters_vocabulary}
    output = str(tmp_path / "records")
    found = write_pretraining_records(with_duplicates, output=output, deduplicate=unit, **others)
    printed = capsys.readouterr().out.splitlines()
    distinct = write_texts(kept, tmp_path / "distinct")
    expected_output = str(tmp_path / "expected")
    expected = write_pretraining_records(distinct, output=expected_output, **others)
    assert read(output, found) == read(expected_output, expected)
    assert found.counts[f"duplicate_{unit}"] == sum(counts) > 20
    for name in ("documents", "title_only_documents", "paragraphs", "tokens", "records"):
        assert found.counts.get(name, 0) == expected.counts.get(name, 0)
    assert printed[:-1] == [
        f"wiki_{number}: {count} duplicate {unit} are left out"
        for number, count in enumerate(counts)
        if count
    ]


def test_documents_keep_their_ids(letters_vocabulary, tmp_path):
    """They count all documents of a file, so ids do not depend on what other files have."""
    texts = make_texts(random.Random(5))
    pattern = write_texts(texts, tmp_path / "texts")
    written = []
    for number, unit in enumerate((None, "documents")):
        output = str(tmp_path / str(number))
        manifest = write_pretraining_records(
            pattern, vocabulary=letters_vocabulary, output=output, deduplicate=unit, **OPTIONS
        )
        records = written_records.read_records(output, manifest)
        written.append({record["record_id"]: record["token_ids"] for record in records})
    assert written[1].items() < written[0].items()


@pytest.mark.slow
def test_two_processes_and_small_ranges_write_the_same_bytes(
    letters_vocabulary, tmp_path, monkeypatch
):
    pattern = write_texts(make_texts(random.Random(6)), tmp_path / "texts")
    others = OPTIONS | {"vocabulary": letters_vocabulary, "deduplicate": "paragraphs"}
    written = []
    for name, num_processes, size in (("a", 1, 10**6), ("b", 2, 10**6), ("c", 1, 4)):
        monkeypatch.setattr(data_prep.beam.duplicates, "RANGE", size)
        monkeypatch.setattr(data_prep.beam.duplicates, "RUN", size)
        output = tmp_path / name
        write_pretraining_records(
            pattern, output=str(output), num_processes=num_processes, **others
        )
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert written[0] == written[1] == written[2]


def test_many_copies_of_a_paragraph_are_not_in_memory_at_once(tmp_path, monkeypatch):
    """They all have the same hash."""
    num_copies = 50_000
    monkeypatch.setattr(data_prep.beam.duplicates, "RUN", 1000)
    monkeypatch.setattr(data_prep.beam.duplicates, "RANGE", 1000)
    (tmp_path / "work" / "spill").mkdir(parents=True)
    (tmp_path / "text").write_text("Read more\n\n" * num_copies)
    job = Job(
        "", str(tmp_path / "work"), RecordOptions((), TextRules.of(False), 64, "single"), 1, 0
    )
    [file] = find_files(str(tmp_path / "text"))
    num_ranges = count_ranges(write_hashes(job, lambda more: None, 0, FilePart(file), "paragraphs"))
    tracemalloc.start()
    try:
        found = [
            find_duplicates(job, lambda more: None, number, num_ranges, 1)
            for number in range(num_ranges)
        ]
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(found) == num_copies - 1
    assert most_bytes < 24 * num_copies  # the size of all hashes
    assert list(read_duplicates(job, 0, num_ranges)[1]) == list(range(1, num_copies))


WORDS = st.lists(st.lists(st.sampled_from(["a", "b c", "d", "e f g"]), max_size=6), max_size=6)


@pytest.mark.parametrize("size", [1, 3, 100])
@settings(max_examples=30)
@given(texts=WORDS.filter(any))
def test_indices_are_those_of_equal_texts_before(texts, size, tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    (directory / "work" / "spill").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_prep.beam.duplicates, "RUN", size)
        patch.setattr(data_prep.beam.duplicates, "RANGE", size)
        patch.setattr(data_prep.beam.duplicates, "READ", size)
        texts = [paragraphs for paragraphs in texts if paragraphs]
        for number, paragraphs in enumerate(texts):
            (directory / f"{number}.txt").write_text("\n\n".join(paragraphs))
        options = RecordOptions((), TextRules.of(False), 64, "single")
        job = Job("", str(directory / "work"), options, 1, 0, "paragraphs")
        files = find_files(str(directory / "*.txt"))
        num_hashes = [
            write_hashes(job, lambda more: None, number, FilePart(file), "paragraphs")
            for number, file in enumerate(files)
        ]
        num_ranges = count_ranges(sum(num_hashes))
        for number in range(num_ranges):
            find_duplicates(job, lambda more: None, number, num_ranges, len(files))
        counts, duplicates = zip(
            *(read_duplicates(job, number, num_ranges) for number in range(len(files))), strict=True
        )
        found = [list(indices) for indices in duplicates]
    seen = collections.Counter()
    expected = []
    for paragraphs in texts:
        expected.append([])
        for index, paragraph in enumerate(paragraphs):
            if seen[paragraph]:
                expected[-1].append(index)
            seen[paragraph] += 1
    assert found == expected
    assert list(counts) == list(map(len, expected))
    assert pathlib.Path(job.directory).exists()
