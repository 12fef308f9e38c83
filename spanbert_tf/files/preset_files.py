"""Files of a preset that are read before a model is built, without TensorFlow if they lie here."""

import os
import zipfile

import numpy as np

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.checksums import sha256

HEADS_FILE = "pretraining_heads.npz"
GOLDEN_FILE = "golden.json"
_SPAN_POSITIONS = "span_boundary_head/position_embedding/embeddings"
_NEXT_SENTENCE = "next_sentence_head/kernel"


def find_preset_file(preset: str, name: str) -> str | None:
    """The path of a preset's file, `None` if the preset has none of that name.

    Args:
        preset: directory, or another name that `from_preset` takes.
        name: name of the file.

    Raises:
        ValueError: KerasHub can load no preset of that name; or another error of its loaders.
    """
    if os.path.isdir(preset):
        path = os.path.join(preset, name)
        return path if os.path.exists(path) else None
    from keras_hub.src.utils import preset_utils

    try:
        return preset_utils.get_file(preset, name)
    except FileNotFoundError:
        return None


def golden_digest(preset: str) -> str | None:
    """What a preset is recognised by, wherever it lies: the SHA-256 of its `golden.json`.

    That file holds the checksums of the weights. `None` without one, and for names of KerasHub's.

    Args:
        preset: directory, or another name that `from_preset` takes.
    """
    path = os.path.join(preset, GOLDEN_FILE)
    return sha256(path) if os.path.isfile(path) else None


def read_heads(preset: str) -> dict[str, np.ndarray]:
    """The further heads of a preset, by the paths of their variables; empty if it has none.

    Raises:
        BadInputError: the file is damaged.
    """
    path = find_preset_file(preset, HEADS_FILE)
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(
            f"{preset}: {HEADS_FILE} is damaged ({reason}); copy the preset again"
        ) from error


def head_options(saved: dict[str, np.ndarray]) -> dict[str, bool | int]:
    """Arguments of a `SpanBertPretrainer` that has the saved heads.

    Args:
        saved: what `read_heads` returned.
    """
    options = {"span_boundary": _SPAN_POSITIONS in saved, "next_sentence": _NEXT_SENTENCE in saved}
    if _SPAN_POSITIONS in saved:
        sizes = saved[_SPAN_POSITIONS].shape
        options |= dict(zip(("max_span_targets", "span_position_dim"), sizes, strict=True))
    return options
