"""Tensors from PyTorch's files, read without executing code that may be in them."""

import argparse
import contextlib
import functools
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np

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

# Names that mean nothing, and old names of LayerNorm's parameters.
_BUFFERS = re.compile(r"(^|\.)(position|token_type)_ids$")
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
_PREDICTIONS = "cls.predictions"
# What PyTorch's own reader of pickles raises, where it comes upon bytes that it does not expect.
_DAMAGE = (
    *(RuntimeError, EOFError, OSError, ValueError, LookupError, struct.error, AttributeError),
    *(TypeError, AssertionError, MemoryError, OverflowError),
)
# SegaBERT's authors pad the vocabulary, and their converter cuts the token embedding alone
# (convert_segatron_to_huggingface.py).
_PADDED = f"{_PREDICTIONS}.decoder_weight"
_FUSED, _SEPARATE = ".attention.self.query_key_value.", ("query", "key", "value")
_MOST_READ = 2**28  # bytes of a mapped file


def read_safetensors(path: str) -> dict[str, LazyArray]:
    """All tensors of a .safetensors file as float32."""
    with _opened_safetensors(path) as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {
        name: LazyArray(shape, functools.partial(_read_tensor, path, name))
        for name, shape in shapes.items()
    }


@contextlib.contextmanager
def _opened_safetensors(path: str) -> Iterator["safetensors.safe_open"]:  # noqa: F821
    from safetensors import SafetensorError, safe_open

    try:
        # "pt" rather than "np", which has no bfloat16.
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise BadInputError(f"{path}: is damaged ({reason(error)[:200]}); copy it again") from error


def _read_tensor(path: str, name: str) -> np.ndarray:
    """One tensor. The file is mapped for it alone: what is read of a mapping stays in memory."""
    with _opened_safetensors(path) as file:
        tensor = file.get_tensor(name)
        check_floats(tensor.dtype, name, path)
        return tensor.float().numpy()


def write_safetensors(arrays: Mapping[str, Array], path: str) -> None:
    """Writes the bytes of `safetensors.numpy.save_file`, which needs all arrays at once."""
    names, offset = sorted(arrays), 0
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


def read_pickled(path: str) -> dict[str, LazyArray]:
    """All tensors of a .bin or .pt file as float32; as `PickledTensors`."""
    return PickledTensors(path).arrays()


class PickledTensors:
    """The tensors of a file as float32; of a training checkpoint those of its model.

    Only tensors and plain containers are read (`weights_only`), and the `argparse.Namespace` in
    which fairseq keeps its arguments.

    Attributes:
        architecture: `args.arch`, if it is there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_mapped = zipfile.is_zipfile(path)  # otherwise of before PyTorch 1.6
        self._load()

    def arrays(self) -> dict[str, LazyArray]:
        """By their names."""
        return {
            name: LazyArray(tensor.shape, functools.partial(self._read, name))
            for name, tensor in self._tensors.items()
        }

    def _load(self) -> None:
        content, self.architecture = _unpickled(self._path, self._is_mapped), None
        if isinstance(content, dict) and isinstance(content.get("model"), dict):
            self.architecture = getattr(content.get("args"), "arch", None)
            content = content["model"]
        self._tensors, self._num_read = _checked_tensors(self._path, content), 0

    def _read(self, name: str) -> np.ndarray:
        if self._is_mapped and self._num_read > _MOST_READ:
            self._load()  # what is read of a mapping stays in memory as long as it
        tensor = self._tensors[name]
        check_floats(tensor.dtype, name, self._path)
        self._num_read += tensor.numel() * tensor.element_size()
        return tensor.clone().float().numpy()  # a mapping is kept by what is part of it


def _unpickled(path: str, is_mapped: bool) -> object:
    import torch

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


def _checked_tensors(path: str, content: object) -> dict[str, "torch.Tensor"]:  # noqa: F821
    """The tensors of a dict, each of which has the values that it says."""
    import torch

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


def with_standard_names(arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays under the names of `BertForPreTraining`.

    Takes off what wraps them (`module.`, fairseq's `decoder.`), adds `bert.` where a bare encoder
    has none, renames LayerNorm's old `gamma` and `beta`, drops index buffers, and takes apart the
    queries, keys and values that SegaBERT's authors have one above the other in one matrix
    (modeling_segabert.py, `BertSelfAttention`). Their output matrix is called as everybody's, and
    cut to the token embedding's rows.
    """
    renamed = {}
    for name, array in arrays.items():
        if _BUFFERS.search(name):
            continue
        name = re.sub(r"^(module\.|decoder\.(?=bert\.|cls\.))+", "", name)
        stem, dot, last = name.rpartition(".")
        name = f"{stem}{dot}{_OLD_NAMES.get(last, last)}"
        if name.split(".")[0] in ("embeddings", "encoder", "pooler"):
            name = f"bert.{name}"
        if _FUSED in name and len(array) % len(_SEPARATE) == 0:
            count = len(array) // len(_SEPARATE)
            for number, part in enumerate(_SEPARATE):
                values = some_rows(array, number * count, (number + 1) * count)
                renamed[name.replace("query_key_value", part)] = values
        else:
            renamed[name] = array
    if _PADDED in renamed:
        num_rows = len(renamed.get(TOKEN_TABLE, ()))
        renamed[f"{_PREDICTIONS}.decoder.weight"] = some_rows(renamed.pop(_PADDED), 0, num_rows)
        if MASKED_LM_BIAS in renamed:
            renamed[MASKED_LM_BIAS] = some_rows(renamed[MASKED_LM_BIAS], 0, num_rows)
    return renamed


def with_fused_attention(arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays with each layer's queries, keys and values in one, as SegaBERT's authors do."""
    fused = {}
    for name, array in arrays.items():
        part = name.split(".")[-2]
        if ".attention.self." not in name or part not in _SEPARATE:
            fused[name] = array
        elif part == _SEPARATE[0]:
            parts = [arrays[name.replace(part, each)] for each in _SEPARATE]
            fused[name.replace(part, "query_key_value")] = LazyArray(
                (len(_SEPARATE) * len(array), *array.shape[1:]), functools.partial(_joined, parts)
            )
    return fused


def _joined(parts: list[Array]) -> np.ndarray:
    """Their rows, one after another."""
    return np.concatenate([np.asarray(part) for part in parts])


def _refused(error: Exception) -> str:
    """What torch refused, out of a page of advice."""
    found = re.search(r"GLOBAL (\S+)", str(error)) or re.search(
        r"(Unsupported \w+ \S+)", str(error)
    )
    return found.group(1) if found else "it is no checkpoint of PyTorch"
