"""Requests that TF Serving runs before a model is available, so that no user waits for the first.

The file is a TFRecord of `PredictionLog` messages; TF Serving reads at most 1,000 of them.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.process.lines import print_line

WARMUP_FILE = "tf_serving_warmup_requests"

Request = tuple[str, Mapping[str, np.ndarray]]  # signature, inputs


def write_warmup_requests(directory: str, requests: Sequence[Request]) -> None:
    """Writes requests as TF Serving reads them.

    Args:
        directory: `assets.extra` of the export.
        requests: signature and inputs of each.

    Without `tensorflow-serving-api` nothing is written, and a line is printed that says so.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ModuleNotFoundError:
        print_line("no warm-up requests: pip install 'spanbert_tf[serving]'")
        return
    with tf.io.TFRecordWriter(os.path.join(directory, WARMUP_FILE)) as writer:
        for signature_name, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature_name
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
