"""The graph function that classifies relations, for exports and raw prediction.

Dimensions: N texts.
"""

import keras_hub
import tensorflow as tf

from spanbert_tf.text.tokenization import clean_texts

# The text and the entities that the model reads instead if the places of entities are wrong.
_STAND_IN = ".."
_SUBJECT = [0, 1]
_OBJECT = [1, 2]


class ClassifyRelations(tf.Module):
    """The graph function of the signature.

    Args:
        model: a classifier of relations with its preprocessor.
        top_k: number of relations for each text.
    """

    def __init__(self, model: keras_hub.models.Task, top_k: int) -> None:
        super().__init__()
        self._model = model
        self._top_k = min(top_k, len(model.labels))
        self._labels = tf.constant(model.labels)
        preprocessor = model.preprocessor
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
        """Computes the most probable relations.

        Args:
            text: string [N]; bytes that are not UTF-8 are replaced.
            subject: first character and the one after the last, int32 [N, 2].
            object: as `subject`.
            subject_type: string [N].
            object_type: string [N].

        Returns:
            `labels` and `probabilities`, [N, top k]. They are empty and 0 for a text with an entity
            that is empty, not in the text, or overlaps the other.
        """
        texts = clean_texts(text)
        is_marked = _are_places(texts, subject, object)[:, tf.newaxis]  # [N, 1]
        texts = tf.where(is_marked[:, 0], texts, _STAND_IN)
        subject = tf.where(is_marked, subject, _SUBJECT)
        object = tf.where(is_marked, object, _OBJECT)
        rows = self._pack(texts, subject, object, subject_type, object_type)
        shape = tf.stack(
            [-1, tf.maximum(rows.bounding_shape(1), 1)]
        )  # without rows there is 1 position
        token_ids = rows.to_tensor(self._pad_id, shape=shape)  # [N, S]
        x = {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": tf.ones_like(rows).to_tensor(shape=shape),
        }
        probabilities = tf.nn.softmax(tf.cast(self._model(x, training=False), tf.float32))
        best, label_ids = tf.math.top_k(probabilities, self._top_k)
        return {
            "labels": tf.where(is_marked, tf.gather(self._labels, label_ids), ""),
            "probabilities": tf.where(is_marked, best, 0.0),
        }


def _are_places(texts: tf.Tensor, subject: tf.Tensor, object: tf.Tensor) -> tf.Tensor:
    """Whether both entities are in their text and do not overlap, bool [N]."""
    length = tf.strings.length(texts, unit="UTF8_CHAR")
    are_in = [
        (places[:, 0] >= 0) & (places[:, 0] < places[:, 1]) & (places[:, 1] <= length)
        for places in (subject, object)
    ]
    is_subject_first = subject[:, 1] <= object[:, 0]
    is_object_first = object[:, 1] <= subject[:, 0]
    return are_in[0] & are_in[1] & (is_subject_first | is_object_first)
