import json
import os
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

import spanbert_tf.terminal
from data_prep.text.vocabulary import find_alphabet, write_vocabulary
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules, check_case, load_vocabulary

SENTENCES = "The Café in München serves crème brûlée. He doesn't visit often, she said! "


@pytest.fixture
def texts(tmp_path):
    """Files of all formats, in whose markup and titles other letters stand than in the text."""
    (tmp_path / "a.txt").write_text("\n\n".join([SENTENCES * 3] * 4))
    (tmp_path / "b").write_text(
        f'<doc id="7" url="?q=9" title="XYZ">\nXYZ\n\n{SENTENCES * 9}\n\n</doc>\n' * 3
    )
    record = {"id": "5", "title": "QQJ", "text": f"QQJ\n{SENTENCES * 5}"}
    (tmp_path / "c.jsonl").write_text(f"{json.dumps(record)}\n" * 3)
    return [str(tmp_path / "a.txt"), str(tmp_path / "[bc]*")]


def test_accents_are_kept_on_request(texts, tmp_path):
    path = str(tmp_path / "vocab.txt")
    write_vocabulary(texts, path, vocabulary_size=120, lowercase=True, strip_accents=False)
    entries = load_vocabulary(path)
    assert "é" in entries
    assert not any(letter.isupper() for letter in entries if letter not in SPECIAL_TOKENS)


@pytest.mark.parametrize("lowercase", [True, False])
def test_letters_without_case_fit_both_casings(lowercase):
    check_case([*SPECIAL_TOKENS, "中", "กา", "##ر"], "vocab.txt", TextRules.of(lowercase, False))


def test_entries_that_are_no_words_have_no_case():
    """Chinese BERT's vocabulary has `<S>` and `<T>`, and no other capital."""
    pieces = [*SPECIAL_TOKENS, "[unused1]", "<S>", "<T>", "中", "a", "<", "##>"]
    check_case(pieces, "vocab.txt", TextRules.of(True))
    with pytest.raises(MismatchError, match="has no entry with an upper-case letter"):
        check_case(pieces, "vocab.txt", TextRules.of(False))
    with pytest.raises(MismatchError, match="has entries with upper-case letters"):
        check_case([*pieces, "B"], "vocab.txt", TextRules.of(True))


def test_a_byte_order_mark_is_no_part_of_the_first_entry(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in SPECIAL_TOKENS), "utf-8-sig")
    assert load_vocabulary(tmp_path / "vocab.txt") == list(SPECIAL_TOKENS)


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_vocabulary_is_of_the_text_and_nothing_else(texts, lowercase, tmp_path):
    path = str(tmp_path / "vocab.txt")
    size = write_vocabulary(texts, path, vocabulary_size=120, lowercase=lowercase)
    vocabulary = load_vocabulary(path)
    assert len(vocabulary) == size <= 120
    assert vocabulary[:5] == list(SPECIAL_TOKENS)
    entries = "".join(piece.removeprefix("##") for piece in vocabulary[5:])
    assert not set(entries) & set('XYZQJ0123456789<>{}"=/?')
    assert ("é" in entries) != lowercase
    assert any(letter.isupper() for letter in entries) != lowercase
    tokenizer = BertWordPieceTokenizer(path, lowercase=lowercase)
    ids = tokenizer.encode(SENTENCES, add_special_tokens=False).ids
    assert vocabulary.index("[UNK]") not in ids
    words = len(re.findall(r"\w+|[^\w\s]", SENTENCES))
    assert words <= len(ids) < 2 * words


def test_the_same_text_gives_the_same_file(texts, tmp_path):
    paths = [tmp_path / "1.txt", tmp_path / "2.txt"]
    for path in paths:
        write_vocabulary(texts, str(path), vocabulary_size=90)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_words_of_known_letters_have_pieces_and_rare_letters_have_not(tmp_path):
    (tmp_path / "text").write_text("ab bc ca ab bc ca. z. 漢字 " * 5 + "q")
    path = str(tmp_path / "vocab.txt")
    write_vocabulary(str(tmp_path / "text"), path, vocabulary_size=100)
    tokenizer = BertWordPieceTokenizer(path, lowercase=False)
    assert "[UNK]" not in tokenizer.encode("zzab cqz 漢.字").tokens
    size = write_vocabulary(str(tmp_path / "text"), path, vocabulary_size=17, overwrite=True)
    vocabulary = load_vocabulary(path)
    assert len(vocabulary) == size <= 17
    assert {"a", "b", "c", "##a", "##b", "##c"} <= set(vocabulary)
    assert "q" not in vocabulary
    assert not {"##漢", "##."} & set(vocabulary)


def test_all_ideographs_of_a_text_have_entries_without_twins(tmp_path, capsys):
    """Chinese text has thousands of letters, each of them a word."""
    ideographs = [chr(0x4E00 + number) for number in range(1900)]
    (tmp_path / "text").write_text("".join(ideographs * 2))
    path = str(tmp_path / "vocab.txt")
    write_vocabulary(str(tmp_path / "text"), path, vocabulary_size=8000)
    assert load_vocabulary(path) == [*SPECIAL_TOKENS, *ideographs]
    assert "no entry" not in capsys.readouterr().out


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 1000), min_size=250, max_size=400),
    coverage=st.floats(0, 1),
    vocabulary_size=st.integers(100, 1000),
)
def test_the_fewest_letters_that_cover_the_share_have_entries(counts, coverage, vocabulary_size):
    ideographs = [chr(0x4E00 + number) for number in range(len(counts))]
    texts = [letter * count for letter, count in zip(ideographs, counts, strict=True)]
    text_rules = TextRules.of(False)
    alphabet = find_alphabet(texts, text_rules, vocabulary_size, coverage)
    ordered = sorted(counts, reverse=True)
    needed = next(n for n in range(len(counts) + 1) if sum(ordered[:n]) >= coverage * sum(counts))
    most = min(len(counts), vocabulary_size - len(SPECIAL_TOKENS))
    assert len(alphabet.letters) == min(max(needed, 200), most)
    kept = [counts[ideographs.index(letter)] for letter in alphabet.letters]
    assert sorted(kept, reverse=True) == ordered[: len(kept)]
    assert {*alphabet.letters, *alphabet.missing} == set(ideographs)
    assert alphabet.missing_share == pytest.approx(1 - sum(kept) / sum(counts))


def test_letters_without_an_entry_are_told(tmp_path, capsys):
    ideographs = [chr(0x4E00 + number) for number in range(230)]
    (tmp_path / "text").write_text("".join(ideographs[:200] * 99) + "".join(ideographs[200:]))
    output = str(tmp_path / "vocab.txt")
    pattern = str(tmp_path / "text")
    write_vocabulary(pattern, output, vocabulary_size=500, letter_coverage=0.9)
    share = f"30 rare letters, {30 / (200 * 99 + 30):.3%} of the text, have no entry"
    printed = capsys.readouterr().out
    assert share in printed
    assert f"{' '.join(ideographs[200:220])} … (a larger --letter-coverage adds letters" in printed
    write_vocabulary(pattern, output, vocabulary_size=100, letter_coverage=0.9, overwrite=True)
    printed = capsys.readouterr().out
    assert "135 rare letters" in printed
    assert "a larger --vocabulary-size adds letters" in printed


def test_text_with_few_words_gives_fewer_entries(tmp_path, capsys):
    (tmp_path / "text").write_text("aa aa ab ab. " * 9)
    output = tmp_path / "new" / "vocab.txt"
    size = write_vocabulary(str(tmp_path / "text"), str(output), vocabulary_size=1000)
    assert size == len(load_vocabulary(output)) < 20
    printed = capsys.readouterr().out
    assert f"{output}: {size} entries" in printed
    assert "fewer than the 1,000 that were asked for" in printed


def test_an_output_that_cannot_be_written_is_named(texts, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInputError, match=r"vocab\.txt: cannot be written"):
        write_vocabulary(texts, str(tmp_path / "file" / "vocab.txt"), vocabulary_size=90)


def test_progress_is_told_by_bytes_of_both_readings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(spanbert_tf.terminal, "_SECONDS_BETWEEN_LINES", 0)
    generator, paths = random.Random(0), [str(tmp_path / f"{name}.txt") for name in "ab"]
    for path, num_words in zip(paths, (100_000, 300_000), strict=True):
        words = generator.choices(("some", "words", "of", "text"), k=num_words)
        with open(path, "w") as file:
            file.write("\n\n".join(" ".join(words[n : n + 50]) for n in range(0, num_words, 50)))
    write_vocabulary(paths, str(tmp_path / "vocab.txt"), vocabulary_size=100)
    lines = capsys.readouterr().err.splitlines()
    megabytes = sum(map(os.path.getsize, paths)) / 1e6
    for doing in ("counting letters", "counting words"):
        pattern = rf"{doing}: (\d+) of {megabytes:.0f} MB, (\d+) %, \d:\d\d:\d\d left"
        found = [re.fullmatch(pattern, line) for line in lines if line.startswith(doing)]
        shares = [int(match[2]) for match in found]
        assert shares == sorted(shares)
        assert round(100 * os.path.getsize(paths[0]) / 1e6 / megabytes) in shares


@pytest.mark.parametrize("strip_accents", [True, False], ids=["stripped", "kept"])
def test_every_entry_is_a_piece_of_its_text(strip_accents, tmp_path):
    """Records fold more letters than Hugging Face's normalizer: ß, final sigma, ligatures, …"""
    text = "Straße straße \u03bb\u03cc\u03b3\u03bf\u03c2 \ufb01ne \ufb01ne x\u00b2 x\u00b2 \u0130I "
    (tmp_path / "text").write_text(text * 3 + "\n\n" + "Caf\u00e9 e\u0301t\u00e9 \u00bd\u2026 " * 3)
    path = tmp_path / "vocab.txt"
    write_vocabulary(
        str(tmp_path / "text"),
        str(path),
        vocabulary_size=300,
        lowercase=True,
        strip_accents=strip_accents,
    )
    entries = load_vocabulary(path)[len(SPECIAL_TOKENS) :]
    tokenizer = SpanBertTokenizer(
        [*SPECIAL_TOKENS, *entries, "7"], lowercase=True, strip_accents=strip_accents
    )
    for entry in entries:
        # "7" is no letter of the text, so the entry is all of the word that follows it.
        expected = ["7", entry] if entry.startswith("##") else [entry]
        word = "".join(piece.removeprefix("##") for piece in expected)
        assert [tokenizer.id_to_token(index) for index in tokenizer.tokenize(word)] == expected
    assert ("ß" in entries) != strip_accents
