"""Clients that others made work unchanged, and binary tensors as KServe's clients send them."""

import asyncio
import json
import struct

import numpy as np
import openai
import pytest
from tiny_models import SENTENCE

EMBEDDER = "text_embedding"
CLASSIFIER = "text_classification"
INFER = f"/v2/models/{CLASSIFIER}/infer"
HEAD_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def client_of_openai(running):
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def test_the_client_of_openai_gets_vectors(client_of_openai):
    texts = [SENTENCE, "bob"]
    by_default = client_of_openai.embeddings.create(model=EMBEDDER, input=texts)  # asks for base64
    as_numbers = client_of_openai.embeddings.create(
        model=EMBEDDER, input=texts, encoding_format="float", dimensions=8
    )
    for first, second in zip(by_default.data, as_numbers.data, strict=True):
        assert len(first.embedding) == 8
        np.testing.assert_allclose(first.embedding, second.embedding, rtol=1e-6)
    assert by_default.usage.prompt_tokens == 10  # [CLS], [SEP] of both


def test_the_client_of_openai_finds_models(client_of_openai, sources):
    found = [model.id for model in client_of_openai.models.list()]
    assert found == [source.name for source in sources]
    assert client_of_openai.models.retrieve(EMBEDDER).id == EMBEDDER


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"model": EMBEDDER, "input": "x", "dimensions": 3}, openai.BadRequestError),
        ({"model": EMBEDDER, "input": [1, 2]}, openai.BadRequestError),
        ({"model": CLASSIFIER, "input": "x"}, openai.BadRequestError),
        ({"model": "none", "input": "x"}, openai.NotFoundError),
    ],
)
def test_the_client_of_openai_raises_its_errors(request_, kind, client_of_openai):
    with pytest.raises(kind) as caught:
        client_of_openai.embeddings.create(**request_)
    assert caught.value.type and caught.value.body["message"]


def test_many_asynchronous_requests(running):
    async def ask():
        async with openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key="none", max_retries=0
        ) as client:
            asked = [client.embeddings.create(model=EMBEDDER, input=SENTENCE) for _ in range(16)]
            return await asyncio.gather(*asked)

    vectors = [answer.data[0].embedding for answer in asyncio.run(ask())]
    np.testing.assert_allclose(vectors, [vectors[0]] * 16, rtol=1e-5)


def infer_binary(client, tensors, parts, **parameters):
    """Sends tensors whose data follow the JSON."""
    inputs = [
        {**tensor, "parameters": {"binary_data_size": len(part)}}
        for tensor, part in zip(tensors, parts, strict=True)
    ]
    head = json.dumps({"parameters": parameters, "inputs": inputs}).encode()
    headers = {HEAD_LENGTH: str(len(head))}
    return client.post(INFER, content=head + b"".join(parts), headers=headers)


def test_binary_tensors_are_read_as_those_of_json(client):
    texts = [SENTENCE.encode(), b"bob"]
    tensor = {"name": "text", "shape": [2], "datatype": "BYTES"}
    part = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    binary = infer_binary(client, [tensor], [part])
    plain = client.post(INFER, json={"inputs": [tensor | {"data": [SENTENCE, "bob"]}]})
    assert binary.status_code == 200 and binary.json() == plain.json()

    rows = {"token_ids": [[2, 5, 3]], "segment_ids": [[0] * 3], "padding_mask": [[1] * 3]}
    tensors = [{"name": name, "shape": [1, 3], "datatype": "INT32"} for name in rows]
    parts = [np.array(values, "<i4").tobytes() for values in rows.values()]
    parameters = {"signature_name": "token_ids"}
    binary = infer_binary(client, tensors, parts, **parameters)
    both = [tensor | {"data": rows[tensor["name"]]} for tensor in tensors]
    plain = client.post(INFER, json={"parameters": parameters, "inputs": both})
    assert binary.status_code == 200 and binary.json() == plain.json()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (b"\x05\x00\x00\x00ann", "bytes are no string"),
        (b"\x01", "bytes are no string"),
        (b"", "0 values"),
        (b"\xff\xff\xff\xff", "bytes are no string"),
    ],
)
def test_wrong_binary_tensors_are_refused(part, says, client):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES"}
    response = infer_binary(client, [tensor], [part])
    assert response.status_code == 400 and says in response.json()["error"]


@pytest.mark.parametrize("length", ["9999", "-1", "x", "3"])
def test_a_wrong_length_of_the_json_is_refused(length, client):
    response = client.post(INFER, content=b'{"inputs": []}', headers={HEAD_LENGTH: length})
    assert response.status_code == 400 and response.json()["error"]


def test_more_bytes_than_tensors_are_refused(client):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["ann"]}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {HEAD_LENGTH: str(len(head))}
    response = client.post(INFER, content=head + b"more", headers=headers)
    assert response.status_code == 400 and "more bytes" in response.json()["error"]


def test_compressed_bodies_are_refused(client):
    response = client.post(INFER, content=b"x", headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415 and response.json()["error"]
