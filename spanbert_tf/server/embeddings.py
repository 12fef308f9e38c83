"""OpenAI's interface for embeddings, which its clients use unchanged.

https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import beside, compute, json_of, json_response, listed, models_of
from spanbert_tf.server.model import Model
from spanbert_tf.server.tensors import typed
from spanbert_tf.tasks.text_embedding import TextEmbedding


async def embed(request: Request) -> Response:
    """Computes a vector for each text."""
    models = models_of(request)
    async with json_of(request) as (content, size):
        served = models.find(typed(content, "model", str, ""))
        name = served.source.name
        with models.metrics.request(name, "embeddings"), served.version.used() as version:
            if version.model.pipeline.name != TextEmbedding.name:
                raise RequestError(400, f"{name} is no model of embeddings")
            texts = _texts(content.get("input"))
            encoding = typed(content, "encoding_format", str, "float")
            if encoding not in ("float", "base64"):
                raise RequestError(400, "'encoding_format' is neither float nor base64")
            _, works = await beside(size, version.model.raw_works, texts)
            _check_dimensions(typed(content, "dimensions", int), version.model, works[0].signature)
            outputs = await compute(request, version.worker, works)
            vectors = [columns["embeddings"][0] for columns in outputs]
            num_tokens = sum(int(columns["padding_mask"].sum()) for columns in outputs)
            num_bytes = sum(vector.nbytes for vector in vectors)
            return await beside(num_bytes, _written, name, vectors, num_tokens, encoding)


def _check_dimensions(dimensions: int | None, model: Model, signature: str) -> None:
    """Checks that a request asks for all numbers of a vector.

    Raises:
        RequestError: it asks for another number.
    """
    (width,) = model.output_specs(signature)["embeddings"].shape[1:]
    if dimensions not in (None, width):
        raise RequestError(400, f"'dimensions' is not {width}, which the model has")


def _written(name: str, vectors: Sequence[np.ndarray], num_tokens: int, encoding: str) -> Response:
    """Makes the response."""
    data = []
    for index, vector in enumerate(vectors):
        embedding = _encoded(vector) if encoding == "base64" else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    answer = {
        "object": "list",
        "data": data,
        "model": name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return json_response(answer)


def _texts(value: Any) -> list[str]:
    """Returns the texts of a request, which are one or several.

    Raises:
        RequestError: it has token ids, which are those of another vocabulary, or something else.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return value
    raise RequestError(400, "'input' is neither a text nor a list of texts")


def _encoded(vector: np.ndarray) -> str:
    """Encodes a vector as OpenAI does: float32, the lowest byte first, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


async def list_models(request: Request) -> Response:
    """Lists the models."""
    data = [listed(name) for name in models_of(request).by_name]
    return json_response({"object": "list", "data": data})


def routes() -> list[Route]:
    """Returns the routes."""
    return [
        Route("/v1/embeddings", embed, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
    ]
