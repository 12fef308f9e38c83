"""The base classes of preprocessors, and functions that they share.

Shapes: B texts, S positions.
"""

from typing import Any, TypeVar

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils import preset_utils
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.config.positions import reads_indices
from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.models.keras_hub_presets import LoadsPresets
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds

Outputs = TypeVar("Outputs")


def flat_texts(texts: tf.Tensor) -> tf.Tensor:
    """Reshapes texts, string [B], [B, 1] or [], to string [B].

    Raises:
        ValueError: the texts have another shape, in which a row would become several texts.
    """
    texts = tf.convert_to_tensor(texts)  # NumPy arrays arrive unconverted in eager calls
    if texts.shape.rank is not None and any(size != 1 for size in texts.shape[1:]):
        raise ValueError(
            "texts must have the shape [batch]; give pairs as a tuple of two, "
            f"x=(first, second). Received: {list(texts.shape)}"
        )
    return tf.reshape(texts, [-1])


def is_one_text(texts: tf.Tensor) -> bool:
    """Whether the input is a single text, string [], whose outputs have no dimension B."""
    return tf.convert_to_tensor(texts).shape.rank == 0


def one_or_two_texts(x: Any) -> tuple[list[tf.Tensor], bool]:
    """Reshapes texts or pairs of texts to one or two tensors, string [B].

    Args:
        x: texts, or a tuple of first and second texts, string [B] or [] each.

    Returns:
        The tensors, and whether the input is a single text or pair, without the dimension B.

    Raises:
        ValueError: there are more than two tensors, or the two have different shapes.
    """
    texts = x if isinstance(x, tuple) else (x,)
    if len(texts) > 2:
        raise ValueError(f"x must be one text or two. Received: {len(texts)}")
    flat = [flat_texts(values) for values in texts]
    are_single = {is_one_text(values) for values in texts}
    sizes = {values.shape[0] for values in flat} - {None}
    if len(are_single) > 1 or len(sizes) > 1:
        shapes = " and ".join(str(tf.convert_to_tensor(values).shape) for values in texts)
        raise ValueError(f"there must be as many second texts as first ones. Received: {shapes}")
    return flat, are_single == {True}


def of_one_text(outputs: Outputs) -> Outputs:
    """Removes the first dimension of tensors [1, …] in a structure."""
    return tf.nest.map_structure(lambda values: values[0], outputs)


def text_packer(
    tokenizer: SpanBertTokenizer, sequence_length: int, truncate: str
) -> keras_hub.layers.MultiSegmentPacker:
    """Creates KerasHub's packer with BERT's special tokens, which runs only in TensorFlow.

    The packer that KerasHub's preprocessors create runs Python code in eager calls, and takes no
    tensors then.
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
    """Takes the length of rows from the preset instead of the default of the class.

    The length is that of the preset's preprocessor, or the longest that its encoder reads. Name
    this class before KerasHub's, whose default is 512 for every encoder.
    """

    # Arguments that are true if the encoder has SegaBERT's positions.
    _segment_aware_arguments: tuple[str, ...] = ()
    _tokenizer: SpanBertTokenizer

    @property
    def tokenizer(self) -> SpanBertTokenizer:
        """The tokenizer of the texts."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: SpanBertTokenizer) -> None:
        if tokenizer.compute_dtype != "int32":
            raise ValueError(
                "A preprocessor needs a tokenizer of ids, dtype int32, not of "
                f"{tokenizer.compute_dtype}"
            )
        self._tokenizer = tokenizer

    @classmethod
    def _add_missing_kwargs(cls, loader: preset_utils.PresetLoader, kwargs: dict) -> dict:
        kwargs = super()._add_missing_kwargs(loader, kwargs)
        encoder = loader.config.get("config", {})
        lengths = [_saved_length(loader.preset), encoder.get("max_sequence_length")]
        is_aware = reads_indices(encoder.get("position_embeddings", "absolute"))
        kwargs = {**dict.fromkeys(cls._segment_aware_arguments, is_aware), **kwargs}
        known_lengths = [length for length in lengths if length is not None]
        if known_lengths:
            kwargs.setdefault("sequence_length", known_lengths[0])
        return kwargs


class RowPreprocessor(LengthOfPreset):
    """Makes rows of texts. A subclass implements `_rows`, from `(x, y)` to features and labels."""

    @property
    def sequence_length(self) -> int:
        """Number of positions of a row; a new number takes effect with the next call."""
        return self._sequence_length

    @sequence_length.setter
    def sequence_length(self, sequence_length: int) -> None:
        self._sequence_length = sequence_length
        self.built = False  # `build` makes a packer of the new length

    def call(self, x: Any, y: Any = None, sample_weight: tf.Tensor | None = None) -> dict | tuple:
        return self._pack(x, y, sample_weight)

    @preprocessing_function
    def _pack(self, x: Any, y: Any, sample_weight: tf.Tensor | None) -> dict | tuple:
        return keras.utils.pack_x_y_sample_weight(*self._rows(x, y), sample_weight)


class TokenizedRowPreprocessor(RowPreprocessor):
    """Keeps a tokenizer and the length of a row; name it before KerasHub's `Preprocessor`."""

    def __init__(self, tokenizer: SpanBertTokenizer, sequence_length: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    def get_config(self) -> dict:
        return {**super().get_config(), "sequence_length": self.sequence_length}


class TextRowPreprocessor(RowPreprocessor):
    """Packs texts or pairs of texts; name it before KerasHub's class."""

    _segment_aware_arguments = ("segment_aware",)

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
        # Replaces the packer of KerasHub's class.
        special = SpecialTokenIds(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
        )
        self.packer = TextRowPacker(special, self.sequence_length, self.truncate)

    def _rows(self, x: tf.Tensor | tuple, y: tf.Tensor | None) -> tuple[dict, tf.Tensor | None]:
        texts, is_unbatched = one_or_two_texts(x)
        features = self.pack_texts(*texts, pads_to_limit=True)
        if is_unbatched:
            features = of_one_text(features)
        return features, y

    def pack_texts(self, *texts: tf.Tensor, pads_to_limit: bool = False) -> dict[str, tf.Tensor]:
        """Makes the inputs of the model, int32 [B, S].

        Args:
            *texts: one or two tensors, string [B].
            pads_to_limit: whether S is `sequence_length`; otherwise it is the length of the longest
                row.
        """
        if not self.built:
            self.build()
        tokens = [self.tokenizer(values) for values in texts]
        rows = self.packer(*tokens, pads_to_limit=pads_to_limit)
        return rows.features(segment_aware=self.segment_aware)

    def get_config(self) -> dict:
        return {**super().get_config(), "segment_aware": self.segment_aware}


def check_positions(
    backbone: keras_hub.models.Backbone, preprocessor: TextRowPreprocessor | None
) -> None:
    """Checks that a preprocessor makes the positions that the encoder reads.

    Raises:
        ValueError: only one of the two has SegaBERT's positions.
    """
    is_aware = reads_indices(backbone.position_embeddings)
    if preprocessor is not None and preprocessor.segment_aware != is_aware:
        raise ValueError(
            f"segment_aware of the preprocessor must be {is_aware}: the backbone has "
            f"position_embeddings={backbone.position_embeddings!r}"
        )


def _saved_length(preset: str) -> int | None:
    """Reads `sequence_length` of the preprocessor of a preset; `None` if it has none."""
    name = preset_utils.PREPROCESSOR_CONFIG_FILE
    if not preset_utils.check_file_exists(preset, name):
        return None
    return preset_utils.load_json(preset, name)["config"].get("sequence_length")
