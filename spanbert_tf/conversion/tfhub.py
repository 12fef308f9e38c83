"""Encoders of TensorFlow Hub, as the Model Garden's `export_tfhub_lib` writes them.

Such a SavedModel contains a checkpoint of the Model Garden's encoder. Only the checkpoint is read;
no code of the SavedModel is run.
"""

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from spanbert_tf.conversion.checkpoint import Checkpoint
from spanbert_tf.conversion.configuration import find_casing, find_vocabulary
from spanbert_tf.conversion.model_garden import LOWERCASE, read_arrays, sizes_of
from spanbert_tf.errors import BadInputError


@contextlib.contextmanager
def read_tfhub(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Opens the directory of a SavedModel.

    Raises:
        BadInputError: it is not a SavedModel, or its encoder is not the Model Garden's.
        MismatchError: it states another casing than the given one.
    """
    variables = os.path.join(path, "variables")
    if not os.path.isdir(variables):
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
