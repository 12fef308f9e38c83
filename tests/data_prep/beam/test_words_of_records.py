"""Records with words: where they begin, and that other records are what they were."""

import itertools
import json

import pytest
import written_records
from icu4py.breakers import WordBreaker

from data_prep.beam.writing import write_pretraining_records
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.pretraining.job import save_run_preset
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, load_vocabulary

SENTENCES = [
    "我们在北京大学学习自然语言处理。",
    "天气很好大家都去公园散步。",
    "中华人民共和国成立于1949年。",
    "他说明天再来吧。",
]
CHINESE = "\n=\n".join("".join(SENTENCES[n:] + SENTENCES[:n]) for n in range(4)) + "\n"
THAI = "เป็นผู้นำในเอเชีย"  # ICU: เป็น ผู้นำ ใน เอเชีย
THAI_PIECES = ["เป็", "##นผู้", "##นำ", "##ใน", "##เอเชีย"]  # the second lies across a border


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    letters = sorted(set("".join(SENTENCES)) - set("1949"))
    path.write_text("\n".join([*SPECIAL_TOKENS, "1949", *letters, *THAI_PIECES, "a", "##b", "B"]))
    return path


def write(text, vocabulary, tmp_path, name="records", **options):
    source = tmp_path / "text.txt"
    source.write_text(text)
    options = {"validation_fraction": 0, "sequence_length": 64, **options}
    options["document_separator"] = "="
    output = tmp_path / name
    return output, write_pretraining_records(
        source, vocabulary=vocabulary, output=output, **options
    )


def words_of(record, pieces):
    """The words of a record; a word that a block divides gives one in each."""
    ids, starts = record["token_ids"], record["word_starts"]
    borders = sorted({0, *starts, record.get("second_segment_start", 0)})
    assert starts == sorted(set(starts)) and all(start < len(ids) for start in starts)
    return [
        "".join(pieces[token].removeprefix("##") for token in ids[start:end])
        for start, end in itertools.pairwise([*borders, len(ids)])
    ]


@pytest.mark.parametrize("sequences", ["single", "pair"])
def test_words_of_chinese_are_icus(sequences, vocabulary, tmp_path):
    output, manifest = write(CHINESE, vocabulary, tmp_path, language="zh", sequences=sequences)
    pieces = vocabulary.read_text().split("\n")
    expected = {word for sentence in SENTENCES for word in WordBreaker(sentence, "zh")}
    records = written_records.read_records(output, manifest)
    found = [word for record in records for word in words_of(record, pieces)]
    assert set(found) == expected  # no block of this length divides a sentence
    assert "语言" in found and "1949" in found
    if sequences == "single":
        assert manifest.counts["words"] == len(found)
        assert sorted(found) == sorted([*WordBreaker(CHINESE.replace("\n=\n", "").strip(), "zh")])


def test_a_sentence_that_is_divided_keeps_its_words(vocabulary, tmp_path):
    output, manifest = write(CHINESE, vocabulary, tmp_path, language="zh", sequence_length=9)
    assert manifest.counts["split_sentences"]
    records = written_records.read_records(output, manifest)
    pieces = vocabulary.read_text().split("\n")
    words = {word for sentence in SENTENCES for word in WordBreaker(sentence, "zh")}
    for record in records:
        found = words_of(record, pieces)
        assert set(found[1:-1]) <= words
        assert any(word.endswith(found[0]) for word in words)
        assert any(word.startswith(found[-1]) for word in words)
    assert sum(len(words_of(record, pieces)) for record in records) > manifest.counts["words"]


def test_a_piece_across_a_border_joins_its_words(vocabulary, tmp_path):
    output, manifest = write(THAI, vocabulary, tmp_path, language="th")
    (record,) = written_records.read_records(output, manifest)
    pieces = vocabulary.read_text().split("\n")
    assert [pieces[token] for token in record["token_ids"]] == THAI_PIECES
    assert words_of(record, pieces) == ["เป็นผู้นำ", "ใน", "เอเชีย"]
    other, manifest = write(
        THAI, vocabulary, tmp_path, "o", language="th", word_segmentation="none"
    )
    (record,) = written_records.read_records(other, manifest)
    assert "word_starts" not in record


def test_the_manifest_and_the_first_line_tell_how_words_are_found(vocabulary, tmp_path, capsys):
    text = "我们 在 北京大学\n"
    output, _ = write(text, vocabulary, tmp_path, language="zh")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith(
        "words are found by ICU's dictionaries and rules, language zh (--word-segmentation icu)"
    )
    described = json.loads((output / "dataset_info.json").read_text())
    assert described["word_segmentation"] == "icu"
    assert "icu4py" in described["made_from"]["versions"]
    given, manifest = write(
        text, vocabulary, tmp_path, "given", language="zh", word_segmentation="spaces"
    )
    (record,) = written_records.read_records(given, manifest)
    assert words_of(record, vocabulary.read_text().split("\n")) == ["我们", "在", "北京大学"]
    assert PretrainingManifest.load(given).word_segmentation == "spaces"


def test_a_preset_tells_how_words_are_found(tmp_path):
    preset = tmp_path / "preset"
    tokenizer = SpanBertTokenizer(
        [*SPECIAL_TOKENS, "我", "们", "在"], language="zh", word_segmentation="spaces"
    )
    tokenizer.save_to_preset(str(preset))
    (preset / "config.json").write_text('{"class_name": "SpanBertBackbone", "config": {}}')
    (tmp_path / "text.txt").write_text("我们 在我们\n")
    for given, expected in ((None, "spaces"), ("icu", "icu")):
        output = tmp_path / expected
        manifest = write_pretraining_records(
            tmp_path / "text.txt",
            preset=preset,
            output=output,
            sequence_length=32,
            validation_fraction=0,
            word_segmentation=given,
        )
        assert manifest.word_segmentation == expected
        assert manifest.counts["words"] == {"spaces": 2, "icu": 3}[expected]

    saved = json.loads((preset / "tokenizer.json").read_text())
    saved["config"]["word_segmentation"] = "mecab"
    (preset / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(BadInputError, match=r"tokenizer.json: config.word_segmentation: .*'none'"):
        write_pretraining_records(tmp_path / "text.txt", preset=preset, output=tmp_path / "no")


def test_a_preset_names_the_model_of_spacy_that_finds_words(vocabulary, tmp_path):
    spacy = pytest.importorskip("spacy")
    models = {name: str(tmp_path / name) for name in ("first", "second")}
    for model in models.values():
        spacy.blank("zh").to_disk(model)
    output, manifest = write(
        CHINESE,
        vocabulary,
        tmp_path,
        language="zh",
        word_segmentation="spacy",
        spacy_model=models["first"],
    )
    preset = str(tmp_path / "preset")
    backbone = SpanBertBackbone(
        len(load_vocabulary(vocabulary)), 1, 1, 4, 4, max_sequence_length=64
    )
    model = SpanBertPretrainer(backbone, max_span_targets=3, span_position_dim=4)
    save_run_preset(model, str(output), str(tmp_path), manifest, {})
    for given, expected in ((None, "first"), ("second", "second")):
        again = write_pretraining_records(
            tmp_path / "text.txt",
            preset=preset,
            output=tmp_path / f"records_{expected}",
            document_separator="=",
            sequence_length=64,
            validation_fraction=0,
            spacy_model=given and models[given],
        )
        assert again.made_from.spacy_model == models[expected]
        assert again.counts["words"] == manifest.counts["words"]


def test_records_of_languages_with_spaces_say_nothing_of_words(vocabulary, tmp_path, capsys):
    output, manifest = write("ab a ab.\n", vocabulary, tmp_path)
    assert "words" not in capsys.readouterr().out
    (record,) = written_records.read_records(output, manifest)
    assert "word_starts" not in record and "words" not in manifest.counts
    text = (output / "dataset_info.json").read_text()
    assert "word_segmentation" not in text and "icu4py" not in text
    assert PretrainingManifest.load(output) == manifest
