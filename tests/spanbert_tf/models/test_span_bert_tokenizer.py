"""Ids against HuggingFace's tokenizer: equal on real text, different only where documented."""

import gzip
import itertools
import unicodedata

import hypothesis
import keras_hub
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertTextClassifierPreprocessor, SpanBertTokenizer
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules

LETTERS = (
    "abcdefgxyzABXéßñ\u03bc\u03c3\u03c2\u0391\u03a3жЖ中文日\uff21\uff22ﬁ²½İ0123.,!?[]#'`~—\u0301"
)
PIECES = ["hello", "world", "##ly", "un", "##able", "straße", "MASK", "##MASK"]
CASED = [*SPECIAL_TOKENS, *PIECES, *LETTERS, *("##" + letter for letter in LETTERS)]
HYPOTHESIS = hypothesis.settings(max_examples=150)


def lowered(vocabulary, strip_accents=True):
    """A vocabulary for lower-cased text, made of a cased one."""
    fold = folded if strip_accents else str.lower
    pieces = (piece if piece in SPECIAL_TOKENS else fold(piece) for piece in vocabulary)
    return [piece for piece in dict.fromkeys(pieces) if piece not in ("", "##")]


def folded(text):
    return without_accents(text.lower())


def without_accents(text):
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")


def is_read_alike(letter, is_folded):
    """Whether a character is in none of the classes that the tokenizer's docstring names."""
    if letter in "\t\n\r":
        return True
    category = unicodedata.category(letter)
    is_invisible = category.startswith("C") or letter in "\ufffd\u115f\u1160"  # Hangul fillers
    # Whether both libraries' Unicode versions know the character, and as the same.
    is_old = unicodedata.ucd_3_2_0.category(letter) == category
    if is_invisible or not is_old:
        return False
    compatible = without_accents(unicodedata.normalize("NFKC", letter).casefold())
    return not is_folded or compatible == folded(letter)


class Pair:
    """Our tokenizer and HuggingFace's, of one vocabulary."""

    def __init__(self, vocabulary, lowercase, strip_accents=None):
        self.vocabulary = vocabulary
        self.is_folded = lowercase and strip_accents is not False
        self.ours = SpanBertTokenizer(vocabulary, lowercase, strip_accents)
        text_spec = tf.TensorSpec([None], tf.string)
        self.in_graph = tf.function(self.ours, input_signature=[text_spec])
        self.prepare = WordPieceTokenizer(vocabulary, TextRules.of(lowercase, strip_accents))
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        self.theirs = BertTokenizerFast(
            vocab=ids, do_lower_case=lowercase, strip_accents=strip_accents
        )

    def their_ids(self, texts):
        return self.theirs(texts, add_special_tokens=False)["input_ids"]

    def pieces(self, text):
        ids = self.ours([text])[0], self.their_ids([text])[0]
        return tuple(" ".join(self.vocabulary[number] for number in row) for row in ids)


@pytest.fixture(scope="module", params=["cased", "lowercase", "accents kept"])
def pair(request):
    if request.param == "cased":
        return Pair(CASED, lowercase=False)
    if request.param == "lowercase":
        return Pair(lowered(CASED), lowercase=True)
    return Pair(lowered(CASED, strip_accents=False), lowercase=True, strip_accents=False)


@pytest.fixture(scope="module")
def plain():
    return SpanBertTokenizer(CASED)


@pytest.fixture(scope="module")
def reading():
    return SpanBertTokenizer(CASED, special_tokens_in_strings=True)


def real_lines(directory, number):
    """As many lines of novels as of articles."""
    lines = []
    for pattern in ("novels/*.txt.gz", "wikipedia/AA/*.gz"):
        texts = (gzip.decompress(path.read_bytes()) for path in sorted(directory.glob(pattern)))
        found = (line for text in texts for line in text.decode("utf-8").split("\n"))
        lines += itertools.islice((line for line in found if line.strip()), number // 2)
    return lines


@pytest.mark.parametrize("lowercase", [False, True])
def test_real_lines_have_the_ids_of_huggingface(shared_data, lowercase):
    vocabulary = (shared_data / "vocab" / "bert-base-cased-vocab.txt").read_text("utf-8").split()
    pair = Pair(lowered(vocabulary) if lowercase else vocabulary, lowercase)
    lines = real_lines(shared_data / "text", 10_000)
    assert len(lines) == 10_000
    differing = {
        line
        for line, ours, theirs in zip(lines, pair.ours(lines), pair.their_ids(lines), strict=True)
        if ours != theirs
    }
    unexplained = [
        line for line in differing if all(is_read_alike(letter, lowercase) for letter in line)
    ]
    assert not unexplained
    assert len(differing) <= (40 if lowercase else 0)


@HYPOTHESIS
@hypothesis.given(data=st.data())
def test_made_up_strings_have_the_ids_of_huggingface(pair, data):
    letters = st.characters(exclude_categories=["C"]) | st.sampled_from(LETTERS + " \t\n")
    letters = letters.filter(lambda letter: is_read_alike(letter, pair.is_folded))
    words = st.sampled_from(["hello", "unable", "Hello", "##ly", "##", "a" * 99, "b" * 101])
    text = "".join(data.draw(st.lists(letters | words | st.just(" "), max_size=30)))
    # The longest word is measured in bytes here, in characters there.
    hypothesis.assume(
        all(word.isascii() or len(word.encode("utf-8")) <= 100 for word in text.split())
    )
    ours, theirs = pair.pieces(text)
    assert ours == theirs


@pytest.mark.quick_cases(1)
def test_all_plain_characters_have_the_ids_of_huggingface(pair):
    letters = [chr(code) for code in range(1, 0x20000) if not 0xD800 <= code < 0xE000]
    letters = [letter for letter in letters if is_read_alike(letter, pair.is_folded)]
    assert len(letters) > 30_000
    texts = [f"a{letter}b" for letter in letters]
    for letter, ours, theirs in zip(letters, pair.ours(texts), pair.their_ids(texts), strict=True):
        assert ours == theirs, f"U+{ord(letter):04X}"


@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("a\u200bb", "a b", "a ##b"),  # zero-width space
        ("a\u00adb", "a b", "a ##b"),  # soft hyphen
        ("a\x00b", "a b", "a ##b"),
        ("a\x07b", "a b", "a ##b"),
        ("a\ue000b", "[UNK]", "a ##b"),  # private use
        ("a\ufffdb", "[UNK]", "a ##b"),
        ("a\U0002b820b", "a [UNK] b", "[UNK]"),  # an ideograph by BERT's own table
        ("a\u2e5db", "a [UNK] b", "[UNK]"),  # a hyphen since Unicode 14
        ("é" * 51, "[UNK]", "é" + " ##é" * 50),  # 102 bytes
        ("[MASK]", "[ MASK ]", "[MASK]"),
    ],
)
def test_documented_differences_of_cased_text(text, ours, theirs):
    assert Pair(CASED, lowercase=False).pieces(text) == (ours, theirs)


@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("a\u200bb", "a ##b", "a ##b"),  # ignorable: vanishes in both
        ("a\u0600b", "a b", "a ##b"),  # a format character that is not ignorable
        ("a\x07b", "a b", "a ##b"),
        ("aßb", "a ##s ##s ##b", "a ##ß ##b"),
        ("ﬁ", "f ##i", "ﬁ"),
        ("²", "2", "²"),
        ("a\u03c2", "a ##\u03c3", "a ##\u03c2"),  # the final sigma
        ("\uff21", "a", "\uff41"),  # a full-width letter
    ],
)
def test_documented_differences_of_lower_cased_text(text, ours, theirs):
    vocabulary = list(dict.fromkeys([*lowered(CASED), "s", "##s"]))
    assert Pair(vocabulary, lowercase=True).pieces(text) == (ours, theirs)


GERMAN = [
    "Ödön von Horváth schrieb „Geschichten aus dem Wiener Wald“.",
    "Die Straße nach ÄHRENFELD führt über Grünstraße 12 zum Café Größenwahn.",
    "ÜBERGRÖSSE, MASSE und Maße; A\u0308pfel mit zerlegtem Umlaut, İSTANBUL, ΟΔΟΣ.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich — 100 €.",
]


def test_german_with_its_accents_has_the_tokens_of_huggingface():
    letters = sorted(set("".join(GERMAN).lower()) - {" "})
    pieces = ["straße", "über", "##straße", "größe", "##nwahn", "grün", "maße", "ödön", "zwölf"]
    vocabulary = [*SPECIAL_TOKENS, *pieces, *letters, *(f"##{letter}" for letter in letters)]
    kept = Pair(vocabulary, lowercase=True, strip_accents=False)
    for text in GERMAN:
        ours, theirs = kept.pieces(text)
        assert ours == theirs
        assert "[UNK]" not in ours
    stripped = Pair(vocabulary, lowercase=True).pieces(GERMAN[1])[0]
    assert kept.pieces(GERMAN[1])[0].startswith("d ##i ##e straße n")
    assert not stripped.startswith("d ##i ##e straße n")
    again = SpanBertTokenizer.from_config(kept.ours.get_config() | {"vocabulary": vocabulary})
    assert again(GERMAN) == kept.ours(GERMAN)
    older = kept.ours.get_config() | {"vocabulary": vocabulary}
    # Presets that were written before say nothing of accents and languages.
    assert (older.pop("strip_accents"), older.pop("language")) == (False, "en")
    assert SpanBertTokenizer.from_config(older).strip_accents
    assert SpanBertTokenizer.from_config(older).text_rules.language == "en"


@pytest.fixture(scope="module")
def german():
    vocabulary = lowered([*CASED, *"äöü", "##ä", "##ö", "##ü"], strip_accents=False)
    return Pair(vocabulary, lowercase=True, strip_accents=False)


@HYPOTHESIS
@hypothesis.given(text=st.text(LETTERS + "ÄÖÜäöüİΣ \U0001d400\U00010400", max_size=30))
def test_offsets_of_kept_accents_are_those_of_huggingface(german, text):
    expected = german.theirs(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, starts, ends = german.prepare.tokenize_with_offsets([text.encode()])
    assert ids[0].numpy().tolist() == expected["input_ids"]
    before = [len(text[:number].encode()) for number in range(len(text) + 1)]
    found = [
        (before.index(start), before.index(end))
        for start, end in zip(starts[0].numpy(), ends[0].numpy(), strict=True)
    ]
    assert found == expected["offset_mapping"]


@HYPOTHESIS
@hypothesis.given(texts=st.lists(st.text(max_size=20), max_size=4))
def test_ids_are_those_of_preparation_eagerly_and_in_a_graph(pair, texts):
    texts = tf.constant([text.encode("utf-8", "surrogatepass") for text in texts], tf.string)
    prepared = pair.prepare.tokenize(texts)
    assert pair.ours(texts) == prepared.to_list()
    assert pair.in_graph(texts).to_list() == prepared.to_list()


@HYPOTHESIS
@hypothesis.given(
    parts=st.lists(
        st.sampled_from([*SPECIAL_TOKENS, "[mask]", "[MASK", "\x00", " "]) | st.text(max_size=4)
    )
)
def test_special_tokens_in_strings_stand_for_themselves(plain, reading, parts):
    # Cut at special tokens in plain Python, in one pass from the left.
    expected, rest = [], "".join(parts)
    while rest:
        found = [(rest.find(token), token) for token in SPECIAL_TOKENS if token in rest]
        start, token = min(found, default=(len(rest), ""))
        expected += plain(rest[:start]).numpy().tolist()
        expected += [CASED.index(token)] if token else []
        rest = rest[start + len(token) :]
    assert reading(["", "".join(parts)]) == [[], expected]


def test_shape_of_the_ids_follows_that_of_the_texts(plain):
    assert plain("hello world").numpy().tolist() == [CASED.index("hello"), CASED.index("world")]
    texts = [["hello", "a b"], ["", "world"]]
    assert plain(texts) == [[plain([text])[0] for text in row] for row in texts]
    vocabulary = [*CASED[1:], "[PAD]"]  # [PAD] is not 0
    fixed = SpanBertTokenizer(vocabulary, sequence_length=3)(["hello", "a b c d"])
    expected = [["hello", "[PAD]", "[PAD]"], ["a", "b", "c"]]
    assert [[vocabulary[i] for i in row] for row in fixed.numpy()] == expected


def test_detokenize_joins_the_pieces_of_words(plain):
    assert plain.detokenize(plain("unable worldly, a!")) == "unable worldly , a !"


def test_detokenize_for_the_first_time_in_a_graph():
    tokenizer = SpanBertTokenizer([*CASED, "onlyhere"])
    ids = tokenizer(["onlyhere hello"])
    texts = tf.data.Dataset.from_tensors(ids).map(tokenizer.detokenize)
    assert next(texts.as_numpy_iterator()).tolist() == [b"onlyhere hello"]
    assert tokenizer.detokenize(ids) == ["onlyhere hello"]


def test_bytes_that_are_not_utf8_do_not_raise(reading):
    unknown, mask = CASED.index("[UNK]"), CASED.index("[MASK]")
    assert reading(tf.constant([b"a\xff[MASK]\xc3"])) == [[unknown, mask, unknown]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entries: [entry for entry in entries if entry != "[MASK]"], "lacks [MASK]"),
        (
            lambda entries: [*entries, "hello"],
            "'hello' stands in line 6 already; put another entry",
        ),
        (lambda entries: [*entries, ""], "empty entry; remove it"),
        (lambda entries: [*entries, "", "x"], "empty entry; put another entry"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused(tmp_path, change, words):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in change(CASED)), "utf-8")
    for vocabulary in (change(CASED), str(path), path):
        with pytest.raises(BadInputError) as caught:
            SpanBertTokenizer(vocabulary)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_how_words_are_found_is_kept_if_it_is_stated():
    assert "word_segmentation" not in SpanBertTokenizer(CASED).get_config()
    config = SpanBertTokenizer(CASED, language="zh", word_segmentation="jieba").get_config()
    assert SpanBertTokenizer.from_config(config).word_segmentation == "jieba"
    with pytest.raises(ValueError, match="word_segmentation='mecab' is not known"):
        SpanBertTokenizer(CASED, word_segmentation="mecab")


def test_options_without_effect_are_refused():
    with pytest.raises(ValueError, match="strip_accents=True needs lowercase=True"):
        SpanBertTokenizer(CASED, strip_accents=True)
    with pytest.raises(ValueError, match="language tlh: is not known; the nearest is th"):
        SpanBertTokenizer(CASED, language="tlh")
    with pytest.raises(ValueError, match="split_on_cjk"):
        SpanBertTokenizer(CASED, split_on_cjk=False)
    with pytest.raises(ValueError, match="int32"):
        SpanBertTokenizer(CASED, dtype="int64")


@pytest.mark.parametrize("options", [{}, {"sequence_length": 5}])
def test_strings_are_the_pieces_as_of_kerashubs_tokenizer(options):
    texts = ["hello unable [MASK] xq", "world."]
    options |= {"special_tokens_in_strings": True, "dtype": "string"}
    ours = SpanBertTokenizer(CASED, **options)
    stock = keras_hub.models.BertTokenizer(CASED, **options)
    again = SpanBertTokenizer.from_config(ours.get_config())
    again.set_vocabulary(CASED)
    for tokenizer in (ours, again):
        assert tokenizer(texts) == stock(texts) and tokenizer(texts[0]) == stock(texts[0])
    data = tf.data.Dataset.from_tensors(texts)
    found, expected = (next(iter(data.map(kind))) for kind in (ours, stock))
    assert tf.reduce_all(found == expected)
    with pytest.raises(ValueError, match="needs a tokenizer of ids"):
        SpanBertTextClassifierPreprocessor(ours, 8)
