"""Questions to rows: against HuggingFace's tokenizer, loops in plain Python, and untidy files."""

import gzip
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import transformers

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import checksums
from spanbert_tf.files.text_files import check_json_value
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.question_answering.files import (
    Answer,
    Outcome,
    locate_answer,
    read_mrqa,
    read_squad,
)
from spanbert_tf.tasks.question_answering.records import (
    CONTEXTS_FILE,
    QUESTIONS_FILE,
    QuestionAnsweringManifest,
    QuestionLine,
)
from spanbert_tf.tasks.question_answering.rows import (
    QuestionOptions,
    write_questions,
)

WORDS = ["the", "cat", "dog", "sat", "on", "mat", "who", "where", "?", ".", "in", "18", "##76"]
WORDS += ["zoe", "paid", "##s", "a", "b", "c"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONTEXT = "The cats sat on  the mat. In 1876 Zoë paid."


@pytest.fixture
def vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return str(path)


def squad_file(tmp_path, paragraphs, name="squad.json"):
    """`paragraphs`: context → entries of `qas`."""
    content = [
        {"title": "t", "paragraphs": [{"context": context, "qas": qas}]}
        for context, qas in paragraphs.items()
    ]
    path = tmp_path / name
    path.write_text(json.dumps({"version": "1.1", "data": content}))
    return str(path)


def entry(identifier, question, *answers, **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identifier, "question": question, "answers": answers, **more}


def prepared(tmp_path, vocabulary_file, path, read=read_squad, **options):
    output = str(tmp_path / "output")
    manifest = write_questions(
        read(path),
        output,
        vocabulary=vocabulary_file,
        lowercase=True,
        options=QuestionOptions(**options),
    )
    return manifest, output, rows_of_file(output)


def rows_of_file(directory):
    """The rows in the order of the file, without padding."""
    dataset, rows = task_dataset(directory, batch_size=1, training=False), []
    for x, y in dataset.as_numpy_iterator():
        is_token = x["padding_mask"][0] == 1
        x = {name: value[0][is_token] if value.ndim == 2 else value[0] for name, value in x.items()}
        rows.append((x, {name: value[0] for name, value in y.items()}))
    return sorted(rows, key=lambda row: row[0]["row_index"])


def huggingface_tokenizer():
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    return transformers.BertTokenizerFast(vocab=ids, do_lower_case=True)


@pytest.mark.parametrize("question_first", [False, True])
def test_rows_are_those_of_huggingface(question_first, tmp_path, vocabulary_file):
    path = squad_file(
        tmp_path,
        {
            CONTEXT: [
                entry("1", "Who sat?", ("cats", 4)),
                entry("2", "Who paid?", ("Zoë", 34)),
                entry("3", "Where?", ("the mat", 17)),
            ]
        },
    )
    _, _, rows = prepared(tmp_path, vocabulary_file, path, question_first=question_first)
    tokenizer = huggingface_tokenizer()
    golds = ["cats", "Zoë", "the mat"]
    for (x, y), question, gold in zip(
        rows, ["Who sat?", "Who paid?", "Where?"], golds, strict=True
    ):
        pair = (question, CONTEXT) if question_first else (CONTEXT, question)
        expected = tokenizer(*pair, return_offsets_mapping=True)
        assert x["token_ids"].tolist() == expected["input_ids"]
        assert x["segment_ids"].tolist() == expected["token_type_ids"]
        is_passage = np.array([number == int(question_first) for number in expected.sequence_ids()])
        offsets = np.array(expected["offset_mapping"])
        np.testing.assert_array_equal(x["offset_starts"][is_passage], offsets[is_passage, 0])
        np.testing.assert_array_equal(x["offset_ends"][is_passage], offsets[is_passage, 1])
        assert not x["offset_ends"][~is_passage].any()
        start = x["offset_starts"][y["start_positions"]]
        end = x["offset_ends"][y["end_positions"]]
        assert CONTEXT[start:end] == gold


def test_windows_slide_and_answers_are_labelled_where_they_are(tmp_path, vocabulary_file):
    context = " ".join(["the cat sat on a mat"] * 10) + " zoe paid"
    path = squad_file(tmp_path, {context: [entry("1", "who?", ("zoe paid", len(context) - 8))]})
    manifest, _, rows = prepared(tmp_path, vocabulary_file, path, sequence_length=25, stride=8)
    passage = huggingface_tokenizer()(context, add_special_tokens=False)["input_ids"]
    length = 25 - 3 - 2
    assert [x["token_ids"][1 : 1 + length].tolist() for x, _ in rows[:-1]] == [
        passage[start : start + length] for start in range(0, len(passage) - length, 8)
    ]
    labelled = [
        context[x["offset_starts"][y["start_positions"]] : x["offset_ends"][y["end_positions"]]]
        for x, y in rows
        if y["start_positions"]
    ]
    assert labelled
    assert set(labelled) == {"zoe paid"}
    assert rows[0][1] == {"start_positions": 0, "end_positions": 0}
    assert manifest.counts["windows"] == len(rows)
    # Each token of the passage has most context in exactly one window.
    counts = np.zeros(len(context), int)
    for x, _ in rows:
        best = x["has_most_context"].astype(bool)
        np.add.at(counts, x["offset_starts"][best], 1)
    assert sorted(counts[counts > 0]) == [1] * len(passage)


def test_an_answer_across_the_border_of_a_window_is_none_of_it(tmp_path, vocabulary_file):
    """The one window that shows all three tokens has them; those that show a part have (0, 0)."""
    context = " ".join(["the cat sat on a mat"] * 4)
    start = len("the cat sat on a mat ") * 2
    path = squad_file(tmp_path, {context: [entry("1", "who?", ("the cat sat", start))]})
    _, _, rows = prepared(tmp_path, vocabulary_file, path, sequence_length=19, stride=3)
    partly, whole = 0, 0
    for x, y in rows:
        shown = [int(s) for s in x["offset_starts"] if start <= s < start + len("the cat sat")]
        is_whole = {start, start + len("the cat ")} <= set(shown)
        expected = (0, 0)
        if is_whole:
            places = np.flatnonzero(np.isin(x["offset_starts"], shown) & (x["offset_ends"] > 0))
            expected = (places[0], places[-1])
        assert (y["start_positions"], y["end_positions"]) == expected
        whole, partly = whole + is_whole, partly + (bool(shown) and not is_whole)
    assert whole and partly


@pytest.mark.parametrize(
    ("text", "start", "outcome", "found"),
    [
        ("cats", 4, Outcome.FOUND, "cats"),
        (" cats ", 3, Outcome.REPAIRED, "cats"),
        ("cats", 9, Outcome.REPAIRED, "cats"),
        ("Zoë", 30, Outcome.REPAIRED, "Zoë"),
        ("the", 15, Outcome.REPAIRED, "the"),
        ("a", 40, Outcome.LOST, None),  # twice nearby
        ("dog", 4, Outcome.LOST, None),
        ("", 4, Outcome.LOST, None),
        ("cats", -1, Outcome.LOST, None),
        ("cats", 4000, Outcome.LOST, None),
    ],
)
def test_answers_are_found_repaired_or_lost(text, start, outcome, found):
    actual, location = locate_answer(CONTEXT, Answer(text, start))
    assert actual is outcome
    assert (location and CONTEXT[location.start : location.end]) == found


def test_untidy_answers_are_counted(tmp_path, vocabulary_file, capsys):
    path = squad_file(
        tmp_path,
        {
            CONTEXT: [
                entry(7, "who?", ("cats", 4), ("The cats", 0)),  # an id that is a number
                entry("b", "who?", (" Zoë", 33)),
                entry("c", "who?", ("dog", 4)),
                entry("d", "who?", ("876", 30)),  # inside a word, on a piece's border or not
                entry("e", "who ?" * 50, ("mat", 21)),
            ]
        },
    )
    manifest, output, rows = prepared(tmp_path, vocabulary_file, path)
    counts = manifest.counts
    assert counts["answers"] == 6
    assert (counts["found"], counts["repaired"], counts["lost"]) == (4, 1, 1)
    assert counts["untrained_questions"] == 1
    assert counts["cut_questions"] == 1
    assert counts["round_trips"] == 4  # 18 ##76 does not begin with 8
    assert [line["id"] for line in open_records(output).lines(QUESTIONS_FILE)] == [
        "7",
        "b",
        "c",
        "d",
        "e",
    ]
    assert open_records(output).lines(CONTEXTS_FILE) == [CONTEXT]
    assert open_records(output).lines(QUESTIONS_FILE)[0]["gold_texts"] == ["cats", "The cats"]
    printed = capsys.readouterr().out
    assert f"{path}: question 'c': 'dog' is not at character 4 of its context" in printed
    assert "cut off: the end of 1 questions, after their first 64 tokens" in printed
    assert len(rows) == 5


def test_a_line_of_a_question_has_all_that_is_read_of_it(tmp_path, vocabulary_file):
    """A page of `evaluate` ended in a traceback without the places of its answers."""
    path = squad_file(tmp_path, {CONTEXT: [entry("7", "who?", ("cats", 4))]})
    _, output, _ = prepared(tmp_path, vocabulary_file, path)
    (line,) = open_records(output).lines(QUESTIONS_FILE)
    for name in line:
        rest = {key: value for key, value in line.items() if key != name}
        with pytest.raises(BadInputError, match=f"^line 1: {name}: is missing"):
            check_json_value(rest, QuestionLine, "line 1")


def test_questions_without_an_answer(tmp_path, vocabulary_file):
    impossible = entry("1", "who?", is_impossible=True, plausible_answers=[{"text": "x"}])
    path = squad_file(tmp_path, {CONTEXT: [impossible, entry("2", "who?", ("cats", 4))]})
    manifest, output, rows = prepared(tmp_path, vocabulary_file, path, has_unanswerable=True)
    assert manifest.has_unanswerable
    assert rows[0][1] == {"start_positions": 0, "end_positions": 0}
    assert [line["is_impossible"] for line in open_records(output).lines(QUESTIONS_FILE)] == [
        True,
        False,
    ]


def mrqa_lines(header=True):
    detected = {"text": "cats", "char_spans": [[4, 7]]}
    qas = [{"qid": "q", "question": "who?", "answers": ["cats", "a cat"],
            "detected_answers": [detected]}]  # fmt: skip
    lines = [json.dumps({"context": CONTEXT, "qas": qas})]
    return [json.dumps({"header": {"dataset": "X"}}), *lines] if header else lines


def test_mrqa_compressed_with_its_header(tmp_path, vocabulary_file):
    path = tmp_path / "mrqa.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(mrqa_lines()).encode(), mtime=0))
    manifest, output, _ = prepared(tmp_path, vocabulary_file, str(path), read=read_mrqa)
    assert manifest.counts["found"] == 1
    assert open_records(output).lines(QUESTIONS_FILE)[0]["gold_texts"] == ["cats", "a cat"]


def mixed_questions(tmp_path):
    """Eight questions: `lost0`, `lost1`, whose answers are lost; `none`; five that are sound."""
    entries = {
        "the cat sat. " * 3: [entry("lost0", "who?", ("dog", 4)), entry("0", "who?", ("cat", 4))],
        "the dog sat. " * 9: [entry(str(number), "who?", ("dog", 4)) for number in (1, 2, 3)],
        "a dog paid. " * 40: [
            entry("none", "who?"),
            entry("lost1", "who?", ("zoe", 2), ("zoe", 9)),
            entry("4", "who?", ("dog", 2), ("zoe", 9)),
        ],
    }
    return squad_file(tmp_path, entries)


def trained_ids(directory, epochs=2):
    """Ids of the questions of rows that training has seen, and rows of an epoch."""
    num_rows = QuestionAnsweringManifest.load(directory).num_training_rows
    dataset = task_dataset(directory, batch_size=1, training=True, seed=3)
    numbers = [int(x["question_index"][0]) for x, _, _ in dataset.take(epochs * num_rows)]
    lines = open_records(directory).lines(QUESTIONS_FILE)
    return [lines[number]["id"] for number in numbers]


@pytest.mark.parametrize("has_unanswerable", [False, True])
def test_questions_whose_answers_are_lost_are_scored_but_not_trained(
    has_unanswerable, tmp_path, vocabulary_file
):
    manifest, output, rows = prepared(
        tmp_path,
        vocabulary_file,
        mixed_questions(tmp_path),
        sequence_length=64,
        stride=16,
        has_unanswerable=has_unanswerable,
    )
    trained = {"0", "1", "2", "3", "4"} | ({"none"} if has_unanswerable else set())
    lines = open_records(output).lines(QUESTIONS_FILE)
    everything = ["lost0", "0", "1", "2", "3", "none", "lost1", "4"]
    assert [line["id"] for line in lines] == everything
    owners = [lines[x["question_index"]]["id"] for x, _ in rows]
    assert set(owners) == set(everything)
    assert manifest.counts["windows"] == len(rows)
    assert manifest.counts["untrained_questions"] == 8 - len(trained)
    # All windows of those that are trained, as often as there are epochs.
    seen = trained_ids(output)
    assert sorted(seen) == sorted(2 * [owner for owner in owners if owner in trained])
    assert set(seen) == trained
    assert len(seen) > 2 * len(trained)


def test_nothing_to_train_on(tmp_path, vocabulary_file):
    path = squad_file(tmp_path, {CONTEXT: [entry("1", "who?", ("dog", 4))]})
    _, output, rows = prepared(tmp_path, vocabulary_file, path)
    assert len(rows) == 1
    with pytest.raises(BadInputError, match=r"windows\.tfrecord: holds no rows to train on"):
        task_dataset(output, batch_size=1, training=True)


def test_damaged_rows_are_named_before_the_first_batch(tmp_path, vocabulary_file):
    _, output, _ = prepared(
        tmp_path, vocabulary_file, mixed_questions(tmp_path), sequence_length=64, stride=16
    )
    path = pathlib.Path(output, "windows.tfrecord")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for training in (False, True):
        with pytest.raises(BadInputError, match=r"windows\.tfrecord: .*damaged") as caught:
            task_dataset(output, batch_size=2, training=training)
        assert "\n" not in str(caught.value)


def test_rows_that_are_not_those_of_the_description(tmp_path, vocabulary_file):
    """The file ends early between two rows, and the checksums are those of what is there."""
    path = squad_file(tmp_path, {CONTEXT: [entry("1", "who?"), entry("2", "where?")]})
    _, output, _ = prepared(tmp_path, vocabulary_file, path)
    rows = pathlib.Path(output, "windows.tfrecord")
    first = next(tf.data.TFRecordDataset(str(rows)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(rows)) as writer:
        writer.write(first)
    manifest = pathlib.Path(output, "question_answering_info.json")
    content = json.loads(manifest.read_text())
    content["files"] = checksums(output, content["files"])
    manifest.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=r"tfrecord: holds 1 rows, .* 2; write the records"):
        task_dataset(output, batch_size=1, training=False)


def test_halves_of_mrqa(tmp_path):
    contexts = [f"passage {number}" for number in range(200)]
    entries = [
        {
            "context": context,
            "qas": [
                {"qid": f"{number}-{which}", "question": "?", "answers": [], "detected_answers": []}
                for which in range(2)
            ],
        }
        for number, context in enumerate(contexts)
    ]
    path = tmp_path / "mrqa.jsonl"
    ids = {}
    for half in ("development", "test", "reversed"):
        lines = entries[::-1] if half == "reversed" else entries
        path.write_text("\n".join(map(json.dumps, [{"header": {}}, *lines])))
        questions = read_mrqa(str(path), half="test" if half == "reversed" else half)
        assert len(questions.questions) == 2 * len(questions.contexts)
        for question in questions.questions:
            number = question.id.split("-")[0]
            assert questions.contexts[question.context_index] == f"passage {number}"
        ids[half] = {question.id for question in questions.questions}
    assert ids["reversed"] == ids["test"]
    assert not ids["development"] & ids["test"]
    assert len(ids["development"] | ids["test"]) == 400
    # By `sha256sum`, whose first bytes are 5f, c5, f9 and f2, 28.
    assert {"0-0", "1-0", "4-0"} <= ids["test"]
    assert {"5-0", "6-0"} <= ids["development"]
    assert 150 < len(ids["test"]) < 250


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["3"], "line 1: should be a valid dictionary"),
        (['{"header": {}}', "[]"], "line 2: should be a valid dictionary"),
        (['{"header": {}}', "{"], "line 2: not JSON"),
        (['{"header": {}}', '{"context": "x"}'], "line 2: qas: is missing"),
    ],
)
def test_bad_mrqa_lines(lines, words, tmp_path):
    path = tmp_path / "mrqa.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadInputError, match=words):
        read_mrqa(str(path))


def test_mrqa_sample_without_header(tmp_path):
    path = tmp_path / "mrqa.jsonl"
    path.write_text("\n".join(mrqa_lines(header=False)))
    with pytest.raises(BadInputError, match="line 1: has no header"):
        read_mrqa(str(path))
    assert len(read_mrqa(str(path), allow_missing_header=True).questions) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "contains no questions"),
        ("3", "should be a valid dictionary"),
        ("{}", "data: is missing"),
        ('{"data": [{"title": "x"}]}', r"data\[0\].paragraphs: is missing"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"paragraphs\[0\].context: is missing"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "?"}]}]}]}',
            r"qas\[0\].id: is missing",
        ),
        ('{"data": []}', "contains no questions"),
    ],
)
def test_bad_squad_files(content, words, tmp_path, vocabulary_file):
    path = tmp_path / "squad.json"
    path.write_text(content)
    with pytest.raises(BadInputError, match=words) as caught:
        prepared(tmp_path, vocabulary_file, str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "output").exists()


def test_a_question_without_text_has_a_row_of_its_passage(tmp_path, vocabulary_file):
    """CMRC 2018's trial set has two; its script counts them."""
    paragraphs = {CONTEXT: [entry("1", "", ("cats", 4)), entry("2", "who?", ("cats", 4))]}
    manifest, _, rows = prepared(
        tmp_path, vocabulary_file, squad_file(tmp_path, paragraphs), question_first=True
    )
    assert (manifest.counts["empty_questions"], manifest.counts["questions"]) == (1, 2)
    first, second = (row[0]["token_ids"].tolist() for row in rows)
    start, end = first[:2]
    assert second[:1] == [start] and second[-1] == end
    assert first[2:] == second[second.index(end) + 1 :]  # [CLS] [SEP] passage [SEP]


@pytest.mark.parametrize(
    ("paragraphs", "words"),
    [
        ({CONTEXT: [entry("1", "a?"), entry("1", "b?")]}, "question id '1' occurs 2 times"),
        ({"  ": [entry("1", "a?")]}, "question '1': its context is empty"),
        ({CONTEXT: [entry("1", " ")]}, "the texts of all questions are empty"),
        ({"\u200b\u200b": [entry("1", "a?")]}, "question '1': its context has no tokens"),
    ],
)
def test_bad_questions(paragraphs, words, tmp_path, vocabulary_file):
    with pytest.raises(BadInputError, match=words):
        prepared(tmp_path, vocabulary_file, squad_file(tmp_path, paragraphs))
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("length", "stride", "words"),
    [
        (14, 2, "question '1': leaves room for 1 tokens of its context in a row, less than"),
        (13, 1, "question '1': leaves room for 0 tokens"),
        (30, 20, "question '1': leaves room for 17 tokens"),
    ],
)
def test_rows_without_room_for_the_context(length, stride, words, tmp_path, vocabulary_file):
    path = squad_file(tmp_path, {"the cat sat. " * 20: [entry("1", "who ? " * 5)]})  # 10 pieces
    with pytest.raises(BadInputError, match=re.escape(words)):
        prepared(tmp_path, vocabulary_file, path, sequence_length=length, stride=stride)
    assert not (tmp_path / "output").exists()


def test_very_long_context(tmp_path, vocabulary_file):
    context = "the cat sat. " * 5000  # 65,000 characters
    path = squad_file(tmp_path, {context: [entry("1", "who?", ("cat", 13 * 4999 + 4))]})
    manifest, _, rows = prepared(tmp_path, vocabulary_file, path)
    assert manifest.counts["round_trips"] == 1
    assert rows[-1][0]["offset_ends"].max() == len(context) - 1
    assert rows[-1][1]["start_positions"] > 0


def test_gold_answers_of_real_questions_survive(shared_data, tmp_path):
    manifest = write_questions(
        read_squad(str(shared_data / "qa" / "xquad.en.json")),
        str(tmp_path / "output"),
        vocabulary=str(shared_data / "vocab" / "bert-base-cased-vocab.txt"),
        lowercase=False,
        options=QuestionOptions(),
    )
    assert manifest.counts["answers"] == 1190
    assert manifest.counts["round_trips"] >= 0.999 * 1190


def chinese_records(tmp_path, context, *golds, language="zh"):
    """Records about a passage of `北京` in `2008` and `กรุงเทพ`; one question for each answer."""
    words = ["2008", "##年", "กรุง", "##เทพ", *"北京奥运会在举行。哪"]
    vocabulary = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    vocabulary.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    entries = [
        entry(str(number), "在哪", (gold, context.index(gold))) for number, gold in enumerate(golds)
    ]
    write_questions(
        read_squad(squad_file(tmp_path, {context: entries})),
        str(tmp_path / "records"),
        vocabulary=str(vocabulary),
        language=language,
        options=QuestionOptions(sequence_length=64),
    )
    records = open_records(str(tmp_path / "records"))
    answers = {}
    for x, y in task_dataset(records, batch_size=1, training=False).as_numpy_iterator():
        start, end = int(y["start_positions"][0]), int(y["end_positions"][0])
        first = int(x["offset_starts"][0, start])
        answers[int(x["question_index"][0])] = context[first : int(x["offset_ends"][0, end])]
    return records, [answers[number] for number in range(len(golds))]


def test_answers_that_begin_inside_a_token_take_the_whole_token(tmp_path, capsys):
    """As in other languages, `08` of `2008` is labelled as `2008`, and none is lost."""
    context = "北京在2008举行奥运会。กรุงเทพ在北京。"
    golds = ["北京", "2008", "08", "京在20", "奥运会", "เทพ", "รุงเทพ"]
    records, found = chinese_records(tmp_path, context, *golds)
    assert found == ["北京", "2008", "2008", "京在2008", "奥运会", "เทพ", "กรุงเทพ"]
    counts = records.manifest.counts
    assert (counts["lost"], counts["found"], counts["round_trips"]) == (0, 7, 4)
    assert "0 lost; 57.14% come back as the same text from their tokens (3 begin or end inside" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.parametrize("language", ["ar", "de", "hi", "th", "zh"])
def test_no_answer_of_xquad_is_lost(language, shared_data, tmp_path):
    path = shared_data / "other_languages" / "qa" / f"xquad.{language}.json.gz"
    questions = read_squad(str(path))
    letters = sorted(set("".join(questions.contexts)) - set(" \n\u200b"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    pieces += [f"##{letter}" for letter in letters]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    manifest = write_questions(
        questions,
        str(tmp_path / "records"),
        vocabulary=str(tmp_path / "vocab.txt"),
        language=language,
        options=QuestionOptions(sequence_length=512),
    )
    assert manifest.counts["lost"] == 0
    assert manifest.counts["found"] == manifest.counts["answers"] == 1190
    # Each letter is a piece, so that only letters of several characters part an answer's ends.
    assert manifest.counts["round_trips"] >= 0.99 * 1190
