"""The export loaded as TF Serving loads it: a Session, signatures by name, requests as protos."""

import collections
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from server_process import TEXT_OPERATIONS, operations_beyond_tensorflow, run

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.fill_mask import FillMaskGraph
from spanbert_tf.tasks.prediction import export_preset

WORDS = ["the", "a", "cat", "dog", "sat", "##s", "on", "mat", ".", "mask", "[", "]"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOP_K = 3


@pytest.fixture(scope="module")
def masked_lm():
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 17, max_sequence_length=20)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    model = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer))
    random = np.random.default_rng(1)
    model.is_head_trained = True
    model.set_weights([random.normal(0, 0.5, w.shape).astype("float32") for w in model.weights])
    return model


@pytest.fixture(scope="module")
def export(masked_lm, tmp_path_factory):
    directory = tmp_path_factory.mktemp("export")
    masked_lm.save_to_preset(str(directory / "preset"))
    return export_preset(str(directory / "preset"), str(directory / "served"), top_k=TOP_K)


def texts_of_many_lengths():
    random = np.random.default_rng(0)
    words = np.array(["the", "cats", "[MASK]", "on", "Zoë", "\ufffd", "mat."])
    return [" ".join(random.choice(words, size)) for size in [0, 1, 2, 5, 9, 15, 40, 3]]


def test_requests_have_the_keras_models_answers(export, masked_lm, tmp_path):
    texts = [text.encode() for text in texts_of_many_lengths()] + [b"bad \xff\xc3 [MASK]"]
    np.save(tmp_path / "texts.npy", np.array(texts))
    run(
        """
texts = np.load(sys.argv[2]).astype(object)
outputs = predict(request_of(texts=texts))
rows = predict(request_of("pack", texts=texts))
positions = (rows["token_ids"] == 4).argmax(axis=1)[:, None]
packed = predict(request_of("token_ids", **rows, mask_positions=positions.astype("int32")))
np.savez(sys.argv[3], fillings=np.array(outputs["fillings"], "S9"),
         probabilities=outputs["probabilities"], packed=packed["probabilities"])
""",
        export,
        tmp_path / "texts.npy",
        tmp_path / "outputs.npz",
    )
    served = np.load(tmp_path / "outputs.npz")
    module = FillMaskGraph(masked_lm, TOP_K)
    expected = tf.function(module.fill_texts)(tf.constant(texts))
    np.testing.assert_array_equal(served["fillings"], expected["fillings"].numpy().astype("S9"))
    np.testing.assert_allclose(served["probabilities"], expected["probabilities"], rtol=1e-4)
    has_mask = np.array([b"[MASK]" in text for text in texts])
    np.testing.assert_allclose(
        served["packed"][has_mask, 0], served["probabilities"][has_mask, 0], rtol=1e-4
    )


@pytest.mark.slow
def test_warm_up_requests_can_be_replayed(export):
    printed = run(
        """
import json
path = sys.argv[1] + "/assets.extra/tf_serving_warmup_requests"
seen = []
for record in tf.compat.v1.io.tf_record_iterator(path):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    outputs = predict(request)
    assert all(len(value) == len(outputs[next(iter(outputs))]) for value in outputs.values())
    rows = {value.tensor_shape.dim[0].size for value in request.inputs.values()}
    seen.append((request.model_spec.signature_name, *rows))
print(json.dumps(seen))
""",
        export,
    )
    seen = [(name, rows) for name, rows in json.loads(printed)]  # no more than 1,000 are allowed
    # One row and a batch, texts short and long.
    expected = {(name, rows): 2 for name in ("pack", "serving_default") for rows in (1, 8)}
    assert collections.Counter(seen) == expected | {("token_ids", 1): 1, ("token_ids", 8): 1}


@pytest.mark.slow
def test_only_operations_that_servers_have(export):
    assert operations_beyond_tensorflow(export) == set(TEXT_OPERATIONS)


@pytest.mark.slow
def test_eight_threads_get_the_answers_of_one_and_memory_stops_growing(export, tmp_path):
    np.save(tmp_path / "texts.npy", np.array([text.encode() for text in texts_of_many_lengths()]))
    printed = run(
        """
import concurrent.futures, os
texts = np.load(sys.argv[2]).astype(object)
requests = [request_of(texts=texts[i : i + size]) for size in (1, 2, 3) for i in range(len(texts))]
alone = [predict(request) for request in requests]

def work(thread):
    for number in range(200):
        which = (thread * 31 + number * 7) % len(requests)
        outputs = predict(requests[which])
        for name, expected in alone[which].items():
            if name == "fillings":
                assert (outputs[name] == expected).all()
            else:
                np.testing.assert_allclose(outputs[name], expected, rtol=1e-4)
    return True

def resident_mebibytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

memory = []
for _ in range(4):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8
    memory.append(resident_mebibytes())
print(*memory)
""",
        export,
        tmp_path / "texts.npy",
    )
    memory = [float(value) for value in printed.split()]
    assert memory[-1] - memory[1] < 8, memory


def test_files_for_the_server(export):
    directory = os.path.dirname(export)
    name = os.path.basename(directory)
    assert sorted(os.listdir(directory)) == [
        "1", "README.md", "batching_parameters.txt", "models.config",
    ]  # fmt: skip
    with open(os.path.join(directory, "README.md"), encoding="utf-8") as file:
        text = file.read()
    assert f'-v "$PWD":/models/{name} tensorflow/serving:2.20.0' in text
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    with open(os.path.join(directory, "models.config"), encoding="utf-8") as file:
        config = text_format.Parse(file.read(), model_server_config_pb2.ModelServerConfig())
    assert config.model_config_list.config[0].base_path == f"/models/{name}"


@pytest.mark.slow
def test_half_precision(masked_lm, tmp_path, capsys):
    masked_lm.save_to_preset(str(tmp_path / "preset"))
    path = export_preset(
        str(tmp_path / "preset"), str(tmp_path / "served"), top_k=TOP_K, precision="bfloat16"
    )
    assert "bfloat16: the README's example has " in capsys.readouterr().out
    served = tf.saved_model.load(path).signatures["serving_default"]
    text = tf.constant(["the [MASK] sat on a mat"])
    expected = tf.function(FillMaskGraph(masked_lm, TOP_K).fill_texts)(text)
    actual = served(texts=text)
    assert actual["probabilities"].dtype == tf.float32
    np.testing.assert_allclose(
        actual["probabilities"], expected["probabilities"], atol=0.05, rtol=0
    )
    assert (actual["probabilities"].numpy() != expected["probabilities"].numpy()).any()
