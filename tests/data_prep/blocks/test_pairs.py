"""Pairs of segments; each token of the text names its document and its place in it."""

import collections
import itertools
import random
import statistics

import numpy as np
import pytest
import written_records
from counted_documents import LIMIT, SHAPES, make_documents, make_sentences, to_features
from hypothesis import given, settings
from hypothesis import strategies as st

import data_prep.blocks.records
import data_prep.text.corpus
from data_prep.beam.writing import write_pretraining_records
from data_prep.blocks.pairs import PairBuilder, first_sentences, join_blocks
from data_prep.blocks.sequences import fill_blocks, split_long_sentences
from spanbert_tf.errors import BadInputError

SEQUENCE_LENGTH = 35
ROW = SEQUENCE_LENGTH - 3
HALF = ROW // 2
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
    """Description, records, and the pieces of the documents, which are written first.

    Pieces are sentences, or parts of a half row of longer ones.
    """
    pattern, vocabulary, ids = make_corpus(directory, shapes, num_files)
    manifest = write_pretraining_records(
        pattern,
        vocabulary=vocabulary,
        output=str(directory / "records"),
        document_separator="====",
        sequence_length=SEQUENCE_LENGTH,
        sequences="pair",
        **options,
    )
    pieces = [list(written_records.sentence_pieces(document, HALF)) for document in ids]
    return manifest, directory / "records", pieces


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
    manifest, output, documents = write_pairs(directory, shapes, num_files=3, **options)
    return manifest, output, documents, written_records.read_records(output, manifest)


def count_fitting(pieces, limit):
    """How many pieces from the first on have at most so many tokens together."""
    total = 0
    for number, (tokens, *_) in enumerate(pieces):
        total += len(tokens)
        if total > limit:
            return number
    return len(pieces)


def tokens_of(pieces):
    return [token for tokens, *_ in pieces for token in tokens]


def walk(pieces, records_by_first):
    """Goes through a document as the definition of pairs says; yields (record, its pieces)."""
    first = 0
    while first < len(pieces):
        middle = first + count_fitting(pieces[first:], HALF)
        record = records_by_first.pop(tuple(tokens_of(pieces[first:middle])), None)
        if record is None:  # what is left is less than half a row, and was cut in two
            assert middle == len(pieces)
            total = len(tokens_of(pieces[first:]))
            distances = [
                abs(2 * len(tokens_of(pieces[first:cut])) - total)
                for cut in range(first + 1, middle)
            ]
            middle = first + 1 + distances.index(min(distances))
            record = records_by_first.pop(tuple(tokens_of(pieces[first:middle])))
            assert record["next_sentence_label"] == 0
        room = ROW - record["second_segment_start"]
        stop = middle + count_fitting(pieces[middle:], room)
        if record["next_sentence_label"]:
            yield record, pieces[first:middle], None
            first = middle
        else:
            yield record, pieces[first:middle], pieces[middle:stop]
            first = stop


def test_segments_sum_to_the_limit_as_nearly_as_sentences_allow(pairs):
    fill = collections.defaultdict(list)
    for record in pairs[3]:
        first, second = map(len, segments(record))
        assert 0 < first <= HALF
        assert 0 < second <= ROW - first
        fill[record["next_sentence_label"]].append((first, second))
    assert max(map(sum, fill[0])) == max(map(sum, fill[1])) == ROW
    # Sentences have 4 to 15 tokens here; a length must not tell the label.
    for part in (0, 1):
        means = [statistics.mean(pair[part] for pair in fill[label]) for label in (0, 1)]
        assert abs(means[0] - means[1]) < 1
        assert min(means) > 0.3 * ROW


def test_labels_are_even_to_within_sampling_error(pairs):
    labels = collections.Counter(record["next_sentence_label"] for record in pairs[3])
    total = labels.total()
    assert total > 1500
    assert abs(labels[1] - total / 2) < 3 * (total / 4) ** 0.5


def test_random_segments_are_of_another_document_of_the_split(pairs):
    manifest, output, _, _ = pairs
    firsts, seconds = {}, {}
    for split in ("train", "validation"):
        firsts[split], seconds[split] = set(), set()
        for record in written_records.read_records(output, manifest, split):
            first, second = map(document_of, segments(record))
            assert (first != second) == record["next_sentence_label"]
            firsts[split].add(first)
            seconds[split].add(second)
        assert seconds[split] <= firsts[split]
    assert not firsts["train"] & firsts["validation"]


def test_documents_are_cut_as_the_definition_says(pairs):
    manifest, output, documents, records = pairs
    records_by_first = {tuple(segments(record)[0]): record for record in records}
    assert len(records_by_first) == len(records)
    random_tokens = split_ends = 0
    for pieces in documents:
        for record, first, second in walk(pieces, records_by_first):
            first_tokens, second_tokens = segments(record)
            assert first_tokens == tokens_of(first)
            if second is None:
                random_tokens += len(second_tokens)
            else:
                assert second_tokens == tokens_of(second)
                split_ends += len(first_tokens + second_tokens) <= HALF
    assert not records_by_first
    assert split_ends > 20
    written = sum(shard.num_tokens for shard in manifest.shards)
    assert written == manifest.counts["tokens"] + random_tokens
    assert sum(manifest.unigram_counts(output)) == manifest.num_tokens("train")


def test_random_segments_are_as_many_sentences_as_there_is_room_for(pairs):
    _, _, documents, records = pairs
    places = {}  # first tokens of a piece → its document's pieces, and its number there
    for pieces in documents:
        for number, (tokens, *_) in enumerate(pieces):
            places[tuple(tokens)] = pieces, number
    for record in records:
        if record["next_sentence_label"]:
            first, second = segments(record)
            found = [
                places[t] for n in range(len(second)) if (t := tuple(second[: n + 1])) in places
            ]
            pieces, number = found[0]
            following = pieces[number:]
            expected = tokens_of(following[: count_fitting(following, ROW - len(first))])
            # The last segment of a document gives itself, never more.
            assert second == expected


def test_each_segment_keeps_its_own_positions(pairs):
    _, _, documents, records = pairs
    records_by_first = {tuple(segments(record)[0]): record for record in records}
    compared = collections.Counter()
    for pieces in documents:
        for record, *parts in walk(pieces, records_by_first):
            bounds = (0, record["second_segment_start"], len(record["token_ids"]))
            names = ("first_token_index", "second_first_token_index")
            for part, start, stop, name in zip(parts, bounds, bounds[1:], names, strict=False):
                if part is None:
                    continue
                expected = written_records.block_features(part)
                assert record[name] == expected["first_token_index"]
                for kind in ("sentence", "paragraph"):
                    inside = [
                        (position - start, index)
                        for position, index in zip(
                            record[f"{kind}_starts"], record[f"{kind}_indices"], strict=True
                        )
                        if start <= position < stop
                    ]
                    assert inside == list(
                        zip(expected[f"{kind}_starts"], expected[f"{kind}_indices"], strict=True)
                    )
                compared[name] += 1
    assert compared["first_token_index"] == len(records)
    assert compared["second_first_token_index"] > 0.4 * len(records)


def test_pieces_of_text_do_not_change_the_pairs(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", 2_000)
    monkeypatch.setattr(data_prep.blocks.records, "CHUNK_CHARACTERS", 200)
    shapes = random_shapes(400, 12, seed=1) + [[[3]]] * 60 + [[[9, 9]]] * 40
    options = {"num_shards": 2, "validation_fraction": 0.1}
    manifest, _, _ = write_pairs(tmp_path, shapes, num_files=3, **options)
    assert manifest == pairs[0]


@settings(max_examples=100)
@given(SHAPES, st.data(), st.integers(0, 2**32))
def test_sentences_that_come_in_parts_make_the_same_records(shapes, data, seed):
    """What a record gives to others, too: as much as there is room for in any row."""
    documents = make_documents(shapes)
    cut_document = data.draw(st.integers(0, len(shapes) - 1))
    cut = data.draw(st.integers(1, len(shapes[cut_document])))
    before = [*documents[:cut_document], documents[cut_document][:cut]]
    behind = [documents[cut_document][cut:], *documents[cut_document + 1 :]]

    def make_builder():
        source = random.Random(seed)
        return PairBuilder(LIMIT, "uint16", lambda number: (0, source.getrandbits(63), number))

    def pieces(some, **first):
        return split_long_sentences(make_sentences(some, **first), LIMIT // 2)

    expected, waiting = make_builder().fill(pieces(documents), is_open=False)
    assert not len(waiting.lengths)
    builder = make_builder()
    records, waiting = builder.fill(pieces(before), is_open=True)
    rest = pieces(behind, first_document=cut_document, first_paragraph=cut)
    records += builder.fill(waiting.join(rest), is_open=False)[0]
    assert records == expected


@pytest.mark.parametrize("num_shards", [1, 30])
def test_one_long_document_finds_segments_in_a_short_one(num_shards, tmp_path):
    shapes = [[[7, 7, 7]] * 60, [[2, 3]]]
    manifest, output, _ = write_pairs(tmp_path, shapes, num_shards=num_shards)
    records = written_records.read_records(output, manifest)
    assert manifest.num_records("validation") == 0  # it would have nobody to draw from
    labels = [record["next_sentence_label"] for record in records]
    assert 0.3 < sum(labels) / len(labels) < 0.7
    for record in records:
        first, second = map(document_of, segments(record))
        assert (first != second) == record["next_sentence_label"]


def test_four_documents_make_two_splits_of_two(tmp_path):
    manifest, output, _ = write_pairs(tmp_path, [[[5, 5]] * 5] * 4, validation_fraction=0.01)
    for split in ("train", "validation"):
        records = written_records.read_records(output, manifest, split)
        assert len({document_of(segments(record)[0]) for record in records}) == 2


def test_one_document_has_no_random_segments(tmp_path):
    with pytest.raises(BadInputError, match="at least two documents"):
        write_pairs(tmp_path, [[[5, 5]] * 5])


@settings(max_examples=100)
@given(SHAPES, st.integers(LIMIT // 2, LIMIT))
def test_the_first_sentences_of_a_block(shapes, num_tokens):
    sentences = split_long_sentences(make_sentences(make_documents(shapes)), LIMIT // 2)
    blocks, _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    for block in blocks:
        whole, found = to_features(block), to_features(first_sentences(block, num_tokens))
        size = len(found["token_ids"])
        ends = [*whole["sentence_starts"][1:], len(whole["token_ids"])]
        assert size == max(end for end in ends if end <= num_tokens)
        assert found["token_ids"] == whole["token_ids"][:size]
        assert found["first_token_index"] == whole["first_token_index"]
        for kind in ("sentence", "paragraph"):
            inside = sum(start < size for start in whole[f"{kind}_starts"])
            for name in (f"{kind}_starts", f"{kind}_indices"):
                assert found[name] == whole[name][:inside]


def test_spans_go_with_their_sentences():
    """By hand: sentences of 3, 3 and 2 tokens, and spans at both sides of their borders."""
    sentences = make_sentences(make_documents([[[3, 3, 2]]]))
    spans = np.array([[0, 1], [2, 2], [4, 5], [6, 6], [6, 7]])
    [block], _ = fill_blocks(sentences._replace(spans=(spans,)), 8, "uint16", is_open=False)

    def spans_of(some):
        return [np.frombuffer(raw, "<u2").tolist() for raw in some.lists[4:]]

    assert spans_of(block) == [[0, 2, 4, 6, 6], [1, 2, 5, 6, 7]]
    assert spans_of(first_sentences(block, 8)) == spans_of(block)
    for room in (6, 7):
        assert spans_of(first_sentences(block, room)) == [[0, 2, 4], [1, 2, 5]]
    for room in (3, 5):
        assert spans_of(first_sentences(block, room)) == [[0, 2], [1, 2]]
    joined = join_blocks(first_sentences(block, 3), first_sentences(block, 6))
    assert spans_of(joined) == [[0, 2, 3, 5, 7], [1, 2, 4, 5, 8]]


@settings(max_examples=100)
@given(SHAPES)
def test_joined_blocks_keep_what_each_has(shapes):
    sentences = split_long_sentences(make_sentences(make_documents(shapes)), LIMIT)
    blocks, _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    for first, second in itertools.pairwise(blocks):
        one, other = to_features(first), to_features(second)
        joined = to_features(join_blocks(first, second))
        size = len(one["token_ids"])
        assert joined["token_ids"] == one["token_ids"] + other["token_ids"]
        for kind in ("sentence", "paragraph"):
            starts = one[f"{kind}_starts"] + [size + start for start in other[f"{kind}_starts"]]
            assert joined[f"{kind}_starts"] == starts
            assert joined[f"{kind}_indices"] == one[f"{kind}_indices"] + other[f"{kind}_indices"]
