"""Each bad request is answered with its protocol's error, and the server lives."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st
from tiny_models import SENTENCE

CLASSIFY = "/v1/models/text_classification:predict"
INFER = "/v2/models/text_classification/infer"
EMBED = "/v1/embeddings"
ANSWER = "/answer"
POSTED = (CLASSIFY, INFER, EMBED, ANSWER)
DEEP = "[" * 9_000 + "]" * 9_000
ROW = {"token_ids": [2, 5, 3], "segment_ids": [0, 0, 0], "padding_mask": [1, 1, 1]}


def message_of(response):
    """The error of a response, whichever protocol's layout it has."""
    error = response.json()["error"]
    return error["message"] if isinstance(error, dict) else error


def lives(client):
    found = client.post(CLASSIFY, json={"instances": [SENTENCE]})
    return found.status_code == 200 and len(found.json()["predictions"]) == 1


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"\x00", b"{", b"[]", b"3", b'"text"', b"null", b"\xff\xfe{}", b'{"a": NaN}',
        b'{"a": Infinity}', DEEP.encode(), b'{"inputs": ' + DEEP.encode() + b"}", b"[" * 19_000,
        b'{"instances": ' + b"9" * 5_000 + b"}", b"{}",
    ],
    ids=lambda body: str(body[:16]),
)  # fmt: skip
def test_bodies_that_are_no_request(path, body, client):
    response = client.post(path, content=body)
    assert 400 <= response.status_code < 500
    assert message_of(response)
    assert lives(client)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
def test_no_number_is_infinite(number, client):
    """An answer may repeat it, and would be no JSON."""
    body = f'{{"model": "named_entities", "inputs": {{"text": "ann", "doc_key": {number}}}}}'
    assert client.post(ANSWER, content=body).status_code == 400
    assert client.post(ANSWER, content=body.replace(number, "1e99")).status_code == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"instances": [SENTENCE], "inputs": [SENTENCE]}, "either"),
        ({"instances": SENTENCE}, "no list"),
        ({"instances": [3]}, "no string"),
        ({"instances": [None]}, "no string"),
        ({"instances": [[SENTENCE]]}, "no string"),
        ({"instances": [{"text": SENTENCE, "pair": "x"}]}, "inputs of the signature"),
        ({"instances": [{"b64": "?"}]}, "base64"),
        ({"instances": [{"b64": 3}]}, "base64"),
        ({"inputs": {"text": SENTENCE}}, "rank"),
        ({"inputs": {}}, "inputs of the signature"),
        ({"instances": [SENTENCE], "signature_name": "other"}, "no signature 'other'"),
        ({"instances": [SENTENCE], "signature_name": 3}, "'signature_name' is not of type str"),
        ({"signature_name": "token_ids", "instances": [SENTENCE]}, "no object"),
        ({"signature_name": "token_ids", "instances": [ROW | {"token_ids": [2.5, 5, 3]}]}, "int32"),
        ({"signature_name": "token_ids", "instances": [ROW | {"token_ids": [True] * 3}]}, "int32"),
        ({"signature_name": "token_ids", "instances": [ROW | {"token_ids": [2**31] * 3}]}, "int32"),
        (
            {"signature_name": "token_ids", "instances": [ROW | {"token_ids": [-99, 5, 3]}]},
            "not in [0",
        ),
        ({"signature_name": "token_ids", "instances": [ROW | {"token_ids": [999] * 3}]}, "999"),
        ({"signature_name": "token_ids", "instances": [ROW | {"token_ids": [2, 3]}]}, "refuses"),
        ({"signature_name": "token_ids", "instances": [{k: [1] * 40 for k in ROW}]}, "refuses"),
        (
            {"signature_name": "token_ids", "instances": [ROW, {k: [1, 2] for k in ROW}]},
            "different lengths",
        ),
        (
            {"signature_name": "token_ids", "inputs": {k: [[1]] * n for n, k in enumerate(ROW, 1)}},
            "different numbers of rows",
        ),
        ({"instances": [SENTENCE] * 200}, "send several requests"),
    ],
)
def test_wrong_tensors(content, says, client):
    response = client.post(CLASSIFY, json=content)
    assert response.status_code in (400, 413)
    assert says in message_of(response)
    assert lives(client)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ({"shape": [1], "datatype": "INT32"}, "BYTES"),
        ({"shape": [1]}, "BYTES"),
        ({"shape": [2]}, "its shape says otherwise"),
        ({"shape": [-1], "datatype": "BYTES"}, "no shape"),
        ({"shape": [1, 1], "datatype": "BYTES"}, "no shape"),
        ({"shape": "x", "datatype": "BYTES"}, "'shape' is not of type list"),
        ({"datatype": "BYTES"}, "needs 'shape' and 'data'"),
        ({"name": "other", "shape": [1], "datatype": "BYTES"}, "no input 'other'"),
    ],
)
def test_wrong_tensors_of_open_inference(tensor, says, client):
    whole = {"name": "text", "data": [SENTENCE]} | tensor
    if whole["shape" if "shape" in whole else "name"] == [2]:
        whole["datatype"] = "BYTES"
    response = client.post(INFER, json={"inputs": [whole]})
    assert response.status_code == 400
    assert says in message_of(response)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"inputs": SENTENCE}, "name the 'model'"),
        ({"model": "named_entities"}, "no 'inputs'"),
        ({"model": "named_entities", "inputs": 3}, "input 1: is of type int"),
        ({"model": "named_entities", "inputs": [SENTENCE, {}]}, "input 2: has no text 'text'"),
        ({"model": "question_answering", "inputs": SENTENCE}, "question and context"),
        ({"model": "named_entities", "inputs": SENTENCE, "top_k": 3}, "from 1 to 2"),
        ({"model": "named_entities", "inputs": SENTENCE, "top_k": 0}, "from 1 to 2"),
        ({"model": "named_entities", "inputs": SENTENCE, "top_k": True}, "not of type int"),
        ({"model": ["x"], "inputs": SENTENCE}, "not of type str"),
    ],
)
def test_wrong_inputs(content, says, client):
    response = client.post(ANSWER, json=content)
    assert response.status_code == 400
    assert says in message_of(response)


@pytest.mark.parametrize(
    "path",
    ["/v1/models/none", "/v1/models/named_entities/versions/2", "/v2/models/none", "/none",
     "/v1/models/named_entities/versions/x", "/v1/models/..%2F..%2Fetc", "/page.html"],
)  # fmt: skip
def test_what_is_not_there(path, client):
    response = client.get(path)
    assert response.status_code == 404
    assert message_of(response)


def test_wrong_methods(client):
    assert client.get(ANSWER).status_code == 405
    assert client.post("/v1/models/named_entities").status_code == 405


@pytest.mark.parametrize("path", POSTED)
def test_bodies_that_are_too_large(path, client):
    text = "x" * 30_000
    response = client.post(path, json={"instances": [text], "inputs": text, "input": text})
    assert response.status_code == 413 and message_of(response)
    parts = (b"x" * 1_000 for _ in range(100))  # without a stated length
    assert client.post(path, content=parts).status_code == 413
    assert lives(client)


@pytest.mark.parametrize(
    "text", ["\x00", "ann\x00has", "\ud800", "\udfffann", "", " ", "\u202e", "a" * 5_000]
)
def test_odd_texts_are_answered(text, client):
    for model in ("named_entities", "text_classification"):
        body = json.dumps({"model": model, "inputs": [text]}).encode()
        response = client.post(ANSWER, content=body)
        assert response.status_code == 200 and len(response.json()) == 1
    body = json.dumps(
        {"model": "question_answering", "inputs": {"question": text, "context": text}}
    )
    assert client.post(ANSWER, content=body.encode()).status_code == 200
    body = json.dumps({"model": "text_embedding", "input": text}).encode()
    assert client.post(EMBED, content=body).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=9), children, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["instances", "inputs", "input", "model", "signature_name", "top_k", "outputs", "parameters",
     "encoding_format", "dimensions", "id"]
)  # fmt: skip
LIKELY = st.sampled_from(
    ["token_ids", "serving_default", "named_entities", "question_answering", "text_embedding",
     [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}], {"text": "x"}, ["x"],
     [ROW], "float", 1, {"question": "x", "context": 3}]
)  # fmt: skip
BODIES = st.dictionaries(KEYS, LIKELY | JSON, max_size=5).map(
    lambda body: json.dumps(body).encode()
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(path=st.sampled_from(POSTED), body=BODIES | st.binary(max_size=60))
def test_no_body_makes_the_server_fail(path, body, client):
    response = client.post(path, content=body)
    assert response.status_code < 500, body
    assert response.status_code == 200 or message_of(response)


def test_inputs_of_a_request_are_bounded(client):
    asked = {"model": "named_entities", "inputs": [""] * 2_049}
    response = client.post(ANSWER, json=asked)
    assert response.status_code == 413
    assert "has 2,049 inputs; 2,048 are taken" in message_of(response)


def test_a_text_that_is_cut_counts_as_a_row(client):
    path = "/v1/models/text_classification:predict"
    response = client.post(path, json={"instances": ["ann " * 100] * 4})
    assert response.status_code == 200


def test_a_length_of_thousands_of_digits_is_refused(client):
    headers = {"Inference-Header-Content-Length": "9" * 5_000}
    assert client.post(INFER, content=b'{"inputs": []}', headers=headers).status_code == 400


def test_rows_of_nothing_are_refused(client):
    names = ("token_ids", "segment_ids", "padding_mask")
    empty = {"shape": [1, 0], "datatype": "INT32", "data": []}
    asked = {"parameters": {"signature_name": "token_ids"}}
    asked["inputs"] = [{"name": name, **empty} for name in names]
    response = client.post("/v2/models/text_classification/infer", json=asked)
    assert response.status_code == 400
    assert "rows of nothing" in message_of(response)
