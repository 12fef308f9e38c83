"""Reads tensors from files of PyTorch and safetensors, without executing code that may be in them.

Only files of PyTorch need PyTorch.
"""

import argparse
import contextlib
import functools
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  NumPy's bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open

from spanbert_tf.conversion.checkpoint import (
    Array,
    LazyArray,
    check_floats,
    some_rows,
)
from spanbert_tf.conversion.names import (
    MASKED_LM_BIAS,
    TOKEN_TABLE,
)
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.lazy import load

if TYPE_CHECKING:  # package of the extra `convert`
    import torch

# Type in a .safetensors file → type in NumPy.
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
# Arrays of indices that are no weights, and old names of LayerNorm's parameters.
_BUFFERS = re.compile(r"(^|\.)(position|token_type)_ids$")
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
_PREDICTIONS = "cls.predictions"
# Errors that PyTorch's reader of pickles raises for damaged files.
_DAMAGE = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    struct.error,
    AttributeError,
    TypeError,
    AssertionError,
    MemoryError,
    OverflowError,
)
# Name of the output matrix in SegaBERT's checkpoints. Its authors pad the vocabulary, and their
# converter removes the padding from the token embedding only (convert_segatron_to_huggingface.py).
_PADDED = f"{_PREDICTIONS}.decoder_weight"
_FUSED = ".attention.self.query_key_value."
_SEPARATE = ("query", "key", "value")
_MOST_READ = 2**28  # bytes that are read of a mapped file before it is mapped anew


def read_safetensors(path: str) -> dict[str, Array]:
    """Returns all tensors of a .safetensors file as float32, read when they are used."""
    with _opened_safetensors(path) as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {
        name: LazyArray(shape, functools.partial(_read_tensor, path, name))
        for name, shape in shapes.items()
    }


@contextlib.contextmanager
def _opened_safetensors(path: str) -> Iterator[safe_open]:
    """Opens a file; raises `BadInputError` if it is damaged, also while it is being read."""
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise BadInputError(f"{path}: is damaged ({reason(error)[:200]}); copy it again") from error


def _read_tensor(path: str, name: str) -> np.ndarray:
    """Returns one tensor.

    The file is mapped again for each tensor, since the parts that were read of a mapping stay in
    memory until it is closed.
    """
    with _opened_safetensors(path) as file:
        kind = file.get_slice(name).get_dtype()
        check_floats(_FLOATS.get(kind, kind), name, path)
        return file.get_tensor(name).astype("float32", copy=False)


def write_safetensors(arrays: Mapping[str, Array], path: str) -> None:
    """Writes the same bytes as `safetensors.numpy.save_file`, but one array at a time."""
    names = sorted(arrays)
    offset = 0
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    for name in names:
        end = offset + 4 * arrays[name].size
        shape = list(arrays[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name], "<f4").data)


def read_pickled(path: str) -> dict[str, Array]:
    """Returns the tensors of a .bin or .pt file as float32; see `PickledTensors`."""
    return PickledTensors(path).arrays()


class PickledTensors:
    """The tensors of a .bin or .pt file; for a training checkpoint, the tensors of its model.

    PyTorch reads only tensors and plain containers (`weights_only`), and the `argparse.Namespace`
    in which fairseq stores its arguments.

    Attributes:
        architecture: `args.arch` of fairseq's arguments, or `None`.

    Raises:
        BadInputError: the file is damaged, or contains other objects.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_mapped = zipfile.is_zipfile(path)  # files of PyTorch before 1.6 are no archives
        self._load()

    def arrays(self) -> dict[str, Array]:
        """Returns name → tensor as float32, read when it is used."""
        return {
            name: LazyArray(tensor.shape, functools.partial(self._read, name))
            for name, tensor in self._tensors.items()
        }

    def _load(self) -> None:
        content = _unpickled(self._path, self._is_mapped)
        self.architecture = None
        if isinstance(content, dict) and isinstance(content.get("model"), dict):
            self.architecture = getattr(content.get("args"), "arch", None)
            content = content["model"]
        self._tensors = _checked_tensors(self._path, content)
        self._num_read = 0

    def _read(self, name: str) -> np.ndarray:
        if self._is_mapped and self._num_read > _MOST_READ:
            # The parts that were read of a mapping stay in memory until it is closed.
            self._load()
        tensor = self._tensors[name]
        check_floats(tensor.dtype, name, self._path)
        self._num_read += tensor.numel() * tensor.element_size()
        return tensor.clone().float().numpy()  # without a copy, the array would keep the mapping


def _pytorch(path: str) -> Any:
    """Returns the package `torch`.

    Raises:
        BadInputError: it is not installed; `path` is the file that needs it.
    """
    try:
        return load("torch")
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"{path}: is a file of PyTorch, and {error.name} is not installed; pip install "
            "'spanbert_tf[convert]', or save the model as .safetensors"
        ) from error


def _unpickled(path: str, is_mapped: bool) -> object:
    """Returns the content of a file, without executing code in it."""
    torch = _pytorch(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"{path}: holds more than tensors ({_refused(error)}), and loading it could run code; "
            "save its state_dict alone, best as .safetensors"
        ) from error
    except _DAMAGE as error:
        raise BadInputError(f"{path}: is damaged ({reason(error)[:200]}); copy it again") from error


def _checked_tensors(path: str, content: object) -> dict[str, "torch.Tensor"]:
    """Returns the tensors of a dict.

    Raises:
        BadInputError: it is no dict, or a tensor is not dense or has fewer values than its shape.
    """
    torch = _pytorch(path)
    if not isinstance(content, dict):
        raise BadInputError(f"{path}: holds no dict of tensors but {type(content).__name__}")
    tensors = {
        name: tensor
        for name, tensor in content.items()
        if isinstance(name, str) and isinstance(tensor, torch.Tensor)
    }
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise BadInputError(
                f"{path}: {name!r} is a sparse or quantized tensor, or one without values; save "
                "dense ones"
            )
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise BadInputError(
                f"{path}: {name[:200]!a} says {tensor.numel():,} values and holds fewer; save a "
                "contiguous copy (`tensor.contiguous()`)"
            )
    return tensors


def with_standard_names(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays under the names of `BertForPreTraining`, without index buffers.

    SegaBERT's authors stack the matrices of queries, keys and values in one
    (modeling_segabert.py, `BertSelfAttention`); they are separated. Their padded output matrix and
    its bias are cut to the rows of the token embedding.
    """
    renamed: dict[str, Array] = {}
    for their_name, array in arrays.items():
        if _BUFFERS.search(their_name):
            continue
        name = _standard_name(their_name)
        if _FUSED in name and len(array) % len(_SEPARATE) == 0:
            num_rows = len(array) // len(_SEPARATE)
            for index, part in enumerate(_SEPARATE):
                rows = some_rows(array, index * num_rows, (index + 1) * num_rows)
                renamed[name.replace("query_key_value", part)] = rows
        else:
            renamed[name] = array
    if _PADDED in renamed:
        num_rows = len(renamed.get(TOKEN_TABLE, ()))
        renamed[f"{_PREDICTIONS}.decoder.weight"] = some_rows(renamed.pop(_PADDED), 0, num_rows)
        if MASKED_LM_BIAS in renamed:
            renamed[MASKED_LM_BIAS] = some_rows(renamed[MASKED_LM_BIAS], 0, num_rows)
    return renamed


def _standard_name(name: str) -> str:
    """Returns an array's name in `BertForPreTraining`.

    Removes the prefixes of wrapping modules (`module.`, fairseq's `decoder.`), renames LayerNorm's
    old `gamma` and `beta`, and adds `bert.` to the names of an encoder that was saved alone.
    """
    name = re.sub(r"^(module\.|decoder\.(?=bert\.|cls\.))+", "", name)
    stem, dot, last = name.rpartition(".")
    name = f"{stem}{dot}{_OLD_NAMES.get(last, last)}"
    if name.split(".")[0] in ("embeddings", "encoder", "pooler"):
        name = f"bert.{name}"
    return name


def with_fused_attention(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays with the queries, keys and values of a layer stacked in one array.

    This is the layout of SegaBERT's authors.
    """
    fused: dict[str, Array] = {}
    for name, array in arrays.items():
        part = name.split(".")[-2]
        if ".attention.self." not in name or part not in _SEPARATE:
            fused[name] = array
        elif part == _SEPARATE[0]:
            parts = [arrays[name.replace(part, each)] for each in _SEPARATE]
            shape = (len(_SEPARATE) * len(array), *array.shape[1:])
            stacked = LazyArray(shape, functools.partial(_stacked, parts))
            fused[name.replace(part, "query_key_value")] = stacked
    return fused


def _stacked(parts: list[Array]) -> np.ndarray:
    """Returns the rows of all parts as one array."""
    return np.concatenate([np.asarray(part) for part in parts])


def _refused(error: Exception) -> str:
    """Returns the object that PyTorch refused to read, from its long message."""
    message = str(error)
    found = re.search(r"GLOBAL (\S+)", message)
    if found is None:
        found = re.search(r"(Unsupported \w+ \S+)", message)
    return found.group(1) if found else "it is no checkpoint of PyTorch"
