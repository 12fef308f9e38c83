"""Damaged requests of every protocol; `benchmarks/fuzzed_requests.py` sends more to a process."""

import random

import pytest
from tiny_models import ALL_INPUTS

from benchmarks.fuzzed_requests import Sent, damaged_requests, fault_of, valid_requests

NAMES = ("named_entities", "question_answering", "text_classification", "text_embedding")
VALID = valid_requests({name: ALL_INPUTS[name] for name in NAMES})


def fault(sent, client):
    content = iter([sent.body]) if sent.is_chunked else sent.body
    headers = {name: value.encode() for name, value in sent.headers.items()}
    response = client.request(sent.method, sent.path, content=content, headers=headers)
    kind = response.headers.get("content-type", "")
    return fault_of(sent, response.status_code, kind, response.content)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_damaged_requests_are_refused_in_their_protocols_layout(seed, client):
    found = [fault(sent, client) for sent in damaged_requests(VALID, random.Random(seed), 300)]
    assert set(found) == {None}


def test_right_requests_are_answered(client):
    for path, content in VALID:
        assert client.post(path, json=content).status_code == 200, path


@pytest.mark.parametrize(
    ("status", "kind", "body", "says"),
    [
        (500, "application/json", b'{"error": "x"}', "status 500"),
        (400, "text/plain", b"no", "of type"),
        (400, "application/json", b'{"detail": "x"}', "without an error"),
        (400, "application/json", b'{"error": {"message": "x"}}', "without an error"),
        (200, "application/json", b'{"a": NaN}', "no JSON"),
        (200, "application/json", b'{"error": "x"}', "is an error"),
    ],
)
def test_wrong_answers_are_found(status, kind, body, says):
    sent = Sent("POST", "/answer", {}, b"", is_chunked=False)
    assert says in fault_of(sent, status, kind, body)
