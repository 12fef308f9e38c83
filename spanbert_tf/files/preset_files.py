"""Files of a preset that are read before a model is built, without TensorFlow if they lie here."""

import json
import lzma
import math
import os
import tokenize
import zipfile
import zlib

import numpy as np

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.kinds import PRESET_CONFIG
from spanbert_tf.files.outputs import OutputKind, is_remote

# Arrays are written as they are; a copy may be compressed, which weights hardly are.
_FREE_BYTES, _MAX_RATIO = 16 << 20, 32
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
_SIZES = ("num_layers", "hidden_dim", "intermediate_dim")
_TABLES = (  # sizes that count rows, each of the model's width
    *("vocabulary_size", "max_sequence_length", "num_segments", "num_classes"),
    *("num_paragraphs", "num_sentences", "max_sentence_length"),
)
_WEIGHT_ENDINGS = (".h5", ".npz")
# Weights of four bits; and a layer's sixteen variables with what HDF5 says of each.
_LEAST_BYTES_OF_WEIGHT, _LEAST_BYTES_OF_LAYER = 0.5, 16 * 128
HEADS_FILE = "pretraining_heads.npz"
GOLDEN_FILE = "golden.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CARD_FILE = "README.md"
PRESET_KIND = OutputKind(
    "a preset",
    GOLDEN_FILE,
    (
        CARD_FILE,
        *(f"{name}.json" for name in ("config", "metadata", "task", "tokenizer", "preprocessor")),
        HEADS_FILE,
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS,
        "*.weights.h5",
        "*.weights.json",
        "assets/tokenizer/vocabulary.txt",
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


def describe_missing(preset: str, error: Exception) -> str:
    """What to tell the user about a preset that is not there."""
    if is_remote(preset):
        return f"{preset}: no preset ({reason(error)}); check the name and the network"
    return (
        f"{preset}: no preset: no such directory, and no name that KerasHub can load; download a "
        "model of the HuggingFace Hub, and `spanbert-tf convert --from huggingface --to keras` it "
        "first"
    )


def golden_digest(preset: str) -> str | None:
    """What a preset is recognised by, wherever it lies: the SHA-256 of its `golden.json`.

    That file holds the checksums of the weights. `None` without one, and for names of KerasHub's.

    Args:
        preset: directory, or another name that `from_preset` takes.
    """
    path = os.path.join(preset, GOLDEN_FILE)
    return sha256(path) if os.path.isfile(path) else None


def check_sizes(preset: str, place: str | None = None) -> None:
    """Compares the sizes that a preset's descriptions state with the files of its weights.

    A model is built, with all its memory, before its weights are read; and Keras reads an array of
    up to 4 GiB as HDF5 tells of it, even where nothing of it lies in the file.

    Args:
        preset: directory, or another name, which is passed over.
        place: where its weights lie; by default there, too.

    Raises:
        BadInputError: the weights are far too few for them, or a file's arrays larger than it.
    """
    place = place or preset
    if not (os.path.isdir(preset) and os.path.isdir(place)):
        return
    names = [name for name in sorted(os.listdir(place)) if name.endswith(_WEIGHT_ENDINGS)]
    num_bytes = sum(os.path.getsize(os.path.join(place, name)) for name in names)
    sizes = {**_stated_sizes(preset, "task.json"), **_stated_sizes(preset, "config.json")}
    width, inner, layers = (
        sizes.get(name, 0) for name in ("hidden_dim", "intermediate_dim", "num_layers")
    )
    rows = sum(sizes.get(name, 0) for name in _TABLES)
    num_weights = rows * width + layers * (4 * width**2 + 2 * width * inner)
    least = max(num_weights * _LEAST_BYTES_OF_WEIGHT - _FREE_BYTES, layers * _LEAST_BYTES_OF_LAYER)
    if least > num_bytes:
        raise BadInputError(
            f"{preset}: its sizes ({', '.join(f'{name} {sizes[name]:,}' for name in sizes)}) are "
            f"those of another model: its files of weights have {num_bytes:,} bytes; copy the "
            "preset again"
        )
    for name in names:
        if name.endswith(".h5"):
            _check_arrays(place, name)


def _check_arrays(preset: str, name: str) -> None:
    """Adds up the arrays of an HDF5 file; what is no such file, loading tells."""
    import h5py

    path, stated = os.path.join(preset, name), 0

    def add(_: str, item: object) -> None:
        nonlocal stated
        if isinstance(item, h5py.Dataset):
            stated += math.prod(item.shape or ()) * item.dtype.itemsize

    try:
        with h5py.File(path) as file:
            file.visititems(add)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):
        return
    if stated > _FREE_BYTES + _MAX_RATIO * os.path.getsize(path):
        raise BadInputError(
            f"{preset}: {name} tells of {stated:,} bytes and has {os.path.getsize(path):,}; copy "
            "the preset again"
        )


def _stated_sizes(preset: str, name: str) -> dict[str, int]:
    """The sizes in a description; none where it is missing or damaged, which loading tells."""
    try:
        with open(os.path.join(preset, name), encoding="utf-8") as file:
            config = json.load(file)["config"]
        found = {size: config[size] for size in (*_SIZES, *_TABLES) if size in config}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {size: value for size, value in found.items() if isinstance(value, int) and value > 0}


def read_heads(preset: str) -> dict[str, np.ndarray]:
    """The further heads of a preset, by the paths of their variables; empty if it has none.

    Raises:
        BadInputError: the file is damaged.
    """
    path = find_preset_file(preset, HEADS_FILE)
    if path is None:
        return {}
    try:
        return read_arrays(path)
    except ARRAYS_DAMAGE as error:
        raise BadInputError(
            f"{preset}: {HEADS_FILE} is damaged ({reason(error)}); copy the preset again"
        ) from error


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, no larger than the file allows.

    `np.load` makes room for what a header of 100 bytes says before it reads, and a compressed
    member may be a thousand times its size.

    Raises:
        ValueError: it is damaged, or an array is larger than its bytes in the file; or another of
            `ARRAYS_DAMAGE`.
    """
    limit = _FREE_BYTES + _MAX_RATIO * os.path.getsize(path)
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
