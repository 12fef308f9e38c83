"""Named entities in languages whose words no spaces part: records, scores, and answers to texts."""

import json

import keras
import numpy as np
import pytest

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.named_entities.records import SENTENCES_FILE, NamedEntitiesConfig
from spanbert_tf.tasks.named_entities.rows import READERS, write_entities
from spanbert_tf.tasks.named_entities.task import NamedEntities, PieceLabels

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
THAI = ["กรุง", "เทพ", "เป็น", "เมือง", "เชียง", "ใหม่"]
VOCABULARY = [
    *SPECIAL,
    *THAI,
    *(f"##{piece}" for piece in THAI),
    *"王小明在北京用。",
    "Air",
    "##Pods",
]
# Words and tags; the second of each pair is the text as it is written.
SENTENCES = {
    "zh": (
        [
            ("王", "B-PER"),
            ("小", "I-PER"),
            ("明", "I-PER"),
            ("在", "O"),
            ("北京", "B-LOC"),
            ("。", "O"),
        ],
        "王小明在北京。",
    ),
    "zh, other letters": (
        [("王", "B-PER"), ("用", "O"), ("AirPods", "B-PROD"), ("Air", "I-PROD"), ("。", "O")],
        "王用AirPods Air。",
    ),
    "th": (
        [("กรุงเทพ", "B-LOC"), ("เป็น", "O"), ("เมือง", "O"), ("เชียงใหม่", "B-LOC")],
        "กรุงเทพเป็นเมืองเชียงใหม่",
    ),
}
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def records_of(directory, file_format, text, language):
    directory.mkdir(exist_ok=True)
    (directory / "input").write_text(text, encoding="utf-8")
    lines = "".join(f"{piece}\n" for piece in VOCABULARY)
    (directory / "vocab.txt").write_text(lines, encoding="utf-8")
    write_entities(
        READERS[file_format](str(directory / "input")),
        str(directory / "records"),
        vocabulary=str(directory / "vocab.txt"),
        language=language,
        sequence_length=32,
    )
    return open_records(str(directory / "records"))


def columns(*sentences):
    return "\n\n".join("\n".join(f"{word} {tag}" for word, tag in words) for words in sentences)


def labelled_pieces(records):
    """The pieces of each row with their labels, but for [CLS] and [SEP]."""
    rows = {}
    for x, y in task_dataset(records, batch_size=1, training=False).as_numpy_iterator():
        pieces = [VOCABULARY[token] for token in x["token_ids"][0] if token]
        names = [records.manifest.labels[label] if label >= 0 else None for label in y[0]]
        rows[int(x["row_index"][0])] = list(zip(pieces, names, strict=False))[1:-1]
    return [rows[index] for index in range(len(rows))]


@pytest.mark.parametrize("name", SENTENCES)
def test_words_that_data_mark_are_joined_as_the_language_is_written(name, tmp_path):
    words, text = SENTENCES[name]
    records = records_of(tmp_path, "conll", columns(words), name[:2])
    (line,) = records.lines(SENTENCES_FILE)
    assert line["text"] == text
    assert [text[start:end] for start, end in line["words"]] == [word for word, _ in words]
    assert line["labels"] == [tag for _, tag in words]
    assert records.manifest.counts["lost_entities"] == 0


def test_each_piece_has_a_label(tmp_path):
    chinese = records_of(tmp_path / "zh", "conll", columns(SENTENCES["zh"][0]), "zh")
    tags = ["B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"]
    assert labelled_pieces(chinese) == [list(zip("王小明在北京。", tags, strict=True))]
    thai = records_of(tmp_path / "th", "conll", columns(SENTENCES["th"][0]), "th")
    tags = ["B-LOC", "I-LOC", "O", "O", "B-LOC", "I-LOC"]
    pieces = [THAI[0], *(f"##{piece}" for piece in THAI[1:])]
    assert labelled_pieces(thai) == [list(zip(pieces, tags, strict=True))]
    assert chinese.manifest.words == thai.manifest.words == "pieces"


def test_entity_inside_a_phrase_is_lost_only_where_it_cuts_a_piece(tmp_path, capsys):
    text = SENTENCES["th"][1]
    start = text.index("เชียง")
    places = {"whole": (start, len(text)), "cut": (start + 1, len(text))}
    for name, (first, end) in places.items():
        entities = [{"start": first, "end": end, "label": "LOC"}]
        line = json.dumps({"text": text, "entities": entities})
        records = records_of(tmp_path / name, "jsonlines", line, "th")
        counts = records.manifest.counts
        assert counts["lost_entities"] == counts["unscored_entities"] == (name == "cut")
    # Where spaces part words, the phrase is one, and each entity in it is cut.
    english = records_of(tmp_path / "en", "jsonlines", line, "en")
    assert english.manifest.counts["lost_entities"] == 1
    assert english.manifest.words == "tokenizer"


def classifier(language, deviation=5.0):
    """One that predicts labels of all kinds, of which none was trained."""
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=32)
    tokenizer = SpanBertTokenizer(VOCABULARY, language=language)
    preprocessor = SpanBertTokenClassifierPreprocessor(tokenizer, 32)
    model = SpanBertTokenClassifier(backbone, LABELS, preprocessor, aggregation_strategy="simple")
    kernel = model.output_dense.kernel
    kernel.assign(np.random.default_rng(1).normal(0.0, deviation, kernel.shape))
    return model


@pytest.mark.parametrize("language", ["th", "zh"])
@pytest.mark.quick_cases(1)
def test_answers_to_plain_text_are_those_to_records_and_count_characters(language, tmp_path):
    words, text = SENTENCES[language]
    records = records_of(tmp_path, "conll", columns(words, words[::-1]), language)
    task = NamedEntities()
    model = classifier(language)
    built = task.build(
        model.backbone, model.preprocessor.tokenizer, records.manifest, NamedEntitiesConfig()
    )
    assert built.aggregation_strategy == "simple"
    texts = [line["text"] for line in records.lines(SENTENCES_FILE)]
    assert texts[0] == text
    outcome = task.outcome(model, records, task.predict(model, records, batch_size=2))
    answers = task.predictor(model)(texts)
    for expected, found, line in zip(task._entities(outcome), answers, texts, strict=True):
        assert found
        assert [{**entity, "score": pytest.approx(entity["score"])} for entity in expected] == found
        assert all(line[entity["start"] : entity["end"]] == entity["word"] for entity in found)


def test_right_labels_of_pieces_score_all_and_another_border_scores_nothing(tmp_path):
    records = records_of(tmp_path, "conll", columns(SENTENCES["th"][0]), "th")
    task = NamedEntities()
    model = classifier("th")
    right = np.array([1, 2, 0, 0, 1, 2], np.int32)
    ones = np.ones(6, np.float32)
    outcome = task.outcome(model, records, [PieceLabels(right, ones)])
    assert task.score(outcome)["f1"] == 100
    (entities,) = task._entities(outcome)
    assert [(entity["word"], entity["start"]) for entity in entities] == [
        ("กรุงเทพ", 0),
        ("เชียงใหม่", 16),
    ]
    longer = np.array([1, 2, 2, 0, 0, 1], np.int32)
    assert task.score(task.outcome(model, records, [PieceLabels(longer, ones)]))["f1"] == 0
