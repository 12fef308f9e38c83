"""The coreference resolver.

Shapes: B documents, G segments of a document, L positions of a segment, T positions of a document
(G · L), P top spans, A antecedents of a span, M gold mentions, H width.
"""

from typing import Any

import keras
import keras_hub
from keras import ops

from spanbert_tf.config.coreference import ResolverConfig
from spanbert_tf.config.positions import reads_indices
from spanbert_tf.layers.coreference_head import CoreferenceHead
from spanbert_tf.layers.mention_scorer import NO_SCORE
from spanbert_tf.models.objective import ObjectiveSums, weights_of
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_coreference_resolver_preprocessor import (
    SpanBertCoreferenceResolverPreprocessor,
)
from spanbert_tf.models.span_bert_task import SpanBertTask

_POSITION_FEATURES = (
    "piece_positions",
    "sentence_indices",
    "begins_word",
    "ends_word",
    "speaker_ids",
    "segment_indices",
)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertCoreferenceResolver(SpanBertTask, keras_hub.models.Task):
    """End-to-end, higher-order coreference resolution (SpanBERT, section 5.1.2; Lee et al., 2018).

    The segments of a document are encoded one by one. All spans up to a width are scored as
    mentions. The best spans that do not cross each other are kept, and each is scored with its
    possible antecedents. The loss of a document is the sum over its spans of the negative marginal
    log-likelihood of their gold antecedents. The loss of a batch is the mean over its documents.
    `compile()` needs no loss.

    `fit` and `evaluate` take texts as `x`, see the preprocessor. As `y` they take a list of
    clusters for each text. A cluster is a list of mentions `(start, end)`: the first character, and
    the character after the last one.

    Args:
        backbone: a `SpanBertBackbone` with absolute positions.
        preprocessor: a `SpanBertCoreferenceResolverPreprocessor`, or `None` for batches of
            `spanbert_tf.tasks.lookup.task_dataset`.
        max_segments: int. Number of segments of a document that are trained together. Distances in
            segments are clipped to it.
        word_boundaries: bool. Whether spans start and end at word boundaries. Otherwise they may
            start and end at any word piece, as in the original code.
        depth: int. Number of times that antecedents are scored. 2 refines the vectors of spans
            once, 1 never.
        max_span_width: int. Maximum number of word pieces of a span.
        top_span_ratio: float. Number of spans to keep for each position of the document, including
            [CLS] and [SEP].
        max_top_spans: int. Maximum number of spans to keep.
        max_antecedents: int. Number of antecedents of a span that the network scores.
        feature_dim: int. Width of the embeddings of widths, distances, speakers and genres.
        ffnn_dim: int. Hidden width of the scoring networks.
        dropout: float. Dropout rate of the task's own layers.
        singletons: bool. Whether to predict mentions that refer to nothing else.

    Raises:
        ValueError: the backbone has SegaBERT's positions.

    Example:
    ```python
    resolver = spanbert_tf.models.SpanBertCoreferenceResolver.from_preset("run/preset")
    texts = ["Ann has a cat. She likes it.", "Bob slept. He was tired."]
    clusters = [[[(0, 3), (15, 18)], [(8, 13), (25, 27)]], [[(0, 3), (11, 13)]]]
    resolver.compile()
    resolver.fit(x=texts, y=clusters, batch_size=1)
    ```
    """

    objective = "antecedents"
    needs_tensorflow = (
        "coreference sorts and links spans by operations that it lacks; export it for TensorFlow"
    )
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertCoreferenceResolverPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: SpanBertCoreferenceResolverPreprocessor | None = None,
        max_segments: int = 3,
        word_boundaries: bool = False,
        depth: int = 2,
        max_span_width: int = 30,
        top_span_ratio: float = 0.4,
        max_top_spans: int = 3900,
        max_antecedents: int = 50,
        feature_dim: int = 20,
        ffnn_dim: int = 3000,
        dropout: float = 0.3,
        singletons: bool = False,
        **kwargs,
    ) -> None:
        if reads_indices(backbone.position_embeddings):
            raise ValueError(
                "A document in segments has no place for SegaBERT's indices; the backbone must "
                f"have absolute positions. Received: {backbone.position_embeddings!r}"
            )
        settings = ResolverConfig(
            word_boundaries=word_boundaries,
            depth=depth,
            max_span_width=max_span_width,
            top_span_ratio=top_span_ratio,
            max_top_spans=max_top_spans,
            max_antecedents=max_antecedents,
            feature_dim=feature_dim,
            ffnn_dim=ffnn_dim,
            dropout=dropout,
        )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        # The scores are compared, and bfloat16 has too few digits for sums of many scores.
        self.head = CoreferenceHead(
            backbone.hidden_dim,
            max_segments,
            settings.model_dump(),
            dtype="float32",
            name="coreference_head",
        )

        # === Functional Model ===
        inputs = _document_inputs()
        as_rows = _SegmentRows(name="segment_rows")
        token_ids = as_rows(inputs["token_ids"])  # [B · G, L]
        encoder_inputs = {
            "token_ids": token_ids,
            "segment_ids": ops.zeros_like(token_ids),
            "padding_mask": as_rows(inputs["padding_mask"]),
        }
        encoded = backbone(encoder_inputs)["sequence_output"]  # [B · G, L, H]
        states = _DocumentStates(name="document_states")(encoded, inputs["token_ids"])
        features = {name: inputs[name] for name in (*_POSITION_FEATURES, "genre_ids")}
        outputs = self.head({"states": states, **features})
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        # === Config ===
        self.max_segments = max_segments
        for name, value in settings:
            setattr(self, name, value)
        self.singletons = singletons

    def _prepared_labels(self, y: Any) -> Any:
        """Converts lists of clusters to the ragged tensor that the preprocessor takes."""
        if isinstance(y, list | tuple) and self.preprocessor is not None:
            return self.preprocessor.clusters_tensor(y)
        return y

    def compile(
        self,
        optimizer: str | keras.Optimizer = "auto",
        loss: str | keras.losses.Loss | None = "auto",
        **kwargs,
    ) -> None:
        """Configures the model for training; the loss is the model's own.

        Args:
            optimizer: `"auto"` (Adam, 1e-5), a name, or a `keras.Optimizer`.
            loss: `"auto"` or `None`; the model takes no other.
            **kwargs: as for `keras.Model.compile`. `jit_compile` is `False` by default, except on
                JAX.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-5, global_clipnorm=1.0)
        # XLA would compile a step for each shape, and documents have many. On JAX, where every
        # operation would be compiled for each shape without it, `TrainStep` ignores this.
        kwargs = {"jit_compile": False, **kwargs}
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def objective_sums(
        self,
        x: dict,
        outputs: dict,
        y: dict,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Computes the sums over the documents of a batch.

        The accuracy of a document is the share of its spans whose best antecedent is right.

        Args:
            x: the inputs of `call`; unused.
            outputs: the outputs of `call`.
            y: `mention_starts` and `mention_ends`, int [B, M], positions of mentions, and
                `mention_clusters`, int [B, M], their clusters from 1, and 0 for padding.
            sample_weight: float [B]; 1 by default.
        """
        weights = self.target_weights(y, sample_weight)
        scores = outputs["scores"]  # [B, P, 1 + A]
        is_right = right_antecedents(outputs, y)
        is_span = ops.cast(outputs["is_span"], "float32")  # [B, P]
        right_scores = ops.where(is_right, scores, NO_SCORE)
        losses = ops.logsumexp(scores, axis=-1) - ops.logsumexp(right_scores, axis=-1)
        best = ops.argmax(scores, axis=-1)  # 0, no antecedent, wins among equals
        hits = ops.take_along_axis(ops.cast(is_right, "float32"), best[..., None], axis=-1)[..., 0]
        num_spans = ops.maximum(ops.sum(is_span, axis=1), 1.0)  # [B]
        shares = ops.sum(hits * is_span, axis=1) / num_spans
        losses = ops.sum(losses * is_span, axis=1)  # [B]
        return {self.objective: ObjectiveSums.of(losses, shares, weights)}

    def target_weights(self, y: dict, sample_weight: keras.KerasTensor | None) -> keras.KerasTensor:
        """Returns the weights of the documents, float32 [B]."""
        return weights_of(y["mention_clusters"][:, 0], sample_weight)

    def get_config(self) -> dict:
        names = ("max_segments", *ResolverConfig.model_fields, "singletons")
        return super().get_config() | {name: getattr(self, name) for name in names}


def _document_inputs() -> dict[str, keras.KerasTensor]:
    """Returns the inputs of the model: segments, positions of the document, and its genre."""
    shapes: dict[str, tuple[None, ...]] = {
        **dict.fromkeys(("token_ids", "padding_mask"), (None, None)),  # [B, G, L]
        **dict.fromkeys(_POSITION_FEATURES, (None,)),  # [B, T]
        "genre_ids": (),  # [B]
    }
    return {name: keras.Input(shape, dtype="int32", name=name) for name, shape in shapes.items()}


def right_antecedents(outputs: dict, y: dict) -> keras.KerasTensor:
    """Finds the antecedents in the cluster of their span, bool [B, P, 1 + A].

    Entry 0, no antecedent, is right if none of the antecedents is.

    Args:
        outputs: the outputs of the model.
        y: the gold mentions, see `SpanBertCoreferenceResolver.objective_sums`.
    """
    is_mention = (
        ops.equal(outputs["span_starts"][:, :, None], y["mention_starts"][:, None])
        & ops.equal(outputs["span_ends"][:, :, None], y["mention_ends"][:, None])
        & (outputs["is_span"][:, :, None] > 0)
    )  # [B, P, M]
    clusters = ops.max(ops.where(is_mention, y["mention_clusters"][:, None], 0), axis=-1)  # [B, P]
    antecedents = outputs["antecedents"]
    shape = ops.shape(antecedents)
    flat = ops.reshape(antecedents, (shape[0], shape[1] * shape[2]))
    antecedent_clusters = ops.reshape(ops.take_along_axis(clusters, flat, axis=1), shape)
    is_right = ops.equal(antecedent_clusters, clusters[:, :, None]) & (clusters[:, :, None] > 0)
    is_right = is_right & (outputs["scores"][:, :, 1:] > NO_SCORE / 2)
    has_none = ~ops.any(is_right, axis=-1, keepdims=True)
    return ops.concatenate([has_none, is_right], axis=-1)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class _SegmentRows(keras.layers.Layer):
    """Reshapes segments of documents [B, G, L] to the rows [B · G, L] of the encoder."""

    def call(self, segments: keras.KerasTensor) -> keras.KerasTensor:
        shape = ops.shape(segments)
        return ops.reshape(segments, (shape[0] * shape[1], shape[2]))


@keras.saving.register_keras_serializable(package="spanbert_tf")
class _DocumentStates(keras.layers.Layer):
    """Reshapes the outputs of the encoder [B · G, L, H] to documents [B, T, H]."""

    def call(self, states: keras.KerasTensor, segments: keras.KerasTensor) -> keras.KerasTensor:
        shape = ops.shape(segments)
        return ops.reshape(states, (shape[0], shape[1] * shape[2], states.shape[-1]))
