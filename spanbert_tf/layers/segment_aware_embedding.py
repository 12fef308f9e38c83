"""SegaBERT's position embeddings.

B rows, S positions, H width.
"""

from collections.abc import Mapping

import keras
from keras import ops


def lowered_indices(name: str, indices: keras.KerasTensor, table_size: int) -> keras.KerasTensor:
    """Indices as they are looked up in a table, before they are clipped to it.

    One rule for all rows that an encoder reads, that of SegaBERT's authors where they load a row
    (rsvp-ai/segatron_aaai, segabert/data_utils/datasets.py, `bert_sentencepair_pst_dataset`; the
    paper does not state one). Where a row's largest paragraph index is beyond the table, all of its
    paragraph indices are lowered, until the largest is the table's last or that of the row's first
    position, [CLS], is 0. In a table of 50 rows, paragraphs 60 to 63 take the last four. Indices of
    sentences and tokens are not changed.

    Args:
        name: `"paragraph_indices"`, `"sentence_indices"` or `"token_indices"`.
        indices: int32 [B, S]; those of padding are not above the row's others.
        table_size: rows of the table.

    Returns:
        int32 [B, S]. Indices beyond the table take its last row; those of padding can be negative.
    """
    if name != "paragraph_indices":
        return indices
    beyond = ops.max(indices, axis=1, keepdims=True) - (table_size - 1)  # [B, 1]
    return indices - ops.minimum(ops.maximum(beyond, 0), indices[:, :1])


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SegmentAwareEmbedding(keras.layers.Layer):
    """Sums the embeddings of a token's paragraph, sentence and position in its sentence.

    Where BERT says that a token is the 300th of its sequence, SegaBERT (Bai et al., 2020,
    section 2) says that it is the 7th token of the 4th sentence of the 2nd paragraph. See
    `lowered_indices` for indices beyond a table.

    Args:
        table_sizes: dict of ints. The rows of each table, by name: `"paragraph_indices"`,
            `"sentence_indices"`, `"token_indices"`; names that are missing have no table.
        hidden_dim: int. Width of the embeddings.
        initializer: initializer of the tables.

    Call arguments:
        indices: dict of int32 tensors [B, S], one for each of `table_sizes`.

    Returns:
        A float tensor [B, S, hidden_dim].

    Example:
    ```python
    embedding = spanbert_tf.layers.SegmentAwareEmbedding(
        {"paragraph_indices": 50, "sentence_indices": 100, "token_indices": 256}, hidden_dim=768
    )
    embedding(dict.fromkeys(embedding.table_sizes, np.zeros((1, 12), "int32")))  # [1, 12, 768]
    ```
    """

    def __init__(
        self,
        table_sizes: Mapping[str, int],
        hidden_dim: int,
        initializer: str | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.table_sizes = dict(table_sizes)
        self.hidden_dim = hidden_dim
        self.initializer = keras.initializers.get(initializer)
        self.tables = {
            name: keras.layers.Embedding(
                size,
                hidden_dim,
                # A copy for each: one initializer object draws the same numbers every time.
                embeddings_initializer=self.initializer.clone(),
                dtype=self.dtype_policy,
                name=f"{name.removesuffix('_indices')}_embedding",
            )
            for name, size in self.table_sizes.items()
        }

    def build(self, input_shape: dict[str, tuple]) -> None:
        for table in self.tables.values():
            table.build()
        self.built = True

    def call(self, indices: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
        embedded = []
        for name, table in self.tables.items():
            size = self.table_sizes[name]
            rows = ops.clip(lowered_indices(name, indices[name], size), 0, size - 1)
            embedded.append(table(rows))  # [B, S, H]
        return sum(embedded[1:], start=embedded[0])

    def compute_output_shape(self, input_shape: dict[str, tuple]) -> tuple:
        return (*input_shape[next(iter(self.table_sizes))], self.hidden_dim)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "table_sizes": self.table_sizes,
            "hidden_dim": self.hidden_dim,
            "initializer": keras.initializers.serialize(self.initializer),
        }
