"""The page in Chromium: what is typed, and what is shown.

Needs Playwright and Debian's `chromium`; `.ci/run` installs them where it can.
"""

import json
import re
import shutil

import numpy as np
import pytest
import requests
from made_up_outcomes import made_up_outcome, page_of

from spanbert_tf.tasks.named_entities.task import NamedEntities
from spanbert_tf.tasks.text_classification.task import TextClassification

try:
    from playwright import sync_api
except ModuleNotFoundError:
    sync_api = None
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(sync_api is None, reason="needs Playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
TIMEOUT = 300_000  # milliseconds; of a machine that does much else
KEY = "0123456789abcdef"
# Of two planes and two directions, and no markup.
TEXT = "\U0001f989 ann has <b>the</b> cat . \u05d0\u05d1\u05d2 bob & ann . who has bob ?"
SPEECH = "ann has the cat . bob has the cat . who has ann ? bob has ann ."


@pytest.fixture(scope="module")
def address(run, sources_of_all_tasks):
    return run(sources_of_all_tasks).url


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture
def page(browser, address):
    with opened(browser, address) as found:
        yield found


class opened:
    """A page that says nothing else on the console and asks no other server."""

    def __init__(self, browser, address, scheme="light", messages=()):
        self._context = browser.new_context(color_scheme=scheme)
        self._address = address
        self._expected = list(messages)
        self._messages, self._asked = [], []

    def __enter__(self):
        page = self._context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda message: self._messages.append(message.text))
        page.on("pageerror", lambda error: self._messages.append(str(error)))
        page.on("request", lambda request: self._asked.append(request.url))
        page.goto(self._address)
        return page

    def __exit__(self, kind, *_):
        self._context.close()
        if kind is None:
            assert self._messages == self._expected
            assert all(url.startswith(f"{self._address}/") for url in self._asked)


def ask(page, name, **values):
    """Types into the fields of a model and waits for its answer, which is returned."""
    if page.input_value("#model") != name:  # else its fields would be emptied
        page.select_option("#model", name)
    for field, value in values.items():
        page.fill(f"[name='{field.replace('_', ' ')}'], [name='{field}']", value)
    with page.expect_response("**/answer") as response:
        page.keyboard.press("Control+Enter")
    page.wait_for_function("!document.querySelector('form button:not([type])').disabled")
    return json.loads(response.value.text().splitlines()[-1])  # after those of progress


def marks(page):
    """The marked parts with their notes, in their order."""
    script = "marks => marks.map(mark => [mark.textContent, mark.dataset.note])"
    return page.eval_on_selector_all("#answer mark", script)


def rows(page):
    """The names and the numbers beside the bars."""
    script = "cells => cells.map(cell => cell.textContent.trim())"
    cells = page.eval_on_selector_all("#answer td", script)
    return [[name, float(share)] for name, share in zip(cells[::2], cells[1::2], strict=True)]


def shares(answer, key="label"):
    return [[one[key], pytest.approx(one["score"], abs=1e-4)] for one in answer]


def test_entities_are_marked_in_their_text(page):
    answer = ask(page, "named_entities", text=TEXT)
    assert answer
    assert marks(page) == [[one["word"], one["entity_group"]] for one in answer]
    assert page.inner_text("#answer p") == TEXT
    assert page.get_attribute("#answer p", "dir") == "auto"


def test_classes_are_bars(page):
    answer = ask(page, "text_classification", text=TEXT)
    assert len(answer) == 2
    assert rows(page) == shares(answer)


def test_an_answer_is_marked_and_the_next_best_are_listed(page):
    answer = ask(page, "question_answering", question="who has the cat ?", context=TEXT)
    assert len(answer) == 2
    assert marks(page) == [[answer[0]["answer"], "answer"]]
    assert rows(page) == shares(answer, "answer")
    assert page.inner_text("#answer p") == TEXT


def test_each_mask_has_its_fillings(page):
    answer = ask(page, "fill_mask", text="ann [MASK] \U0001f989 the [MASK] .")
    assert rows(page) == shares(answer[0] + answer[1], "token_str")
    best = [mask[0]["token_str"] for mask in answer]
    assert marks(page) == [[best[0], "1"], [best[1], "2"]]
    assert page.inner_text("#answer p") == f"ann {best[0]} \U0001f989 the {best[1]} ."


def test_entities_of_a_relation_are_selected_in_the_text(page):
    page.select_option("#model", "relation_extraction")
    page.fill("[name=text]", TEXT)
    for role, word in (("subject", "ann"), ("object", "cat")):
        script = "(area, word) => { const at = area.value.indexOf(word);"
        script += " area.setSelectionRange(at, at + word.length) }"
        page.eval_on_selector("[name=text]", script, word)
        page.click(f"text={role} is the selected text")
    start = TEXT.index("ann")  # in characters of Python, of which the owl is one
    assert json.loads(page.input_value("[name=subject]")) == [start, start + 3]
    answer = ask(page, "relation_extraction")
    assert marks(page) == [["ann", "subject"], ["cat", "object"]]
    assert rows(page) == shares(answer)


def test_two_texts_are_compared(page):
    answer = ask(page, "text_embedding", text="ann has the cat", other_text="bob")
    a, b = (np.array(one["embedding"]) for one in answer)
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    assert rows(page) == [["cosine", pytest.approx(cosine, abs=1e-4)]]


def test_mentions_of_a_cluster_are_linked_by_the_pointer_and_by_keys(page):
    answer = ask(page, "coreference", text=SPEECH)
    clusters = answer["clusters"]
    found = marks(page)
    expected = [
        [SPEECH[start:end], str(number)]
        for number, spans in enumerate(clusters, start=1)
        for start, end in spans
    ]
    assert clusters and sorted(found) == sorted(expected)
    assert page.inner_text("#answer p") == SPEECH
    first = page.query_selector("#answer mark")
    number = first.get_attribute("data-note")
    for show in (first.hover, first.focus):
        show()
        linked = page.eval_on_selector_all(
            "mark.linked", "marks => marks.map(mark => mark.dataset.note)"
        )
        assert linked == [number] * len(clusters[int(number) - 1])
        points = page.get_attribute("#answer polyline", "points").split()
        assert len(points) == len(linked)
        page.keyboard.press("Escape")
        assert page.query_selector("#answer svg") is None
        page.mouse.move(0, 0)


def test_request_and_answer_are_shown_and_curl_gets_the_same(page, address):
    text = 'ann\'s "cat" \\ $bob'
    answer = ask(page, "text_classification", text=text)
    page.click("summary")
    assert json.loads(page.inner_text("#json")) == answer
    command = page.inner_text("#curl")
    body = re.fullmatch(r"curl -d '(.*)' (\S+)", command)
    found = requests.post(body[2], data=body[1].replace("'\\''", "'").encode())
    assert found.json()[0]["label"] == answer[0]["label"]
    assert body[2] == f"{address}/answer"


def test_the_example_is_answered_by_keys_alone(page):
    page.select_option("#model", "named_entities")
    page.focus("#example")
    with page.expect_response("**/answer"):
        page.keyboard.press("Enter")
    page.wait_for_selector("#answer p")
    assert page.inner_text("#answer p") == page.input_value("[name=text]") != ""


def test_a_long_text_is_shown_whole(page):
    text = "ann has the cat . " * 500
    answer = ask(page, "named_entities", text=text)
    assert page.text_content("#answer p") == text
    assert len(marks(page)) == len(answer)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_refused_is_said(browser, address):
    expected = ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]
    with opened(browser, address, messages=expected) as page:
        ask(page, "fill_mask", text="no mask")
        assert "its text has no [MASK]" in page.inner_text("[role=alert]")
        assert page.inner_text("#answer") == ""


def test_the_key_is_asked_for_and_sent(browser, run, sources):
    chosen = [one for one in sources if one.name == "text_classification"]
    address = run(chosen, key=KEY).url
    with opened(browser, address) as page:
        page.fill("#key", KEY)
        answer = ask(page, "text_classification", text="ann")
        assert rows(page) == shares(answer)
        assert "Bearer $KEY" in page.text_content("#curl")
        assert KEY not in page.text_content("body")  # what is folded, too


def contrast(first, second):
    """Of two colours, as WCAG 2.1 computes it."""

    def light(colour):
        part = np.array(colour) / 255
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722] + 0.05

    lights = sorted([light(first), light(second)])
    return lights[1] / lights[0]


def test_marks_can_be_read_in_both_schemes(browser, address, scheme):
    script = """mark => [getComputedStyle(document.body).backgroundColor,
      getComputedStyle(mark).backgroundColor, getComputedStyle(mark).color]"""
    with opened(browser, address, scheme) as page:
        ask(page, "coreference", text=SPEECH)
        first = page.query_selector("#answer mark")
        colours = [
            [float(number) for number in re.findall(r"[\d.]+", colour)]
            for colour in first.evaluate(script)
        ]
    behind, over, text = colours
    assert (sum(behind[:3]) < 3 * 128) == (scheme == "dark")
    share = over[3] if len(over) == 4 else 1
    seen = share * np.array(over[:3]) + (1 - share) * np.array(behind[:3])
    assert contrast(seen, text[:3]) >= 4.5
    assert contrast(behind[:3], text[:3]) >= 4.5


def test_a_report_of_hebrew_begins_at_the_right_although_its_notes_are_in_english(browser):
    sentence = {"id": "s", "text": "דוד גר", "words": [[0, 3], [4, 6]], "labels": ["B-PER", "O"]}
    outcome = made_up_outcome([sentence], [["B-PER", "O"]], [["B-PER", "O"]], language="he")
    scores = {"f1": 100.0, "precision": 100.0, "recall": 100.0}
    context = browser.new_context()
    page = context.new_page()
    page.set_content(page_of(NamedEntities(), "t", outcome, scores))
    mark, place = (
        page.query_selector(f"article {one}").bounding_box() for one in ("mark", ".place")
    )
    context.close()
    # Nothing but the sign of the sentence is between the first word and the place.
    assert place["x"] - mark["x"] - mark["width"] < 50


def test_the_scores_of_a_class_with_a_long_name_are_seen_in_a_narrow_window(browser):
    labels = ["x" * 150, "short"]
    line = {"line": 2, "text": "a", "label": "short"}
    options = {"labels": labels, "is_regression": False}
    outcome = made_up_outcome([line], ["short"], labels[:1], [np.array([0.5])], **options)
    context = browser.new_context(viewport={"width": 480, "height": 800})
    page = context.new_page()
    page.set_content(page_of(TextClassification(), "t", outcome, {"accuracy": 0.0}))
    tables = page.query_selector(".tables")
    needed, seen = tables.evaluate("element => [element.scrollWidth, element.clientWidth]")
    context.close()
    assert needed <= seen
