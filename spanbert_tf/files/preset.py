"""The files of a preset, which may come from a stranger: checked before anything reads them.

Keras creates the objects that the JSON files of a preset name, opens paths in them, and allocates
memory for the sizes that they state. `PresetFiles` is the one door to these files. It refuses pipes
and links that lead out of the directory, numbers and texts that no model has, and sizes that do not
fit the weights. (Only Keras knows the classes; `models/keras_hub_presets` checks their names.)
Nothing here needs TensorFlow if the preset is a directory of this machine.
"""

import dataclasses
import functools
import math
import os
import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from annotated_types import Ge, Lt, MinLen

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.arrays import ARRAYS_DAMAGE, read_arrays
from spanbert_tf.files.contents import is_file_name, is_inside, sha256
from spanbert_tf.files.hdf5 import FREE_BYTES, check_layout
from spanbert_tf.files.kinds import PRESET_CONFIG, download_commands, refuse_no_preset
from spanbert_tf.files.output import OutputKind
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.text_files import is_unicode, parse_json

TASK_CONFIG = "task.json"
PREPROCESSOR_CONFIG = "preprocessor.json"
TOKENIZER_CONFIG = "tokenizer.json"
TOKENIZER_VOCABULARY = "assets/tokenizer/vocabulary.txt"
DESCRIPTIONS = (PRESET_CONFIG, TOKENIZER_CONFIG, TASK_CONFIG, PREPROCESSOR_CONFIG)
HEADS_FILE = "pretraining_heads.npz"
GOLDEN_FILE = "golden.json"
CARD_FILE = "README.md"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ENCODER_VARIABLE = "SPANBERT_TF_ENCODER"  # the user's name for the encoder of an adapter
PRESET_KIND = OutputKind(
    "a preset",
    GOLDEN_FILE,
    (
        CARD_FILE,
        *DESCRIPTIONS,
        "metadata.json",
        HEADS_FILE,
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS,
        "*.weights.h5",
        "*.weights.json",
        TOKENIZER_VOCABULARY,
    ),
)
ENCODER_WEIGHTS = "model.weights.h5"
TASK_WEIGHTS = "task.weights.h5"
_INDEX = "model.weights.json"  # names the files of an encoder that is saved in several
# Where a tokenizer or preprocessor is to be saved: KerasHub writes to that path, wherever it leads.
_FILE_KEY = "config_file"
_FILES = (TOKENIZER_CONFIG, PREPROCESSOR_CONFIG)
_MOST = 2**64  # no number of a model is beyond it; the largest are seeds
_MOST_INT32 = 2**31 - 1
_COUNTS = {  # numbers of at least 1, with the largest that is allowed
    # TensorFlow computes with them in int32.
    "vocabulary_size": _MOST_INT32,
    "num_heads": _MOST_INT32,
    "hidden_dim": _MOST_INT32,
    "intermediate_dim": _MOST_INT32,
    "num_classes": _MOST_INT32,
    "max_sequence_length": _MOST_INT32,
    "sequence_length": _MOST_INT32,
    "stride": _MOST_INT32,
    "max_answer_tokens": _MOST_INT32,
    # Lists and loops have so many items, however small the weights are.
    "num_candidates": 10_000,
    "max_span_width": 1_000,
    "depth": 100,
}
_SIZES = ("num_layers", "hidden_dim", "intermediate_dim")
_ROWS = (  # sizes that count rows, each at least as wide as the model
    "vocabulary_size",
    "max_sequence_length",
    "sequence_length",  # a preprocessor packs no longer rows than its encoder reads
    "num_segments",
    "num_classes",
    "num_paragraphs",
    "num_sentences",
    "max_sentence_length",
    "ffnn_dim",
    "feature_dim",
    "max_segments",
)
_WEIGHT_ENDINGS = (".h5", ".npz")
# Weights of four bits; and sixteen variables for each layer, with their entries in HDF5.
_LEAST_BYTES_OF_WEIGHT = 0.5
_LEAST_BYTES_OF_LAYER = 16 * 128
_FILE_NAME = re.compile(r"[\w.-]{1,255}")
_SPAN_POSITIONS = "span_boundary_head/position_embedding/embeddings"
_NEXT_SENTENCE = "next_sentence_head/kernel"
_ADVICE = "copy the preset again"


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """The content of `adapter_config.json` that is read."""

    base_model_name_or_path: str
    r: Annotated[int, Ge(1), Lt(2**31)]
    lora_alpha: float
    target_modules: Annotated[list[str], MinLen(1)]
    modules_to_save: list[str] | None = None

    __pydantic_config__: ClassVar[dict] = {"allow_inf_nan": False}


@dataclasses.dataclass(frozen=True)
class GoldenSentence:
    """A sentence, its token ids, and the first values of the outputs for the first and last."""

    text: str
    token_ids: list[int]
    first_and_last_output: tuple[list[float], list[float]]

    __pydantic_config__: ClassVar[dict] = {"allow_inf_nan": False}


@dataclasses.dataclass(frozen=True)
class Golden:
    """The content of `golden.json`: SHA-256 of each file of weights, and what they compute."""

    weights: dict[str, str]
    sentences: list[GoldenSentence]


@dataclasses.dataclass(frozen=True)
class _Index:
    """The content of `model.weights.json` that is read: the file, or files, of each variable."""

    weight_map: dict[str, str | list[str]]


class PresetFiles:
    """The files of a preset. Each is read once, when it is asked for, and checked then.

    Args:
        name: directory, or another name that `from_preset` takes.

    Raises:
        BadInputError: the directory holds no preset, or a pipe, or a link that leads out of it.
    """

    def __init__(self, name: str | os.PathLike) -> None:
        self.name = os.fspath(name)
        self._is_local = os.path.isdir(self.name)
        self._descriptions: dict[str, dict[str, Any] | None] = {}
        self._are_weights_checked = False
        refuse_no_preset(self.name)

    @classmethod
    def of(cls, preset: "str | os.PathLike | PresetFiles") -> Self:
        """Opens a preset, unless it is open."""
        return preset if isinstance(preset, cls) else cls(preset)

    def __str__(self) -> str:
        return self.name

    def __fspath__(self) -> str:
        return self.name

    def find(self, name: str) -> str | None:
        """Returns the local path of a file, which is fetched if need be; `None` if there is none.

        Raises:
            BadInputError: there is no preset of this name, or it cannot be reached.
        """
        if self._is_local:
            path = os.path.join(self.name, name)
            return path if os.path.exists(path) else None
        try:
            return _fetch(self.name, name)
        except (ValueError, OSError, ImportError) as error:
            raise self.missing(error) from error

    def missing(self, error: Exception) -> BadInputError:
        """Makes the error for a name that leads to no preset."""
        if is_remote(self.name):
            return BadInputError(
                f"{self.name}: no preset ({reason(error)}); check the name and the network"
            )
        advice = "name the directory of a preset"
        if download := download_commands(self.name):
            advice = f"for a model of the Hugging Face Hub, {download}"
        return BadInputError(
            f"{self.name}: no preset: no such directory, and no name that KerasHub can load; "
            f"{advice}"
        )

    def description(self, name: str) -> dict[str, Any] | None:
        """Reads one of the `DESCRIPTIONS`; `None` if there is no such file.

        Raises:
            BadInputError: it is damaged, or has a number or a text that no model has, or a path
                that would be written to.
        """
        if name not in self._descriptions:
            self._descriptions[name] = self._read_description(name)
        return self._descriptions[name]

    def _read_description(self, name: str) -> dict[str, Any] | None:
        path = self.find(name)
        if path is None:
            return None
        with open(path, "rb") as file:
            text = file.read()
        place = f"{self.name}: {name}"
        content = parse_json(text, dict[str, Any], f"{place} is damaged", _ADVICE)
        for keys, value in _values(content):
            fault = _fault(keys, value)
            if fault:
                raise BadInputError(f"{place}: {'.'.join(keys)[:200]} {fault}; {_ADVICE}")
        return content

    @property
    def descriptions(self) -> dict[str, dict[str, Any]]:
        """File → content, for the descriptions that are there."""
        found = {name: self.description(name) for name in DESCRIPTIONS}
        return {name: content for name, content in found.items() if content is not None}

    def class_name(self, name: str) -> str | None:
        """Returns the class that a description names; `None` if there is no such file.

        Raises:
            BadInputError: as `description`; or it names none.
        """
        description = self.description(name)
        if description is None:
            return None
        class_name = description.get("class_name")
        if not isinstance(class_name, str):
            raise BadInputError(f"{self}: {name} names no class; {_ADVICE}")
        return class_name

    def arguments(self, name: str) -> dict[str, Any]:
        """Returns the arguments of the class that a description names; empty if it has none.

        Raises:
            BadInputError: as `description`; or they are no object.
        """
        description = self.description(name) or {}
        arguments = description.get("config", {})
        if not isinstance(arguments, dict):
            raise BadInputError(f"{self}: {name}: config is no object; {_ADVICE}")
        return arguments

    @property
    def head_class(self) -> str | None:
        """The name of the class of the task whose head the preset holds; `None` if it has none."""
        task_class = self.class_name(TASK_CONFIG)
        has_head = task_class is not None and self.find(TASK_WEIGHTS) is not None
        return task_class if has_head else None

    @property
    def hidden_dim(self) -> int:
        """The width of the encoder; 0 if it is not stated, which loading the encoder reports."""
        width = self.arguments(PRESET_CONFIG).get("hidden_dim")
        return width if isinstance(width, int) else 0

    @functools.cached_property
    def heads(self) -> dict[str, np.ndarray]:
        """The arrays of the heads that only pre-training needs; empty if there are none.

        Raises:
            BadInputError: the file is damaged, or an array does not hold weights.
        """
        path = self.find(HEADS_FILE)
        if path is None:
            return {}
        try:
            heads = read_arrays(path)
            _check_heads(heads)
        except ARRAYS_DAMAGE as error:
            raise BadInputError(
                f"{self.name}: {HEADS_FILE} is damaged ({reason(error)}); {_ADVICE}"
            ) from error
        return heads

    @property
    def head_options(self) -> dict[str, Any]:
        """The arguments of a `SpanBertPretrainer` with these heads."""
        options: dict[str, bool | int] = {
            "span_boundary": _SPAN_POSITIONS in self.heads,
            "next_sentence": _NEXT_SENTENCE in self.heads,
        }
        if _SPAN_POSITIONS in self.heads:
            num_targets, width = self.heads[_SPAN_POSITIONS].shape
            options |= {"max_span_targets": num_targets, "span_position_dim": width}
        return options

    @functools.cached_property
    def golden(self) -> Golden:
        """The content of `golden.json`; empty if there is none.

        Raises:
            BadInputError: it is damaged.
        """
        path = self.find(GOLDEN_FILE)
        if path is None:
            return Golden({}, [])
        with open(path, "rb") as file:
            text = file.read()
        advice = f"{_ADVICE}, or remove {GOLDEN_FILE}"
        return parse_json(text, Golden, f"{self.name}: {GOLDEN_FILE}", advice)

    def check_checksums(self) -> None:
        """Compares the files of weights with `golden.json`, if there is one.

        Only the first call reads them.

        Raises:
            BadInputError: a file differs or is missing.
        """
        if self._are_weights_checked:
            return
        for name, expected in self.golden.weights.items():
            if not (_FILE_NAME.fullmatch(name) and is_file_name(name)):
                raise BadInputError(
                    f"{self.name}: {GOLDEN_FILE}: {name[:200]!a} is no file's name; {_ADVICE}, or "
                    f"remove {GOLDEN_FILE}"
                )
            path = self.find(name)
            if path is None:
                raise BadInputError(f"{self.name}: {name} is missing; {_ADVICE}")
            if sha256(path) != expected:
                raise BadInputError(
                    f"{self.name}: {name} is not the file that {GOLDEN_FILE} describes; {_ADVICE}, "
                    f"or remove {GOLDEN_FILE} if the change was meant"
                )
        self._are_weights_checked = True

    @functools.cached_property
    def adapter(self) -> AdapterConfig | None:
        """The configuration of an adapter, whose encoder is another preset; `None` for others.

        Raises:
            BadInputError: it is damaged.
        """
        if not is_adapter(self.name):
            return None
        with open(os.path.join(self.name, ADAPTER_CONFIG), "rb") as file:
            text = file.read()
        place = f"{self.name}: {ADAPTER_CONFIG}"
        return parse_json(text, AdapterConfig, place, "copy the adapter again")

    @functools.cached_property
    def base(self) -> Self:
        """The preset that holds the encoder's weights: this one, or the encoder of an adapter.

        SPANBERT_TF_ENCODER names this encoder, or else the adapter does. An adapter may come from a
        stranger, so nothing is fetched that it names, and no directory is looked at that does not
        lie beside it.

        Raises:
            BadInputError: the adapter names something else than a preset beside it, or the variable
                something else than a preset on this machine.
        """
        if self.adapter is None:
            return self
        given = os.environ.get(ENCODER_VARIABLE)
        named = given or self.adapter.base_model_name_or_path
        place = f"{self.name}: its encoder {named}"
        if is_remote(named):
            raise BadInputError(
                f"{place} is not on this machine, and nothing is fetched for an adapter: download "
                f"it if you trust it, and name its directory: {ENCODER_VARIABLE}=DIRECTORY"
            )
        directory = given or os.path.normpath(os.path.join(os.path.realpath(self.name), named))
        if not given and not _is_beside(directory, self.name):
            raise BadInputError(
                f"{place} does not lie beside it, and no other path is opened that an adapter "
                f"names: if you trust it, give {ENCODER_VARIABLE}={shlex.quote(directory)}"
            )
        if not os.path.isdir(directory) or is_adapter(directory):
            raise BadInputError(
                f"{place} is no preset that is there; give {ENCODER_VARIABLE}=DIRECTORY, where it "
                "lies now"
            )
        return type(self)(directory)

    def check_weights(self) -> None:
        """Compares the sizes that the descriptions state with the sizes of the files of weights.

        A model is built, with all its memory, before its weights are read; and Keras allocates up
        to 4 GiB for an array that HDF5 describes, even if the file does not hold it.

        Raises:
            BadInputError: the files are far too small; an index names something else than files of
                the directory; or as `check_layout`.
        """
        files = self._weights()
        for name, path in files.items():
            if name.endswith(".h5"):
                check_layout(path, f"{self.name}: {name}")
        paths = {*files.values(), *self.base._weights().values()}
        num_bytes = sum(map(os.path.getsize, paths))
        sizes = self._stated_sizes()
        if _least_bytes(sizes) > num_bytes:
            stated = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise BadInputError(
                f"{self.name}: its sizes ({stated}) are those of another model: its files of "
                f"weights have {num_bytes:,} bytes; {_ADVICE}"
            )

    def _stated_sizes(self) -> dict[str, int]:
        """Returns the sizes of encoder and heads, the largest that any description states."""
        sizes: dict[str, int] = {}
        for name in (PRESET_CONFIG, TASK_CONFIG):
            for keys, value in _values(self.description(name)):
                key = keys[-1] if keys else ""
                if key in (*_SIZES, *_ROWS) and isinstance(value, int):
                    sizes[key] = max(value, sizes.get(key, 0))
        return {name: value for name, value in sizes.items() if value > 0}

    def _weights(self) -> dict[str, str]:
        """Maps the names of the files of weights to their paths; remote files are fetched."""
        if self._is_local:
            own = sorted(os.listdir(self.name))
            names = [name for name in own if name.endswith(_WEIGHT_ENDINGS)]
            self._shards()  # refuses an index of other files
        else:
            names = [*self._shards(), ENCODER_WEIGHTS]
            if self.description(TASK_CONFIG) is not None:
                names.append(TASK_WEIGHTS)
        paths = {name: self.find(name) for name in names}
        return {name: path for name, path in paths.items() if path is not None}

    def _shards(self) -> list[str]:
        """Lists the files that an index names; all must be files of the directory itself."""
        path = self.find(_INDEX)
        if path is None:
            return []
        place = f"{self.name}: {_INDEX}"
        with open(path, "rb") as file:
            index = parse_json(file.read(), _Index, place, _ADVICE)
        names: set[str] = set()
        for value in index.weight_map.values():
            names.update([value] if isinstance(value, str) else value)
        for name in sorted(names):
            if not is_file_name(name):
                raise BadInputError(f"{place}: {name[:200]!a} is no file's name; {_ADVICE}")
        return sorted(names - {ADAPTER_CONFIG, ADAPTER_WEIGHTS})


def is_adapter(directory: str) -> bool:
    """Whether a directory holds an adapter, whose encoder is another preset."""
    return os.path.isfile(os.path.join(directory, ADAPTER_CONFIG))


def _is_beside(directory: str, adapter: str) -> bool:
    """Whether a normalized path lies, links followed, in the folder that holds an adapter.

    Nothing of a path that leads out of this folder is looked at: it may be of another machine.
    """
    folder = os.path.dirname(os.path.realpath(adapter))
    leads_out = os.path.commonpath([directory, folder]) != folder or "\0" in directory
    return not leads_out and is_inside(directory, folder)


def golden_digest(preset: str | os.PathLike) -> str | None:
    """Computes the SHA-256 of `golden.json`, which identifies the preset wherever it lies.

    That file holds the checksums of the weights. `None` without one, and for presets that are no
    directories.
    """
    path = os.path.join(preset, GOLDEN_FILE)
    return sha256(path) if os.path.isfile(path) else None


def _fetch(preset: str, name: str) -> str | None:
    """Fetches a file of a preset that is not on this machine, and returns its path here.

    Raises:
        ValueError: KerasHub can load no preset of that name; or another error of its loaders.
        FileNotFoundError: there is no preset at that address.
        ConnectionError: the Hugging Face Hub, or a bucket's server, cannot be reached.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError
    from keras_hub.src.utils import preset_utils

    try:
        return preset_utils.get_file(preset, name)
    except FileNotFoundError as error:
        # KerasHub reports a hub that does not answer as one that lacks the file.
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            raise ConnectionError("the hub does not answer, and no copy is here") from error
        if name == PRESET_CONFIG:  # every preset has one
            raise FileNotFoundError(f"{PRESET_CONFIG} is not there") from error
        _fetch(preset, PRESET_CONFIG)
        return None
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:  # those of TensorFlow's file systems
        raise ConnectionError(reason(error)) from error


def _check_heads(heads: dict[str, np.ndarray]) -> None:
    """Raises `ValueError` if an array does not hold weights."""
    for name, array in heads.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name[:200]!a} is not of finite floating-point numbers")
    table = heads.get(_SPAN_POSITIONS)
    if table is not None and (table.ndim != 2 or 0 in table.shape):
        raise ValueError(f"{_SPAN_POSITIONS} has shape {list(table.shape)}, not [rows, columns]")


def _values(description: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields all keys and plain values of a description, each with the keys that lead to it."""
    left: list[tuple[tuple[str, ...], object]] = [((), description)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                yield place, key
                left.append(((*place, key), inner))
        elif isinstance(value, list):
            left += [(place, inner) for inner in value]
        else:
            yield place, value


def _fault(place: tuple[str, ...], value: object) -> str | None:
    """Returns what is wrong with a value, as a predicate; `None` if nothing is."""
    key = place[-1] if place else ""
    if isinstance(value, str):
        if not is_unicode(value):
            return "has half of a surrogate pair, which is no text"
        if key == _FILE_KEY and value not in _FILES:
            return f"is {value[:200]!a}, and one of {', '.join(_FILES)} is meant"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, no finite number"
    elif isinstance(value, int) and abs(value) > _MOST:
        return f"is a number of {value.bit_length():,} bits"
    if key in _COUNTS and value is not None:
        most = _COUNTS[key]
        if not isinstance(value, int) or not 0 < value <= most:
            return f"is {ascii(value)[:200]}, no number from 1 to {most:,}"
    return None


def _least_bytes(sizes: dict[str, int]) -> float:
    """Computes the smallest number of bytes that the weights of a model of such sizes can take."""
    width, inner, layers = (
        sizes.get(name, 0) for name in ("hidden_dim", "intermediate_dim", "num_layers")
    )
    rows = sum(sizes.get(name, 0) for name in _ROWS)
    num_weights = rows * width + layers * (4 * width**2 + 2 * width * inner)
    least_of_numbers = num_weights * _LEAST_BYTES_OF_WEIGHT - FREE_BYTES
    return max(least_of_numbers, layers * _LEAST_BYTES_OF_LAYER)
