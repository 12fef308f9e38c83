"""Tensors from PyTorch's files, read without executing code that may be in them."""

import argparse
import pickle
import re
import struct

import numpy as np

from spanbert_tf.conversion.checkpoint import TOKEN_TABLE
from spanbert_tf.errors import BadInputError

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


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """All tensors of a .safetensors file as float32."""
    from safetensors import SafetensorError, safe_open

    try:
        # "pt" rather than "np", which has no bfloat16.
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadInputError(f"{path}: is damaged ({_first_line(error)}); copy it again") from error


def read_pickled(path: str) -> dict[str, np.ndarray]:
    """All tensors of a .bin or .pt file as float32; as `read_fairseq_file`."""
    return read_fairseq_file(path)[0]


def read_fairseq_file(path: str) -> tuple[dict[str, np.ndarray], str | None]:
    """All tensors as float32 (a training checkpoint's are those of its model), and `args.arch`.

    Only tensors and plain containers are read (`weights_only`), and the `argparse.Namespace` in
    which fairseq keeps its arguments.
    """
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"{path}: holds more than tensors ({_reason(error)}), and loading it could run code; "
            "save its state_dict alone, best as .safetensors"
        ) from error
    except _DAMAGE as error:
        raise BadInputError(f"{path}: is damaged ({_first_line(error)}); copy it again") from error
    architecture = None
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        architecture = getattr(content.get("args"), "arch", None)
        content = content["model"]
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
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}, architecture


def with_standard_names(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
        stem, _, last = name.rpartition(".")
        name = f"{stem}.{_OLD_NAMES.get(last, last)}"
        if name.split(".")[0] in ("embeddings", "encoder", "pooler"):
            name = f"bert.{name}"
        if _FUSED in name and len(array) % len(_SEPARATE) == 0:
            for part, values in zip(_SEPARATE, np.split(array, len(_SEPARATE)), strict=True):
                renamed[name.replace("query_key_value", part)] = values
        else:
            renamed[name] = array
    if _PADDED in renamed:
        num_rows = len(renamed.get(TOKEN_TABLE, ()))
        renamed[f"{_PREDICTIONS}.decoder.weight"] = renamed.pop(_PADDED)[:num_rows]
        if f"{_PREDICTIONS}.bias" in renamed:
            renamed[f"{_PREDICTIONS}.bias"] = renamed[f"{_PREDICTIONS}.bias"][:num_rows]
    return renamed


def with_fused_attention(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with each layer's queries, keys and values in one, as SegaBERT's authors do."""
    fused = {}
    for name, array in arrays.items():
        part = name.split(".")[-2]
        if ".attention.self." not in name or part not in _SEPARATE:
            fused[name] = array
        elif part == _SEPARATE[0]:
            parts = [arrays[name.replace(part, each)] for each in _SEPARATE]
            fused[name.replace(part, "query_key_value")] = np.concatenate(parts)
    return fused


def _reason(error: Exception) -> str:
    """What torch refused, out of a page of advice."""
    found = re.search(r"GLOBAL (\S+)", str(error)) or re.search(
        r"(Unsupported \w+ \S+)", str(error)
    )
    return found.group(1) if found else "it is no checkpoint of PyTorch"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
