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
first: `labels` (string) and `probabilities` (float32), both [N, top k]. Where an entity is empty,
not in its text or overlaps the other, labels are empty and probabilities 0; the other texts of the
batch have their answers."""
_STAND_IN, _PLACES = "..", ([0, 1], [1, 2])  # read in place of a text with such entities


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
            `labels` and `probabilities`, [N, top k]; empty and 0 where an entity is empty, not in
            its text or overlaps the other.
        """
        texts = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        is_marked = _are_places(texts, subject, object)[:, tf.newaxis]  # [N, 1]
        texts = tf.where(is_marked[:, 0], texts, _STAND_IN)
        subject, object = (
            tf.where(is_marked, places, instead)
            for places, instead in zip((subject, object), _PLACES, strict=True)
        )
        rows = self._pack(texts, subject, object, subject_type, object_type)
        shape = tf.stack([-1, tf.maximum(rows.bounding_shape(1), 1)])  # 1 position of no rows
        token_ids = rows.to_tensor(self._pad_id, shape=shape)  # [N, S]
        x = {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": tf.ones_like(rows).to_tensor(shape=shape),
        }
        best, numbers = tf.math.top_k(relation_probabilities(self._model, x), self._top_k)
        return {
            "labels": tf.where(is_marked, tf.gather(self._labels, numbers), ""),
            "probabilities": tf.where(is_marked, best, 0.0),
        }


def _are_places(texts: tf.Tensor, subject: tf.Tensor, object: tf.Tensor) -> tf.Tensor:
    """Whether both entities of a text [N] are in it and do not overlap, bool [N]."""
    length = tf.strings.length(texts, unit="UTF8_CHAR")
    are_in = [
        (places[:, 0] >= 0) & (places[:, 0] < places[:, 1]) & (places[:, 1] <= length)
        for places in (subject, object)
    ]
    are_apart = (subject[:, 1] <= object[:, 0]) | (object[:, 1] <= subject[:, 0])
    return are_in[0] & are_in[1] & are_apart


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
