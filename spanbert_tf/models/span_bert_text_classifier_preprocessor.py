"""Packs texts, or pairs of texts, for `SpanBertTextClassifier`.

B rows.
"""

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.models.preprocessing import RowPreprocessor, flat_texts, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextClassifierPreprocessor(
    RowPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """Tokenizes and packs: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row; a new preprocessor of a preset has the
            length of the preset's own, or of its encoder.
        truncate: string. How pairs are cut to fit: `"round_robin"`: the longer text first;
            `"waterfall"`: the second.
        segment_aware: bool. Tell SegaBERT's positions as well: each text is one paragraph of one
            sentence (`spanbert_tf.data.text_rows`).
        is_pair: bool. Whether predictors and exports take pairs of texts. (Calls take both.)

    Call arguments:
        x: string, strings [B], or a tuple of two such for pairs, of which the second may be empty.
        y, sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, and if `segment_aware` of `paragraph_indices`, `sentence_indices` and
        `token_indices`, int32 [B, sequence_length].

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertTextClassifierPreprocessor(tokenizer, 16)
    preprocessor(["All fine.", "Not at all."])["token_ids"]  # [2, 16]
    preprocessor(x=(["A premise."], ["A hypothesis."]))["segment_ids"]  # [1, 16]
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer
    _of_segment_aware = ("segment_aware",)

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        truncate: str = "round_robin",
        segment_aware: bool = False,
        is_pair: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, **kwargs)
        self.segment_aware = segment_aware
        self.is_pair = is_pair

    def build(self, input_shape: tuple | None = None) -> None:
        # In place of the base class's.
        special = SpecialTokenIds(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
        )
        self.packer = TextRowPacker(special, self.sequence_length, self.truncate)

    def _rows(self, x: tf.Tensor | tuple, y: tf.Tensor | None) -> tuple[dict, tf.Tensor | None]:
        texts = x if isinstance(x, tuple) else (x,)
        features = self.pack_texts(*map(flat_texts, texts), pads_to_limit=True)
        return of_one_text(features) if is_one_text(texts[0]) else features, y

    def pack_texts(self, *texts: tf.Tensor, pads_to_limit: bool = False) -> dict[str, tf.Tensor]:
        """What the model reads, int32 [B, S].

        Args:
            *texts: string [B], one or two.
            pads_to_limit: whether S is `sequence_length`, not the length of the longest row.
        """
        if not self.built:
            self.build()
        rows = self.packer(*map(self.tokenizer, texts), pads_to_limit=pads_to_limit)
        return rows.features(segment_aware=self.segment_aware)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "segment_aware": self.segment_aware,
            "is_pair": self.is_pair,
        }
