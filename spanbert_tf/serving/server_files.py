"""What TF Serving is started with, and a README for the people who start it."""

import os

import keras_hub

_MODELS_CONFIG = """model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
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

A masked-language model for TensorFlow Serving 2.20 (2.12 and later have its operations). Texts
with `[MASK]` in, the most probable fillings and their probabilities out; longer texts than
{max_tokens} word pieces are cut off.

```bash
docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD:/models/{name}" tensorflow/serving:2.20.0 \\
  --model_config_file=/models/{name}/models.config \\
  --enable_batching --batching_parameters_file=/models/{name}/batching_parameters.txt
```

REST:

```bash
curl -d '{{"inputs": {{"texts": ["The [MASK] of the function."]}}}}' \\
  http://localhost:8501/v1/models/{name}:predict
```

gRPC (`pip install tensorflow-serving-api`):

```python
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

request = predict_pb2.PredictRequest()
request.model_spec.name = "{name}"
request.inputs["texts"].CopyFrom(tf.make_tensor_proto(["The [MASK] of the function."]))
stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel("localhost:8500"))
response = stub.Predict(request, timeout=10)
tf.make_ndarray(response.outputs["fillings"])  # [texts, masks, top k]
```

| signature | inputs |
| --- | --- |
| `serving_default` | `texts`, string [N] |
| `pack` | `texts`, string [N] |
| `token_ids` | `token_ids`, `padding_mask`, int32 [N, S]; `mask_positions`, int32 [N, masks] |

`serving_default` returns `fillings` and `probabilities` [N, masks, top k], `token_ids` the same
with ids in place of strings, and `pack` the rows that `token_ids` takes.

Where requests are put together, a text has as many slots as the text with the most masks; those
that it does not need are empty, with probability 0. Requests for `token_ids` are put together only
where their shapes agree: send rows of a few fixed lengths.
"""


def write_server_files(directory: str, name: str, backbone: keras_hub.models.Backbone) -> None:
    """Writes `models.config`, `batching_parameters.txt` and `README.md`.

    Args:
        directory: is made.
        name: of the model.
        backbone: of the model.
    """
    os.makedirs(directory)
    allowed = "\n".join(f"allowed_batch_sizes: {size}" for size in _BATCH_SIZES)
    contents = {
        "models.config": _MODELS_CONFIG.format(name=name),
        "batching_parameters.txt": _BATCHING.format(largest=_BATCH_SIZES[-1], allowed=allowed),
        "README.md": _README.format(name=name, max_tokens=backbone.max_sequence_length - 2),
    }
    for file_name, content in contents.items():
        with open(os.path.join(directory, file_name), "w", encoding="utf-8") as file:
            file.write(content)
