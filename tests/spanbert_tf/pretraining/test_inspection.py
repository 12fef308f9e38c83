"""What `inspect` counts and prints, against plain-Python counts of the same records."""

import dataclasses
import io
import shutil

import numpy as np
import pytest
import record_files

from spanbert_tf.console import DataConsole
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.pretraining.inspection import (
    _print_counts,
    count_clipped_indices,
    fill_rate,
    masked_example,
    rows_for_tokens,
)
from spanbert_tf.pretraining.span_lengths import count_span_lengths
from spanbert_tf.tasks.inspection import inspect_records

LENGTH = 64


@pytest.fixture(scope="module")
def records():
    return record_files.random_records(130, LENGTH, seed=8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, records):
    return record_files.write_records(
        tmp_path_factory.mktemp("records"), records[:100], records[100:], sequence_length=LENGTH
    )


def test_fill_rate_and_rows_of_the_papers_batch(directory, records):
    manifest = PretrainingManifest.load(directory)
    tokens = sum(len(record["token_ids"]) for record in records[:100])
    assert fill_rate(manifest) == tokens / (100 * (LENGTH - 2))
    assert rows_for_tokens(manifest) == round(131_072 / (tokens / 100 + 2))


@pytest.mark.slow
def test_merged_lengths_are_counted_in_words(directory):
    batches = pretraining_dataset(directory, batch_size=30, split="validation")
    (batch,) = batches.as_numpy_iterator()
    expected = np.zeros(21, int)
    for positions, ids, weights in zip(
        batch["mask_positions"], batch["mask_ids"], batch["mask_weights"], strict=True
    ):
        previous, words = None, 0
        for position, token in zip(positions[weights == 1], ids[weights == 1], strict=True):
            if position - 1 != previous:
                expected[words] += words > 0
                words = 1
            else:
                words += not record_files.VOCABULARY[token].startswith("##")
            previous = position
        expected[words] += 1
    lengths = count_span_lengths(directory, MaskingOptions(), split="validation")
    assert lengths.merged.tolist() == expected.tolist()


def test_lengths_are_counted_in_the_words_of_records(records, tmp_path):
    """Words of three pieces each, whatever the vocabulary says."""
    longest = 0
    with_words = [
        {**record, "word_starts": [*range(0, len(record["token_ids"]), 3)]} for record in records
    ]
    options = MaskingOptions(scheme="whole_words", rate=0.1)
    directory = record_files.write_records(
        tmp_path, with_words, sequence_length=LENGTH, word_segmentation="icu"
    )
    lengths = count_span_lengths(directory, options)
    batches = pretraining_dataset(directory, batch_size=64, masking=options, with_words=True)
    expected = np.zeros(21, int)
    for batch in batches.take(3).as_numpy_iterator():  # the batches that were counted
        for positions, weights in zip(batch["mask_positions"], batch["mask_weights"], strict=True):
            used = positions[weights == 1]
            for span in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1):
                expected[len({(position - 1) // 3 for position in span})] += 1
                longest = max(longest, len(span))
    assert lengths.merged.tolist() == expected.tolist()
    assert longest > 3


@pytest.mark.slow
def test_drawn_lengths_agree_with_the_exact_shares(tmp_path):
    texts = record_files.random_records(900, 100, seed=3)
    texts = [text for text in texts if len(text["token_ids"]) > 90]
    num_draws = 6400  # one of each record; masks are functions of the record's number
    records = [{**texts[n % len(texts)], "record_id": n} for n in range(num_draws)]
    directory = record_files.write_records(tmp_path, records, sequence_length=100)
    lengths = count_span_lengths(directory, MaskingOptions())
    assert lengths.drawn.sum() == num_draws
    assert lengths.exact.sum() == pytest.approx(1)

    def agree(shares):
        expected = num_draws * np.asarray(shares, float)
        # Ends of blocks cut a few draws: 1.5 % of slack beside 5 standard deviations.
        slack = 5 * expected**0.5 + 0.015 * num_draws
        return (abs(lengths.drawn[1:11] - expected) < slack).all()

    assert agree(lengths.exact[1:11])
    for rate in (0.1, 0.3):  # it would not agree with any distribution
        assert not agree(MaskingOptions(geometric_p=rate).span_length_probabilities())


def test_the_last_exact_share_is_that_of_all_longer_spans(directory):
    shares = MaskingOptions(max_span_length=30).span_length_probabilities()
    lengths = count_span_lengths(directory, MaskingOptions(max_span_length=30))
    assert lengths.exact[19:] == pytest.approx([float(shares[18]), float(sum(shares[19:]))])


def test_other_schemes_have_no_exact_shares(directory):
    lengths = count_span_lengths(directory, MaskingOptions(scheme="whole_words"))
    assert lengths.exact is None and not lengths.drawn.any() and lengths.merged.any()


def test_examples_show_the_original_and_its_replacement():
    row = {
        "token_ids": np.array([2, 5, 4, 6, 45, 3, 0]),
        "padding_mask": np.array([1, 1, 1, 1, 1, 1, 0]),
        "starts_word": np.array([1, 1, 0, 1, 0, 1, 1], bool),
        "mask_positions": np.array([2, 3, 4, 0]),
        "mask_ids": np.array([46, 9, 45, 0]),
        "mask_weights": np.array([1.0, 1.0, 1.0, 0.0]),
    }
    text = masked_example(row, record_files.VOCABULARY)
    assert str(text) == "[CLS] word0piece1→[MASK] word4→word1piece0→##piece0 [SEP]"
    assert len({span.style for span in text.spans if span.style}) == 3


def test_examples_show_where_sentences_begin_and_the_kind_of_pair():
    row = {
        "token_ids": np.array([2, 5, 45, 6, 7, 3, 0]),
        "padding_mask": np.array([1, 1, 1, 1, 1, 1, 0]),
        "starts_word": np.array([1, 1, 0, 1, 1, 1, 1], bool),
        "mask_positions": np.zeros(2, int),
        "mask_ids": np.zeros(2, int),
        "mask_weights": np.zeros(2),
        "paragraph_indices": np.array([8, 8, 8, 9, 9, 9, 9]),
        "sentence_indices": np.array([2, 2, 2, 0, 1, 1, 1]),
        "token_indices": np.array([0, 3, 4, 0, 0, 1, 2]),
        "next_sentence_labels": np.array(1),
    }
    text = str(masked_example(row, record_files.VOCABULARY))
    assert text == ("[CLS] ¶8.2+3 word0piece0 ¶9.0 word1 ¶9.1 word2 [SEP] (random segment)")


def test_indices_beyond_the_tables_are_counted(tmp_path):
    def record(number, length, first_token, sentences, paragraphs):
        return {
            "token_ids": [5] * length,
            "record_id": number,
            "first_token_index": first_token,
            "sentence_starts": [start for start, _ in sentences],
            "sentence_indices": [index for _, index in sentences],
            "paragraph_starts": [start for start, _ in paragraphs],
            "paragraph_indices": [index for _, index in paragraphs],
        }

    records = [
        # Tokens 250 … 261 of a sentence, of which 6 are beyond 255; then 8 tokens of a sentence
        # that is the 100th (the last row) and 10 of the 101st, in paragraph 49 and then 50, which
        # become 48 and 49.
        record(1, 30, 250, [(0, 3), (12, 99), (20, 100)], [(0, 49), (25, 50)]),
        record(2, 7, 0, [(0, 0)], [(0, 77)]),
        # Lowered by 2, until [CLS] is in paragraph 0: 0, 49 and 58, of which the last is lost.
        record(3, 9, 0, [(0, 0)], [(0, 2), (1, 51), (5, 60)]),
        record(4, 9, 0, [(0, 0)], [(0, 0), (3, 49), (6, 50)]),
    ]
    directory = record_files.write_records(tmp_path, records, sequence_length=40)
    sizes = {"paragraph_indices": 50, "sentence_indices": 100, "token_indices": 256}
    counted = count_clipped_indices(directory, sizes)
    assert (counted.num_records, counted.num_tokens) == (4, 55)
    assert counted.clipped == {
        "paragraph_indices": 4 + 3,
        "sentence_indices": 10,
        "token_indices": 6,
    }


def test_everything_is_printed_and_drawn(directory, tmp_path):
    console = DataConsole(record=True, width=160, file=(tmp_path / "out.txt").open("w"))
    picture = tmp_path / "new" / "lengths.png"
    inspect_records(
        str(directory), "spanbert_base", png=str(picture), num_examples=2, console=console
    )
    text = console.export_text()
    assert "100" in text and "→[MASK]" in text and "22.41%" in text
    assert "geometric_spans, drawn at the word of a token, 15% of the tokens" in text
    assert "one draw of 80/10/10 a span, random tokens from the unigrams" in text
    assert text.count("[CLS]") == 2
    assert text.index("Span lengths in words") < text.index("[CLS]")  # what is of all comes first
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_counts_of_repaired_records_are_called_those_of_before(directory):
    manifest = dataclasses.replace(PretrainingManifest.load(directory), counts={"records": 140})
    for repaired_from, words in ((None, ""), ("0" * 64, "Before `prepare repair`")):
        console = DataConsole(record=True, width=160, file=io.StringIO())
        repaired = dataclasses.replace(manifest, repaired_from=repaired_from)
        _print_counts(console, str(directory), repaired)
        *_, before, count, _ = console.export_text().splitlines()
        assert count == "  records: 140" and before.startswith(words or "└")


def test_how_words_were_found_is_printed_if_records_have_them(directory):
    manifest = PretrainingManifest.load(directory)
    for way, expected in (("none", False), ("icu", True)):
        console = DataConsole(record=True, width=400, file=io.StringIO())
        _print_counts(console, str(directory), dataclasses.replace(manifest, word_segmentation=way))
        printed = console.export_text()
        assert (
            "words are found by ICU's dictionaries and rules, language en" in printed
        ) == expected


def test_rates_of_replacement_are_those_of_the_run(directory, tmp_path):
    console = DataConsole(record=True, width=160, file=(tmp_path / "out.txt").open("w"))
    rates = ["masking.mask_token_rate=0", "masking.random_token_rate=0.5"]
    rates.append("masking.rate=[0.3, 0.15]")
    inspect_records(str(directory), "spanbert_base", rates, num_examples=1, console=console)
    text = console.export_text()
    assert "30% (at first, 15% at last) of the tokens, one draw of 0/50/50 a span" in text


def test_indices_of_segabert_are_shown(directory, tmp_path):
    console = DataConsole(record=True, width=160, file=(tmp_path / "out.txt").open("w"))
    inspect_records(str(directory), "segabert_base", num_examples=1, console=console)
    text = console.export_text()
    assert "subwords, 15%" in text and "random tokens from the vocabulary evenly" in text
    assert "¶" in text and "paragraph indices from 50: 0 (0.0%)" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), "Steps: 2,000, the heads alone in the first 400 (training.head_steps)"),
        (["training.steps=300"], "Steps: 300, the heads alone in the first 300 "),
        (["training.head_steps=0"], None),
    ],
)
def test_steps_of_the_heads_alone_are_shown(overrides, expected, directory, tmp_path):
    console = DataConsole(record=True, width=160, file=(tmp_path / "out.txt").open("w"))
    inspect_records(str(directory), "continue", overrides, num_examples=0, console=console)
    text = console.export_text()
    assert expected in text if expected else "heads alone" not in text


@pytest.mark.slow
def test_brackets_of_paths_are_printed(directory, tmp_path):
    """Rich would take them for styles, and end with an error at a slash in them."""
    records, config = tmp_path / "[bold]" / "[/x]:cat:", tmp_path / "[red].yaml"
    shutil.copytree(directory, records)
    config.write_text("base: spanbert_base\n")
    console = DataConsole(record=True, width=500, file=(tmp_path / "out.txt").open("w"))
    picture = tmp_path / "[/i].png"
    inspect_records(str(records), str(config), png=str(picture), num_examples=0, console=console)
    text = console.export_text()
    assert f"{records}: single sequences of {LENGTH}" in text
    assert f"Span lengths in words, {config}: geometric_spans" in text
    assert f"wrote {picture}" in text
