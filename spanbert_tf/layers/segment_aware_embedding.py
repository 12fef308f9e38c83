"""SegaBERT's position embeddings.

Shapes: B rows, S positions, H width.
"""

from collections.abc import Mapping

import keras
from keras import ops


def lowered_indices(name: str, indices: keras.KerasTensor, table_size: int) -> keras.KerasTensor:
    """Lowers indices before they are clipped to a table.

    If the largest paragraph index of a row exceeds the table, all paragraph indices of the row are
    lowered by the same number: until the largest is the last of the table, or that of the first
    position, [CLS], is 0. In a table of 50 rows, paragraphs 60 to 63 get the last four. Indices of
    sentences and tokens are not changed. This is the rule by which SegaBERT's authors load a row
    (rsvp-ai/segatron_aaai, segabert/data_utils/datasets.py, `bert_sentencepair_pst_dataset`); the
    paper states none.

    Args:
        name: `"paragraph_indices"`, `"sentence_indices"` or `"token_indices"`.
        indices: int32 [B, S]. Those of padding must not exceed the others of their row.
        table_size: number of rows of the table.

    Returns:
        The lowered indices, int32 [B, S]. They may exceed the table, and may be negative for
        padding.
    """
    if name != "paragraph_indices":
        return indices
    beyond = ops.max(indices, axis=1, keepdims=True) - (table_size - 1)  # [B, 1]
    return indices - ops.minimum(ops.maximum(beyond, 0), indices[:, :1])


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SegmentAwareEmbedding(keras.layers.Layer):
    """Sums the embeddings of a token's paragraph, sentence and position in its sentence.

    BERT embeds, for example, that a token is the 300th of its sequence. SegaBERT (Bai et al., 2020,
    section 2) embeds that it is the 7th token of the 4th sentence of the 2nd paragraph. See
    `lowered_indices` for indices that exceed a table.

    Args:
        table_sizes: dict of ints. The number of rows of each table, by the name of its index:
            `"paragraph_indices"`, `"sentence_indices"` or `"token_indices"`. Indices that are not
            named have no table.
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
                # Each table needs its own copy: an initializer always draws the same numbers.
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
