"""Encoders for TensorFlow Hub: SavedModels that `hub.KerasLayer` runs, trains and saves.

Inputs and outputs are those of the Model Garden's on tfhub.dev. Reading one is reading a checkpoint
of the Model Garden's, which lies inside.
"""

import contextlib
import os
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.conversion.checkpoint import ENCODER, POOLER, Checkpoint, check_absolute
from spanbert_tf.conversion.configuration import (
    find_casing,
    find_vocabulary,
    save_vocabulary,
)
from spanbert_tf.conversion.keras_presets import encoder_of
from spanbert_tf.conversion.model_garden import LOWERCASE, read_arrays, sizes_of
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.files.writing import os_errors, write_directory

TFHUB_KIND = OutputKind(
    "an encoder for TensorFlow Hub",
    "assets/vocab.txt",  # which not every SavedModel has
    ("saved_model.pb", "fingerprint.pb", "variables/variables.*"),
)
_VOCABULARY = "vocab.txt"
_INPUTS = {
    "input_word_ids": "token_ids",
    "input_mask": "padding_mask",
    "input_type_ids": "segment_ids",
}


@contextlib.contextmanager
def read_tfhub(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Reads the directory of a SavedModel; nothing in it is run.

    Raises:
        BadInputError: it is none, or holds another encoder than the Model Garden's.
        MismatchError: it states another casing than is given.
    """
    if not os.path.isdir(variables := os.path.join(path, "variables")):
        raise BadInputError(
            f"{path}: is no directory of a SavedModel (variables/); unpack an archive first"
        )
    arrays, num_heads = read_arrays(variables, path)
    stated = arrays.pop(LOWERCASE, None)
    is_lowercase = None
    if stated is not None and stated.shape == ():
        is_lowercase = bool(np.asarray(stated))
    assets = os.path.join(path, "assets")
    yield Checkpoint(
        path,
        sizes_of(arrays, num_heads, path),
        arrays,
        find_vocabulary(assets, path, vocabulary),
        find_casing(assets, path, lowercase, strip_accents, is_lowercase),
        approximates_gelu=True,
    )


def write_tfhub(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes the encoder and its vocabulary; its GELU is the exact one."""
    check_absolute(checkpoint, "TensorFlow Hub")
    if checkpoint.casing.lowercase and not checkpoint.casing.strip_accents:
        raise MismatchError(
            f"{checkpoint.path}: accents of its text are kept, which an encoder for TensorFlow Hub "
            "cannot say, so that its readers strip them; --to huggingface, keras or keras_bert "
            "keeps them"
        )
    backbone = encoder_of(checkpoint)

    def write(unfinished: str) -> None:
        # The asset is copied from here, and is beside the SavedModel until then.
        save_vocabulary(unfinished, checkpoint.vocabulary)
        vocabulary = os.path.join(unfinished, _VOCABULARY)
        encoder = _reusable(backbone, vocabulary, checkpoint.casing.lowercase)
        with os_errors():
            tf.saved_model.save(encoder, unfinished)
        os.remove(vocabulary)

    write_directory(directory, write, TFHUB_KIND, overwrite=overwrite)
    return [part for part in checkpoint.found_parts() if part not in (ENCODER, POOLER)]


def _reusable(backbone: keras.Model, vocabulary: str, lowercase: bool) -> tf.train.Checkpoint:
    """What `hub.KerasLayer` asks for: a call of `(inputs, training)`, and lists of variables."""

    @tf.function
    def call(inputs: dict[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
        rows = {ours: tf.cast(inputs[theirs], tf.int32) for theirs, ours in _INPUTS.items()}
        outputs = backbone(rows, training=training)
        return {**outputs, "default": outputs["pooled_output"]}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in _INPUTS}
    encoder = tf.train.Checkpoint()
    for training in (True, False):
        call.get_concrete_function(specs, training=training)
    encoder.__call__ = call
    encoder.variables = [variable.value for variable in backbone.variables]
    encoder.trainable_variables = [variable.value for variable in backbone.trainable_variables]
    encoder.regularization_losses = []
    encoder.vocab_file = tf.saved_model.Asset(vocabulary)
    encoder.do_lower_case = tf.Variable(np.array(lowercase), trainable=False)
    return encoder
