"""The accelerators that `plan` knows: what their makers publish, what compilers are told of them.

None has to be here: TPUs' compiler is in `libtpu`, that of NVIDIA's cards in JAX' plugin for CUDA.
What is here is this machine's processor, on which a step is measured.
"""

import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

from spanbert_tf.errors import ConfigurationError, reason

_GIB = 2**30


class Chip(NamedTuple):
    """What one chip does at best, and where that is published.

    Attributes:
        operations: a second, in half precision, of dense matrices; 0: to be measured.
        memory: bytes.
        bandwidth: bytes a second from and to its memory.
        link: bytes a second that it sends to others: of its pod, or cards of its host.
        precision: dtype policy that it computes fastest in; `auto`: a run asks the processor.
        source: where the figures are from.
        network: bytes a second that a card sends to other hosts; 0: pods have one network.
        description: of a card, what XLA is told of it (its `GpuDeviceInfoProto`).
    """

    operations: float
    memory: int
    bandwidth: float
    link: float
    precision: str
    source: str
    network: float = 0.0
    description: dict[str, float] | None = None

    @property
    def fuses_attention(self) -> bool:
        """Whether it takes cuDNN's attention, which drops no weights: Ampere and newer cards."""
        return bool(self.description) and self.description["major"] >= 8


def _card(
    capability: int, cores: int, units: int, clock: float, shared: int, per_block: int, cache: int
) -> dict[str, float]:
    return {
        "major": capability,
        "core_count": cores,
        "fpus_per_core": units,
        "clock_rate_ghz": clock,
        "shared_memory_per_core": shared,
        "shared_memory_per_block_optin": per_block,
        "l2_cache_size": cache,
    }


# Links are half of what is published for both directions. Cards are those of NVIDIA's DGX: its
# networks have 400 (H), 200 (A) and 50 Gbit/s a card (V, four adapters for eight). What XLA is told
# is as in openxla/xla, xla/backends/gpu/target_config/specs.
CHIPS = {
    "v5e": Chip(
        197e12, 16 * _GIB, 819e9, 200e9, "mixed_bfloat16", "docs.cloud.google.com/tpu/docs/v5e"
    ),
    "v6e": Chip(
        918e12, 32 * _GIB, 1638e9, 400e9, "mixed_bfloat16", "docs.cloud.google.com/tpu/docs/v6e"
    ),
    "v5p": Chip(
        459e12, 95 * _GIB, 2765e9, 600e9, "mixed_bfloat16", "docs.cloud.google.com/tpu/docs/v5p"
    ),
    "h100": Chip(
        989e12,
        84_942_979_072,
        3350e9,
        450e9,
        "mixed_bfloat16",
        "nvidia.com/en-us/data-center/h100 (SXM)",
        50e9,
        _card(9, 132, 128, 1.98, 233_472, 232_448, 52_428_800),
    ),
    "h200": Chip(
        989e12,
        151_397_597_184,
        4800e9,
        450e9,
        "mixed_bfloat16",
        "nvidia.com/en-us/data-center/h200 (SXM)",
        50e9,
        _card(9, 132, 128, 1.98, 233_472, 232_448, 52_428_800),
    ),
    "a100": Chip(
        312e12,
        85_100_068_864,
        2039e9,
        300e9,
        "mixed_bfloat16",
        "nvidia.com/en-us/data-center/a100 (SXM, 80 GB)",
        25e9,
        _card(8, 108, 64, 1.41, 167_936, 166_912, 41_943_040),
    ),
    "v100": Chip(
        125e12,
        34_089_205_760,
        900e9,
        150e9,
        "mixed_float16",
        "nvidia.com/en-us/data-center/v100 (SXM2, 32 GB)",
        6.25e9,
        _card(7, 80, 64, 1.53, 98_304, 98_304, 6_291_456),
    ),
}
_EXAMPLES = "v5e:2x4, v5e:16x16, v6e:2x4, v6e:16x16, v5p:2x2x1, v5p:4x4x4, h100:8, v100:32"
_PROCESSOR = "cpu"  # this machine's, with all of its cores
_CARDS_OF_A_HOST = 8
_CUDNN = 91_000  # 9.10, as TensorFlow's and JAX' extras bring it
# A card's own limits, the same for all of them.
_ALL_CARDS = """
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  threads_per_core_limit: 2048 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 registers_per_core_limit: 65536 registers_per_block_limit: 65536"""


class Machine(NamedTuple):
    """Chips that a step is compiled for.

    Attributes:
        name: as it was asked for, `v5e:2x4`.
        chip: each of them.
        devices: JAX' descriptions of them.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]

    def sent(self, shared: float) -> float:
        """Bytes that each chip sends to others, of those that go around the ring of all chips."""
        return shared * (1 - 1 / len(self.devices))

    def seconds_to_share(self, shared: float) -> float:
        """Least time for bytes that go around; cards share inside of each host first."""
        num_hosts = -(-len(self.devices) // _CARDS_OF_A_HOST) if self.chip.network else 1
        if num_hosts == 1:
            return self.sent(shared) / self.chip.link
        inside = shared * (1 - 1 / _CARDS_OF_A_HOST) / self.chip.link
        between = shared / _CARDS_OF_A_HOST * (1 - 1 / num_hosts) / self.chip.network
        return max(inside, between)


def describe_to_compilers(name: str) -> None:
    """Sets what JAX and compilers read when they are loaded; call it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    chip, kind, _ = _parse(name)
    if kind == _PROCESSOR:
        return
    if chip.description:
        flags = os.environ.get("XLA_FLAGS", "")  # without a card, nothing can be tried out on it
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
        return
    of_machine = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it only compiles; another process may have the TPU
    }
    os.environ.update(of_machine)


def machine_of(name: str) -> Machine:
    """The chips that a name such as `v5e:2x4` or `h100:8` stands for.

    Raises:
        ConfigurationError: no such chips are known, or their compiler is not here.
    """
    chip, kind, shape = _parse(name)
    if kind == _PROCESSOR:
        import jax

        return Machine(name, chip, tuple(jax.devices(_PROCESSOR)[:1]))
    if chip.description:
        return Machine(name, chip, _cards(name, kind, shape[0], chip))
    return Machine(name, chip, _tpus(name, shape))


def _parse(name: str) -> tuple[Chip, str, tuple[int, ...]]:
    if name == _PROCESSOR:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Chip(0.0, memory, 0.0, 0.0, "auto", "this machine"), name, (1,)
    found = re.fullmatch(r"(\w+):([1-9]\d{0,4}(?:x[1-9]\d{0,3}){0,2})", name)
    chip = CHIPS.get(found[1]) if found else None
    if chip is None:
        raise ConfigurationError(
            f"--device {name}: is not known; known are {', '.join(CHIPS)}, as {_EXAMPLES}; and "
            f"{_PROCESSOR}, this machine's own"
        )
    shape = tuple(map(int, found[2].split("x")))
    if chip.description and len(shape) > 1:
        raise ConfigurationError(f"--device {name}: cards are counted: {found[1]}:8")
    return chip, found[1], shape


def _tpus(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    _require(name, "libtpu", "the compiler of TPUs", "tpu")
    from jax.experimental import topologies

    # A host has four chips in a square; a single chip is a host of its own.
    options = {"chips_per_host_bounds": (1, 1, 1)} if math.prod(shape) == 1 else {}
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if "opology" in str(error):
            raise ConfigurationError(
                f"--device {name}: TPUs do not come so ({reason(error)}); as {_EXAMPLES}"
            ) from error
        raise _unusable(name, "libtpu", "tpu", error) from error
    return tuple(topology.devices)


def _cards(name: str, kind: str, count: int, chip: Chip) -> tuple[Any, ...]:
    _require(name, "jax_plugins.xla_cuda12", "the compiler of NVIDIA's cards", "plan")
    from jax.experimental import topologies

    hosts, left = divmod(count, _CARDS_OF_A_HOST)
    if hosts and left:
        raise ConfigurationError(f"--device {name}: more than one host has 8 cards each")
    sizes = f"1x{hosts or 1}x{_CARDS_OF_A_HOST if hosts else left}"
    figures = dict(chip.description)
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
    _describe_to_attention(chip)
    return tuple(topology.devices)


def _describe_to_attention(card: Chip) -> None:
    """Has JAX answer for a described card what Keras asks before it takes cuDNN's attention."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    fused.check_cudnn_version = lambda: _CUDNN
    fused.check_compute_capability = lambda least: card.fuses_attention


def _require(name: str, module: str, what: str, extra: str) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its package
        found = None
    if found is None:
        raise ConfigurationError(
            f"--device {name}: {module.rpartition('.')[2]}, {what}, is not installed: "
            f"pip install -e '.[{extra}]'"
        )


def _unusable(name: str, package: str, extra: str, error: Exception) -> ConfigurationError:
    versions = [f"{one} {importlib.metadata.version(one)}" for one in (package, "jax")]
    return ConfigurationError(
        f"--device {name}: {' and '.join(versions)} do not go together, or another process uses "
        f"it ({reason(error)}); pip install -e '.[{extra}]' installs what fits"
    )
