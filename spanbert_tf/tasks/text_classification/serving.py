"""Classification of raw texts: the predictor and the export, which are one graph.

N texts, C classes.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.text_function import TextFunction
from spanbert_tf.tasks.raw_inputs import (
    BATCH_SIZE,
    RawInputError,
    in_batches_by_length,
    string_tensor,
)
from spanbert_tf.tasks.text_classification.predictions import probabilities
from spanbert_tf.tasks.text_classification.records import text_names
from spanbert_tf.terminal import escape_controls

_EXAMPLES = {"text": "It rains.", "text_pair": "The street is wet."}
_CLASSES = """Signature `serving_default`: {inputs} → `labels` (string [texts], the most probable
class of each), `probabilities` (float32 [texts, {count}]) of the classes
{labels}, in this order."""
_NUMBER = """Signature `serving_default`: {inputs} → `scores` (float32 [texts]): {labels}."""


def served_classifier(model: SpanBertTextClassifier, top_k: int) -> TextFunction:
    """What an export computes: labels and probabilities of all classes, or numbers.

    Args:
        model: the classifier.
        top_k: unused: all classes are there.
    """
    names = text_names(model.preprocessor.is_pair)
    inputs = ", ".join(f"`{name}`" for name in names) + " (string [texts])"
    labels = ", ".join(f"`{escape_controls(label)}`" for label in model.labels)
    template = _NUMBER if model.is_regression else _CLASSES
    about = Manual(
        description="Classifies pairs of texts." if len(names) == 2 else "Classifies texts.",
        inputs={name: [_EXAMPLES[name]] for name in names},
        output="scores" if model.is_regression else "labels",
        output_shape="[texts]",
        signatures=template.format(inputs=inputs, count=len(model.labels), labels=labels),
    )
    return TextFunction(functools.partial(_classify, model), about)


def _classify(model: SpanBertTextClassifier, *texts: tf.Tensor, **named: tf.Tensor) -> dict:
    columns = [*texts, *(named[name] for name in text_names(True) if name in named)]
    columns = [
        tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace") for text in columns
    ]
    found = probabilities(model, model.preprocessor.pack_texts(*columns))  # [N, C]
    if model.is_regression:
        return {"scores": found[:, 0]}
    return {
        "labels": tf.gather(tf.constant(model.labels), tf.argmax(found, axis=-1)),
        "probabilities": found,
    }


def classify_raw(
    model: SpanBertTextClassifier, *, top_k: int = 1
) -> Callable[..., list[dict | list[dict]]]:
    """Classifies dicts of `text`, and for pairs `text_pair`, as `transformers`' pipeline does.

    Args:
        model: the classifier.
        top_k: classes of each text, the most probable first; with more than one, a list.

    Returns:
        Of dicts: `{"label": …, "score": …}` for each, the score a probability, of a regression the
        number. Raises `RawInputError` where an input lacks a text, or has one that is not read.
    """
    names = text_names(model.preprocessor.is_pair)
    signature = [tf.TensorSpec([None], tf.string)] * len(names)
    predict = tf.function(functools.partial(_classify, model), input_signature=signature)

    def classify_batch(batch: Sequence[dict]) -> list[dict | list[dict]]:
        found = predict(*(string_tensor(batch, name) for name in names))
        rows = found["scores"][:, tf.newaxis] if model.is_regression else found["probabilities"]
        answers = []
        for row in rows.numpy():
            order = (-row).argsort(kind="stable")[:top_k]
            answers.append([{"label": model.labels[n], "score": float(row[n])} for n in order])
        return [best[0] for best in answers] if top_k == 1 else answers

    def classify_all(
        inputs: Sequence[dict], batch_size: int = BATCH_SIZE
    ) -> list[dict | list[dict]]:
        for number, item in enumerate(inputs, start=1):
            if isinstance(item, dict) and len(names) == 1 and item.get("text_pair") is not None:
                raise RawInputError(
                    number, "has a 'text_pair', and the model was trained on single texts"
                )
        return in_batches_by_length(inputs, names, classify_batch, batch_size=batch_size)

    return classify_all
