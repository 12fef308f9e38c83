"""A projection to heads whose low-rank adapter is one of the whole matrix; and what is none.

H width of a layer, N heads, D width of a head, H = N · D, R rows.
"""

import math

import keras
from keras import ops


class AdaptedProjection(keras.layers.EinsumDense):
    """A projection to heads, whose low-rank adapter is one of the whole matrix [H, H].

    `EinsumDense` factors each head's part by itself, with N times the parameters in A; the rank of
    Hu et al. (2021, LoRA: W + alpha / rank · A B, with A [H, rank] and B [rank, H]) is this one.
    """

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """As in Keras; A is Gaussian (Hu et al., 4.1), as wide as BERT's own kernels."""
        if self.lora_enabled or self.quantization_mode is not None:
            raise ValueError(f"{self.path}: has an adapter already, or is quantized")
        width, *heads = self._kernel.shape
        self._tracker.unlock()
        self.lora_kernel_a = self.add_weight(
            (width, rank), _gaussian(), dtype="float32", name="lora_kernel_a"
        )
        self.lora_kernel_b = self.add_weight(
            (rank, math.prod(heads)), "zeros", dtype="float32", name="lora_kernel_b"
        )
        self._tracker.lock()
        self._kernel.trainable = False
        self.lora_enabled, self.lora_rank = True, rank
        self.lora_alpha = rank if lora_alpha is None else lora_alpha

    def load_own_variables(self, store: dict) -> None:
        """As in Keras: the kernel holds what an adapter had learned, and the adapter is new."""
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras leaves 0 in both, whose gradients are 0 for ever
            self.lora_kernel_a.assign(_gaussian()(self.lora_kernel_a.shape))

    @property
    def kernel(self) -> keras.Variable | keras.KerasTensor:
        """The kernel [H, N, D]; with an adapter, what is saved: its product is part of it."""
        if not self.lora_enabled:
            return self._kernel
        product = ops.matmul(self.lora_kernel_a, self.lora_kernel_b) * self._scale  # [H, N · D]
        product = ops.reshape(product, self._kernel.shape)
        return ops.add(self._kernel, ops.cast(product, self._kernel.dtype))

    def adapt(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """What the adapter alone adds to the projection of rows [R, H], [R, N · D]."""
        if not self.lora_enabled:
            return ops.zeros_like(x)
        return ops.matmul(ops.matmul(x, self.lora_kernel_a), self.lora_kernel_b) * self._scale

    @property
    def _scale(self) -> float:
        return self.lora_alpha / self.lora_rank


def _gaussian() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)


def is_plain(dense: keras.layers.Layer) -> bool:
    """Whether a layer computes nothing but the product with its kernel."""
    is_einsum = isinstance(dense, keras.layers.EinsumDense)
    own = keras.layers.EinsumDense if is_einsum else keras.layers.Dense
    is_own = getattr(dense.call, "__func__", None) is own.call
    is_adapted = dense.lora_enabled and not isinstance(dense, AdaptedProjection)
    return is_own and dense.quantization_mode is None and not is_adapted
