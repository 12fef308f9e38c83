"""Masks raw strings for `SpanBertMaskedLM.fit`.

B texts, S positions, K prediction slots.
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
    """Tokenizes, packs and masks strings, or pairs of strings, with SpanBERT's masks.

    For pre-training at scale use records and `spanbert_tf.data.pretraining_dataset`, whose masks
    can be reproduced; here a text has no number of its own, and each call draws new masks, also in
    each epoch of a data set and in each evaluation. Random tokens are `"uniform"`, drawn from all
    of the vocabulary, since there is no corpus to count in.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row; a new preprocessor of a preset has the
            length of the preset's own, or of its encoder.
        truncate: string. How texts are cut to fit, as for `keras_hub.layers.MultiSegmentPacker`.
        masking: a scheme's name, a dict of the fields of `MaskingOptions`, or `MaskingOptions`.
        seed: int or `None`. Seed of the random numbers; by default `keras.utils.set_random_seed`
            tells them. Batches take the next ones as they come: `fit` on strings makes several at
            once, and which of them has which masks is not the same in the next run.

    Raises:
        ValueError: a scheme that needs annotations, random tokens by `"unigrams"`, or one of
            KerasHub's masking rates, which `masking` replaces.

    Call arguments:
        x: string, string tensor [B], or a tuple of two for pairs. KerasHub reads a single
            tuple of two as inputs and labels, so write `preprocessor(x=(first, second))`.
        y, sample_weight: must be `None`; masking makes them.

    Returns:
        `(x, y, sample_weight)`: a dict of `token_ids`, `segment_ids`, `padding_mask` (int32
        [B, S]) and `mask_positions` (int32 [B, K]); the original tokens, int32 [B, K]; and
        float32 [B, K].

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertMaskedLMPreprocessor(
        tokenizer, 128, masking="whole_words", seed=1
    )
    x, y, sample_weight = preprocessor(["The quick brown fox jumped."])
    x["mask_positions"]  # [1, 19]: the slots of rows of 128
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
        if replaced := sorted(set(_REPLACED) & set(kwargs)):
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
        # In place of the base class's packer and masker.
        vocabulary = self.tokenizer.get_vocabulary()
        self.packer = text_packer(self.tokenizer, self.sequence_length, self.truncate)
        seed = np.random.randint(2**32, dtype="int64") if self.seed is None else self.seed
        self._random = np.random.default_rng(seed)
        with tf.init_scope():  # Keras may build while it traces one of several graphs
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
        token_ids, segment_ids = self.packer(tuple(map(self.tokenizer, segments)))  # [B, S]
        is_text = token_ids != self.tokenizer.pad_token_id
        blocks = _blocks(token_ids, segment_ids, is_text, len(segments))
        batch_size = tf.shape(token_ids)[0]
        # Texts have no record number here; a random one takes its place. TensorFlow's own random
        # numbers begin anew in each epoch of a data set, as soon as any seed is set.
        numbers = tf.numpy_function(self._draw, [batch_size], tf.int64, stateful=True)
        numbers = tf.reshape(numbers, [batch_size])
        num_slots = self.masking.num_slots(self.sequence_length, len(segments))
        batch = self.masker(blocks, tf.zeros_like(numbers), numbers, num_slots)
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
        """Random numbers, int64 [size]."""
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
    """Where each segment's text lies between the special tokens."""
    first = tf.reduce_sum(tf.cast(is_text & (segment_ids == 0), tf.int64), axis=1, keepdims=True)
    first -= 2  # [CLS] and [SEP]
    one = tf.ones_like(first)
    if num_segments == 1:
        return Blocks(token_ids, one, first)
    second = tf.reduce_sum(tf.cast(is_text & (segment_ids == 1), tf.int64), axis=1, keepdims=True)
    starts = tf.concat([one, first + 2], axis=1)
    return Blocks(token_ids, starts, tf.concat([first, second - 1], axis=1))
