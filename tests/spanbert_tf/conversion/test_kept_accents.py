"""German uncased models: text is lower-cased, its accents stay (`strip_accents: false`)."""

import json

import pytest
import transformers
from torch_models import save_torch_model, torch_model

from spanbert_tf.conversion.configuration import find_casing
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["über", "straße", "groß", "##ße", "grün", "##grün", "die", "der", "schön", "##er", "."]
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß"
VOCABULARY = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXTS = ["ÜBER die Straße.", "Größe: schöner, GRÜNGRÜN", "Ärger in Übergröße der Äpfel."]


def stated_in_the_configuration(directory, strip_accents):
    content = {"do_lower_case": True, "strip_accents": strip_accents}
    (directory / "tokenizer_config.json").write_text(json.dumps(content))


def stated_in_the_tokenizer(directory, strip_accents):
    """As `tokenizers` writes it; `tokenizer_config.json` says nothing."""
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(
        vocab=ids, do_lower_case=True, strip_accents=strip_accents
    )
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkpoint that does not state what is done to text."""
    model = torch_model(transformers.BertForMaskedLM, vocab_size=len(VOCABULARY))
    return save_torch_model(model, tmp_path_factory.mktemp("source"), VOCABULARY, lowercase=None)


def their_ids(texts, **options):
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, **options)
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def clear(source):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink(missing_ok=True)


@pytest.mark.parametrize("state", [stated_in_the_configuration, stated_in_the_tokenizer])
@pytest.mark.parametrize("strip_accents", [False, True, None])
@pytest.mark.quick_cases(1)
def test_tokens_are_those_of_the_source_and_of_what_is_written_back(
    state, strip_accents, source, tmp_path
):
    clear(source)
    state(source, strip_accents)
    expected = their_ids(TEXTS, do_lower_case=True, strip_accents=strip_accents)
    preset, back = str(tmp_path / "preset"), str(tmp_path / "back")
    convert_checkpoint("huggingface", "keras", str(source), preset)
    tokenizer = SpanBertTokenizer.from_preset(preset)
    if strip_accents is False:  # elsewhere `ß` is two letters here
        assert tokenizer(TEXTS) == expected
    assert tokenizer.strip_accents == (strip_accents is not False)
    convert_checkpoint("keras", "huggingface", preset, back)
    loaded = transformers.AutoTokenizer.from_pretrained(back)
    assert loaded(TEXTS, add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize("strip_accents", [False, True])
def test_the_configuration_goes_before_the_tokenizer(strip_accents, source):
    """As in `transformers`, which makes the tokenizer of what `tokenizer_config.json` says."""
    clear(source)
    stated_in_the_tokenizer(source, not strip_accents)
    stated_in_the_configuration(source, strip_accents)
    assert find_casing(str(source), "x", None) == (True, strip_accents, "en")


def test_keras_hubs_own_bert_keeps_them_as_well(source, tmp_path):
    clear(source)
    stated_in_the_configuration(source, False)
    stock, preset = str(tmp_path / "stock"), str(tmp_path / "preset")
    convert_checkpoint("huggingface", "keras_bert", str(source), stock)
    convert_checkpoint("keras", "keras", stock, preset)
    expected = their_ids(TEXTS, do_lower_case=True, strip_accents=False)
    assert SpanBertTokenizer.from_preset(preset)(TEXTS) == expected


def test_the_user_says_it_where_the_source_does_not(source, tmp_path):
    clear(source)
    preset = str(tmp_path / "preset")
    options = {"lowercase": True, "strip_accents": False}
    convert_checkpoint("huggingface", "keras", str(source), preset, **options)
    assert SpanBertTokenizer.from_preset(preset).text_rules == (True, False, "en")
    stated_in_the_configuration(source, True)
    with pytest.raises(MismatchError, match="states that accents are stripped, not --keep-accents"):
        convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "no"), **options)


def test_accents_stripped_from_cased_text_are_refused(source, tmp_path):
    clear(source)
    content = {"do_lower_case": False, "strip_accents": True}
    (source / "tokenizer_config.json").write_text(json.dumps(content))
    with pytest.raises(MismatchError, match=r"accents are stripped and text is cased") as raised:
        convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "no"))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "no").exists()
