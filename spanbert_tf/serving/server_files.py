"""What TF Serving is started with, and a README for the people who start it."""

import dataclasses
import hashlib
import json
import os
import shlex
import urllib.parse
from collections.abc import Mapping

from spanbert_tf.terminal import escape_controls, escape_lines

_MODELS_CONFIG = """model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
}}
"""
# Requests are put together to one of these sizes, so that the server sees few shapes. Lengths are
# left alone: the server's own padding would not be [PAD] with a padding mask of 0.
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_BATCHING = """max_batch_size {{ value: {largest} }}
batch_timeout_micros {{ value: 2000 }}
max_enqueued_batches {{ value: 100 }}
num_batch_threads {{ value: 2 }}
pad_variable_length_inputs: false
{allowed}
"""
_README = """# {name}

{description} For TensorFlow Serving 2.20; 2.12 and later have its operations.

```bash
docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD":{path} tensorflow/serving:2.20.0 \\
  --model_config_file={path}/models.config \\
  --enable_batching --batching_parameters_file={path}/batching_parameters.txt
```

REST:

```bash
curl -d '{rest}' \\
  http://localhost:8501/v1/models/{in_url}:predict
```

gRPC (`pip install tensorflow-serving-api`):

```python
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

request = predict_pb2.PredictRequest()
request.model_spec.name = {in_python}
{assignments}
stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel("localhost:8500"))
response = stub.Predict(request, timeout=10)
tf.make_ndarray(response.outputs["{output}"])  # {output_shape}
```

{signatures}

{rows}

Requests are put together where their shapes agree: send rows of a few fixed lengths.
"""


README_FILE = "README.md"
# The last line of each file: a file may be replaced as long as nobody has changed it.
_SIGNATURES = {
    "models.config": "# Written by spanbert-tf export; sha256 {}",
    "batching_parameters.txt": "# Written by spanbert-tf export; sha256 {}",
    README_FILE: "<!-- Written by spanbert-tf export; sha256 {} -->",
}


@dataclasses.dataclass(frozen=True)
class Manual:
    """What the README of an export says about its task.

    Attributes:
        description: description of the model, in a sentence or two.
        output: name of the output that the example reads.
        output_shape: shape of that output.
        signatures: the signatures of texts, their inputs and outputs, in Markdown.
        rows: those of packed rows, and how a client packs them.
    """

    description: str
    output: str
    output_shape: str
    signatures: str
    rows: str = ""


def write_server_files(
    directory: str, name: str, manual: Manual, request: Mapping[str, list]
) -> None:
    """Writes `models.config`, `batching_parameters.txt` and `README.md`."""
    allowed = "\n".join(f"allowed_batch_sizes: {size}" for size in _BATCH_SIZES)
    assignments = "\n".join(
        f'request.inputs["{key}"].CopyFrom(tf.make_tensor_proto({json.dumps(texts)}))'
        for key, texts in request.items()
    )
    readme = _README.format(
        name=escape_controls(name),
        path=escape_controls(shlex.quote(f"/models/{name}")),
        in_url=urllib.parse.quote(name, safe=""),
        in_python=_quoted(name),
        description=manual.description,
        rest=json.dumps({"inputs": request}),
        assignments=assignments,
        output=manual.output,
        output_shape=manual.output_shape,
        signatures=manual.signatures,
        rows=manual.rows,
    )
    contents = {
        "models.config": _MODELS_CONFIG.format(name=_quoted(name), path=_quoted(f"/models/{name}")),
        "batching_parameters.txt": _BATCHING.format(largest=_BATCH_SIZES[-1], allowed=allowed),
    }
    write_readme(directory, readme)
    for file_name, content in contents.items():
        _write_signed(directory, file_name, content)


def runtime_readme(name: str, manual: Manual, program: str) -> str:
    """The README of an export for another runtime than TF Serving.

    Args:
        name: of the model.
        manual: what it is, and how rows are packed.
        program: Python that runs such rows.
    """
    title = escape_controls(name)
    return f"# {title}\n\n{manual.description}\n\n{manual.rows}\n\n```python\n{program}\n```\n"


def write_readme(directory: str, text: str) -> None:
    """Writes `README.md`, which the next export may replace."""
    _write_signed(directory, README_FILE, escape_lines(text))


def _write_signed(directory: str, name: str, content: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(f"{content}{_signature(name, content)}\n")


def _quoted(text: str) -> str:
    """As Python and protocol buffers write it."""
    return json.dumps(text, ensure_ascii=False)


def replace_server_files(source: str, output: str) -> list[str]:
    """Moves the files to their place; returns the paths of those that somebody else wrote there."""
    kept = []
    for name in _SIGNATURES:
        if not os.path.exists(os.path.join(source, name)):
            continue
        path = os.path.join(output, name)
        if os.path.lexists(path) and not _is_ours(path, name):
            kept.append(path)
        else:
            os.replace(os.path.join(source, name), path)
    return kept


def _is_ours(path: str, name: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        content, separator, last = file.read().removesuffix("\n").rpartition("\n")
    return last == _signature(name, content + separator)


def _signature(name: str, content: str) -> str:
    return _SIGNATURES[name].format(hashlib.sha256(content.encode()).hexdigest())
