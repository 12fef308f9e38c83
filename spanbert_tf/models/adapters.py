"""Reads and writes low-rank adapters as directories in the layout of Hugging Face's `peft`.

Such a directory is a preset without the weights of the encoder:

- `adapter_config.json` has the settings of the adapter, and names the preset of the encoder.
- `adapter_model.safetensors` has the matrices of the adapter, the pooler if it was trained, and
  the head if `transformers` has the same head. The arrays have the names that `peft` uses with a
  BERT of `transformers`. The metadata has the digest of the encoder.
- `model.weights.json`, in which Keras looks for the files of weights, names these two files.
- `task.weights.h5` has the head of the task, as in every preset.

Shapes: H is the width of the encoder.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import keras
import keras_hub
import numpy as np
import safetensors
from keras_hub.src.utils import preset_utils
from safetensors.numpy import save

from spanbert_tf.errors import BadInputError, MismatchError, reason
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.kinds import PRESET_CONFIG
from spanbert_tf.files.output import Output
from spanbert_tf.files.preset import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ENCODER_VARIABLE,
    GOLDEN_FILE,
    PRESET_KIND,
    PresetFiles,
)
from spanbert_tf.layers import LowRankAdapter, weights_are_loaded
from spanbert_tf.models.keras_hub_presets import check_preset, weights_digest

_INDEX = preset_utils.SHARDED_MODEL_WEIGHTS_CONFIG_FILE
_DIGEST = "encoder_sha256"  # key of the metadata
_ADVICE = "copy the adapter again"
_FLOATS = ("F16", "F32", "F64")  # the float types of safetensors that NumPy has, too
# Names of `peft` and `transformers`.
_PREFIX = "base_model.model."
_BERT = "bert."
_POOLER = "pooler.dense"
_PROJECTIONS = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The content of the directory of an adapter, without the head in `task.weights.h5`.

    Attributes:
        directory: directory of the adapter.
        encoder: preset of the encoder.
        digest: digest of the encoder's weights, see `weights_digest`.
        rank: rank of the matrices.
        alpha: the products of the matrices are multiplied by `alpha / rank`.
        targets: names of the adapted projections of each layer.
        arrays: maps the name in `BertModel` of `transformers` to the array. Matrices have the shape
            [outputs, inputs].
    """

    directory: str
    encoder: PresetFiles
    digest: str
    rank: int
    alpha: float
    targets: list[str]
    arrays: Mapping[str, np.ndarray]

    def check_encoder(self, digest: str) -> None:
        """Checks that an encoder has the weights on which the adapter was trained.

        Args:
            digest: `weights_digest` of the encoder.

        Raises:
            MismatchError: the digests differ.
        """
        if digest != self.digest:
            found = f"its weights have the SHA-256 {digest[:12]}…, not {self.digest[:12]}…"
            raise self.other_encoder(found)

    def other_encoder(self, found: str) -> MismatchError:
        """Returns the error for an encoder that is not the adapter's; `found` says what differs."""
        return MismatchError(
            f"{self.encoder}: is not the encoder that {self.directory} was trained on ({found}); "
            f"give that one as {ENCODER_VARIABLE}=DIRECTORY"
        )

    def merge_into(self, backbone: keras_hub.models.Backbone) -> None:
        """Adds the products of the matrices to the encoder's kernels, and assigns the pooler."""
        for projection in _projections(backbone):
            if projection.target not in self.targets:
                continue
            factor_a, factor_b = self._factors(projection.name, backbone.hidden_dim)
            product = (factor_b @ factor_a).T * (self.alpha / self.rank)  # [H, H]
            if not np.isfinite(product).all():
                raise BadInputError(
                    f"{self.directory}: {ADAPTER_CONFIG}: lora_alpha is {self.alpha:g}, with which "
                    f"its products are infinite; {_ADVICE}"
                )
            kernel = projection.dense.kernel
            kernel.assign_add(product.reshape(kernel.shape))
        self._assign_pooler(backbone)

    def assign_to(self, backbone: keras_hub.models.Backbone) -> None:
        """Assigns the matrices and the pooler to an encoder that was built with `options`."""
        for projection in _projections(backbone):
            if projection.adapter is not None:
                factor_a, factor_b = self._factors(projection.name, backbone.hidden_dim)
                projection.adapter.kernel_a.assign(factor_a.T)
                projection.adapter.kernel_b.assign(factor_b.T)
        self._assign_pooler(backbone)

    @property
    def options(self) -> dict[str, object]:
        """The arguments of a `SpanBertBackbone` that has adapters like this one."""
        return {
            "lora_rank": self.rank,
            "lora_alpha": self.alpha,
            "lora_targets": self.targets,
        }

    def _factors(self, name: str, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the matrices A [rank, H] and B [H, rank] of a projection."""
        factor_a = self._array(f"{name}.lora_A.weight", (self.rank, width))
        factor_b = self._array(f"{name}.lora_B.weight", (width, self.rank))
        return factor_a, factor_b

    def _assign_pooler(self, backbone: keras_hub.models.Backbone) -> None:
        if any(name.startswith(_POOLER) for name in self.arrays):
            width = backbone.hidden_dim
            dense = backbone.pooled_dense
            dense.kernel.assign(self._array(f"{_POOLER}.weight", (width, width)).T)
            dense.bias.assign(self._array(f"{_POOLER}.bias", (width,)))

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = self.arrays.get(name)
        if array is None or array.shape != shape:
            found = "is missing" if array is None else f"has shape {list(array.shape)}"
            raise BadInputError(
                f"{self.directory}: {ADAPTER_WEIGHTS}: {name} {found}, and needs {list(shape)}; "
                f"{_ADVICE}"
            )
        return array


def read_adapter(preset: str | os.PathLike | PresetFiles) -> Adapter:
    """Reads an adapter, without its head.

    Args:
        preset: the preset of the adapter, or its directory.

    Raises:
        BadInputError: it is no adapter, a file is damaged, the adapter adapts other projections
            than queries, keys and values, or as `PresetFiles.base`.
    """
    files = PresetFiles.of(preset)
    config = files.adapter
    directory = files.name
    if config is None:
        raise BadInputError(f"{directory}: is no adapter; it lacks {ADAPTER_CONFIG}")
    if not {*config.target_modules} <= {*_PROJECTIONS}:
        raise BadInputError(
            f"{directory}: {ADAPTER_CONFIG}: target_modules has others than "
            f"{', '.join(_PROJECTIONS)}; merge it where it is from, and convert the whole model"
        )
    digest, arrays = _read_arrays(os.path.join(directory, ADAPTER_WEIGHTS))
    if "pooler" in (config.modules_to_save or ()) and f"{_POOLER}.weight" not in arrays:
        raise BadInputError(
            f"{directory}: {ADAPTER_WEIGHTS} lacks the pooler that {ADAPTER_CONFIG} says was "
            f"trained beside it (modules_to_save); {_ADVICE}"
        )
    for name in arrays:
        module = name.partition(".lora_")[0].rpartition(".")[2]
        if ".lora_" in name and module not in config.target_modules:
            raise BadInputError(
                f"{directory}: {ADAPTER_WEIGHTS} holds {name[:200]!a}, and target_modules in "
                f"{ADAPTER_CONFIG} does not name it; {_ADVICE}"
            )
    return Adapter(
        directory, files.base, digest, config.r, config.lora_alpha, config.target_modules, arrays
    )


def _read_arrays(path: str) -> tuple[str, dict[str, np.ndarray]]:
    """Reads the digest of the encoder, and the arrays by their names in `BertModel`."""
    arrays = {}
    try:
        with safetensors.safe_open(path, "np") as file:
            digest = (file.metadata() or {})[_DIGEST]
            for name in file.keys():  # noqa: SIM118
                kind = file.get_slice(name).get_dtype()
                if kind not in _FLOATS:
                    raise BadInputError(
                        f"{path}: {name[:200]!a} has the type {kind}, and one of "
                        f"{', '.join(_FLOATS)} is meant; save the adapter in float32"
                    )
                array = file.get_tensor(name)
                if not np.isfinite(array).all():
                    raise BadInputError(
                        f"{path}: {name[:200]!a} holds NaN or infinity; take an adapter of before "
                        "its training diverged"
                    )
                arrays[name.removeprefix(_PREFIX).removeprefix(_BERT)] = array
    except (safetensors.SafetensorError, OSError, KeyError, TypeError) as error:
        raise BadInputError(f"{path}: is damaged ({reason(error)[:200]}); {_ADVICE}") from error
    return digest, arrays


def load_adapted(backbone: keras_hub.models.Backbone, directory: str) -> None:
    """Loads the weights of an adapter's encoder into a backbone, and merges the adapter into them.

    Args:
        backbone: a backbone without adapters.
        directory: directory of the adapter.

    Raises:
        BadInputError: as `read_adapter`; or the preset of the encoder is damaged.
        MismatchError: the encoder is not the one on which the adapter was trained.
    """
    adapter = read_adapter(directory)
    check_preset(adapter.encoder, reads_weights=True)
    encoder = backbone
    if backbone.variable_dtype != "float32":
        # The digest and the products are computed in float32.
        with weights_are_loaded():
            encoder = type(backbone).from_config({**backbone.get_config(), "dtype": "float32"})
    try:
        preset_utils.get_preset_loader(adapter.encoder.name)._load_backbone_weights(encoder)
    except ValueError as error:
        raise adapter.other_encoder("its weights have other shapes") from error
    adapter.check_encoder(weights_digest(encoder))
    adapter.merge_into(encoder)
    if encoder is not backbone:
        for variable, merged in zip(backbone.weights, encoder.weights, strict=True):
            variable.assign(merged)


def merge_adapters(model: keras_hub.models.Task) -> keras_hub.models.Task:
    """Copies a task, and merges its adapters into the kernels of the copy's encoder.

    Args:
        model: a task whose encoder has adapters.

    Returns:
        A task of the same class without adapters.
    """
    backbone = model.backbone
    encoder_config = backbone.get_config()
    for name in ("lora_rank", "lora_alpha", "lora_targets"):
        del encoder_config[name]
    with weights_are_loaded():
        merged = type(backbone).from_config(encoder_config)
        config = {**model.get_config(), "backbone": merged, "preprocessor": None}
        whole = type(model).from_config(config)
    whole.preprocessor = model.preprocessor
    whole.is_head_trained = model.is_head_trained
    weights = [weight for weight in model.weights if "lora" not in weight.name]
    for target, source in zip(whole.weights, weights, strict=True):
        target.assign(source)
    for projection, adapted in zip(_projections(merged), _projections(backbone), strict=True):
        if adapted.adapter is not None:
            kernel = projection.dense.kernel
            kernel.assign_add(keras.ops.reshape(adapted.adapter.kernel_change(), kernel.shape))
    return whole


def write_adapter(
    model: keras_hub.models.Task,
    directory: str,
    *,
    preset: str,
    encoder: str | PresetFiles,
    digest: str,
) -> None:
    """Writes the adapter of a model as a directory, completely or not at all.

    Args:
        model: a task whose encoder has adapters.
        directory: directory of the adapter.
        preset: directory of the preset of the merged model, see `merge_adapters`.
        encoder: preset of the encoder without adapters, or its name.
        digest: digest of this encoder's weights, see `weights_digest`.

    Raises:
        BadInputError: the adapter cannot be written. An earlier one is unchanged.
    """
    with Output(directory, PRESET_KIND, overwrite=True).written() as unfinished:
        ignored = shutil.ignore_patterns("model.weights.*", "model_*.weights.h5")
        shutil.copytree(preset, unfinished, ignore=ignored, dirs_exist_ok=True)
        # Reading an adapter downloads nothing, so it names the local copy of an encoder of a hub.
        settings, arrays = _as_peft(model)
        files = {
            ADAPTER_CONFIG: {"base_model_name_or_path": _local_directory(encoder), **settings},
            _INDEX: {"weight_map": {"adapter": [ADAPTER_CONFIG, ADAPTER_WEIGHTS]}},
        }
        with open(os.path.join(unfinished, ADAPTER_WEIGHTS), "wb") as file:
            file.write(save(arrays, {"format": "pt", _DIGEST: digest}))
        with open(os.path.join(unfinished, GOLDEN_FILE), "rb") as file:
            golden = json.load(file)
        checksums = {}
        for name in [*golden["weights"], ADAPTER_WEIGHTS]:
            path = os.path.join(unfinished, name)
            if os.path.exists(path):  # the weights of the encoder are left out
                checksums[name] = sha256(path)
        golden["weights"] = checksums
        for name, content in {**files, GOLDEN_FILE: golden}.items():
            with open(os.path.join(unfinished, name), "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)


def _local_directory(preset: str | PresetFiles) -> str:
    """Returns the absolute path of a preset's directory, or of the copy of a hub's preset."""
    files = PresetFiles.of(preset)
    config = files.find(PRESET_CONFIG)
    if config is None:
        raise BadInputError(f"{files}: is no preset; it lacks {PRESET_CONFIG}")
    return os.path.abspath(os.path.dirname(config))


def _as_peft(model: keras_hub.models.Task) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the configuration and the arrays of a model's adapter, by the names of `peft`.

    If `transformers` does not have the head, it is left out, and the adapter is one of `BertModel`.
    """
    head = model.dense_head
    if getattr(model, "pooling", "pooler") != "pooler":  # `transformers` classifies by the pooler
        head = None
    prefix = _PREFIX + (_BERT if head else "")
    arrays = {}
    adapters = []
    targets = set()
    for projection in _projections(model.backbone):
        adapter = projection.adapter
        if adapter is not None:
            arrays[f"{prefix}{projection.name}.lora_A.weight"] = _numpy(adapter.kernel_a).T
            arrays[f"{prefix}{projection.name}.lora_B.weight"] = _numpy(adapter.kernel_b).T
            adapters.append(adapter)
            targets.add(projection.target)
    modules = []
    trained = {}
    if model.backbone.pooled_dense.trainable:
        modules.append("pooler")
        trained[prefix + _POOLER] = model.backbone.pooled_dense
    if head:
        modules.append(head.transformers_name)
        trained[_PREFIX + head.transformers_name] = getattr(model, head.layer)
    for name, dense in trained.items():
        arrays[f"{name}.weight"] = _numpy(dense.kernel).T
        arrays[f"{name}.bias"] = _numpy(dense.bias)
    settings = {
        "peft_type": "LORA",
        "task_type": head.peft_task if head else None,
        "r": adapters[0].rank,
        "lora_alpha": adapters[0].alpha,
        "target_modules": sorted(targets),
        "modules_to_save": modules or None,
        "inference_mode": True,
    }
    return settings, {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _numpy(variable: keras.Variable) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable), "float32")


class _Projection(NamedTuple):
    """A projection to queries, keys or values of one transformer layer.

    Attributes:
        name: name of the projection in `transformers`.
        target: `"query"`, `"key"` or `"value"`.
        dense: the dense layer of the projection.
        adapter: the adapter of the projection, or `None`.
    """

    name: str
    target: str
    dense: keras.layers.EinsumDense
    adapter: LowRankAdapter | None


def _projections(backbone: keras_hub.models.Backbone) -> Iterator[_Projection]:
    """Yields the projections of all layers of an encoder."""
    for index, layer in enumerate(backbone.transformer_layers):
        attention = layer._self_attention_layer  # KerasHub's name; files of weights have it
        for target in _PROJECTIONS:
            yield _Projection(
                f"encoder.layer.{index}.attention.self.{target}",
                target,
                getattr(attention, f"{target}_dense"),
                layer.adapters.get(target),
            )
