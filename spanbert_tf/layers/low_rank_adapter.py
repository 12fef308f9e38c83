"""The low-rank adapter (LoRA) of a projection.

Shapes: H width of the layer.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="spanbert_tf")
class LowRankAdapter(keras.layers.Layer):
    """Computes the term `alpha / rank · x A B` that an adapter adds to a projection of x.

    See [Hu et al., 2021](https://arxiv.org/abs/2106.09685), section 4.1. A [H, rank] is initialized
    by a normal distribution, B [rank, H] by zeros. The product is added to the outputs of the
    projection, not to its kernel [H, H], so no gradient of the frozen kernel is computed, and
    rounding in half precision does not lose a small change.

    Args:
        rank: int. Rank of A · B.
        alpha: float. Scale of the product; by default `rank`.

    Call arguments:
        inputs: float tensor [rows, H].

    Returns:
        A float tensor [rows, H].
    """

    def __init__(self, rank: int, alpha: float | None = None, **kwargs) -> None:
        super().__init__(**kwargs)
        self.rank = rank
        self.alpha = rank if alpha is None else alpha
        self._initializer = keras.initializers.RandomNormal(stddev=0.02)

    def build(self, inputs_shape: tuple[int | None, ...]) -> None:
        width = inputs_shape[-1]
        self.kernel_a = self.add_weight(
            shape=(width, self.rank),
            initializer=self._initializer,
            name="lora_kernel_a",
        )
        self.kernel_b = self.add_weight(
            shape=(self.rank, width), initializer="zeros", name="lora_kernel_b"
        )

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        product = ops.matmul(ops.matmul(inputs, self.kernel_a), self.kernel_b)
        return product * (self.alpha / self.rank)

    def kernel_change(self) -> keras.KerasTensor:
        """Computes the equivalent change of the projection's kernel, float [H, H]."""
        return ops.matmul(self.kernel_a, self.kernel_b) * (self.alpha / self.rank)

    def load_own_variables(self, store: dict) -> None:
        """Loads the matrices, or initializes them if the file comes from an encoder without them.

        On JAX, KerasHub deletes all values before it loads a file, so they must be drawn again.
        """
        if store.keys():
            super().load_own_variables(store)
        else:
            self.kernel_a.assign(self._initializer(self.kernel_a.shape))
            self.kernel_b.assign(ops.zeros(self.kernel_b.shape))

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple:
        return inputs_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "rank": self.rank, "alpha": self.alpha}
