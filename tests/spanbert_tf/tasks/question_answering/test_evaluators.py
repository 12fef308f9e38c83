"""Answers in other languages, scored as MLQA's and CMRC 2018's official scripts score them."""

import json
import re
import sys

import pytest

from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.finetuning import FinetuningJob
from spanbert_tf.tasks.question_answering.evaluators import (
    _word_tokenizer,
    advice_on_metric,
    check_metric,
    score_answer,
)
from spanbert_tf.tasks.question_answering.files import Answer, Question, QuestionSet
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.table import load_task, load_task_config

PASSAGE = "北京是中国的首都。上海是最大的城市。"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(PASSAGE + "哪里?"))]


def test_scores_are_those_of_the_official_scripts(shared_data):
    path = shared_data / "other_languages" / "qa" / "official_scores.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    different = []
    for row in rows:
        found = score_answer(row["metric"], row["answers"], row["prediction"], row["language"])
        if found != (row["exact_match"], row["f1"]):
            different.append((row, found))
    assert len(rows) == 1800
    assert not different


# By hand from the scripts: (metric, language, golds, answer, exact match, F1).
CASES = {
    "the articles of German": ("mlqa", "de", ["Das Haus des Königs"], "haus Königs!", 1, 1),
    "English ones are German words": ("mlqa", "de", ["the Haus"], "Haus", 0, 2 / 3),
    "Arabic ones inside of words, too": ("mlqa", "ar", ["الكتاب"], "كتاب", 1, 1),
    "Hindi has none, and its full stop is a mark": ("mlqa", "hi", ["भारत।"], "भारत", 1, 1),
    "Vietnamese": ("mlqa", "vi", ["những con mèo của Lan"], "con mèo Lan", 1, 1),
    "Spanish": ("mlqa", "es", ["¿La casa?"], "casa", 1, 1),
    "Chinese characters in any order": ("mlqa", "zh", ["北京大学"], "大学", 0, 2 / 3),
    "Chinese words of other letters": ("mlqa", "zh", ["iPhone 手机"], "手机 iphone", 0, 1),
    "the best of several": ("mlqa", "en", ["red mat", "a cat"], "the cat", 1, 1),
    # Two characters of four in one run: precision 1, recall 1/2. The other run is no longer.
    "the longest run": (
        "cmrc2018",
        "zh",
        ["北京大学"],
        "北京学",
        0,
        2 * (2 / 3) * (1 / 2) / (7 / 6),
    ),
    "marks": ("cmrc2018", "zh", ["《北京》、大学。"], "北京大学", 1, 1),
    # The script lists the ellipsis as two characters, and drops single ones. NLTK takes both for
    # one word.
    "an ellipsis stays": ("cmrc2018", "zh", ["北京……"], "北京", 0, 2 * (2 / 3) / (5 / 3)),
    # NLTK's words: `isn't` is two. A hyphen is dropped before the words are cut.
    "words of NLTK": ("cmrc2018", "zh", ["isn't"], "is", 0, 2 / 3),
    "a hyphen": ("cmrc2018", "zh", ["F-15战机"], "f15战机", 1, 1),
    # Punkt parts two sentences, so that both full stops are words: `it` `works` `.` …
    "sentences of Punkt": ("cmrc2018", "zh", ["It works. It runs."], "works.", 0, 2 / (1 + 3)),
    "white space inside": ("cmrc2018", "zh", ["北 京"], "北京", 0, 1),
    "nothing in common": ("cmrc2018", "zh", ["北京"], "上海", 0, 0),
    "an empty answer": ("mlqa", "zh", ["北京"], "", 0, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_by_hand(case):
    metric, language, golds, answer, exact_match, f1 = CASES[case]
    assert score_answer(metric, golds, answer, language) == (exact_match, pytest.approx(f1))


def test_words_are_those_of_nltk_whatever_its_data():
    """`nltk.word_tokenize` with the parameters of Punkt that this package ships."""
    from nltk.tokenize import word_tokenize
    from nltk_sentences import tokenizer_of_nltk

    from spanbert_tf.tasks.question_answering import evaluators

    text = 'It works. Dr. Smith isn\'t here (yet).\nHe said: "No. Go!" U.S. cars, 3.5%.'
    sentences = tokenizer_of_nltk("en").tokenize(text)
    expected = [word for line in sentences for word in word_tokenize(line, preserve_line=True)]
    assert evaluators._nltk_words(text) == expected


@pytest.mark.parametrize(
    ("metric", "golds", "language", "expected"),
    [
        ("squad", ["the cat"], "en", None),
        ("squad", ["北京", "2008"], "en", r"do not have.*cmrc2018.*--language zh"),
        ("squad", ["北京", "2008"], "zh", r"do not have.*cmrc2018.*and so does mlqa$"),
        ("squad", ["กรุงเทพ"], "th", r"nearly exact match; no official metric"),
        ("squad", ["東京タワー", "とうきょう"], "ja", r"nearly exact match; no official metric"),
        ("squad", ["das Haus"], "de", r"English articles; --metric mlqa .* is for German"),
        ("squad", ["дом"], "ru", None),
        ("squad", ["2008"], "zh", r"English articles; --metric mlqa .* is for Chinese"),
        ("mlqa", ["北京"], "zh", None),
        ("mlqa", ["北京"], "en", r"cmrc2018.*--language zh"),
        ("mlqa", ["das Haus"], "de", None),
        ("cmrc2018", ["北京"], "en", None),
        ("cmrc2018", ["the cat"], "en", r"for Chinese, and most of these answers are not"),
    ],
    ids=str,
)
def test_a_metric_that_does_not_fit_says_so(metric, golds, language, expected):
    advice = advice_on_metric(metric, golds, language)
    assert (advice is None) if expected is None else re.search(expected, advice)


def test_metric_without_nltk_or_language_is_refused(monkeypatch):
    with pytest.raises(BadInputError, match=r"qa/dev: metric mlqa is for ar, .* not for th \(Thai"):
        check_metric("mlqa", "th", "qa/dev")
    check_metric("cmrc2018", "zh", "qa/dev")
    _word_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "nltk.tokenize.destructive", None)
    with pytest.raises(BadInputError, match=r"needs NLTK; pip install 'spanbert_tf\[cmrc2018\]'"):
        check_metric("cmrc2018", "zh", "qa/dev")


def prepared(directory, language="zh", *, has_unanswerable=False):
    """Records of two questions in Chinese; the baseline's answer to each is known."""
    golds = ["北京", "上海"]
    questions = []
    for index, gold in enumerate(golds):
        answer = Answer(gold, PASSAGE.index(gold))
        questions.append(Question(str(index), "首都是哪里?", 0, (answer,), (gold,)))
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY), encoding="utf-8")
    write_questions(
        QuestionSet("made up", [PASSAGE], questions),
        str(directory / "records"),
        vocabulary=str(vocabulary),
        lowercase=False,
        language=language,
        options=QuestionOptions(sequence_length=48, has_unanswerable=has_unanswerable),
    )
    return str(directory / "records")


def test_evaluate_scores_by_the_metric_and_says_where_the_default_does_not_fit(tmp_path, capsys):
    data = prepared(tmp_path)
    capsys.readouterr()
    (by_default,) = run_evaluation(None, [data])
    text = capsys.readouterr().out
    assert f"{data}: metric squad parts words at spaces" in text
    # No word of the question is in the passage: the baseline answers with the passage's words.
    answer = PASSAGE.removesuffix("。")
    scores = {}
    for metric in ("mlqa", "cmrc2018"):
        page = tmp_path / f"{metric}.html"
        (scores[metric],) = run_evaluation(None, [data], metric=metric, report=str(page))
        text = capsys.readouterr().out
        assert "parts words at spaces" not in text
        each = [100 * score_answer(metric, [gold], answer, "zh").f1 for gold in ("北京", "上海")]
        assert scores[metric]["f1"] == pytest.approx(sum(each) / 2)
        assert all(f"{f1:.1f}" in page.read_text(encoding="utf-8") for f1 in each)
    assert by_default["f1"] == 0 < scores["cmrc2018"]["f1"]


def test_metric_of_records_that_it_cannot_score_is_refused(tmp_path):
    data = prepared(tmp_path, has_unanswerable=True)
    with pytest.raises(BadInputError, match=r"without an answer are scored by metric squad alone"):
        run_evaluation(None, [data], metric="mlqa")
    with pytest.raises(BadInputError, match=r"metric 'rouge': question_answering has no such"):
        run_evaluation(None, [data], metric="rouge")


def test_a_run_refuses_a_metric_that_cannot_score_its_records(tmp_path):
    data = prepared(tmp_path, has_unanswerable=True)
    options = ["prediction.metric=mlqa", "data.sequence_length=48"]
    config = load_task_config("squad_v2", options)
    with pytest.raises(BadInputError, match=r"without an answer are scored by metric squad alone"):
        FinetuningJob(config, "no preset", data, data)


def test_configuration_names_the_metric():
    config = load_task_config("squad_v1", ["prediction.metric=mlqa"])
    task = load_task("question_answering")
    assert task.metric == "squad"
    task.configure(config)
    assert task.metric == "mlqa"
    with pytest.raises(ConfigurationError, match="metric"):
        load_task_config("squad_v1", ["prediction.metric=rouge"])
    with pytest.raises(BadInputError, match=r"named_entities has no such metric; it has none"):
        load_task("named_entities").score_by("squad")
