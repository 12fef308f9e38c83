"""SegaBERT's position embeddings."""

import keras
from keras import ops

# Rows of each table (SegaBERT, section 2: 50 paragraphs, 100 sentences, 256 tokens).
TABLE_SIZES = {"paragraph_indices": 50, "sentence_indices": 100, "token_indices": 256}


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SegmentAwareEmbedding(keras.layers.Layer):
    """Sums the embeddings of a token's paragraph, sentence and place in its sentence.

    Where BERT says that a token is the 300th of its sequence, SegaBERT (Bai et al., 2020,
    section 2) says that it is the 7th token of the 4th sentence of the 2nd paragraph. An index
    beyond its table takes the table's last row.

    Args:
        index_names: tuple of strings. Which of `"paragraph_indices"`, `"sentence_indices"` and
            `"token_indices"` have a table.
        hidden_dim: int. Width of the embeddings.
        initializer: initializer of the tables.

    Call arguments:
        indices: dict of int32 tensors [B, S], one for each of `index_names`.

    Returns:
        A float tensor [B, S, hidden_dim].

    Example:
    ```python
    embedding = spanbert_tf.layers.SegmentAwareEmbedding(
        ("paragraph_indices", "sentence_indices", "token_indices"), hidden_dim=768
    )
    embedding(dict.fromkeys(embedding.index_names, np.zeros((1, 12), "int32")))  # [1, 12, 768]
    ```
    """

    def __init__(
        self,
        index_names: tuple[str, ...],
        hidden_dim: int,
        initializer: str | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.index_names = tuple(index_names)
        self.hidden_dim = hidden_dim
        self.initializer = keras.initializers.get(initializer)
        self.tables = {
            name: keras.layers.Embedding(
                TABLE_SIZES[name],
                hidden_dim,
                # A copy for each: one initializer object draws the same numbers every time.
                embeddings_initializer=self.initializer.clone(),
                dtype=self.dtype_policy,
                name=f"{name.removesuffix('_indices')}_embedding",
            )
            for name in self.index_names
        }

    def build(self, input_shape: dict[str, tuple]) -> None:
        for name, table in self.tables.items():
            table.build(input_shape[name])
        self.built = True

    def call(self, indices: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
        embedded = [
            table(ops.clip(indices[name], 0, TABLE_SIZES[name] - 1))  # [B, S, H]
            for name, table in self.tables.items()
        ]
        return sum(embedded[1:], start=embedded[0])

    def compute_output_shape(self, input_shape: dict[str, tuple]) -> tuple:
        return (*input_shape[self.index_names[0]], self.hidden_dim)

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(
            {
                "index_names": self.index_names,
                "hidden_dim": self.hidden_dim,
                "initializer": keras.initializers.serialize(self.initializer),
            }
        )
        return config
