"""How `plan` compiles for the accelerators of `training.chips`.

No accelerator needs to be present: `libtpu` contains the compiler for TPUs, and JAX' plugin for
CUDA the compiler for NVIDIA's cards.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from spanbert_tf.errors import ConfigurationError, reason
from spanbert_tf.training.chips import CHIPS, Chip

_EXAMPLES = "v5e:2x4, v5e:16x16, v6e:2x4, v6e:16x16, v5p:2x2x1, v5p:4x4x4, h100:8, v100:32"
_CARDS_OF_A_HOST = 8
_CUDNN = 91_000  # 9.10, which the extras of TensorFlow and JAX install
# Limits that all cards share.
_ALL_CARDS = """
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  threads_per_core_limit: 2048 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 registers_per_core_limit: 65536 registers_per_block_limit: 65536"""


class Machine(NamedTuple):
    """Chips for which a step is compiled.

    Attributes:
        name: name of the chips, such as `v5e:2x4`.
        chip: figures of each chip.
        devices: JAX' descriptions of the chips.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]

    def sent(self, gradients: float) -> float:
        """Returns the bytes that each chip sends in an all-reduce of the gradients.

        In a ring of n chips, each sends 2 (1 - 1/n) times the size (Patarasuk and Yuan, 2009).

        Args:
            gradients: bytes of the gradients of one chip.
        """
        return 2 * gradients * (1 - 1 / len(self.devices))

    def seconds_to_add_up(self, gradients: float) -> float:
        """Returns the least time of an all-reduce of the gradients.

        Cards first reduce inside of each host.

        Args:
            gradients: bytes of the gradients of one chip.
        """
        num_hosts = 1
        if self.chip.network:
            num_hosts = math.ceil(len(self.devices) / _CARDS_OF_A_HOST)
        if num_hosts == 1:
            return self.sent(gradients) / self.chip.link
        inside = 2 * gradients * (1 - 1 / _CARDS_OF_A_HOST) / self.chip.link
        between = 2 * gradients / _CARDS_OF_A_HOST * (1 - 1 / num_hosts) / self.chip.network
        return max(inside, between)

    @contextlib.contextmanager
    def described_to_attention(self) -> Iterator[None]:
        """Makes Keras use cuDNN's fused attention if the chips support it.

        Keras asks JAX about the card of this machine, but the chips are not present. This context
        replaces JAX' answers. Without it, steps would be compiled without fused attention.
        """
        if self.chip.description is None:
            yield
            return
        from jax._src.cudnn import fused_attention_stablehlo as fused

        version = fused.check_cudnn_version
        capability = fused.check_compute_capability
        fused.check_cudnn_version = lambda: _CUDNN
        fused.check_compute_capability = lambda least: self.chip.fuses_attention
        try:
            yield
        finally:
            fused.check_cudnn_version = version
            fused.check_compute_capability = capability


def describe_to_compilers(name: str) -> None:
    """Sets the environment variables of JAX and the compilers. Call it before JAX is imported.

    Args:
        name: name of the chips, such as `v5e:2x4` or `h100:8`.

    Raises:
        ConfigurationError: no such chips are known.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    chip, _, _ = _parse(name)
    if chip.description is not None:
        # Autotuning needs a card to time kernels.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
        return
    variables = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may use a TPU of this machine
    }
    os.environ.update(variables)


def machine_of(name: str) -> Machine:
    """Describes the chips of a name such as `v5e:2x4` or `h100:8`.

    Raises:
        ConfigurationError: no such chips are known, or their compiler is not installed.
    """
    chip, kind, shape = _parse(name)
    if chip.description is not None:
        return Machine(name, chip, _cards(name, kind, shape[0], chip, chip.description))
    return Machine(name, chip, _tpus(name, shape))


def _parse(name: str) -> tuple[Chip, str, tuple[int, ...]]:
    """Returns the figures of a chip, its name, and the shape (or number) of chips."""
    found = re.fullmatch(r"(\w+):([1-9]\d{0,4}(?:x[1-9]\d{0,3}){0,2})", name)
    if found is None or found[1] not in CHIPS:
        raise ConfigurationError(
            f"--device {name}: is not known; known are {', '.join(CHIPS)}, as {_EXAMPLES}"
        )
    kind = found[1]
    chip = CHIPS[kind]
    shape = tuple(map(int, found[2].split("x")))
    if chip.description is not None and len(shape) > 1:
        raise ConfigurationError(f"--device {name}: cards are counted: {kind}:8")
    return chip, kind, shape


def _tpus(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    _require(name, "libtpu", "the compiler of TPUs", "tpu")
    from jax.experimental import topologies

    options = {}
    if math.prod(shape) == 1:  # by default a host has four chips
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if "opology" in str(error):
            raise ConfigurationError(
                f"--device {name}: TPUs do not come so ({reason(error)}); as {_EXAMPLES}"
            ) from error
        raise _unusable(name, "libtpu", "tpu", error) from error
    return tuple(topology.devices)


def _cards(
    name: str, kind: str, count: int, chip: Chip, description: dict[str, float]
) -> tuple[Any, ...]:
    _require(name, "jax_plugins.xla_cuda12", "the compiler of NVIDIA's cards", "plan")
    from jax.experimental import topologies

    hosts, left = divmod(count, _CARDS_OF_A_HOST)
    if hosts and left:
        raise ConfigurationError(f"--device {name}: more than one host has 8 cards each")
    cards_of_host = _CARDS_OF_A_HOST if hosts else left
    sizes = f"1x{hosts or 1}x{cards_of_host}"
    figures = dict(description)
    capability = f"cuda_compute_capability {{ major: {figures.pop('major')} }}"
    figures |= {"device_memory_size": chip.memory, "memory_bandwidth": int(chip.bandwidth)}
    lines = "\n".join(f"  {key}: {value}" for key, value in figures.items())
    config = (
        f"gpu_device_info {{{_ALL_CARDS}\n{lines}\n  {capability}\n}}\n"
        f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: {_CUDNN // 100 % 100} }}\n'
        f'device_description_str: "{kind}"\n'
    )
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=kind, topology=sizes, target_config=config
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise _unusable(name, "jax-cuda12-plugin", "plan", error) from error
    return tuple(topology.devices)


def _require(name: str, module: str, what: str, extra: str) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package of the module is missing
        found = None
    if found is None:
        raise ConfigurationError(
            f"--device {name}: {module.rpartition('.')[2]}, {what}, is not installed: "
            f"pip install 'spanbert_tf[{extra}]'"
        )


def _unusable(name: str, package: str, extra: str, error: Exception) -> ConfigurationError:
    versions = [f"{each} {importlib.metadata.version(each)}" for each in (package, "jax")]
    return ConfigurationError(
        f"--device {name}: {' and '.join(versions)} do not go together, or another process uses "
        f"it ({reason(error)}); pip install 'spanbert_tf[{extra}]' installs what fits"
    )
