"""Packs texts with two marked entities for `SpanBertRelationClassifier`.

Shapes: B texts, S positions.
"""

from collections.abc import Mapping

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.data.text_rows import RelationPacker
from spanbert_tf.models.preprocessing import RowPreprocessor, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import EntityMode, make_markers

_NEEDED = ("text", "subject", "object")


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertRelationClassifierPreprocessor(RowPreprocessor, keras_hub.models.Preprocessor):
    """Packs `[CLS] before SUBJ=TYPE between OBJ=TYPE after [SEP]` (SpanBERT, section 4.1).

    Long texts are truncated as `RelationPacker` describes.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a row; by default of `from_preset` that of the
            preset's preprocessor, or the maximum of its encoder.
        markers: dict. Maps roles and types of entities to entries of the vocabulary, like the
            result of `make_markers`. By default there is one marker for each role.
        entities: `"masked"` puts markers in place of the entities, `"text"` around their words.

    Call arguments:
        x: dict of `text`, string [B]; `subject` and `object`, int [B, 2], the first character of
            the entity and the character after its last one; and `subject_type` and `object_type`,
            string [B], empty by default. If all lack the dimension B, the outputs lack it, too.
        y: classes, int [B]; returned unchanged.
        sample_weight: returned unchanged.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`. `x` is a dict of `token_ids`, `segment_ids` and
        `padding_mask`, int32 [B, S].

    Raises:
        BadInputError: the vocabulary has too few entries `[unusedN]`.
        ValueError: `x` is no dict, or lacks the text or an entity.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 128,
        markers: Mapping[str, str] | None = None,
        entities: EntityMode = "masked",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.markers = dict(markers or make_markers(tokenizer.get_vocabulary()))
        self.entities = entities

    def build(self, input_shape: tuple) -> None:
        with tf.init_scope():  # the first call may be in a graph that the constants must outlive
            self.packer = RelationPacker(
                self.tokenizer.get_vocabulary(),
                self.tokenizer.text_rules,
                self.markers,
                entities=self.entities,
                sequence_length=self.sequence_length,
            )

    def _rows(self, x: dict, y: tf.Tensor | None) -> tuple[dict, tf.Tensor | None]:
        if not isinstance(x, dict) or not set(_NEEDED) <= x.keys():
            raise ValueError("x must be a dict of text, subject and object")
        blank = tf.fill(tf.shape(x["text"]), "")
        x = {name: x.get(name, blank) for name in (*_NEEDED, "subject_type", "object_type")}
        is_unbatched = is_one_text(x["text"])
        if is_unbatched:
            x = {name: tf.expand_dims(values, 0) for name, values in x.items()}
        rows = self.packer(**x)
        shape = [None, self.sequence_length]
        token_ids = rows.to_tensor(self.tokenizer.pad_token_id, shape=shape)
        features = {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": tf.ones_like(rows).to_tensor(shape=shape),
        }  # [B, S]
        if is_unbatched:
            features = of_one_text(features)
        return features, y

    def get_config(self) -> dict:
        config = super().get_config()
        for name in ("sequence_length", "markers", "entities"):
            config[name] = getattr(self, name)
        return config
