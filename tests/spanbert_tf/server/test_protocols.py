"""The protocols give the answers of the export and of `predict`, in their own layouts."""

import base64
import concurrent.futures
import json
import random

import numpy as np
import pytest
import tensorflow as tf
import yaml
from tiny_models import ALL_INPUTS, SENTENCE

from spanbert_tf.server import application
from spanbert_tf.server.metrics import Metrics
from spanbert_tf.tasks.prediction import Predictor
from spanbert_tf.tasks.text_classification.task import TextClassification

TEXTS = [SENTENCE, "bob has the cat . who has the cat ?", "the"]
PREDICT = "/v1/models/{}:predict"


def rounded(answer):
    return json.loads(json.dumps(answer), parse_float=lambda text: round(float(text), 4))


def right(response):
    assert response.status_code == 200, response.text
    return rounded(response.json())


@pytest.fixture(scope="module")
def signatures(exports):
    return {name: tf.saved_model.load(path).signatures for name, (_, path) in exports.items()}


@pytest.mark.parametrize("name", ["named_entities", "question_answering", "text_classification"])
def test_answers_are_those_of_predict(name, client, exports):
    preset, _ = exports[name]
    inputs = [ALL_INPUTS[name], ALL_INPUTS[name]]
    expected = rounded(Predictor(preset)(inputs, top_k=2))
    assert right(client.post("/answer", json={"model": name, "inputs": inputs, "top_k": 2})) == (
        expected
    )
    one = {"model": name, "inputs": inputs[0], "top_k": 2}
    assert right(client.post("/answer", json=one)) == expected[0]


def test_a_text_is_an_input(client):
    body = {"model": "named_entities", "inputs": SENTENCE}
    as_object = {"model": "named_entities", "inputs": {"text": SENTENCE}}
    assert right(client.post("/answer", json=body)) == right(client.post("/answer", json=as_object))


def test_no_more_answers_are_asked_for_than_were_exported(client, monkeypatch):
    """Masked words have five answers by default, as in `predict`."""
    monkeypatch.setattr(TextClassification, "top_k", 5)
    body = {"model": "text_classification", "inputs": SENTENCE}
    assert len(right(client.post("/answer", json=body))) == 2


def test_predictions_by_rows_and_columns(client, signatures):
    outputs = signatures["text_classification"]["serving_default"](text=tf.constant(TEXTS))
    labels = [label.decode() for label in outputs["labels"].numpy()]
    probabilities = rounded(outputs["probabilities"].numpy().tolist())
    url = PREDICT.format("text_classification")
    rows = [
        {"labels": label, "probabilities": row}
        for label, row in zip(labels, probabilities, strict=True)
    ]
    for instances in (TEXTS, [{"text": text} for text in TEXTS]):
        assert right(client.post(url, json={"instances": instances})) == {"predictions": rows}
    for inputs in (TEXTS, {"text": TEXTS}):
        found = right(client.post(url, json={"inputs": inputs}))
        assert found == {"outputs": {"labels": labels, "probabilities": probabilities}}
    binary = [{"b64": base64.b64encode(text.encode()).decode()} for text in TEXTS]
    versioned = "/v1/models/text_classification/versions/1:predict"
    assert right(client.post(versioned, json={"instances": binary})) == {"predictions": rows}


def test_a_signature_of_one_output_omits_its_name(client, signatures):
    row = {"token_ids": [2, 5, 3], "segment_ids": [0, 0, 0], "padding_mask": [1, 1, 1]}
    columns = {name: tf.constant([values]) for name, values in row.items()}
    outputs = signatures["text_classification"]["token_ids"](**columns)
    expected = rounded(outputs["probabilities"].numpy().tolist())
    body = {"signature_name": "token_ids", "instances": [row]}
    url = PREDICT.format("text_classification")
    assert right(client.post(url, json=body)) == {"predictions": expected}


def test_status_and_metadata(client, exports):
    url = "/v1/models/named_entities"
    status = {"error_code": "OK", "error_message": ""}
    versions = [{"version": "1", "state": "AVAILABLE", "status": status}]
    of_openai = {
        "id": "named_entities", "object": "model", "created": 0, "owned_by": "spanbert_tf"
    }  # fmt: skip
    expected = {**of_openai, "model_version_status": versions}
    assert right(client.get(url)) == expected
    assert right(client.get(f"{url}/versions/1")) == expected
    found = right(client.get(f"{url}/metadata"))
    assert found["model_spec"] == {
        "name": "named_entities", "signature_name": "", "version": "1"
    }  # fmt: skip
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["dtype"] == "DT_STRING"


def test_open_inference(client, signatures):
    assert right(client.get("/v2/health/live")) == {"live": True}
    assert right(client.get("/v2/health/ready")) == {"ready": True}
    assert right(client.get("/v2"))["name"] == "spanbert_tf"
    url = "/v2/models/text_classification"
    assert right(client.get(f"{url}/ready")) == {"name": "text_classification", "ready": True}
    described = right(client.get(url))
    assert described["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]} in described["outputs"]
    tensor = {"name": "text", "shape": [3], "datatype": "BYTES", "data": TEXTS}
    body = {"id": "42", "inputs": [tensor], "outputs": [{"name": "probabilities"}]}
    found = right(client.post(f"{url}/versions/1/infer", json=body))
    outputs = signatures["text_classification"]["serving_default"](text=tf.constant(TEXTS))
    expected = {
        "name": "probabilities",
        "datatype": "FP32",
        "shape": [3, 2],
        "data": rounded(outputs["probabilities"].numpy().reshape(-1).tolist()),
    }
    assert found == {
        "id": "42", "model_name": "text_classification", "model_version": "1", "outputs": [expected]
    }  # fmt: skip


@pytest.mark.parametrize("is_nested", [False, True])
def test_open_inference_takes_flat_and_nested_data(is_nested, client, signatures):
    rows = {
        "token_ids": [[2, 5, 3], [2, 6, 3]],
        "segment_ids": [[0, 0, 0], [0, 0, 0]],
        "padding_mask": [[1, 1, 1], [1, 1, 1]],
    }
    tensors = []
    for name, values in rows.items():
        data = values if is_nested else [*values[0], *values[1]]
        tensors.append({"name": name, "shape": [2, 3], "datatype": "INT32", "data": data})
    body = {"inputs": tensors, "parameters": {"signature_name": "token_ids"}}
    found = right(client.post("/v2/models/text_classification/infer", json=body))
    columns = {name: tf.constant(values) for name, values in rows.items()}
    outputs = signatures["text_classification"]["token_ids"](**columns)
    expected = outputs["probabilities"].numpy().reshape(-1).tolist()
    assert found["outputs"][0]["data"] == rounded(expected)


def test_embeddings_have_openais_layout(client, exports):
    preset, _ = exports["text_embedding"]
    expected = [row["embedding"] for row in Predictor(preset)(TEXTS)]
    body = {"model": "text_embedding", "input": TEXTS}
    found = right(client.post("/v1/embeddings", json=body))
    assert found["object"] == "list" and found["model"] == "text_embedding"
    assert [row["index"] for row in found["data"]] == [0, 1, 2]
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], expected, atol=1e-3)
    num_tokens = sum(len(text.split()) + 2 for text in TEXTS)  # each word is a piece
    assert found["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    encoded = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    for row, vector in zip(encoded["data"], expected, strict=True):
        decoded = np.frombuffer(base64.b64decode(row["embedding"]), "<f4")
        np.testing.assert_allclose(decoded, vector, rtol=1e-4, atol=1e-6)
    models = right(client.get("/v1/models"))
    assert {"id": "text_embedding", "object": "model"}.items() <= models["data"][-1].items()


def test_an_error_of_embeddings_has_openais_layout(client):
    body = {"model": "text_embedding", "input": [1, 2]}
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_metrics_have_tf_servings_names(client):
    client.post(PREDICT.format("named_entities"), json={"instances": TEXTS})
    client.post(PREDICT.format("named_entities"), json={"instances": 3})
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        text = client.get(path).text
        assert ':tensorflow:serving:request_count{model_name="named_entities",status="OK"}' in text
        assert 'status="INVALID_ARGUMENT"' in text
        assert ':tensorflow:serving:request_latency_bucket{API="predict",entrypoint="REST"' in text


def test_a_request_is_counted_once_also_if_it_is_refused_before_its_model_is_known(client):
    def counts():
        found = {}
        for line in client.get("/metrics").text.splitlines():
            if line.startswith(":tensorflow:serving:request_count{"):
                labels, number = line.rsplit(" ", 1)
                found[labels] = float(number)
        return found

    before = counts()
    for path in ("/answer", "/v1/embeddings"):
        client.post(path, content=b"{")
        client.post(path, json={"model": "named_entities"})
    client.get("/v2", headers={"host": "example.com"})
    after = counts()
    differences = {
        labels: number - before.get(labels, 0)
        for labels, number in after.items()
        if number != before.get(labels, 0)
    }
    name = ":tensorflow:serving:request_count"
    assert differences == {
        f'{name}{{model_name="",status="INVALID_ARGUMENT"}}': 2,
        f'{name}{{model_name="named_entities",status="INVALID_ARGUMENT"}}': 2,
        f'{name}{{model_name="",status="PERMISSION_DENIED"}}': 1,
    }


def test_every_route_is_described(client):
    described = right(client.get("/openapi.json"))["paths"]
    shown = client.get("/docs").text
    assert described == yaml.safe_load(yaml.safe_dump(application._read_openapi()["paths"]))
    versions = "/versions/{version}"
    hidden = {"/", "/docs", "/openapi.json", "/monitoring/prometheus/metrics"}
    for route in client.app.routes:
        path = route.path.replace(versions, "")
        if path in hidden:
            continue
        for method in route.methods - {"HEAD"}:
            assert method.lower() in described[path], path
        assert path in shown


def test_many_requests_at_once_get_their_own_answers(client, signatures):
    """Whatever they are gathered with: tensors of different shapes, and different signatures."""
    generator = random.Random(1)
    words = SENTENCE.split()
    texts = [" ".join(generator.choices(words, k=generator.randint(1, 12))) for _ in range(40)]

    def ask(text):
        body = {"instances": [text]}
        labels = client.post(PREDICT.format("text_classification"), json=body)
        entities = client.post(PREDICT.format("named_entities"), json=body)
        return right(labels)["predictions"][0], right(entities)["predictions"][0]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, texts))
    for text, (label, entities) in zip(texts, found, strict=True):
        alone = signatures["text_classification"]["serving_default"](text=tf.constant([text]))
        np.testing.assert_allclose(
            label["probabilities"], alone["probabilities"].numpy()[0], atol=2e-4
        )
        alone = signatures["named_entities"]["serving_default"](text=tf.constant([text]))
        assert entities["starts"] == alone["starts"].numpy()[0].tolist()


def test_a_failure_of_the_program_is_counted_as_one():
    metrics = Metrics()
    with pytest.raises(ZeroDivisionError), metrics.request("a_model", "predict"):
        raise ZeroDivisionError
    assert b'model_name="a_model",status="INTERNAL"' in metrics.text()
