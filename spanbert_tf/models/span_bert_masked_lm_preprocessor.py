"""Masks texts for `SpanBertMaskedLM.fit`.

Shapes: B texts, S positions, K prediction slots.
"""

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.masking import Blocks, MaskingOptions, SpanMasker
from spanbert_tf.models.preprocessing import (
    LengthOfPreset,
    of_one_text,
    one_or_two_texts,
    text_packer,
)
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

# KerasHub's arguments that `masking` replaces.
_REPLACED = (
    "mask_selection_rate",
    "mask_selection_length",
    "mask_token_rate",
    "random_token_rate",
)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertMaskedLMPreprocessor(LengthOfPreset, keras_hub.models.MaskedLMPreprocessor):
    """Tokenizes, packs and masks texts or pairs of texts, with SpanBERT's masks.

    Each call draws new masks, also in each epoch of a data set and in each evaluation. For masks
    that can be reproduced, and for pre-training at scale, use records and
    `spanbert_tf.data.pretraining_dataset`. Random tokens are drawn evenly from the whole
    vocabulary, because there is no corpus whose tokens could be counted. Words are those of BERT,
    whatever `word_segmentation` of the tokenizer says.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a row; by default of `from_preset` that of the
            preset's preprocessor, or the maximum of its encoder.
        truncate: string. How texts are truncated, as for `keras_hub.layers.MultiSegmentPacker`.
        masking: name of a scheme, a dict of the fields of `MaskingOptions`, or `MaskingOptions`.
        seed: int or `None`. Seed of the random numbers; `None` derives it from
            `keras.utils.set_random_seed`. `fit` on texts makes several batches in parallel, which
            share the random numbers, so even with a seed the masks of a batch differ between runs.

    Raises:
        ValueError: the scheme needs annotations, `random_tokens` is `"unigrams"`, or a masking rate
            of KerasHub is given, which `masking` replaces.

    Call arguments:
        x: a string, string [B], or a tuple of two for pairs. KerasHub reads a single tuple of two
            as inputs and labels, so write `preprocessor(x=(first, second))`.
        y, sample_weight: must be `None`.

    Returns:
        `(x, y, sample_weight)`. `x` is a dict of `token_ids`, `segment_ids` and `padding_mask`,
        int32 [B, S], and of `mask_positions`, int32 [B, K]. `y` are the original tokens, int32
        [B, K], and `sample_weight` is float32 [B, K].

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertMaskedLMPreprocessor(
        tokenizer, 128, masking="whole_words", seed=1
    )
    x, y, sample_weight = preprocessor(["The quick brown fox jumped."])
    x["mask_positions"]  # [1, 19]: the prediction slots of a row of 128 positions
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        truncate: str = "round_robin",
        masking: str | dict | MaskingOptions = "geometric_spans",
        seed: int | None = None,
        **kwargs,
    ) -> None:
        replaced = sorted(set(_REPLACED) & set(kwargs))
        if replaced:
            raise ValueError(f"{replaced[0]} has no effect here; set it in `masking`")
        super().__init__(tokenizer, sequence_length=sequence_length, truncate=truncate, **kwargs)
        if isinstance(masking, str):
            masking = {"scheme": masking}
        if isinstance(masking, dict):
            masking = {"random_tokens": "uniform", **masking}
        masking = MaskingOptions.of(masking)
        if masking.chosen_scheme.spans:
            raise ValueError(f"masking {masking.scheme!r} needs annotated records, not strings")
        if masking.random_tokens != "uniform":
            raise ValueError(
                f"masking.random_tokens={masking.random_tokens} needs the counts of records, not "
                'strings; give random_tokens="uniform"'
            )
        self.masking = masking
        self.seed = seed

    def build(self, input_shape: tuple) -> None:
        # Replaces the packer and the masker of KerasHub's class.
        vocabulary = self.tokenizer.get_vocabulary()
        self.packer = text_packer(self.tokenizer, self.sequence_length, self.truncate)
        seed = np.random.randint(2**32, dtype="int64") if self.seed is None else self.seed
        self._random = np.random.default_rng(seed)
        with tf.init_scope():  # the first call may be in a graph that the constants must outlive
            self.masker = SpanMasker.from_vocabulary(vocabulary, None, self.masking)

    def call(
        self, x: tf.Tensor | tuple, y: None = None, sample_weight: None = None
    ) -> tuple[dict, tf.Tensor, tf.Tensor]:
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight must be None; give pairs as x=(first, second)")
        return self._call_tf(x)

    @preprocessing_function
    def _call_tf(self, x: tf.Tensor | tuple) -> tuple[dict, tf.Tensor, tf.Tensor]:
        segments, is_unbatched = one_or_two_texts(x)
        tokens = tuple(self.tokenizer(segment) for segment in segments)
        token_ids, segment_ids = self.packer(tokens)  # [B, S]
        is_text = token_ids != self.tokenizer.pad_token_id
        blocks = _blocks(token_ids, segment_ids, is_text, len(segments))
        batch_size = tf.shape(token_ids)[0]
        # The masker derives masks from record ids. Texts have none, so random ids take their place.
        # They are NumPy's, because TensorFlow's random numbers repeat in each epoch of a data set
        # if any seed is set.
        record_ids = tf.numpy_function(self._draw, [batch_size], tf.int64, stateful=True)
        record_ids = tf.reshape(record_ids, [batch_size])
        num_slots = self.masking.num_slots(self.sequence_length, len(segments))
        batch = self.masker(blocks, tf.zeros_like(record_ids), record_ids, num_slots)
        features = {
            "token_ids": batch["token_ids"],
            "segment_ids": segment_ids,
            "padding_mask": tf.cast(is_text, tf.int32),
            "mask_positions": batch["mask_positions"],
        }
        outputs = (features, batch["mask_ids"], batch["mask_weights"])
        if is_unbatched:
            outputs = of_one_text(outputs)
        return keras.utils.pack_x_y_sample_weight(*outputs)

    def _draw(self, size: int) -> np.ndarray:
        """Draws random numbers, int64 [size]."""
        return self._random.integers(np.iinfo("int64").max, size=size)

    def get_config(self) -> dict:
        config = super().get_config()
        for name in _REPLACED:
            config.pop(name)
        config.update({"masking": self.masking.model_dump(), "seed": self.seed})
        return config


def _blocks(
    token_ids: tf.Tensor, segment_ids: tf.Tensor, is_text: tf.Tensor, num_segments: int
) -> Blocks:
    """Returns the blocks of text between the special tokens of each row."""
    first = tf.reduce_sum(tf.cast(is_text & (segment_ids == 0), tf.int64), axis=1, keepdims=True)
    first -= 2  # without [CLS] and [SEP]
    one = tf.ones_like(first)
    if num_segments == 1:
        return Blocks(token_ids, one, first)
    second = tf.reduce_sum(tf.cast(is_text & (segment_ids == 1), tf.int64), axis=1, keepdims=True)
    starts = tf.concat([one, first + 2], axis=1)
    return Blocks(token_ids, starts, tf.concat([first, second - 1], axis=1))
