"""What preprocessors share: texts as they take them, the packer, and the length of a preset's rows.

B texts.
"""

from typing import Any, TypeVar

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils import preset_utils
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.models.keras_hub_presets import LoadsPresets
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds

Outputs = TypeVar("Outputs")


def flat_texts(texts: tf.Tensor) -> tf.Tensor:
    """Texts, string [B], [B, 1] or [], as string [B]; others would become several each."""
    texts = tf.convert_to_tensor(texts)  # outside of a graph NumPy's strings come as they are
    if texts.shape.rank is not None and any(size != 1 for size in texts.shape[1:]):
        raise ValueError(
            "texts must have the shape [batch]; give pairs as a tuple of two, "
            f"x=(first, second). Received: {list(texts.shape)}"
        )
    return tf.reshape(texts, [-1])


def is_one_text(texts: tf.Tensor) -> bool:
    """Whether it is one text, string [], so that the outputs have no dimension B either."""
    return tf.convert_to_tensor(texts).shape.rank == 0


def one_or_two_texts(x: Any) -> tuple[list[tf.Tensor], bool]:
    """Texts, or those of pairs, as string [B] each; and whether they are of one input, string [].

    Raises:
        ValueError: there are more than two, or not as many second texts as first ones.
    """
    texts = x if isinstance(x, tuple) else (x,)
    if len(texts) > 2:
        raise ValueError(f"x must be one text or two. Received: {len(texts)}")
    flat, are_single = list(map(flat_texts, texts)), set(map(is_one_text, texts))
    sizes = {values.shape[0] for values in flat} - {None}
    if len(are_single) > 1 or len(sizes) > 1:
        shapes = " and ".join(str(tf.convert_to_tensor(values).shape) for values in texts)
        raise ValueError(f"of pairs there must be as many second texts. Received: {shapes}")
    return flat, are_single == {True}


def of_one_text(outputs: Outputs) -> Outputs:
    """A structure of tensors [1, …] without their first dimension."""
    return tf.nest.map_structure(lambda values: values[0], outputs)


def text_packer(
    tokenizer: SpanBertTokenizer, sequence_length: int, truncate: str
) -> keras_hub.layers.MultiSegmentPacker:
    """KerasHub's packer with BERT's special tokens; in TensorFlow even when called eagerly.

    The packer that KerasHub's preprocessors make runs Python code then, and takes no tensors.
    """
    return keras_hub.layers.MultiSegmentPacker(
        sequence_length=sequence_length,
        start_value=tokenizer.start_token_id,
        end_value=tokenizer.end_token_id,
        pad_value=tokenizer.pad_token_id,
        truncate=truncate,
        _allow_python_workflow=False,
    )


class LengthOfPreset(LoadsPresets):
    """Packs rows as long as those of the preset's own preprocessor, or as its encoder reads.

    Name it before KerasHub's class, whose default is 512 whatever the encoder reads.
    """

    _of_segment_aware: tuple[str, ...] = ()  # arguments that are true for SegaBERT's positions
    _tokenizer: SpanBertTokenizer

    @property
    def tokenizer(self) -> SpanBertTokenizer:
        """What splits the texts."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: SpanBertTokenizer) -> None:
        if tokenizer.compute_dtype != "int32":
            raise ValueError(
                f"A preprocessor needs a tokenizer of ids, dtype int32, not of "
                f"{tokenizer.compute_dtype}"
            )
        self._tokenizer = tokenizer

    @classmethod
    def _add_missing_kwargs(cls, loader: preset_utils.PresetLoader, kwargs: dict) -> dict:
        kwargs = super()._add_missing_kwargs(loader, kwargs)
        encoder = loader.config.get("config", {})
        lengths = [_saved_length(loader.preset), encoder.get("max_sequence_length")]
        is_aware = encoder.get("position_embeddings", "absolute") != "absolute"
        kwargs = {**dict.fromkeys(cls._of_segment_aware, is_aware), **kwargs}
        known = [length for length in lengths if length is not None]
        return {"sequence_length": known[0], **kwargs} if known else kwargs


class RowPreprocessor(LengthOfPreset):
    """Makes rows of texts, by `_rows` of a class: `(x, y)` → the features and the labels."""

    @property
    def sequence_length(self) -> int:
        """Positions of a row; another number counts from the next call on."""
        return self._sequence_length

    @sequence_length.setter
    def sequence_length(self, sequence_length: int) -> None:
        self._sequence_length = sequence_length
        self.built = False  # what packs rows of that length is made by `build`

    def call(self, x: Any, y: Any = None, sample_weight: tf.Tensor | None = None) -> dict | tuple:
        return self._pack(x, y, sample_weight)

    @preprocessing_function
    def _pack(self, x: Any, y: Any, sample_weight: tf.Tensor | None) -> dict | tuple:
        return keras.utils.pack_x_y_sample_weight(*self._rows(x, y), sample_weight)


class TextRowPreprocessor(RowPreprocessor):
    """Packs texts or pairs of texts; name it before KerasHub's class."""

    _of_segment_aware = ("segment_aware",)

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        truncate: str = "round_robin",
        segment_aware: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, **kwargs)
        self.segment_aware = segment_aware

    def build(self, input_shape: tuple | None = None) -> None:
        # In place of the base class's.
        special = SpecialTokenIds(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
        )
        self.packer = TextRowPacker(special, self.sequence_length, self.truncate)

    def _rows(self, x: tf.Tensor | tuple, y: tf.Tensor | None) -> tuple[dict, tf.Tensor | None]:
        texts, is_unbatched = one_or_two_texts(x)
        features = self.pack_texts(*texts, pads_to_limit=True)
        return of_one_text(features) if is_unbatched else features, y

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
        return {**super().get_config(), "segment_aware": self.segment_aware}


def check_positions(
    backbone: keras_hub.models.Backbone, preprocessor: TextRowPreprocessor | None
) -> None:
    """Refuses a preprocessor that tells other positions than its encoder reads.

    Raises:
        ValueError: one of the two has SegaBERT's positions, and the other has not.
    """
    is_aware = backbone.position_embeddings != "absolute"
    if preprocessor is not None and preprocessor.segment_aware != is_aware:
        raise ValueError(
            f"segment_aware of the preprocessor must be {is_aware}: the backbone has "
            f"position_embeddings={backbone.position_embeddings!r}"
        )


def _saved_length(preset: str) -> int | None:
    name = preset_utils.PREPROCESSOR_CONFIG_FILE
    if not preset_utils.check_file_exists(preset, name):
        return None
    return preset_utils.load_json(preset, name)["config"].get("sequence_length")
