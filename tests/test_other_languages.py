"""The page "Other languages": its lines go from text to answers in Chinese, on tiny data."""

import json
import pathlib
import random
import re
import shlex

import pytest

from spanbert_tf.cli import main
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.question_answering.evaluators import score_answer
from spanbert_tf.tasks.question_answering.records import QUESTIONS_FILE

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "other_languages.md"
CITIES = ["北京", "上海", "广州", "成都", "西安", "南京"]
FOODS = ["面条", "饺子", "米饭", "烤鸭", "豆腐"]
# What the lines say for whole data → for tiny ones.
SMALLER = {
    "--vocabulary-size 21128": "--vocabulary-size 200",
    "--language zh": "--language zh --sequence-length 64 --validation-fraction 0.1",
    "--config spanbert_base": (
        "--config spanbert_tiny --set training.steps=20 training.schedule_steps=20 "
        "training.evaluate_every=20 optimizer.warmup_steps=2 training.batch_size=8"
    ),
    "--input train.json": "--input train.json --sequence-length 64 --stride 16",
    "--input dev.json": "--input dev.json --sequence-length 64 --stride 16",
    "prediction.metric=cmrc2018": (
        "prediction.metric=cmrc2018 data.sequence_length=64 data.stride=16 training.epochs=1 "
        "training.evaluations_per_epoch=1 training.batch_size=8"
    ),
}


def passage(source):
    """A passage about two cities, and what is eaten in each."""
    cities = source.sample(CITIES, 2)
    foods = source.sample(FOODS, 2)
    sentences = [f"{city}的人喜欢吃{food}。" for city, food in zip(cities, foods, strict=True)]
    return "".join(sentences), dict(zip(cities, foods, strict=True))


def questions(source, count):
    """A file in CMRC 2018's format; each question asks for a city or for a dish."""
    paragraphs = []
    for number in range(count):
        context, foods = passage(source)
        city, food = source.choice(list(foods.items()))
        answer = {"text": food, "answer_start": context.index(food)}
        entry = {"id": f"TRIAL_{number}", "question": f"{city}的人喜欢吃什么", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [entry]})
    return json.dumps({"version": "v1.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


@pytest.mark.slow
def test_the_lines_of_the_page_go_from_text_to_answers_in_chinese(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = random.Random(0)
    pathlib.Path("corpus").mkdir()
    documents = ["".join(passage(source)[0] for _ in range(20)) for _ in range(30)]
    for number in range(2):
        text = "\n\n".join(documents[15 * number : 15 * (number + 1)])
        pathlib.Path("corpus", f"{number}.txt").write_text(text + "\n", encoding="utf-8")
    pathlib.Path("train.json").write_text(questions(source, 24), encoding="utf-8")
    pathlib.Path("dev.json").write_text(questions(source, 6), encoding="utf-8")
    block, _ = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in SMALLER.items():
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    printed = {}
    for line in block.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "spanbert-tf"
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        shown = capsys.readouterr()
        assert stop.value.code == 0, shown.err
        printed[arguments[0]] = shown.out
    # CMRC's metric fits, so nothing is said against it, and its scores are those of the answers.
    assert "parts words at spaces" not in printed["finetune"] + printed["evaluate"]
    records = open_records("qa/dev")
    assert records.manifest.language == "zh"
    answers = json.loads(pathlib.Path("predictions", "predictions.json").read_text())
    scores = [
        score_answer("cmrc2018", line["gold_texts"], answers[line["id"]], "zh")
        for line in records.lines(QUESTIONS_FILE)
    ]
    exact_match = 100 * sum(score.exact_match for score in scores) / len(scores)
    f1 = 100 * sum(score.f1 for score in scores) / len(scores)
    assert f"qa/dev: exact_match {exact_match:.2f}, f1 {f1:.2f}" in printed["evaluate"]
    assert 'lang="zh"' in pathlib.Path("report.html").read_text()
    vocabulary = records.vocabulary
    assert {"北", "京", "[UNK]"} <= set(vocabulary) and "##北" not in vocabulary
