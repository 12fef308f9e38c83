"""Classification of raw texts, in a graph: the export and the predictor.

N texts, C classes.
"""

import tensorflow as tf

from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.tasks.pipeline import clean_texts, text_specs
from spanbert_tf.tasks.text_classification.records import text_names
from spanbert_tf.terminal import escape_controls

_CLASSES = """Signature `serving_default`: {inputs} → `labels` (string [texts], the most probable
class of each), `probabilities` (float32 [texts, {count}]) of the classes
{labels}, in this order."""
_NUMBER = """Signature `serving_default`: {inputs} → `scores` (float32 [texts]): {labels}."""


def classify_signatures(model: SpanBertTextClassifier) -> Signatures:
    """Labels and probabilities of all classes, or numbers."""

    def classify(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        x = model.preprocessor.pack_texts(*map(clean_texts, texts))
        found = probabilities(model, model(x, training=False))  # [N, C]
        if model.is_regression:
            return {"scores": found[:, 0]}
        labels = tf.gather(tf.constant(model.labels), tf.argmax(found, axis=-1))
        return {"labels": labels, "probabilities": found}

    return {"serving_default": (classify, text_specs(*text_names(model.preprocessor.is_pair)))}


def probabilities(model: SpanBertTextClassifier, outputs: tf.Tensor) -> tf.Tensor:
    """Probabilities of the classes, or of a regression its number, float32 [N, C]."""
    logits = tf.cast(outputs, tf.float32)
    is_linear = model.output_dense.activation.__name__ == "linear"
    return logits if model.is_regression or not is_linear else tf.nn.softmax(logits)


def classifier_manual(model: SpanBertTextClassifier) -> Manual:
    """What the export's README says."""
    is_pair = model.preprocessor.is_pair
    inputs = ", ".join(f"`{name}`" for name in text_names(is_pair)) + " (string [texts])"
    labels = ", ".join(f"`{escape_controls(label)}`" for label in model.labels)
    template = _NUMBER if model.is_regression else _CLASSES
    return Manual(
        description="Classifies pairs of texts." if is_pair else "Classifies texts.",
        output="scores" if model.is_regression else "labels",
        output_shape="[texts]",
        signatures=template.format(inputs=inputs, count=len(model.labels), labels=labels),
    )
