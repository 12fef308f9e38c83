"""Files of a preset that are read before a model is built, without TensorFlow if they lie here."""

import lzma
import math
import os
import tokenize
import zipfile
import zlib

import numpy as np

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.hdf5 import FREE_BYTES, MAX_RATIO
from spanbert_tf.files.kinds import PRESET_CONFIG, download_commands
from spanbert_tf.files.output import OutputKind
from spanbert_tf.files.paths import is_remote

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What `read_arrays` raises of a file that is damaged, or is someone's trick.
ARRAYS_DAMAGE = (
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError, LookupError, TypeError),
    *(SyntaxError, tokenize.TokenError),  # of heads, which NumPy reads as Python's literals
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
HEADS_FILE = "pretraining_heads.npz"
GOLDEN_FILE = "golden.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CARD_FILE = "README.md"
TOKENIZER_CONFIG, TOKENIZER_VOCABULARY = "tokenizer.json", "assets/tokenizer/vocabulary.txt"
PRESET_KIND = OutputKind(
    "a preset",
    GOLDEN_FILE,
    (
        CARD_FILE,
        TOKENIZER_CONFIG,
        *(f"{name}.json" for name in ("config", "metadata", "task", "preprocessor")),
        HEADS_FILE,
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS,
        "*.weights.h5",
        "*.weights.json",
        TOKENIZER_VOCABULARY,
    ),
)
_SPAN_POSITIONS = "span_boundary_head/position_embedding/embeddings"
_NEXT_SENTENCE = "next_sentence_head/kernel"


def find_preset_file(preset: str, name: str) -> str | None:
    """The path of a preset's file, `None` if the preset has none of that name.

    Args:
        preset: directory, or another name that `from_preset` takes.
        name: name of the file.

    Raises:
        ValueError: KerasHub can load no preset of that name; or another error of its loaders.
        FileNotFoundError: there is no preset at that address.
        ConnectionError: the Hugging Face Hub, or a bucket's server, cannot be reached.
    """
    if os.path.isdir(preset):
        path = os.path.join(preset, name)
        return path if os.path.exists(path) else None
    from huggingface_hub.errors import LocalEntryNotFoundError
    from keras_hub.src.utils import preset_utils

    try:
        return preset_utils.get_file(preset, name)
    except FileNotFoundError as error:
        # KerasHub takes a hub that is not there for one without the file.
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            raise ConnectionError("the hub does not answer, and no copy is here") from error
        if name == PRESET_CONFIG:  # without which there is no preset
            raise FileNotFoundError(f"{PRESET_CONFIG} is not there") from error
        find_preset_file(preset, PRESET_CONFIG)
        return None
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:  # TensorFlow's, of its file systems
        raise ConnectionError(reason(error)) from error


def locate_preset_file(preset: str, name: str) -> str | None:
    """As `find_preset_file`, and what is wrong with the preset's name is a line.

    Raises:
        BadInputError: there is no preset of that name, or it cannot be reached.
    """
    try:
        return find_preset_file(preset, name)
    except (ValueError, OSError, ImportError) as error:
        raise BadInputError(describe_missing(preset, error)) from error


def describe_missing(preset: str, error: Exception) -> str:
    """What to tell the user about a preset that is not there."""
    if is_remote(preset):
        return f"{preset}: no preset ({reason(error)}); check the name and the network"
    advice = "name the directory of a preset"
    if download := download_commands(preset):
        advice = f"for a model of the Hugging Face Hub, {download}"
    return f"{preset}: no preset: no such directory, and no name that KerasHub can load; {advice}"


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
        BadInputError: the file is damaged, or an array is no weight's.
    """
    path = find_preset_file(preset, HEADS_FILE)
    if path is None:
        return {}
    try:
        heads = read_arrays(path)
        _check_heads(heads)
    except ARRAYS_DAMAGE as error:
        raise BadInputError(
            f"{preset}: {HEADS_FILE} is damaged ({reason(error)}); copy the preset again"
        ) from error
    return heads


def _check_heads(heads: dict[str, np.ndarray]) -> None:
    """Raises `ValueError` where an array is no weight's."""
    for name, array in heads.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name[:200]!a} is not of finite floating-point numbers")
    table = heads.get(_SPAN_POSITIONS)
    if table is not None and (table.ndim != 2 or 0 in table.shape):
        raise ValueError(f"{_SPAN_POSITIONS} has shape {list(table.shape)}, not [rows, columns]")


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, no larger than the file allows.

    `np.load` makes room for what a header of 100 bytes says before it reads, and a compressed
    member may be a thousand times its size.

    Raises:
        ValueError: it is damaged, or an array is larger than its bytes in the file; or another of
            `ARRAYS_DAMAGE`.
    """
    limit = FREE_BYTES + MAX_RATIO * os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > limit:
            raise ValueError(f"unpacks to {unpacked:,} bytes")
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = _HEADERS[version](file)
            num_bytes = math.prod(shape) * dtype.itemsize
            if num_bytes > member.file_size:
                raise ValueError(f"an array of {num_bytes:,} bytes in {member.file_size:,}")
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


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
