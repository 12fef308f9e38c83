"""Requests that TF Serving runs before a model is available, so that no user waits for the first.

The file is a TFRecord of `PredictionLog` messages; TF Serving reads at most 1,000 of them.
"""

import os
from typing import Protocol

import tensorflow as tf

WARMUP_FILE = "tf_serving_warmup_requests"
_TEXTS = ("The [MASK] of the function.", "", "[MASK] and [MASK]. " * 50)
_BATCH_SIZES = (1, 8)


class ExportedModule(Protocol):
    """A module whose texts can be packed."""

    def pack_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Rows of token ids."""


def write_warmup_requests(directory: str, module: ExportedModule) -> None:
    """Writes requests for each signature, short and long, single and in batches.

    Args:
        directory: `assets.extra` of the export.
        module: whose `pack_texts` makes the rows for the signature that takes token ids.

    Without `tensorflow-serving-api` nothing is written, and a line says so.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ModuleNotFoundError:
        print("no warm-up requests: pip install 'spanbert_tf[serving]'", flush=True)
        return
    with tf.io.TFRecordWriter(os.path.join(directory, WARMUP_FILE)) as writer:
        for signature_name, inputs in _requests(module):
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature_name
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


def _requests(module: ExportedModule) -> list[tuple[str, dict]]:
    requests, pack_texts = [], tf.function(module.pack_texts)
    for batch_size in _BATCH_SIZES:
        for text in _TEXTS:
            texts = tf.fill([batch_size], text)
            rows = {name: value.numpy() for name, value in pack_texts(texts).items()}
            rows["mask_positions"] = tf.ones([batch_size, 1], tf.int32)
            requests += [
                ("serving_default", {"texts": texts}),
                ("pack", {"texts": texts}),
                ("token_ids", rows),
            ]
    return requests
