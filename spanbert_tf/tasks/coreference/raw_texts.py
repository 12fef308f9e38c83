"""Clusters of raw texts, as fastcoref's `get_clusters` has them."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from spanbert_tf.models import SpanBertCoreferenceResolver
from spanbert_tf.tasks.coreference.decoding import NO_CLUSTER
from spanbert_tf.tasks.coreference.serving import ResolveTexts
from spanbert_tf.tasks.raw_inputs import (
    BATCH_SIZE,
    RawInputError,
    in_batches_by_length,
    string_tensor,
)
from spanbert_tf.text.tokenization import WordPieceTokenizer

_MAX_CHARACTERS = 16_384  # of a batch, padding counted: about 4,096 pieces


def resolve_texts(
    model: SpanBertCoreferenceResolver, *, top_k: int = 1
) -> Callable[..., list[dict]]:
    """A function of dicts with a `text` and, if it is a dialogue, `speakers`.

    Those are a list, or lines, of names, one for each line of the text, or for each that has words;
    it raises `RawInputError` where they are more or fewer. It returns
    `{"text": …, "clusters": [[[start, end], …], …], "strings": [[…], …]}` for each, in characters,
    the ends exclusive, and the `doc_key` of an input that has one.

    Args:
        model: with its preprocessor.
        top_k: unused: there is one set of clusters.
    """
    tokenizer = model.preprocessor.tokenizer
    reader = WordPieceTokenizer.shared(tokenizer.get_vocabulary(), tokenizer.casing)
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
        checked = _checked(inputs, reader)
        limits = {"batch_size": batch_size, "max_characters": _MAX_CHARACTERS}
        return in_batches_by_length(checked, ("text",), work, **limits)

    return resolve_all


def _checked(inputs: Sequence[dict], reader: WordPieceTokenizer) -> list[dict]:
    """Inputs with `speakers` as lines, one name for each line of the text that has words."""
    checked = []
    for number, item in enumerate(inputs, start=1):
        if isinstance(item, dict) and isinstance(item.get("text"), str):  # others are refused later
            names = _names(item, number)
            names = names and _of_lines_with_words(item["text"], names, reader, number)
            item = {**item, "speakers": "\n".join(names)}
        checked.append(item)
    return checked


def _names(item: dict, number: int) -> list[str]:
    speakers = item.get("speakers") or []
    if isinstance(speakers, str):
        # A line end that ends the text, too, begins no line of its own.
        ends_line = item["text"].endswith("\n")
        return (speakers.removesuffix("\n") if ends_line else speakers).split("\n")
    if isinstance(speakers, list | tuple) and all(isinstance(name, str) for name in speakers):
        return [" ".join(name.split()) for name in speakers]
    raise RawInputError(number, "'speakers' is no list of names, one for each line")


def _of_lines_with_words(
    text: str, names: list[str], reader: WordPieceTokenizer, number: int
) -> list[str]:
    """The names of the lines that have words, of those lines' or of all lines'."""
    lines = text.removesuffix("\n").split("\n")
    pieces = reader.tokenize(tf.constant([line.encode("utf-8", "replace") for line in lines]))
    has_words = pieces.row_lengths().numpy() > 0
    if len(names) == has_words.sum():
        return names
    if len(names) == len(lines):
        return [name for name, is_kept in zip(names, has_words, strict=True) if is_kept]
    raise RawInputError(
        number,
        f"has {len(names):,} speakers for {has_words.sum():,} lines with words; name one for each "
        "line",
    )


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
