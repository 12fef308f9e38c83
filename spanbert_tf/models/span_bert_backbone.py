"""The encoder of BERT, SpanBERT and SegaBERT.

Shapes: B rows, S positions, H width of the encoder.
"""

import os
from collections.abc import Sequence

import keras
import keras_hub
import numpy as np

from spanbert_tf.config.positions import (
    POSITION_EMBEDDINGS,
    TABLE_SIZES,
    Positions,
    reads_indices,
)
from spanbert_tf.errors import MismatchError
from spanbert_tf.files.preset import is_adapter
from spanbert_tf.layers import (
    SegmentAwareEmbedding,
    TiedEmbedding,
    TransformerEncoder,
    bert_initializer,
)
from spanbert_tf.models.adapters import load_adapted
from spanbert_tf.models.keras_hub_presets import LoadsPresets, SavesWithoutMixedPrecision


def was_trained(pooler_bias: keras.Variable | np.ndarray) -> bool:
    """Whether the pooler with this bias was ever trained; the bias of a new pooler is 0."""
    return bool(np.any(keras.ops.convert_to_numpy(pooler_bias)))


def _check_arguments(num_heads: int, hidden_dim: int, position_embeddings: str) -> None:
    """Raises `ValueError` for heads that do not divide the width, and for unknown positions."""
    if num_heads < 1 or hidden_dim % num_heads:
        raise ValueError(
            f"num_heads must divide hidden_dim. Received: num_heads={num_heads}, "
            f"hidden_dim={hidden_dim}"
        )
    if position_embeddings not in POSITION_EMBEDDINGS:
        raise ValueError(
            f"position_embeddings must be one of {tuple(POSITION_EMBEDDINGS)}. "
            f"Received: {position_embeddings!r}"
        )


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertBackbone(SavesWithoutMixedPrecision, LoadsPresets, keras_hub.models.Backbone):
    """The original BERT encoder, with exact GELU and a LayerNorm epsilon of 1e-12.

    SpanBERT ([Joshi et al., 2020](https://arxiv.org/abs/1907.10529)) has the same encoder as BERT
    and differs in its training. SegaBERT ([Bai et al., 2020](https://arxiv.org/abs/2004.14996)) is
    this class with other position embeddings. KerasHub's `BertBackbone` differs from BERT: it
    approximates GELU by tanh.

    Args:
        vocabulary_size: int. The size of the token vocabulary.
        num_layers: int. The number of transformer layers.
        num_heads: int. The number of attention heads; must divide `hidden_dim`.
        hidden_dim: int. The width of the encoder and of the pooler.
        intermediate_dim: int. The width of the feed-forward layers.
        dropout: float. Dropout rate.
        max_sequence_length: int. The longest row in pre-training, and the number of rows of the
            table of places in the row. A task's rows may be longer if the encoder has no such
            table.
        num_segments: int. The number of segments.
        layer_norm_epsilon: float. Epsilon of every LayerNorm.
        position_embeddings: string. `"absolute"`: BERT's positions and segments.
            `"segment_aware"`: SegaBERT's paragraphs, sentences and tokens in place of positions and
            segments (SegaBERT, section 2). `"segment_aware_with_segments"`: these and BERT's
            segments, as in the code of SegaBERT's authors.
            `"absolute_with_paragraph_and_sentence"`: BERT's positions and segments, and SegaBERT's
            paragraphs and sentences (section 3.3).
        num_paragraphs: int. The number of paragraphs with an embedding (SegaBERT, section 2: 50).
            Larger indices are lowered row by row; see `SegmentAwareEmbedding`.
        num_sentences: int. The number of sentences with an embedding (100).
        max_sentence_length: int. The number of places in a sentence with an embedding (256).
        attention_dropout: float. Dropout rate of the attention weights; by default `dropout`.
        lora_rank: int. Rank of low-rank adapters in all layers (Hu et al., 2021). Only the adapters
            are trained then. `None`: no adapters. `from_preset(preset, lora_rank=8)` adds new
            adapters to an encoder that was saved without them.
        lora_alpha: float. Scale of the adapters; by default `lora_rank`.
        lora_targets: names of the projections with an adapter, among `"query"`, `"key"` and
            `"value"`; by default queries and values (Hu et al., 4.2).
        dtype: string or `keras.DTypePolicy`.

    Raises:
        ValueError: `num_heads` does not divide `hidden_dim`, or `position_embeddings` is unknown.

    Example:
    ```python
    backbone = spanbert_tf.models.SpanBertBackbone(
        vocabulary_size=28996, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
    )
    outputs = backbone(
        {
            "token_ids": np.ones((1, 12), "int32"),
            "segment_ids": np.zeros((1, 12), "int32"),
            "padding_mask": np.ones((1, 12), "int32"),
        }
    )
    outputs["sequence_output"]  # [1, 12, 768]
    outputs["pooled_output"]  # [1, 768]
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        layer_norm_epsilon: float = 1e-12,
        position_embeddings: str = "absolute",
        num_paragraphs: int = 50,
        num_sentences: int = 100,
        max_sentence_length: int = 256,
        attention_dropout: float | None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        lora_targets: Sequence[str] = ("query", "value"),
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs,
    ) -> None:
        _check_arguments(num_heads, hidden_dim, position_embeddings)
        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.layer_norm_epsilon = layer_norm_epsilon
        self.position_embeddings = position_embeddings
        self.num_paragraphs = num_paragraphs
        self.num_sentences = num_sentences
        self.max_sentence_length = max_sentence_length
        self.attention_dropout = attention_dropout
        self.lora_rank = lora_rank
        self.lora_alpha = lora_alpha
        self.lora_targets = list(lora_targets)

        # === Layers ===
        positions = POSITION_EMBEDDINGS[position_embeddings]
        self._make_embeddings(positions, dtype)
        self.transformer_layers = [
            TransformerEncoder(
                num_heads=num_heads,
                intermediate_dim=intermediate_dim,
                dropout=dropout,
                attention_dropout=attention_dropout,
                layer_norm_epsilon=layer_norm_epsilon,
                kernel_initializer=bert_initializer(),
                lora_rank=lora_rank,
                lora_alpha=lora_alpha,
                lora_targets=lora_targets,
                dtype=dtype,
                name=f"transformer_layer_{index}",
            )
            for index in range(num_layers)
        ]
        self.pooled_dense = keras.layers.Dense(
            hidden_dim,
            kernel_initializer=bert_initializer(),
            activation="tanh",
            dtype=dtype,
            name="pooled_dense",
        )

        # === Functional Model ===
        names = ("token_ids", "segment_ids", "padding_mask", *positions.indices)
        inputs = {name: keras.Input(shape=(None,), dtype="int32", name=name) for name in names}
        x = self._embed(inputs)  # [B, S, H]
        for transformer_layer in self.transformer_layers:
            x = transformer_layer(x, padding_mask=inputs["padding_mask"])
        pooled_output = self.pooled_dense(x[:, 0, :])  # [CLS]; [B, H]
        super().__init__(
            inputs=inputs,
            outputs={"sequence_output": x, "pooled_output": pooled_output},
            dtype=dtype,
            **kwargs,
        )
        if lora_rank is not None:
            self._freeze_all_but_adapters()

    def _make_embeddings(self, positions: Positions, dtype: str | keras.DTypePolicy | None) -> None:
        """Creates the layers before the first transformer layer; `None` for those of other kinds.

        The order of the layers decides which random numbers each of them gets.
        """
        self.token_embedding = TiedEmbedding(
            input_dim=self.vocabulary_size,
            output_dim=self.hidden_dim,
            embeddings_initializer=bert_initializer(),
            dtype=dtype,
            name="token_embedding",
        )
        self.position_embedding = None
        self.segment_embedding = None
        self.segment_aware_embedding = None
        if positions.in_row:
            self.position_embedding = keras_hub.layers.PositionEmbedding(
                sequence_length=self.max_sequence_length,
                initializer=bert_initializer(),
                dtype=dtype,
                name="position_embedding",
            )
        if positions.segments:
            self.segment_embedding = keras.layers.Embedding(
                input_dim=self.num_segments,
                output_dim=self.hidden_dim,
                embeddings_initializer=bert_initializer(),
                dtype=dtype,
                name="segment_embedding",
            )
        if positions.indices:
            self.segment_aware_embedding = SegmentAwareEmbedding(
                {name: getattr(self, TABLE_SIZES[name]) for name in positions.indices},
                self.hidden_dim,
                initializer=bert_initializer(),
                dtype=dtype,
                name="segment_aware_embedding",
            )
        self.embeddings_add = keras.layers.Add(dtype=dtype, name="embeddings_add")
        self.embeddings_layer_norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=dtype, name="embeddings_layer_norm"
        )
        self.embeddings_dropout = keras.layers.Dropout(
            self.dropout, dtype=dtype, name="embeddings_dropout"
        )

    def _embed(self, inputs: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
        """Embeds the inputs of the encoder, float [B, S, H]."""
        tokens = self.token_embedding(inputs["token_ids"])
        terms = [tokens]
        if self.position_embedding is not None:
            terms.append(self.position_embedding(tokens))
        if self.segment_embedding is not None:
            terms.append(self.segment_embedding(inputs["segment_ids"]))
        if self.segment_aware_embedding is not None:
            names = self.segment_aware_embedding.table_sizes
            terms.append(self.segment_aware_embedding({name: inputs[name] for name in names}))
        return self.embeddings_dropout(self.embeddings_layer_norm(self.embeddings_add(terms)))

    def _freeze_all_but_adapters(self) -> None:
        """Freezes all layers, and in transformer layers all but the adapters.

        The transformer layers did so when they were built. On JAX, Keras' constructor has made all
        variables trainable again if it got `trainable=True`, which presets contain.
        """
        for layer in self.layers:
            if layer in self.transformer_layers:
                layer.freeze_all_but_adapters()
            else:
                layer.trainable = False

    @property
    def is_pooler_trained(self) -> bool:
        """Whether the pooler was ever trained.

        Pre-training on single sequences does not train it, because no objective reads it. The bias
        of a new pooler is 0, and only a gradient changes it.
        """
        return was_trained(self.pooled_dense.bias)

    @staticmethod
    def get_layout_map(
        device_mesh: keras.distribution.DeviceMesh,
        model_parallel_dim_name: str = "model",
        data_parallel_dim_name: str = "batch",
    ) -> keras.distribution.LayoutMap:
        """Returns a layout of the weights for `keras.distribution.ModelParallel`.

        As in Megatron-LM (Shoeybi et al., 2019), each device has some of the attention heads, some
        units of the feed-forward layers, and some columns of the token embedding. All devices have
        all other weights.

        Args:
            device_mesh: the devices.
            model_parallel_dim_name: axis of the mesh along which weights are split. Its size must
                divide `num_heads`, `intermediate_dim` and `hidden_dim`.
            data_parallel_dim_name: axis of the mesh along which the rows of a batch are split.

        Raises:
            ValueError: the mesh lacks an axis.
        """
        for name in (model_parallel_dim_name, data_parallel_dim_name):
            if name not in device_mesh.axis_names:
                raise ValueError(
                    f"{name!r} is no axis of the device_mesh. Received: {device_mesh.axis_names}"
                )
        split = model_parallel_dim_name
        layer = "transformer_layer_.*"
        attention = "transformer_layer_.*/self_attention_layer"
        layout_map = keras.distribution.LayoutMap(device_mesh)
        layout_map.update(
            {
                "token_embedding/embeddings": (None, split),
                f"{attention}/(query|key|value)/kernel": (None, split, None),
                f"{attention}/(query|key|value)/bias": (split, None),
                f"{attention}/attention_output/kernel": (split, None, None),
                f"{layer}/feedforward_intermediate_dense/kernel": (None, split),
                f"{layer}/feedforward_intermediate_dense/bias": (split,),
                f"{layer}/feedforward_output_dense/kernel": (split, None),
            }
        )
        return layout_map

    def load_weights(self, filepath: str, *args: object, **kwargs) -> None:
        """Loads weights, as in Keras; those of an adapter are merged into those of its encoder."""
        directory = os.path.dirname(filepath)
        if is_adapter(directory):
            load_adapted(self, directory)
        else:
            super().load_weights(filepath, *args, **kwargs)

    def get_config(self) -> dict:
        config = super().get_config()
        names = (
            "vocabulary_size",
            "num_layers",
            "num_heads",
            "hidden_dim",
            "intermediate_dim",
            "dropout",
            "max_sequence_length",
            "num_segments",
            "layer_norm_epsilon",
            "position_embeddings",
            *TABLE_SIZES.values(),
            "attention_dropout",
        )
        config.update({name: getattr(self, name) for name in names})
        if self.lora_rank is not None:  # the presets of all other encoders do not mention adapters
            config["lora_rank"] = self.lora_rank
            config["lora_alpha"] = self.lora_alpha
            config["lora_targets"] = self.lora_targets
        return config

    @classmethod
    def from_config(cls, config: dict) -> "SpanBertBackbone":
        """Creates an encoder from a configuration, such as that of a preset.

        Raises:
            MismatchError: the configuration has SegaBERT's positions, but lacks the sizes of the
                tables, so it was written before 0.2.0. All paragraphs beyond the table got its last
                row then, so the weights do not fit the rows that this version reads.
        """
        reads = reads_indices(config.get("position_embeddings", "absolute"))
        if reads and not config.keys() >= set(TABLE_SIZES.values()):
            raise MismatchError(
                f"config.json lacks {', '.join(TABLE_SIZES.values())}: it is from before 0.2.0, "
                "whose SegaBERT read other positions of paragraphs beyond the table; train it "
                "again, or convert it again"
            )
        return super().from_config(config)
