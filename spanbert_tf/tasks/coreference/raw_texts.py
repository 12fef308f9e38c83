"""Clusters of raw texts, as fastcoref's `get_clusters` has them."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertCoreferenceResolver
from spanbert_tf.tasks.coreference.decoding import NO_CLUSTER
from spanbert_tf.tasks.coreference.serving import ResolveTexts
from spanbert_tf.tasks.raw_inputs import BATCH_SIZE, in_batches_by_length, string_tensor

_MAX_CHARACTERS = 16_384  # of a batch, padding counted: about 4,096 pieces


def resolve_texts(
    model: SpanBertCoreferenceResolver, *, top_k: int = 1
) -> Callable[..., list[dict]]:
    """A function of dicts with a `text` and, if it is a dialogue, `speakers`.

    Those are a list, or lines, of names, one for each line of the text that has words. It returns
    `{"text": …, "clusters": [[[start, end], …], …], "strings": [[…], …]}` for each, in characters,
    the ends exclusive, and the `doc_key` of an input that has one.

    Args:
        model: with its preprocessor.
        top_k: unused: there is one set of clusters.
    """
    served = ResolveTexts(model)
    specification = [tf.TensorSpec([None], tf.string)] * 2
    resolve = tf.function(served.resolve, input_signature=specification)

    def work(batch: Sequence[dict]) -> list[dict]:
        columns = [string_tensor(batch, name) for name in ("text", "speakers")]
        outputs = {name: values.numpy() for name, values in resolve(*columns).items()}
        names = ("starts", "ends", "clusters")
        rows = zip(batch, *(outputs[name].tolist() for name in names), strict=True)
        return [_clusters(*row) for row in rows]

    def resolve_all(inputs: Sequence[dict], batch_size: int = BATCH_SIZE) -> list[dict]:
        checked = [_with_speakers(item, n) for n, item in enumerate(inputs, start=1)]
        limits = {"batch_size": batch_size, "max_characters": _MAX_CHARACTERS}
        return in_batches_by_length(checked, ("text",), work, **limits)

    return resolve_all


def _with_speakers(item: dict, number: int) -> dict:
    if not isinstance(item, dict):
        return item  # refused with the others
    speakers = item.get("speakers") or ""
    if isinstance(speakers, list | tuple) and all(isinstance(name, str) for name in speakers):
        speakers = "\n".join(" ".join(name.split()) for name in speakers)
    if not isinstance(speakers, str):
        raise BadInputError(f"input {number}: 'speakers' is no list of names, one for each line")
    return {**item, "speakers": speakers}


def _clusters(item: dict, starts: list[int], ends: list[int], numbers: list[int]) -> dict:
    # As the graph has it: halves of surrogate pairs are one character there, too.
    text = item["text"].encode("utf-8", "replace").decode()
    clusters: list[list[list[int]]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for start, end, number in zip(starts, ends, numbers, strict=True):
        if number != NO_CLUSTER:
            clusters[number].append([start, end])
    strings = [[text[start:end] for start, end in spans] for spans in clusters]
    key = {"doc_key": item["doc_key"]} if "doc_key" in item else {}
    return {**key, "text": text, "clusters": clusters, "strings": strings}
