"""The page: what it is made of, and how its script splits texts, in Node."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from spanbert_tf.server import application

SCRIPT = pathlib.Path(application.__file__).with_name("page.js")
TEXT = "\U0001f989 Ann \u05d0\u05d1 and Bob"


def test_the_page_describes_each_model_and_loads_nothing(client):
    response = client.get("/")
    assert response.status_code == 200
    text = response.text
    described = json.loads(re.search(r'id="models">(.*?)</script>', text)[1])
    assert described["question_answering"]["fields"] == ["question", "context"]
    assert described["text_classification"]["settings"] == {"is_regression": False}
    assert described["named_entities"]["example"] == {"text": "Ann lives in New York."}
    assert not re.search(r'(src|href)="(?!/docs")', text)
    nonce = re.search(r'<script nonce="([^"]+)"', text)[1]
    assert f"'nonce-{nonce}'" in response.headers["content-security-policy"]
    assert nonce not in client.get("/").text


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], [TEXT]),
        ([(2, 5)], ["\U0001f989 ", ["Ann"], " \u05d0\u05d1 and Bob"]),
        ([(13, 16), (0, 1)], [["\U0001f989"], " Ann \u05d0\u05d1 and ", ["Bob"]]),
        # One inside of another, and one that crosses it.
        ([(2, 8), (2, 5)], ["\U0001f989 ", [["Ann"], " \u05d0\u05d1"], " and Bob"]),
        ([(2, 8), (6, 12)], ["\U0001f989 ", ["Ann ", ["\u05d0\u05d1"]], " and Bob"]),
        ([(4, 4)], [TEXT]),
    ],
)
def test_places_are_counted_in_characters(spans, expected):
    function = re.search(r"^function parts\(.*?^}", SCRIPT.read_text(), re.M | re.S)[0]
    given = [{"start": start, "end": end} for start, end in spans]
    plain = "found => found.filter(part => part).map(part => part.parts ? plain(part.parts) : part)"
    call = f"plain(parts({json.dumps(TEXT)}, {json.dumps(given)}))"
    program = f"{function}\nconst plain = {plain};\nconsole.log(JSON.stringify({call}))"
    printed = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        ("text_classification", {"label": "similarity", "score": 3.7}, ["p: similarity: 3.7000"]),
        (
            "coreference",
            {"text": "Ann", "clusters": [[[0, 3]] * 50], "strings": [["Ann"] * 50]},
            ["Ann, Ann, Ann, Ann, Ann, Ann, Ann, Ann, Ann, Ann"],
        ),
    ],
)
def test_numbers_are_no_shares_and_titles_of_many_mentions_are_short(task, answer, expected):
    script = SCRIPT.read_text()
    views = re.search(r"^const views = .*?^};", script, re.M | re.S)[0]
    functions = [
        re.search(rf"^function {name}\(.*?^}}", script, re.M | re.S)[0]
        for name in ("number", "listed")
    ]
    program = "\n".join(
        [
            "const describe = () => ({settings: {is_regression: true}});",
            "const element = (name, text) => `${name}: ${text}`;",
            "const markedText = (text, spans) => [...new Set(spans.map(a => a.title))].join();",
            *functions,
            views,
            f"console.log(JSON.stringify(views.{task}({{}}, {json.dumps(answer)})))",
        ]
    )
    printed = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"tokens": 1, "of": 3}\n{"tokens": 3, "of": 3}\n["\u00e9\u05d0"]\n',
            [["1/3"], ["\u00e9\u05d0"]],
        ),
        ('{"error": "it is wrong"}', [[], {"error": "it is wrong"}]),
    ],
)
def test_lines_of_progress_are_shown_and_the_last_is_the_answer(text, expected, size):
    """However the bytes of the lines are cut."""
    function = re.search(r"^async function lastLine\(.*?^}", SCRIPT.read_text(), re.M | re.S)[0]
    program = f"""
        const seen = [];
        const shown = {{replaceChildren: made => seen.push(made)}};
        const element = (name, text, {{value, max}}) => `${{value}}/${{max}}`;
        {function}
        const bytes = new TextEncoder().encode({json.dumps(text)});
        const parts = [];
        for (let at = 0; at < bytes.length; at += {size}) parts.push(bytes.slice(at, at + {size}));
        lastLine(new Response(ReadableStream.from(parts))).then(
          found => console.log(JSON.stringify([seen, found])));
    """
    printed = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == expected
