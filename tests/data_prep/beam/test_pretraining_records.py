import collections
import dataclasses
import gzip
import hashlib
import itertools
import os
import pathlib
import random
import shutil
import socket
import stat
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
import written_records
from tokenizers import BertWordPieceTokenizer

import data_prep.beam.pipeline
import data_prep.beam.spill
import data_prep.beam.steps
import data_prep.blocks.records
import data_prep.text.corpus
from data_prep.beam.job import Job
from data_prep.beam.pipeline import check_shared, runner_options
from data_prep.beam.steps import _record_maker, spill_part
from data_prep.beam.writing import write_pretraining_records
from data_prep.blocks.records import FileRecords, RecordOptions
from data_prep.text.corpus import split_sentences
from data_prep.text.cutting import FilePart
from data_prep.text.formats import TextPart
from data_prep.text.storage import find_files
from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.cli import main
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.tfrecords import load_lengths
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules, load_vocabulary

SEQUENCE_LENGTH = 64
OPTIONS = {"sequence_length": SEQUENCE_LENGTH, "num_shards": 3, "validation_fraction": 0.2}


@pytest.fixture(scope="module")
def single(corpus, letters_vocabulary, tmp_path_factory):
    output = tmp_path_factory.mktemp("single") / "records"
    options = {"vocabulary": pathlib.Path(letters_vocabulary), "output": output, **OPTIONS}
    return output, write_pretraining_records(corpus[0] / "*", **options)


def tokenize(vocabulary, documents, lowercase=False):
    """Documents of paragraphs (lists of sentences) as documents > paragraphs > sentences > ids."""
    tokenizer = WordPieceTokenizer(load_vocabulary(vocabulary), TextRules.of(lowercase))
    return [
        [
            tokenizer.tokenize(split_sentences([" ".join(paragraph)], "en")[0]).to_list()
            for paragraph in document
        ]
        for document in documents
    ]


def is_unique(block):
    """Whether no other block has the same tokens: the words are random."""
    return len(block["token_ids"]) > 10


def directory_bytes(directory):
    return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}


def in_order(blocks):
    return sorted(blocks, key=lambda block: sorted(block.items()))


def test_records_are_the_blocks_of_the_oracle(single, corpus, letters_vocabulary):
    documents = tokenize(letters_vocabulary, corpus[1])
    expected = [
        block
        for blocks in written_records.expected_blocks(documents, SEQUENCE_LENGTH - 2)
        for block in blocks
    ]
    records = written_records.read_records(*single)
    for record in records:
        del record["record_id"]
    assert in_order(records) == in_order(expected)
    assert any(record["first_token_index"] for record in records)  # some sentences were split


def test_counts_add_up_with_an_independent_count(single, corpus, letters_vocabulary):
    directory, documents = corpus
    texts = [" ".join(paragraph) for document in documents for paragraph in document]
    peer = BertWordPieceTokenizer(letters_vocabulary, lowercase=False)
    ids = [peer.encode(text, add_special_tokens=False).ids for text in texts]
    files = [path for path in directory.iterdir() if path.is_file()]
    output, manifest = single
    assert manifest.counts["files"] == len(files)
    assert manifest.counts["bytes"] == sum(path.stat().st_size for path in files)
    assert manifest.counts["documents"] == len(documents)
    assert manifest.counts["title_only_documents"] == len(files)
    assert manifest.counts["paragraphs"] == len(texts)
    assert manifest.counts["tokens"] == sum(map(len, ids))
    assert manifest.counts["tokens"] == sum(shard.num_tokens for shard in manifest.shards)
    assert manifest.counts["records"] == sum(shard.num_records for shard in manifest.shards)
    everything = np.bincount(np.concatenate(ids), minlength=manifest.vocabulary_size)
    held_out = written_records.read_records(output, manifest, "validation")
    for record in held_out:
        everything -= np.bincount(record["token_ids"], minlength=manifest.vocabulary_size)
    assert list(manifest.unigram_counts(output)) == everything.tolist()


def test_the_description_fits_the_files(single, letters_vocabulary):
    output, manifest = single
    assert (
        PretrainingManifest.from_json((output / "dataset_info.json").read_text(), "here")
        == manifest
    )
    assert (output / "vocab.txt").read_text() == pathlib.Path(letters_vocabulary).read_text()
    files = {shard.file for shard in manifest.shards}
    lengths = {file.replace(".tfrecord", ".lengths.npy") for file in files}
    names = {"dataset_info.json", "unigram_counts.json", "vocab.txt"} | files | lengths
    assert {path.name for path in output.iterdir()} == names
    assert not list(output.parent.glob("*.incomplete"))
    for split in ("train", "validation"):
        records = written_records.read_records(output, manifest, split)
        expected = [len(record["token_ids"]) for record in records]
        files = manifest.files(str(output), split)
        assert [length for path in files for length in load_lengths(path)] == expected
        assert manifest.num_rows(output, split).tolist() == [
            expected.count(length) for length in range(manifest.num_places + 1)
        ]
    for shard in manifest.shards:
        assert hashlib.sha256((output / shard.file).read_bytes()).hexdigest() == shard.sha256
        num_records = sum(1 for _ in tf.data.TFRecordDataset(str(output / shard.file)))
        assert num_records == shard.num_records > 0


def test_the_manifest_says_what_the_records_were_made_from(single, corpus):
    made_from = single[1].made_from
    paths = sorted(corpus[0].iterdir())
    names = "".join(f"{path.name}\0" for path in paths)
    assert made_from.names_sha256 == hashlib.sha256(names.encode()).hexdigest()
    assert made_from.num_files == len(paths)
    assert made_from.num_bytes == sum(path.stat().st_size for path in paths)
    assert made_from.num_shards == OPTIONS["num_shards"]
    assert made_from.validation_fraction == OPTIONS["validation_fraction"]
    assert made_from.spacy_model is None
    assert made_from.versions["python"] == sys.version.split()[0]
    assert made_from.versions["tensorflow-text"] == tensorflow_text.__version__


def test_equal_records_have_one_digest_whatever_they_were_made_from(
    single, corpus, letters_vocabulary, tmp_path
):
    separator = "===\udcff"  # of no line; a byte of the command line that is not UTF-8
    manifest = write_pretraining_records(
        corpus[0] / "*",
        vocabulary=letters_vocabulary,
        output=tmp_path / "records",
        document_separator=separator,
        **OPTIONS,
    )
    assert PretrainingManifest.load(tmp_path / "records") == manifest
    assert manifest.made_from.document_separator == "===?"
    assert manifest.shards == single[1].shards
    assert manifest.digest == single[1].digest
    assert manifest.digest != dataclasses.replace(manifest, counts={}).digest


def test_the_names_of_files_decide_on_the_ids_of_records(
    single, corpus, letters_vocabulary, tmp_path
):
    texts = shutil.copytree(corpus[0], tmp_path / "texts")
    for path in sorted(texts.iterdir()):
        path.rename(path.with_name(f"{path.name}.txt"))
    output = tmp_path / "records"
    manifest = write_pretraining_records(
        texts / "*", vocabulary=letters_vocabulary, output=output, **OPTIONS
    )
    assert manifest.counts == single[1].counts
    assert manifest.made_from.names_sha256 != single[1].made_from.names_sha256
    ids = {record["record_id"] for record in written_records.read_records(*single)}
    renamed = {record["record_id"] for record in written_records.read_records(output, manifest)}
    assert len(ids) == len(renamed)
    assert not ids & renamed


def by_document(directory, manifest):
    """For each word that a document has all to itself, the splits that it is in."""
    splits = collections.defaultdict(set)
    for split in ("train", "validation"):
        for record in written_records.read_records(directory, manifest, split):
            splits[record["token_ids"][0]].add(split)
    return splits


def test_many_documents_are_held_out_as_a_whole(tmp_path, capsys):
    words = [f"word{number}" for number in range(400)]
    vocabulary, text = tmp_path / "vocab.txt", tmp_path / "text.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", *words]))
    text.write_text("\n===\n".join(f"{word} " * 30 for word in words))
    manifest = write_pretraining_records(
        str(text),
        vocabulary=str(vocabulary),
        output=str(tmp_path / "records"),
        document_separator="===",
        sequence_length=12,
        validation_fraction=0.1,
    )
    splits = by_document(tmp_path / "records", manifest)
    assert len(splits) == 400
    assert all(len(of_document) == 1 for of_document in splits.values())
    held_out = manifest.num_records("validation")
    assert 90 < held_out < 150  # of 1,200: 120 less or more 3 · √40
    assert f"{held_out} held-out records ({held_out / 12:.2f}%, whole documents)" in (
        capsys.readouterr().out
    )


def sentence(source):
    words = ("".join(source.choices("abcdefgh", k=source.randint(1, 5))) for _ in range(9))
    return f"{' '.join(words).capitalize()}."


@pytest.mark.parametrize("sizes", [[1500], [1000, 300, 20, 20, 20]])
@pytest.mark.parametrize("fraction", [0.005, 0.01, 0.1])
def test_of_few_or_large_documents_blocks_are_held_out(
    sizes, fraction, letters_vocabulary, tmp_path, capsys
):
    source = random.Random(5)
    text = tmp_path / "text.txt"
    documents = [" ".join(sentence(source) for _ in range(size)) for size in sizes]
    text.write_text("\n===\n".join(documents))
    options = {"document_separator": "===", "sequence_length": 64, "num_shards": 2}
    options |= {"vocabulary": letters_vocabulary, "validation_fraction": fraction}
    manifest = write_pretraining_records(str(text), output=str(tmp_path / "one"), **options)
    held_out, total = manifest.num_records("validation"), manifest.counts["records"]
    assert abs(held_out - fraction * total) <= max(0.5, 0.3 * fraction * total * (fraction > 0.05))
    assert (
        f"({held_out / total:.2%}, blocks, documents are few or large)" in capsys.readouterr().out
    )
    # Nothing of the held-out text is in the training text, nothing is lost.
    tokens = collections.Counter()
    for record in written_records.read_records(tmp_path / "one", manifest):
        tokens.update(record["token_ids"])
    peer = BertWordPieceTokenizer(letters_vocabulary, lowercase=False)
    expected = itertools.chain.from_iterable(
        peer.encode(document, add_special_tokens=False).ids for document in documents
    )
    assert tokens == collections.Counter(expected)


def test_record_ids_are_distinct_int64(single):
    ids = [record["record_id"] for record in written_records.read_records(*single)]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 0
    assert max(ids) > 2**60


def test_neighbours_in_a_document_are_no_neighbours_in_a_file(single, corpus, letters_vocabulary):
    documents = tokenize(letters_vocabulary, corpus[1])
    expected = written_records.expected_blocks(documents, SEQUENCE_LENGTH - 2)
    followers = {
        tuple(block["token_ids"]): tuple(following["token_ids"])
        for blocks in expected
        for block, following in itertools.pairwise(blocks)
        if is_unique(block)
    }
    order = [tuple(record["token_ids"]) for record in written_records.read_records(*single)]
    kept = sum(followers.get(a) == b for a, b in itertools.pairwise(order))
    assert len(followers) > 200
    assert kept < 0.03 * len(followers)


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_from_any_place(
    single, corpus, letters_vocabulary, tmp_path
):
    moved = shutil.copytree(corpus[0], tmp_path / "elsewhere")
    output = str(tmp_path / "records")
    write_pretraining_records(
        str(moved / "wiki*"),
        vocabulary=letters_vocabulary,
        output=output,
        num_processes=2,
        **OPTIONS,
    )
    assert directory_bytes(output) == directory_bytes(single[0])


def test_a_runner_of_beam_writes_the_same_bytes(single, corpus, letters_vocabulary, tmp_path):
    output = str(tmp_path / "records")
    write_pretraining_records(
        str(corpus[0] / "*"),
        vocabulary=letters_vocabulary,
        output=output,
        beam_arguments=["--runner=FnApiRunner"],
        **OPTIONS,
    )
    assert directory_bytes(output) == directory_bytes(single[0])


def test_pickles_lie_where_nobody_else_can_enter(corpus, letters_vocabulary, tmp_path, monkeypatch):
    modes = []
    read = data_prep.beam.steps.read_spill

    def read_spill(path, shard):
        modes.append(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode))
        return read(path, shard)

    monkeypatch.setattr(data_prep.beam.steps, "read_spill", read_spill)
    mask = os.umask(0)
    try:
        output = str(tmp_path / "records")
        pattern = str(corpus[0] / "*")
        write_pretraining_records(pattern, vocabulary=letters_vocabulary, output=output, **OPTIONS)
    finally:
        os.umask(mask)
    assert set(modes) == {0o700}


def test_documents_without_text_do_not_stay_in_memory(monkeypatch):
    monkeypatch.setattr(data_prep.blocks.records, "CHUNK_DOCUMENTS", 10)
    waiting = []

    def parts():
        for document in range(100):
            waiting.append(len(records._ended))
            yield document, TextPart([], ends_document=True)

    options = RecordOptions((*SPECIAL_TOKENS, "a"), TextRules.of(False), 64, "single")
    records = FileRecords(_record_maker(options), parts(), "x")
    assert not list(records)
    assert max(waiting) < 10
    assert records.counts["empty_documents"] == 100


@pytest.mark.parametrize("num_documents", [1, 3, 10**6])
def test_small_pieces_of_text_give_the_same_bytes(
    num_documents, single, corpus, letters_vocabulary, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_prep.blocks.records, "CHUNK_DOCUMENTS", num_documents)
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", 2_000)
    monkeypatch.setattr(data_prep.blocks.records, "CHUNK_CHARACTERS", 300)
    monkeypatch.setattr(data_prep.beam.spill, "SEGMENT_BYTES", 5_000)
    output = str(tmp_path / "records")
    pattern = str(corpus[0] / "*")
    write_pretraining_records(pattern, vocabulary=letters_vocabulary, output=output, **OPTIONS)
    assert directory_bytes(output) == directory_bytes(single[0])


def test_lower_case_strips_accents(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Élan VITAL, naïveté. " * 40 + "\n\n" + "Déjà vu. " * 50)
    vocabulary = str(tmp_path / "vocab.txt")
    write_vocabulary(str(text), vocabulary, vocabulary_size=100, lowercase=True)
    manifest = write_pretraining_records(
        str(text), vocabulary=vocabulary, output=str(tmp_path / "records"), lowercase=True
    )
    assert manifest.lowercase
    peer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    expected = peer.encode(text.read_text(), add_special_tokens=False).ids
    (record,) = written_records.read_records(tmp_path / "records", manifest)
    assert record["token_ids"] == expected
    unknown = load_vocabulary(vocabulary).index("[UNK]")
    assert manifest.unigram_counts(tmp_path / "records")[unknown] == 0


def test_accents_are_kept_on_request(tmp_path, capfd):
    text, vocabulary = tmp_path / "text.txt", str(tmp_path / "vocab.txt")
    text.write_text("Über die STRASSE, Äpfel und Ölgötzen. " * 40)
    options = ["--input", str(text), "--lowercase"]
    kept = ["--keep-accents", "--vocabulary", vocabulary]
    with pytest.raises(SystemExit, match="0"):
        size = ["--output", vocabulary, "--vocabulary-size", "100"]
        main(["prepare", "vocabulary", *options, "--keep-accents", *size])
    with pytest.raises(SystemExit, match="2"):
        output = ["--vocabulary", vocabulary, "--output", str(tmp_path / "stripped")]
        main(["prepare", "pretraining", *options, *output])
    assert "has entries with accents (ä), which --lowercase strips" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["prepare", "pretraining", *options, *kept, "--output", str(tmp_path / "records")])
    manifest = PretrainingManifest.load(tmp_path / "records")
    assert manifest.text_rules == (True, False, "en")
    peer = BertWordPieceTokenizer(vocabulary, lowercase=True, strip_accents=False)
    expected = peer.encode(text.read_text(), add_special_tokens=False).ids
    records = written_records.read_records(tmp_path / "records", manifest)
    tokens = itertools.chain.from_iterable(record["token_ids"] for record in records)
    assert sorted(tokens) == sorted(expected)


@pytest.mark.parametrize(
    ("num_documents", "fraction", "num_held_out"),
    [(1, 0.01, 0), (1, 0.5, 0), (2, 0.001, 1), (2, 0.5, 1), (7, 0.001, 1), (7, 0.0, 0)],
)
def test_small_corpora_hold_out_a_document_but_not_all(
    num_documents, fraction, num_held_out, letters_vocabulary, tmp_path
):
    text = tmp_path / "text.txt"
    text.write_text("\n===\n".join(f"{'ab' * n} words." for n in range(1, num_documents + 1)))
    manifest = write_pretraining_records(
        str(text),
        document_separator="===",
        vocabulary=letters_vocabulary,
        output=str(tmp_path / "records"),
        validation_fraction=fraction,
    )
    assert manifest.num_records("validation") == num_held_out
    assert manifest.num_records("train") == num_documents - num_held_out
    assert sum(manifest.unigram_counts(tmp_path / "records")) == manifest.num_tokens("train")


def test_what_has_no_tokens_is_counted(letters_vocabulary, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("===\nOne. Two.\n\n\u200b\n\nThree.\n===\n\u200b\n===\n\n===\nFour.\n")
    manifest = write_pretraining_records(
        str(text),
        document_separator="===",
        vocabulary=letters_vocabulary,
        output=str(tmp_path / "records"),
        validation_fraction=0,
    )
    assert manifest.counts["documents"] == 2
    assert manifest.counts["empty_documents"] == 2
    assert manifest.counts["paragraphs"] == 3
    assert manifest.counts["sentences"] == 4
    assert manifest.counts["sentences_without_tokens"] == 2
    starts = {
        len(record["token_ids"]): record["paragraph_indices"]
        for record in written_records.read_records(tmp_path / "records", manifest)
    }
    assert sorted(starts.values()) == [[0], [0, 1]]


def test_output_that_exists_is_left_alone(corpus, letters_vocabulary, tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "mine").write_text("keep")
    for output in (tmp_path / "records", tmp_path / "records" / "mine"):
        with pytest.raises(BadInputError, match="exists already"):
            write_pretraining_records(
                str(corpus[0] / "*"), vocabulary=letters_vocabulary, output=str(output)
            )
    assert (tmp_path / "records" / "mine").read_text() == "keep"


def test_the_case_must_be_that_of_the_vocabulary(corpus, letters_vocabulary, tmp_path):
    uncased = tmp_path / "vocab.txt"
    pieces = [
        piece
        for piece in load_vocabulary(letters_vocabulary)
        if piece.startswith("[") or piece == piece.lower()
    ]
    uncased.write_text("\n".join([*pieces, "[unused1]"]))
    for vocabulary, lowercase in ((letters_vocabulary, True), (str(uncased), False)):
        with pytest.raises(MismatchError, match=r"vocab\.txt: .*--lowercase"):
            write_pretraining_records(
                str(corpus[0] / "*"),
                vocabulary=vocabulary,
                output=str(tmp_path / "records"),
                lowercase=lowercase,
            )


def test_a_scheduler_that_is_not_there(corpus, letters_vocabulary, tmp_path, capfd):
    words = ["--input", str(corpus[0] / "*"), "--vocabulary", letters_vocabulary]
    words += ["--output", str(tmp_path / "records"), "--runner", "dask"]
    words += ["--dask_client_address", "tcp://127.0.0.1:9", "--dask_connection_timeout", "1"]
    with pytest.raises(SystemExit) as raised:
        main(["prepare", "pretraining", *words])
    assert raised.value.code == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("spanbert-tf: --runner DaskRunner: ")
    assert "tcp://127.0.0.1:9 after 1 s" in line
    assert not list(tmp_path.iterdir())


def test_the_extra_of_a_runner_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dask.dask_runner", None)
    with pytest.raises(
        ConfigurationError, match=r"^--runner dask: .*; pip install 'spanbert_tf\[dask\]'$"
    ):
        runner_options(["--runner=dask"])


def test_work_that_a_runner_left_out_is_missed(corpus, letters_vocabulary, tmp_path, monkeypatch):
    """Beam's runner for Dask gives back the input of steps that it does not know."""
    call = data_prep.beam.pipeline._step_on_beam

    def without_shards(job, step, items, arguments):
        if items != "shards":
            call(job, step, items, arguments)

    monkeypatch.setattr(data_prep.beam.pipeline, "_step_on_beam", without_shards)
    with pytest.raises(BadInputError, match="nothing came of 3 of 3 shards"):
        write_pretraining_records(
            str(corpus[0] / "*"),
            vocabulary=letters_vocabulary,
            output=tmp_path / "records",
            beam_arguments=["--runner=FnApiRunner"],
            **OPTIONS,
        )
    assert not list(tmp_path.iterdir())


def test_records_that_were_not_written_are_missed(single, corpus, tmp_path, monkeypatch):
    read = data_prep.beam.steps._read_shard
    monkeypatch.setattr(
        data_prep.beam.steps,
        "_read_shard",
        lambda job, num_parts, shard: itertools.islice(read(job, num_parts, shard), 1, None),
    )
    expected = single[1].counts["records"]
    message = f": {expected - OPTIONS['num_shards']:,} of {expected:,} records were written"
    with pytest.raises(BadInputError, match=message):
        write_pretraining_records(
            corpus[0] / "*",
            vocabulary=single[0] / "vocab.txt",
            output=tmp_path / "records",
            **OPTIONS,
        )
    assert not list(tmp_path.iterdir())


def job_in(directory, vocabulary):
    pieces = tuple(load_vocabulary(vocabulary))
    options = RecordOptions(pieces, TextRules.of(False), SEQUENCE_LENGTH, "single")
    return Job(str(directory / "records"), str(directory / "work"), options, 1, 0.2)


def test_finished_work_is_whole_while_it_is_done_again(single, corpus, tmp_path):
    """A runner has another worker do it when one is lost, while others read what was written."""
    job = job_in(tmp_path, single[0] / "vocab.txt")
    (tmp_path / "work" / "spill").mkdir(parents=True)
    part = FilePart(find_files(str(corpus[0] / "*"))[0])
    path = pathlib.Path(job.spill_path(0))
    seen = []
    first = spill_part(job, lambda more: seen.append(path.exists()), 0, part, 0)
    assert not any(seen)
    written = path.read_bytes()
    again = spill_part(job, lambda more: seen.append(path.read_bytes() == written), 0, part, 0)
    assert seen[-1] and again == first
    assert [other.name for other in path.parent.iterdir()] == ["0"]


def test_a_directory_that_a_host_does_not_see_is_not_made_there(single, tmp_path):
    job = job_in(tmp_path, single[0] / "vocab.txt")
    with pytest.raises(BadInputError, match=f"not there on the host {socket.gethostname()}"):
        check_shared(job)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "num_elements", "num_bytes", "expected"),
    [
        ([], 12, 2**30, 12),  # one by one
        ([], 300, 2**28, 64),  # 4 MB together
        ([], 300, 2**20, 16),
        (["--dask_npartitions=3"], 12, 2**30, 3),
    ],
)
def test_dask_has_a_task_for_each_file_that_is_not_small(
    arguments, num_elements, num_bytes, expected
):
    runner = ["--runner=dask", "--dask_client_address=tcp://127.0.0.1:9"]
    options = runner_options([*runner, *arguments])
    data_prep.beam.pipeline._set_partitions(options, num_elements, num_bytes)
    assert options.get_all_options()["npartitions"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocabluary=x"], "^--vocabluary: neither"),
        (["--sequence-lenght", "128"], "^--sequence-lenght: neither"),
        (["stray"], "^stray: neither"),
        (["--runner", "DirectRunner", "stray"], "^stray: neither"),
        (["stray", "--streaming"], "^stray: neither"),
        (["--job_name", "one", "two", "--region=three"], "^two: neither"),
        (["-x"], "^-x: neither"),
        (["--direct_num_workers=many"], "many"),
        (["--job_name=one"], "^--job_name=one: an option of Beam's needs --runner"),
        (["--dask_npartitions=3"], "^--dask_npartitions.* --runner"),
        (["--runner=dusk"], "^--runner dusk: Unexpected pipeline runner.*see --help"),
        (["--runner=no.such.Runner"], "^--runner no.such.Runner: No module named 'no'; see"),
        (["--runner=os.path"], "^--runner os.path: .*; see --help"),
        (["--runner=dask"], "^--runner dask: needs --dask_client_address"),
        (["--runner=dask", "--dask_scheduler_file=no.json"], "^--dask_scheduler_file no.json: no"),
        (["--runner=Dask", "--dask_client_adress=tcp://a:1"], "^--dask_client_adress: neither"),
        (["--runner=DaskRunner", "--dask_npartitions=few"], "invalid int value: 'few'"),
    ],
)
def test_options_that_beam_does_not_know_are_refused(
    arguments, message, corpus, letters_vocabulary, tmp_path
):
    with pytest.raises(ConfigurationError, match=message) as raised:
        write_pretraining_records(
            str(corpus[0] / "*"),
            vocabulary=letters_vocabulary,
            output=str(tmp_path / "records"),
            beam_arguments=arguments,
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("bad", [b"caf\xe9", b'<doc id="1" title="A">\nA\n\nB\n', b"\x1f\x8b\x08"])
@pytest.mark.parametrize("runner", [(), ("--runner=FnApiRunner",)])
def test_a_bad_file_among_good_ones_leaves_nothing(
    runner, bad, corpus, letters_vocabulary, tmp_path
):
    text = shutil.copytree(corpus[0], tmp_path / "text")
    (text / "wiki_03b").write_bytes(bad)
    with pytest.raises(BadInputError, match="wiki_03b: ") as raised:
        write_pretraining_records(
            str(text / "*"),
            vocabulary=letters_vocabulary,
            output=str(tmp_path / "records"),
            beam_arguments=runner,
        )
    assert str(raised.value).startswith(f"{text}/wiki_03b: ")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_titles_alone_are_no_text_to_train_on(letters_vocabulary, tmp_path):
    (tmp_path / "text").write_text('<doc id="1" title="A">\nA\n\n</doc>\n')
    with pytest.raises(BadInputError, match="no document has text"):
        write_pretraining_records(
            str(tmp_path / "text"),
            vocabulary=letters_vocabulary,
            output=str(tmp_path / "records"),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_real_text_gives_the_tokens_that_huggingface_counts(shared_data, tmp_path):
    vocabulary = str(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    path = str(shared_data / "text" / "novels" / "105_persuasion.txt.gz")
    manifest = write_pretraining_records(
        path, vocabulary=vocabulary, output=str(tmp_path / "records")
    )
    peer = BertWordPieceTokenizer(vocabulary, lowercase=False)
    with gzip.open(path, "rt", encoding="utf-8") as text:
        ids = peer.encode(text.read(), add_special_tokens=False).ids
    assert manifest.counts["tokens"] == len(ids)
    assert collections.Counter(ids) == collections.Counter(
        token
        for record in written_records.read_records(tmp_path / "records", manifest)
        for token in record["token_ids"]
    )


def test_many_unknown_pieces_are_told(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a", "b", "."]) + "\n")
    for share, text in (("20.0%", "a b a \u0416."), ("", "a b a b.")):
        (tmp_path / "text.txt").write_text(f"{text}\n\n" * 100)
        write_pretraining_records(
            tmp_path / "text.txt",
            vocabulary=tmp_path / "vocab.txt",
            lowercase=True,
            output=tmp_path / f"records{share}",
            sequence_length=12,
            validation_fraction=0,
        )
        printed = capsys.readouterr().out
        assert ("of the pieces are [UNK]" in printed) == bool(share)
        assert share in printed
