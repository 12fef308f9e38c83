"""What preprocessors share: texts as they take them, the packer, and the length of a preset's rows.

B texts.
"""

from typing import TypeVar

import keras_hub
import tensorflow as tf
from keras_hub.src.utils import preset_utils

from spanbert_tf.models.keras_hub_presets import LoadsPresets
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

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

    @classmethod
    def _add_missing_kwargs(cls, loader: preset_utils.PresetLoader, kwargs: dict) -> dict:
        kwargs = super()._add_missing_kwargs(loader, kwargs)
        encoder = loader.config.get("config", {})
        lengths = [_saved_length(loader.preset), encoder.get("max_sequence_length")]
        known = [length for length in lengths if length is not None]
        return {"sequence_length": known[0], **kwargs} if known else kwargs


def _saved_length(preset: str) -> int | None:
    name = preset_utils.PREPROCESSOR_CONFIG_FILE
    if not preset_utils.check_file_exists(preset, name):
        return None
    return preset_utils.load_json(preset, name)["config"].get("sequence_length")
