"""A preset as it lies there, perhaps a stranger's: the door that each one goes through.

What its files name, Keras makes, opens and makes room for. So all of them are looked at before: are
they regular files of this directory, are their numbers and texts such as a model has, do the sizes
fit the weights? (Which classes may be named only Keras can tell: see `models/keras_hub_presets`.)
Nothing here needs TensorFlow if the preset lies on this machine.
"""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt, MinLen

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import check_own_files, is_file_name
from spanbert_tf.files.hdf5 import FREE_BYTES, check_layout
from spanbert_tf.files.kinds import PRESET_CONFIG
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.preset_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    TOKENIZER_CONFIG,
    find_preset_file,
)
from spanbert_tf.files.text_files import is_unicode, parse_json

TASK_CONFIG = "task.json"
PREPROCESSOR_CONFIG = "preprocessor.json"
DESCRIPTIONS = (PRESET_CONFIG, TOKENIZER_CONFIG, TASK_CONFIG, PREPROCESSOR_CONFIG)
_ENCODER_WEIGHTS, _TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
_INDEX = "model.weights.json"  # of the files of an encoder that is saved in several
# Where a tokenizer or preprocessor is to be saved: KerasHub writes to that path, wherever it leads.
_FILE_KEY, _FILES = "config_file", (TOKENIZER_CONFIG, PREPROCESSOR_CONFIG)
_MOST = 2**64  # no number of a model is beyond it; the largest are seeds
_COUNTS = (  # what is 1 or more, and one of TensorFlow's int32 in what is computed of it
    *("vocabulary_size", "num_heads", "hidden_dim", "intermediate_dim", "num_classes"),
    *("max_sequence_length", "sequence_length"),
)
_SIZES = ("num_layers", "hidden_dim", "intermediate_dim")
_ROWS = (  # sizes that count rows, each of the model's width or wider
    *("vocabulary_size", "max_sequence_length", "num_segments", "num_classes"),
    *("num_paragraphs", "num_sentences", "max_sentence_length"),
    *("ffnn_dim", "feature_dim", "max_segments"),
)
_WEIGHT_ENDINGS = (".h5", ".npz")
# Weights of four bits; and a layer's sixteen variables with what HDF5 says of each.
_LEAST_BYTES_OF_WEIGHT, _LEAST_BYTES_OF_LAYER = 0.5, 16 * 128
_ADVICE = "copy the preset again"


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """What is read of `adapter_config.json`."""

    base_model_name_or_path: str
    r: Annotated[int, Ge(1), Lt(2**31)]
    lora_alpha: float
    target_modules: Annotated[list[str], MinLen(1)]
    modules_to_save: list[str] | None = None

    __pydantic_config__: ClassVar[dict] = {"allow_inf_nan": False}


@dataclasses.dataclass(frozen=True)
class _Index:
    """What is read of `model.weights.json`: the file, or files, of each variable."""

    weight_map: dict[str, str | list[str]]


class Preset:
    """A preset whose files are read once they are known to be harmless.

    Args:
        name: directory, or another name that `from_preset` takes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_here = os.path.isdir(name)

    @functools.cached_property
    def descriptions(self) -> dict[str, object]:
        """File → its content, of the descriptions that are there; damage is left to their reader.

        Raises:
            BadInputError: a file is a pipe or leads out of the preset, or is nested too deep.
            ValueError: KerasHub can load no preset of that name; or as `find_preset_file`.
        """
        if self._is_here:
            check_own_files(self.name)
        return dict(self._read_descriptions())

    def _read_descriptions(self) -> Iterator[tuple[str, object]]:
        for name in DESCRIPTIONS:
            path = find_preset_file(self.name, name)
            if path is None:
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    yield name, json.load(file)
            except ValueError:
                continue
            except RecursionError as error:
                raise BadInputError(
                    f"{self.name}: {name}: is nested too deep; {_ADVICE}"
                ) from error

    @functools.cached_property
    def adapter(self) -> AdapterConfig | None:
        """What an adapter, whose encoder lies elsewhere, says of itself; `None` for other presets.

        Raises:
            BadInputError: it is damaged.
        """
        path = os.path.join(self.name, ADAPTER_CONFIG)
        if not os.path.isfile(path):
            return None
        check_own_files(self.name)
        with open(path, "rb") as file:
            place = f"{self.name}: {ADAPTER_CONFIG}"
            return parse_json(file.read(), AdapterConfig, place, "copy the adapter again")

    @functools.cached_property
    def encoder(self) -> "Preset":
        """The preset that holds the encoder's weights: this one, or the one that an adapter names.

        An adapter may be a stranger's, so that nothing is fetched that it names.

        Raises:
            BadInputError: what an adapter names is not on this machine, or no encoder.
        """
        if self.adapter is None:
            return self
        named = self.adapter.base_model_name_or_path
        advice = f"name in {ADAPTER_CONFIG} (base_model_name_or_path) where it lies now"
        if is_remote(named):
            raise BadInputError(
                f"{self.name}: its encoder is {named}, and nothing is fetched that an adapter "
                f"names: download it if you trust it, and {advice}"
            )
        encoder = Preset(os.path.join(self.name, named))
        if not encoder._is_here or encoder.adapter is not None:
            raise BadInputError(
                f"{self.name}: its encoder {named} is no preset that is there; {advice}"
            )
        return encoder

    def check_descriptions(self) -> None:
        """Refuses numbers and texts that no model has, and paths of files to be written.

        Raises:
            BadInputError: there is one.
        """
        for name, description in self.descriptions.items():
            for place, value in _values(description):
                fault = _fault(place, value)
                if fault:
                    where = f"{self.name}: {name}: {'.'.join(place)[:200]}"
                    raise BadInputError(f"{where} {fault}; {_ADVICE}")

    def check_weights(self) -> None:
        """Compares the sizes that the descriptions state with the files of the weights, and these.

        A model is built, with all its memory, before its weights are read; and Keras reads an array
        of up to 4 GiB as HDF5 tells of it, even where nothing of it lies in the file.

        Raises:
            BadInputError: the weights are far too few for them; an index names no files; or as
                `check_layout`.
        """
        files = self._weights()
        for name, path in files.items():
            if name.endswith(".h5"):
                check_layout(path, f"{self.name}: {name}")
        paths = {*files.values(), *self.encoder._weights().values()}
        num_bytes = sum(map(os.path.getsize, paths))
        sizes = self._stated_sizes()
        if _least_bytes(sizes) > num_bytes:
            raise BadInputError(
                f"{self.name}: its sizes ({', '.join(f'{name} {sizes[name]:,}' for name in sizes)})"
                f" are those of another model: its files of weights have {num_bytes:,} bytes; "
                f"{_ADVICE}"
            )

    def _stated_sizes(self) -> dict[str, int]:
        """The sizes of an encoder and of heads, the largest that any description states."""
        sizes: dict[str, int] = {}
        for name in (PRESET_CONFIG, TASK_CONFIG):
            for place, value in _values(self.descriptions.get(name)):
                key = place[-1] if place else ""
                if key in (*_SIZES, *_ROWS) and isinstance(value, int):
                    sizes[key] = max(value, sizes.get(key, 0))
        return {name: value for name, value in sizes.items() if value > 0}

    def _weights(self) -> dict[str, str]:
        """Name → path of the files of weights; those of other places are fetched."""
        names = [*self._shards(), _ENCODER_WEIGHTS]
        if TASK_CONFIG in self.descriptions:
            names.append(_TASK_WEIGHTS)
        if self._is_here:
            own = sorted(os.listdir(self.name))
            names = [name for name in own if name.endswith(_WEIGHT_ENDINGS)]
        paths = {name: find_preset_file(self.name, name) for name in names}
        return {name: path for name, path in paths.items() if path is not None}

    def _shards(self) -> list[str]:
        """The files that an index names, of this directory itself."""
        path = find_preset_file(self.name, _INDEX)
        if path is None:
            return []
        place = f"{self.name}: {_INDEX}"
        with open(path, "rb") as file:
            index = parse_json(file.read(), _Index, place, _ADVICE)
        names = {
            name
            for value in index.weight_map.values()
            for name in ([value] if isinstance(value, str) else value)
        }
        for name in sorted(names):
            if not is_file_name(name):
                raise BadInputError(f"{place}: {name[:200]!a} is no file's name; {_ADVICE}")
        return sorted(names - {ADAPTER_CONFIG, ADAPTER_WEIGHTS})


def _values(description: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Everything in a description that is no list and no dict, keys too, and where it stands."""
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
    """What is wrong with a value, as a predicate."""
    if isinstance(value, str):
        if not is_unicode(value):
            return "has half of a surrogate pair, which is no text"
        if place and place[-1] == _FILE_KEY and value not in _FILES:
            return f"is {value[:200]!a}, and one of {', '.join(_FILES)} is meant"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, no finite number"
    elif isinstance(value, int) and abs(value) > _MOST:
        return f"is a number of {value.bit_length():,} bits"
    elif isinstance(value, int) and place and place[-1] in _COUNTS and not 0 < value < 2**31:
        return f"is {value}, no number from 1 to 2,147,483,647"
    return None


def _least_bytes(sizes: dict[str, int]) -> float:
    """What the weights of a model of such sizes take at least."""
    width, inner, layers = (
        sizes.get(name, 0) for name in ("hidden_dim", "intermediate_dim", "num_layers")
    )
    rows = sum(sizes.get(name, 0) for name in _ROWS)
    num_weights = rows * width + layers * (4 * width**2 + 2 * width * inner)
    least_of_numbers = num_weights * _LEAST_BYTES_OF_WEIGHT - FREE_BYTES
    return max(least_of_numbers, layers * _LEAST_BYTES_OF_LAYER)
