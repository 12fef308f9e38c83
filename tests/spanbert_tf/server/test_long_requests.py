"""The windows of long texts are computed in turns: with progress, and with others between them."""

import json
import threading

import pytest
import requests
from running_server import WAIT, wait_for
from tiny_models import LENGTH, SENTENCE, export_tiny_model

import spanbert_tf
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.versions import Source
from spanbert_tf.tasks.coreference.task import Coreference

LINES = {"Accept": "text/plain, application/x-ndjson;q=0.9"}
BOOK = "ann has the cat . bob has the cat ?\n" * 40
NAME = "coreference"


@pytest.fixture(scope="module")
def coreference(tmp_path_factory):
    """Where the export of a resolver lies."""
    version = export_tiny_model(NAME, tmp_path_factory.mktemp("coreference"))
    return Source(NAME, version.removesuffix("/1"))


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(Coreference, "max_window_tokens", 4 * LENGTH)


@pytest.fixture(scope="module")
def running(coreference, run):
    return run([coreference], max_batch_tokens=80)


@pytest.fixture
def gate(running, monkeypatch):
    return Gate(running.worker(NAME), monkeypatch)


class Gate:
    """Lets a worker compute one batch after the other, and notes the texts of each."""

    def __init__(self, worker, monkeypatch):
        self.computed = []
        self._is_open = threading.Semaphore(0)
        compute = worker._compute

        def waiting(signature, inputs):
            self.computed += [text.decode() for text in inputs["text"]]
            self._is_open.acquire(timeout=WAIT)
            return compute(signature, inputs)

        monkeypatch.setattr(worker, "_compute", waiting)

    def open(self, times=1):
        self._is_open.release(times)


def post(running, body, headers=None, path="/answer"):
    return requests.post(f"{running.url}{path}", json=body, headers=headers, timeout=WAIT)


def test_lines_of_progress_end_with_the_answer(running):
    for inputs in (BOOK, [SENTENCE, *[BOOK[:400]] * 3], []):
        body = {"inputs": inputs}
        expected = post(running, body)
        found = post(running, body, LINES)
        assert found.status_code == expected.status_code == 200
        assert found.headers["content-type"] == "application/x-ndjson"
        *progress, answer = map(json.loads, found.text.splitlines())
        assert answer == expected.json()
        counts = [line["tokens"] for line in progress]
        assert counts == sorted(set(counts))
        assert [line["of"] for line in progress] == counts[-1:] * len(counts)
        assert len(progress) > 10 or inputs != BOOK


def test_a_book_is_answered_as_the_predictor_answers_it(running, coreference):
    answer = running.ask(NAME, BOOK).json()
    assert answer == spanbert_tf.predictor(coreference.directory)(BOOK)
    assert len(answer["clusters"]) > 0


def test_what_is_refused_before_the_first_line_has_its_status(running):
    for body in ({"inputs": 3}, {"model": NAME}, {"model": "none", "inputs": BOOK}):
        plain = post(running, body)
        found = post(running, body, LINES)
        assert found.status_code == plain.status_code >= 400
        assert found.json() == plain.json()


@pytest.mark.parametrize("error", [RequestError(503, "no memory"), ZeroDivisionError()])
def test_an_error_after_the_first_line_is_the_last_one(error, running, monkeypatch):
    worker = running.worker(NAME)
    compute = worker._compute
    seen = []

    def failing(signature, inputs):
        seen.append(inputs)
        if len(seen) == 3:
            raise RequestError(503, "no memory")
        return compute(signature, inputs)

    def wrong(*arguments):
        raise error

    if isinstance(error, RequestError):
        monkeypatch.setattr(worker, "_compute", failing)
    else:
        monkeypatch.setattr(Coreference, "answer", wrong)
    found = post(running, {"inputs": BOOK}, LINES)
    *progress, last = map(json.loads, found.text.splitlines())
    expected = "no memory" if isinstance(error, RequestError) else "the server failed"
    assert last == {"error": expected} and len(progress) >= 2
    monkeypatch.undo()
    assert running.ask(NAME, SENTENCE).status_code == 200


@pytest.mark.parametrize("headers", [LINES, {}], ids=["lines", "plain"])
def test_nothing_more_is_computed_for_a_client_that_has_gone(headers, running, gate):
    body = json.dumps({"inputs": BOOK}).encode()
    head = [
        "POST /answer HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        *[f"{name}: {value}" for name, value in headers.items()],
    ]
    with running.connect() as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        wait_for(lambda: len(gate.computed) == 1)
        gate.open()
        wait_for(lambda: len(gate.computed) == 2)
    wait_for(lambda: not running.server.server_state.connections)
    gate.open(100)
    wait_for(lambda: not running.models.find(NAME).version._num_users)
    assert running.ask(NAME, SENTENCE).status_code == 200
    assert gate.computed[2:] == [SENTENCE]


def test_others_are_served_between_the_windows_of_a_book(running, gate):
    answers = {}

    def ask(inputs):
        answers[inputs] = running.ask(NAME, inputs).json()

    book, other = (threading.Thread(target=ask, args=[text]) for text in (BOOK, SENTENCE))
    book.start()
    wait_for(lambda: len(gate.computed) == 1)
    other.start()
    wait_for(lambda: running.worker(NAME)._waiting)
    gate.open(100)
    book.join()
    other.join()
    assert gate.computed.index(SENTENCE) == 1 < len(gate.computed) - 1
    assert answers[SENTENCE] == running.ask(NAME, SENTENCE).json()
    assert answers[BOOK]["text"] == BOOK


def test_a_long_row_of_tensors_is_refused(running, monkeypatch):
    monkeypatch.setattr(Coreference, "max_text_tokens", 100)
    found = post(running, {"instances": [BOOK]}, path=f"/v1/models/{NAME}:predict")
    assert found.status_code == 413
    assert "/answer" in found.json()["error"]
