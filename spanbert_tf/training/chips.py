"""The accelerators whose published figures are known.

This module imports neither TensorFlow nor JAX: `plan` sets what they read before they are imported.
"""

import re
from typing import NamedTuple

_GIB = 2**30


class Chip(NamedTuple):
    """The peak figures of one chip.

    Attributes:
        kinds: regular expression of the whole name that a driver gives to the chip.
        operations: operations per second on dense matrices in half precision.
        memory: bytes of memory.
        bandwidth: bytes per second between the chip and its memory.
        link: bytes per second to the other chips of a pod, or to the other cards of a host.
        precision: fastest dtype policy.
        source: web page that publishes the figures.
        network: bytes per second from a card to other hosts. 0 for TPUs: all chips of a pod share
            one network.
        description: XLA's description of a card (fields of its `GpuDeviceInfoProto`); `None` for
            TPUs.
    """

    kinds: str
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
        """Whether the chip runs cuDNN's fused attention: a card of generation Ampere or later."""
        return self.description is not None and self.description["major"] >= 8


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


# Published link speeds count both directions, so half of them is stated. Cards have the networks of
# NVIDIA's DGX: 400 (H), 200 (A) and 50 Gbit/s per card (V, four adapters for eight cards). XLA's
# descriptions are from openxla/xla, xla/backends/gpu/target_config/specs.
CHIPS = {
    "v5e": Chip(
        r"TPU v5 ?(lite|e)",
        197e12,
        16 * _GIB,
        819e9,
        200e9,
        "mixed_bfloat16",
        "docs.cloud.google.com/tpu/docs/v5e",
    ),
    "v6e": Chip(
        r"TPU v6 ?(lite|e)",
        918e12,
        32 * _GIB,
        1638e9,
        400e9,
        "mixed_bfloat16",
        "docs.cloud.google.com/tpu/docs/v6e",
    ),
    "v5p": Chip(
        r"TPU v5p?",
        459e12,
        95 * _GIB,
        2765e9,
        600e9,
        "mixed_bfloat16",
        "docs.cloud.google.com/tpu/docs/v5p",
    ),
    "h100": Chip(
        r"NVIDIA H100 80GB HBM3",
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
        r"NVIDIA H200",
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
        r"(NVIDIA )?A100-.*",
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
        r"Tesla V100-SXM.*",
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


def chip_named(kind: str) -> Chip | None:
    """Returns the chip that a driver names so, such as `NVIDIA H200`; `None` if it is not known."""
    for chip in CHIPS.values():
        if re.fullmatch(chip.kinds, kind):
            return chip
    return None
