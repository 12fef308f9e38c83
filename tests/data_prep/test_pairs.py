"""Pairs of segments; each token of the text names its document and its place in it."""

import collections
import random

import pytest
import written_records
from hypothesis import given, settings
from test_sequences import LIMIT, SHAPES, make_documents, make_sentences, to_features

import data_prep.corpus
import data_prep.records
from data_prep.pairs import join_blocks, split_block
from data_prep.pretraining import write_pretraining_records
from data_prep.sequences import fill_blocks, split_long_sentences
from spanbert_tf.errors import BadInputError

SEQUENCE_LENGTH = 35
HALF = (SEQUENCE_LENGTH - 3) // 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = ["Here", ".", *(f"d{number}" for number in range(1000)), *(f"w{n}" for n in range(3000))]
IDS = {piece: number for number, piece in enumerate([*SPECIAL, *TEXT])}


def make_corpus(directory, shapes, num_files=1):
    """Writes documents, whose shapes are lists of paragraphs of sentence lengths (2 or more).

    A sentence is "Here d7 w12 w13 … ." in document 7, whose words count up.

    Returns:
        Pattern, vocabulary, and the token ids of documents > paragraphs > sentences.
    """
    documents = []
    for number, paragraphs in enumerate(shapes):
        words = iter(range(10**6))
        documents.append(
            [
                [["Here", f"d{number}", *(f"w{next(words) % 3000}" for _ in range(length)), "."]
                 for length in lengths]
                for lengths in paragraphs
            ]
        )  # fmt: skip
    for file_number in range(num_files):
        texts = [
            "\n\n".join(" ".join(map(" ".join, paragraph)) for paragraph in document)
            for document in documents[file_number::num_files]
        ]
        (directory / f"text{file_number}.txt").write_text("\n====\n".join(texts))
    (directory / "vocab.txt").write_text("\n".join([*SPECIAL, *TEXT]))
    ids = [[[[IDS[word] for word in s] for s in p] for p in d] for d in documents]
    return str(directory / "text*.txt"), str(directory / "vocab.txt"), ids


def write_pairs(directory, shapes, num_files=1, **options):
    """Description, records and half blocks of each document, which are written first."""
    pattern, vocabulary, ids = make_corpus(directory, shapes, num_files)
    info = write_pretraining_records(
        pattern,
        vocabulary=vocabulary,
        output=str(directory / "records"),
        document_separator="====",
        sequence_length=SEQUENCE_LENGTH,
        sequences="pair",
        **options,
    )
    return info, directory / "records", written_records.expected_blocks(ids, HALF)


def random_shapes(num_documents, longest, seed):
    source = random.Random(seed)
    return [
        [
            [source.randint(1, 12) for _ in range(source.randint(1, 4))]
            for _ in range(source.randint(1, longest))
        ]
        for _ in range(num_documents)
    ]


def segments(record):
    tokens, split = record["token_ids"], record["second_segment_start"]
    return tokens[:split], tokens[split:]


def document_of(tokens):
    """Numbers of the documents that tokens come from."""
    numbers = {token - IDS["d0"] for token in tokens if IDS["d0"] <= token <= IDS["d999"]}
    (number,) = numbers
    return number


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    shapes = random_shapes(400, 12, seed=1) + [[[3]]] * 60 + [[[9, 9]]] * 40
    directory = tmp_path_factory.mktemp("pairs")
    options = {"num_shards": 2, "validation_fraction": 0.1}
    info, output, blocks = write_pairs(directory, shapes, num_files=3, **options)
    return info, output, blocks, written_records.read_records(output, info)


def test_two_halves_sum_to_the_limit(pairs):
    lengths = [tuple(map(len, segments(record))) for record in pairs[3]]
    assert all(0 < first <= HALF and 0 < second <= HALF for first, second in lengths)
    full = [sum(pair) for pair in lengths if min(pair) > HALF - 3]
    assert max(full) == 2 * HALF
    assert len(full) > len(lengths) / 10


def test_labels_are_even_to_within_sampling_error(pairs):
    labels = collections.Counter(record["next_sentence_label"] for record in pairs[3])
    total = labels.total()
    assert total > 1500
    assert abs(labels[1] - total / 2) < 3 * (total / 4) ** 0.5


def test_random_segments_are_of_another_document_of_the_split(pairs):
    info, output, _, _ = pairs
    firsts, seconds = {}, {}
    for split in ("train", "validation"):
        firsts[split], seconds[split] = set(), set()
        for record in written_records.read_records(output, info, split):
            first, second = map(document_of, segments(record))
            assert (first != second) == record["next_sentence_label"]
            firsts[split].add(first)
            seconds[split].add(second)
        assert seconds[split] <= firsts[split]
    assert not firsts["train"] & firsts["validation"]


def test_all_text_is_used_once_besides_the_random_segments(pairs):
    info, _, blocks, records = pairs
    used = collections.Counter()
    random_tokens = 0
    for record in records:
        first, second = segments(record)
        used.update([tuple(first)])
        if record["next_sentence_label"]:
            random_tokens += len(second)
        else:
            used.update([tuple(second)])
    halves = []  # of the last segment of a document, where it was cut in two
    for document in blocks:
        for block in document:
            tokens = tuple(block["token_ids"])
            if used[tokens]:
                used[tokens] -= 1
            else:
                assert block is document[-1]
                halves.append(tokens)
    for tokens in halves:
        (cut,) = [n for n in range(1, len(tokens)) if used[tokens[:n]] and used[tokens[n:]]]
        used[tokens[:cut]] -= 1
        used[tokens[cut:]] -= 1
    assert not +used
    assert len(halves) > 20
    written = sum(shard.num_tokens for shard in info.shards)
    assert written == info.counts["tokens"] + random_tokens
    assert sum(info.unigram_counts) == info.num_tokens("train")


def test_the_second_segment_follows_where_the_label_says_so(pairs):
    _, _, blocks, records = pairs
    places = {}  # of each sentence's first words
    for document in blocks:
        tokens = [token for block in document for token in block["token_ids"]]
        places.setdefault(document_of(tokens), tokens)
    for record in records:
        if not record["next_sentence_label"]:
            first, second = segments(record)
            tokens = places[document_of(first)]
            starts = [n for n in range(len(tokens)) if tokens[n : n + len(first)] == first]
            assert any(tokens[n + len(first) :][: len(second)] == second for n in starts)


def test_each_segment_keeps_its_own_positions(pairs):
    _, _, blocks, records = pairs
    features = {tuple(block["token_ids"]): block for document in blocks for block in document}
    compared = 0
    for record in records:
        split = record["second_segment_start"]
        for start, stop, first_token in (
            (0, split, record["first_token_index"]),
            (split, len(record["token_ids"]), record["second_first_token_index"]),
        ):
            block = features.get(tuple(record["token_ids"][start:stop]))
            if block is None:  # half of a last segment
                continue
            compared += 1
            assert first_token == block["first_token_index"]
            for kind in ("sentence", "paragraph"):
                inside = [
                    (position - start, index)
                    for position, index in zip(
                        record[f"{kind}_starts"], record[f"{kind}_indices"], strict=True
                    )
                    if start <= position < stop
                ]
                expected = zip(block[f"{kind}_starts"], block[f"{kind}_indices"], strict=True)
                assert inside == list(expected)
    assert compared > 1.8 * len(records)


def test_pieces_of_text_do_not_change_the_pairs(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(data_prep.corpus, "READ_SIZE", 2_000)
    monkeypatch.setattr(data_prep.records, "CHUNK_CHARACTERS", 200)
    shapes = random_shapes(400, 12, seed=1) + [[[3]]] * 60 + [[[9, 9]]] * 40
    options = {"num_shards": 2, "validation_fraction": 0.1}
    info, _, _ = write_pairs(tmp_path, shapes, num_files=3, **options)
    assert info == pairs[0]


@pytest.mark.parametrize("num_shards", [1, 30])
def test_one_long_document_finds_segments_in_a_short_one(num_shards, tmp_path):
    shapes = [[[7, 7, 7]] * 60, [[2, 3]]]
    info, output, _ = write_pairs(tmp_path, shapes, num_shards=num_shards)
    records = written_records.read_records(output, info)
    assert info.num_records("validation") == 0  # it would have nobody to draw from
    labels = [record["next_sentence_label"] for record in records]
    assert 0.3 < sum(labels) / len(labels) < 0.7
    for record in records:
        first, second = map(document_of, segments(record))
        assert (first != second) == record["next_sentence_label"]


def test_four_documents_make_two_splits_of_two(tmp_path):
    info, output, _ = write_pairs(tmp_path, [[[5, 5]] * 5] * 4, validation_fraction=0.01)
    for split in ("train", "validation"):
        records = written_records.read_records(output, info, split)
        assert len({document_of(segments(record)[0]) for record in records}) == 2


def test_one_document_has_no_random_segments(tmp_path):
    with pytest.raises(BadInputError, match="at least two documents"):
        write_pairs(tmp_path, [[[5, 5]] * 5])


@settings(max_examples=150, deadline=None)
@given(SHAPES)
def test_a_cut_block_is_its_halves(shapes):
    sentences = split_long_sentences(make_sentences(make_documents(shapes)), LIMIT)
    blocks, _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    for block in blocks:
        halves = split_block(block)
        whole = to_features(block)
        if halves is None:
            assert len(whole["sentence_starts"]) == 1
            continue
        first, second = map(to_features, halves)
        cut = len(first["token_ids"])
        assert cut in whole["sentence_starts"]
        assert second["sentence_starts"][0] == second["paragraph_starts"][0] == 0
        assert second["first_token_index"] == 0
        distances = [abs(2 * start - block.num_tokens) for start in whole["sentence_starts"][1:]]
        assert abs(2 * cut - block.num_tokens) == min(distances)
        joined = to_features(join_blocks(*halves))
        if cut not in whole["paragraph_starts"]:  # the paragraph goes on in the second half
            position = joined["paragraph_starts"].index(cut)
            before = joined["paragraph_indices"][position - 1]
            assert joined["paragraph_indices"].pop(position) == before
            joined["paragraph_starts"].remove(cut)
        assert joined == whole
