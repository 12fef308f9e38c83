"""Why words of a text are [UNK]: their length, their normal form, or their letters."""

import unicodedata

import pytest

from data_prep.beam.writing import write_pretraining_records
from data_prep.text.unknown_words import find_unknown_words
from data_prep.text.vocabulary import Sample, write_vocabulary
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules, load_vocabulary

FRENCH = "L'été, les élèves préfèrent la forêt. Là, ça sent bon. "
THAI = "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยที่นี่มีคนอยู่มาก "
CASED = TextRules.of(False)


@pytest.fixture
def written(tmp_path, capsys):
    """Writes a vocabulary and records, each of a text; returns the vocabulary and both outputs."""

    def write(text, text_of_records, **options):
        (tmp_path / "text").write_text(text, encoding="utf-8")
        vocabulary = tmp_path / "vocab.txt"
        write_vocabulary(str(tmp_path / "text"), str(vocabulary), vocabulary_size=300)
        printed = capsys.readouterr().out
        (tmp_path / "other").write_text(text_of_records, encoding="utf-8")
        write_pretraining_records(
            tmp_path / "other",
            vocabulary=vocabulary,
            output=tmp_path / "records",
            sequence_length=16,
            validation_fraction=0,
            **options,
        )
        return load_vocabulary(vocabulary), printed, capsys.readouterr().out

    return write


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_another_normal_form_is_told_with_what_to_do(form, other, written):
    text = unicodedata.normalize(form, FRENCH * 20)
    of_records = unicodedata.normalize(other, FRENCH * 20)
    vocabulary, _, printed = written(text, of_records)
    if form == "NFC":
        # été, élèves, préfèrent, forêt, Là, ça: 6 of 16 words and marks
        found = find_unknown_words([of_records], vocabulary, CASED)
        assert found.reasons == {"decomposed": 6 * 20}
        assert f"{found.share:.1%} of the pieces are [UNK]" in printed
    assert f"unicodedata.normalize('{form}', text)" in printed
    assert "lacks letters" not in printed
    assert not find_unknown_words([text], vocabulary, CASED).reasons


def test_stripped_accents_have_no_normal_form(tmp_path):
    decomposed = unicodedata.normalize("NFD", FRENCH)
    letters = sorted(set("leteseleveprentlaforcbn',.s"))
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    assert not find_unknown_words([decomposed, FRENCH], vocabulary, TextRules.of(True)).reasons


def test_phrases_without_spaces_need_their_language(written):
    _, of_vocabulary, printed = written(THAI * 20, THAI * 20)
    for output in (of_vocabulary, printed):
        assert "100.0% of the pieces are [UNK]: they are phrases without spaces" in output
        assert "th, yue, zh" in output
        assert "lacks letters" not in output


def test_with_their_language_phrases_are_known(written):
    _, of_vocabulary, printed = written(THAI * 20, THAI * 20, language="th")
    assert "100.00% of the pieces of the text are [UNK]" in of_vocabulary
    assert "[UNK]" not in printed


def test_each_unknown_word_has_one_reason():
    text = f"aa ab {'ab' * 51} c {THAI}"
    letters = sorted({*"ab", *THAI.strip()})
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    found = find_unknown_words([text, "c."], vocabulary, CASED)
    assert found.reasons == {"long": 1, "letters": 3, "phrase": 1}
    assert found.num_pieces == 2 + 2 + 5
    assert found.share == 5 / 9
    assert [line.split(":")[0] for line in found.advice(0.5)] == [
        "10.0% of the pieces are [UNK]",
        "10.0% of the pieces are [UNK]",
        "30.0% of the pieces are [UNK]",
    ]


@pytest.mark.parametrize("num_texts", [1, 7, 100])
def test_a_sample_is_of_all_of_a_text(num_texts):
    sample = Sample(100)
    texts = [f"{number:010}" for number in range(num_texts)]
    assert list(sample.of(texts)) == texts
    assert sum(map(len, sample.texts)) <= 100
    step = int(sample.texts[1]) if num_texts > 1 else 1
    assert sample.texts == texts[::step]
    assert len(sample.texts) > min(num_texts, 10) / 2
    assert sample.name == ("the text" if step == 1 else f"1 in {step} paragraphs")
