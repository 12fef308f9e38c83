"""Low-rank adapters (LoRA) of a projection.

H width of a layer, R rows.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="spanbert_tf")
class LowRankAdapter(keras.layers.Layer):
    """What a low-rank adapter adds to a projection of the whole matrix [H, H].

    `alpha / rank · x A B` ([Hu et al., 2021](https://arxiv.org/abs/2106.09685), section 4.1), with
    A [H, rank], Gaussian at first, and B [rank, H], zeros at first. The product with the inputs is
    added to the projection's outputs: no gradient of the frozen kernel is computed, and in half
    precision a small change is not lost by rounding.

    Args:
        rank: int. Rank of A · B.
        alpha: float. Scale of the product; by default `rank`.

    Call arguments:
        inputs: float tensor [R, H].

    Returns:
        A float tensor [R, H].
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
        """What the adapter changes the projection's kernel by, float [H, H]."""
        return ops.matmul(self.kernel_a, self.kernel_b) * (self.alpha / self.rank)

    def load_own_variables(self, store: dict) -> None:
        """Loads the matrices; for the file of an encoder without adapters they are new ones.

        On JAX KerasHub deletes all values before it loads a file, so they are drawn once more.
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
