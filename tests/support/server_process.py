"""An export in a process of its own, loaded as TF Serving loads it."""

import subprocess
import sys

# Operations of TensorFlow Text that released servers have. Servers 2.12 to 2.19 have TensorFlow
# Text 2.12.1 linked in, later ones 2.20.
TEXT_OPERATIONS = {
    "FastBertNormalize": "github.com/tensorflow/serving/issues/2064: in the server after 2.11",
    "FastWordpieceTokenizeWithOffsets": "added to TensorFlow Text together with it; linked since",
}

# The server's own way in: nothing of Keras or of this project.
LOADING = """
import sys
import numpy as np
sys.modules.update(dict.fromkeys(("keras_hub", "keras_nlp", "spanbert_tf")))
import tensorflow as tf
import tensorflow_text
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

session = tf.compat.v1.Session(graph=tf.Graph())
with session.graph.as_default():
    graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], sys.argv[1])
signatures = graph.signature_def

def predict(request):
    signature = signatures[request.model_spec.signature_name or "serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert set(request.inputs) == set(signature.inputs)
    feeds = {signature.inputs[n].name: tf.make_ndarray(t) for n, t in request.inputs.items()}
    return session.run({n: manifest.name for n, manifest in signature.outputs.items()}, feeds)

def request_of(signature_name="", **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature_name
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request
"""


def run(program, *arguments):
    child = subprocess.run(
        [sys.executable, "-c", LOADING + program, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return child.stdout


def operations_beyond_tensorflow(export):
    """Operations of an export that a process with TensorFlow alone does not have."""
    printed = run(
        """
import subprocess
names = {node.op for node in graph.graph_def.node}
names |= {node.op for function in graph.graph_def.library.function for node in function.node_def}
names -= {function.signature.name for function in graph.graph_def.library.function}
program = "import sys; import tensorflow; from tensorflow.python.framework import op_def_registry;"
program += "print(*[name for name in sys.argv[1:] if op_def_registry.get(name) is None])"
subprocess.run([sys.executable, "-c", program, *sorted(names)], check=True)
""",
        export,
    )
    return set(printed.split())
