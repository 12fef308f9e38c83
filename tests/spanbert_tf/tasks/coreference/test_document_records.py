"""Records of documents: pieces, segments, maps and mentions, against plain Python."""

import json

import numpy as np
import pytest
import tensorflow as tf
from graph_operations import unknown_shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.data.documents import segment_documents
from spanbert_tf.errors import BadInputError
from spanbert_tf.layers.antecedent_scorer import NUM_GENRES
from spanbert_tf.tasks.coreference.prepare import prepare_coreference
from spanbert_tf.tasks.coreference.records import DOCUMENTS_FILE, GENRES
from spanbert_tf.tasks.lookup import open_records, task_dataset

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "ann", "has", "a", "cat", ".", "she", "like", "##s", "it", "x", "##x"]


def segments_of(sentence_ends, word_ends, room):
    """Pieces of each segment, as the original's `split_into_segments` takes them."""
    start, found = 0, []
    while start < len(sentence_ends):
        end = min(start + room, len(sentence_ends)) - 1
        stop = end
        while stop >= start and not sentence_ends[stop]:
            stop -= 1
        if stop < start:
            stop = end
            while stop >= start and not word_ends[stop]:
                stop -= 1
        stop = end if stop < start else stop
        found.append((start, stop + 1))
        start = stop + 1
    return found or [(0, 0)]


def expected(sentences, words, room):
    """Pieces, sentence map and word map with special tokens, one at a time."""
    count = len(words)
    sentence_ends = [n == count - 1 or sentences[n + 1] != sentences[n] for n in range(count)]
    word_ends = [n == count - 1 or words[n + 1] != words[n] for n in range(count)]
    pieces, sentence_map, word_map, number, last = [], [], [], 0, 0
    for start, end in segments_of(sentence_ends, word_ends, room):
        pieces += [-1, *range(start, end), -1]
        sentence_map.append(number)
        word_map.append(last)
        for piece in range(start, end):
            sentence_map.append(number)
            number += sentence_ends[piece]
            last = words[piece]
            word_map.append(last)
        sentence_map.append(number)
        word_map.append(last)
    return pieces, sentence_map, word_map


documents = st.lists(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=5),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)
@given(documents, st.integers(4, 14))
def test_segments_and_maps_are_the_originals(made, sequence_length):
    # Of each document, of each of its sentences, how many pieces each word has.
    columns = {"sentence": [], "word": []}
    for sentences in made:
        row = [
            (n, word)
            for n, sizes in enumerate(sentences)
            for word, size in enumerate(sizes)
            for _ in range(size)
        ]
        columns["sentence"].append([sentence for sentence, _ in row])
        changes = [n > 0 and row[n][:2] != row[n - 1][:2] for n in range(len(row))]
        # Two words of one sentence differ in their number, so repeated pieces are one word.
        columns["word"].append(np.cumsum(changes).tolist())
    ragged = {
        name: tf.ragged.constant(rows, tf.int32, ragged_rank=1) for name, rows in columns.items()
    }
    found = segment_documents(
        ragged["sentence"] + 7,
        ragged["sentence"],
        ragged["word"],
        sequence_length=sequence_length,
        start_id=2,
        end_id=3,
    )
    for number in range(len(made)):
        pieces, sentence_map, word_map = expected(
            columns["sentence"][number], columns["word"][number], sequence_length - 2
        )
        assert found.pieces[number].numpy().tolist() == pieces
        assert found.sentence_indices[number].numpy().tolist() == sentence_map
        assert found.word_indices[number].numpy().tolist() == word_map
        lengths = found.segment_lengths[number].numpy()
        assert lengths.sum() == len(pieces) and lengths.max() <= sequence_length
        firsts = np.cumsum(lengths) - lengths
        ids = found.token_ids[number].numpy()
        assert (ids[firsts] == 2).all() and (ids[firsts + lengths - 1] == 3).all()


def prepare(tmp_path, line, *options):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    output = str(tmp_path / "out")
    arguments = ["--input", tmp_path / "in.jsonl", "--vocabulary", tmp_path / "vocab.txt"]
    arguments += ["--output", output, "--lowercase", "--overwrite", *options]
    prepare_coreference.main(list(map(str, arguments)), standalone_mode=False)
    return output


LINE = {
    "doc_key": "tc/x_0",
    "sentences": [["Ann", "has", "a", "cat", "."], ["\u200b", "She", "likes", "it", "."]],
    "speakers": [["A"] * 5, ["B"] * 5],
    "clusters": [[[0, 0], [6, 6]], [[2, 3], [8, 8], [5, 5]], [[3, 6], [1, 4]]],
}


def test_records_hold_what_the_model_reads(tmp_path, capsys):
    output = prepare(tmp_path, LINE, "--sequence-length", 8, "--max-span-width", 3)
    shown = capsys.readouterr().out
    assert "1 documents, 2 segments, 2 sentences, 10 words, 3 clusters, 7 mentions" in shown
    assert "1 mentions cross a sentence's end" in shown
    assert "1 mentions are longer than 3 pieces" in shown
    assert "1 mentions have no word piece" in shown and "1 words have no word piece" in shown
    ((x, y),) = task_dataset(output, batch_size=1, training=False)
    x = {name: values.numpy()[0].tolist() for name, values in x.items()}
    assert [[PIECES[token] for token in row] for row in x["token_ids"]] == [
        ["[CLS]", "ann", "has", "a", "cat", ".", "[SEP]", "[PAD]"],
        ["[CLS]", "she", "like", "##s", "it", ".", "[SEP]", "[PAD]"],
    ]
    width = len(x["sentence_indices"])
    assert x["sentence_indices"] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2] + [-1] * (width - 14)
    assert x["word_indices"][:14] == [0, 0, 1, 2, 3, 4, 4, 4, 6, 7, 7, 8, 9, 9]
    assert x["speaker_ids"][:14] == [1, 2, 2, 2, 2, 2, 1, 1, 3, 3, 3, 3, 3, 1]
    assert x["segment_indices"][:14] == [0] * 7 + [1] * 7
    assert x["piece_positions"][:14] == [*range(7), *range(8, 15)]
    assert x["begins_word"][:14] == [0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0]
    assert x["ends_word"][:14] == [0, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]
    assert x["genre_ids"] == 5
    y = {name: values.numpy()[0] for name, values in y.items()}
    gold = set(zip(*(y[name].tolist() for name in y), strict=True)) - {(-1, -1, 0)}
    names = list(y)
    order = [names.index(f"mention_{name}") for name in ("starts", "ends", "clusters")]
    found = {tuple(item[n] for n in order) for item in gold}
    assert found == {(1, 1, 1), (8, 8, 1), (2, 5, 2), (4, 8, 2), (3, 4, 3), (11, 11, 3)}


def made_up_line(number):
    """A document of 2 to 60 words in sentences of 1 to 5, two of three with mentions."""
    rng = np.random.default_rng(number)
    words = rng.choice(["ann", "has", "a", "cat", "."], rng.integers(2, 61)).tolist()
    sentences = []
    while words:
        size = rng.integers(1, 6)
        sentences.append(words[:size])
        words = words[size:]
    size = sum(map(len, sentences))
    clusters = [[[n, n], [n + 1, n + 1]] for n in range(0, size - 1, 2)]
    return {
        "doc_key": f"a_{number}",
        "sentences": sentences,
        "clusters": clusters if number % 3 else [],
    }


@pytest.fixture(scope="module")
def many_documents(tmp_path_factory):
    directory = tmp_path_factory.mktemp("many")
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    lines = [json.dumps(made_up_line(number)) for number in range(60)]
    (directory / "in.jsonl").write_text("\n".join(lines))
    arguments = ["--input", directory / "in.jsonl", "--vocabulary", directory / "vocab.txt"]
    arguments += ["--output", directory / "out", "--lowercase", "--sequence-length", 10]
    arguments += ["--max-training-segments", 3]
    prepare_coreference.main(list(map(str, arguments)), standalone_mode=False)
    return str(directory / "out")


def test_training_has_few_shapes(many_documents):
    data = task_dataset(many_documents, batch_size=1, training=True, seed=1).take(180)
    shapes = set()
    for x, y, _ in data:
        _, num_segments, length = x["token_ids"].shape
        width, mentions = x["word_indices"].shape[1], y["mention_starts"].shape[1]
        assert num_segments <= 3 and length == min(width, 10)
        assert mentions and mentions % max(width // 4, 1) == 0
        shapes.add((num_segments, length, width, mentions))
    assert len({width for *_, width, _ in shapes}) >= 3
    assert len(shapes) <= 16  # of 180 batches


def without_padding(x, y, weights):
    """What a batch says of its documents, as lists."""
    x, y = ({name: values.numpy() for name, values in part.items()} for part in (x, y))
    x["mask"] = x["padding_mask"].sum(axis=2)  # positions of each segment
    places = x.pop("piece_positions")
    x["token_ids"] = np.take_along_axis(x["token_ids"].reshape(len(places), -1), places, axis=1)
    is_position, is_gold = x["sentence_indices"] >= 0, y["mention_clusters"] > 0
    for number, weight in enumerate(weights.numpy()):
        yield weight, x["genre_ids"][number], x["mask"][number][x["mask"][number] > 0].tolist()
        for name in ("token_ids", "word_indices", "speaker_ids", "segment_indices", "begins_word"):
            yield x[name][number][is_position[number]].tolist()
        for values in y.values():
            yield values[number][is_gold[number]].tolist()


@pytest.mark.slow  # graphs of both are traced
@pytest.mark.parametrize("first", [0, 40])  # of 30 batches an epoch
def test_documents_of_one_shape_are_those_of_all_shapes(first, many_documents):
    options = {"batch_size": 2, "training": True, "seed": 1, "first_batch": first}
    batches = task_dataset(many_documents, **options).take(5)
    in_one = task_dataset(many_documents, **options, last_batch=first + 5).take(5)
    assert not unknown_shapes(in_one.element_spec)
    assert in_one.element_spec[0]["token_ids"].shape == [2, 3, 10]
    for batch, wide in zip(batches, in_one, strict=True):
        assert list(without_padding(*wide)) == list(without_padding(*batch))


def test_each_genre_has_a_row_of_the_table():
    assert len(GENRES) == NUM_GENRES


def test_sentences_of_files_that_do_not_tell_them(tmp_path):
    rows = [
        f"{n}\t{word}\t_"
        for n, word in enumerate(["Ann", "has", "a", "cat", ".", "She", "likes", "it", "."])
    ]
    text = "# begin document\n" + "\n".join(rows) + "\n"
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (tmp_path / "a.conll").write_text(text)
    arguments = ["--input", tmp_path / "a.conll", "--vocabulary", tmp_path / "vocab.txt"]
    arguments += ["--output", tmp_path / "out", "--lowercase", "--sequence-length", 8]
    prepare_coreference.main(list(map(str, arguments)), standalone_mode=False)
    (line,) = open_records(str(tmp_path / "out")).lines(DOCUMENTS_FILE)
    assert line["sentence_starts"] == [0, 5]


def test_a_word_longer_than_a_segment_is_named(tmp_path):
    line = {"doc_key": "a_0", "sentences": [["Ann", "x" * 9]], "clusters": []}
    with pytest.raises(
        BadInputError, match=r"in\.jsonl: document 'a_0': word 1 .*, 'xxxxxxxxx', has 9 pieces"
    ):
        prepare(tmp_path, line, "--sequence-length", 8)
    assert not (tmp_path / "out").exists()


def test_a_file_of_the_users_beside_the_records_stays(tmp_path):
    notes = tmp_path / "out" / "rows.csv"
    prepare(tmp_path, LINE)
    prepare(tmp_path, LINE)
    notes.write_text("mine")
    with pytest.raises(BadInputError, match="holds other things than coreference records"):
        prepare(tmp_path, LINE)
    assert notes.read_text() == "mine"
