"""What an exported classifier of relations computes: texts with two entities in, relations out.

N texts.
"""

import tensorflow as tf

from spanbert_tf.models import SpanBertRelationClassifier
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.text_function import TextFunction

_SIGNATURES = """`serving_default` takes `text` (string [N]), `subject` and `object` (int32 [N, 2],
characters of the text, the end exclusive), `subject_type` and `object_type` (string [N]; empty or
one that was not seen in training: any). It returns the most probable relations of each text, best
first: `labels` (string) and `probabilities` (float32), both [N, top k]. A request whose entities
are empty, overlap or are not in their text is refused."""


class ClassifyRelations(tf.Module):
    """The graph function of the export.

    Args:
        model: a classifier of relations with its preprocessor.
        top_k: relations of each text.
    """

    def __init__(self, model: SpanBertRelationClassifier, top_k: int) -> None:
        super().__init__()
        self._model = model
        self._top_k = min(top_k, len(model.labels))
        self._labels = tf.constant(model.labels)
        preprocessor = model.preprocessor
        if preprocessor.packer is None:
            preprocessor.build(())
        self._pack = preprocessor.packer
        self._pad_id = preprocessor.tokenizer.pad_token_id

    def classify(
        self,
        text: tf.Tensor,
        subject: tf.Tensor,
        object: tf.Tensor,
        subject_type: tf.Tensor,
        object_type: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """The most probable relations.

        Args:
            text: string [N]; bytes that are no UTF-8 are replaced.
            subject: first character and the one after the last, int32 [N, 2].
            object: as `subject`.
            subject_type: string [N].
            object_type: string [N].

        Returns:
            `labels` and `probabilities`, [N, top k].
        """
        texts = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        rows = self._pack(texts, subject, object, subject_type, object_type)
        shape = tf.stack([-1, tf.maximum(rows.bounding_shape(1), 1)])  # 1 position of no rows
        token_ids = rows.to_tensor(self._pad_id, shape=shape)  # [N, S]
        x = {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": tf.ones_like(rows).to_tensor(shape=shape),
        }
        best, numbers = tf.math.top_k(relation_probabilities(self._model, x), self._top_k)
        return {"labels": tf.gather(self._labels, numbers), "probabilities": best}


def relation_probabilities(model: SpanBertRelationClassifier, x: dict) -> tf.Tensor:
    """Of packed rows, float32 [N, relations]."""
    return tf.nn.softmax(tf.cast(model(x, training=False), tf.float32))


def served(model: SpanBertRelationClassifier, top_k: int) -> TextFunction:
    """What an export computes.

    Args:
        model: a classifier of relations with its preprocessor.
        top_k: relations of each text.
    """
    about = Manual(
        description="A classifier of the relation between two entities: a text and their places "
        "in, the\nrelation of the subject to the object out.",
        inputs={
            "text": ["Ann was born in Rome."],
            "subject": [[0, 3]],
            "object": [[16, 20]],
            "subject_type": ["PERSON"],
            "object_type": ["CITY"],
        },
        output="labels",
        output_shape="[texts, top k]",
        signatures=_SIGNATURES,
    )
    return TextFunction(ClassifyRelations(model, top_k).classify, about)
