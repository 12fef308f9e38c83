"""The coreference resolver.

B documents, G segments, L positions of a segment, T positions of a document, K spans, C antecedents
of each, N gold mentions.
"""

from typing import Any

import keras
import keras_hub
from keras import ops

from spanbert_tf.config.coreference import ResolverConfig
from spanbert_tf.layers.coreference_head import CoreferenceHead
from spanbert_tf.layers.mention_scorer import NO_SCORE
from spanbert_tf.models.objective import ObjectiveSums, weights_of
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_coreference_resolver_preprocessor import (
    SpanBertCoreferenceResolverPreprocessor,
)
from spanbert_tf.models.span_bert_task import SpanBertTask

_OF_POSITIONS = (
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

    A document is encoded segment by segment. All spans up to a width are scored as mentions, the
    best that do not cross are kept, and for each of them the antecedents before it are scored. The
    loss of a document is the sum, over its spans, of the negative marginal log-likelihood of their
    gold antecedents; the loss of a batch is the mean over documents. `compile()` needs no other.

    Args:
        backbone: a `SpanBertBackbone` with absolute positions.
        preprocessor: a `SpanBertCoreferenceResolverPreprocessor`, or `None` for batches of
            `spanbert_tf.tasks.lookup.task_dataset`.
        max_segments: int. Segments of a document that are trained at once; the distance in segments
            is clipped to it.
        word_boundaries: bool. Whether spans begin and end where words do; otherwise at any word
            piece, as in the original code.
        depth: int. Passes of the antecedents' scores; 2 refines the vectors of spans once, 1 never.
        max_span_width: int. Pieces of a span at most.
        top_span_ratio: float. Spans that are kept, for each position of the document; [CLS] and
            [SEP] count.
        max_top_spans: int. Spans that are kept at most.
        max_antecedents: int. Antecedents of a span that are scored by the network.
        feature_dim: int. Width of the embeddings of widths, distances, speakers and genres.
        ffnn_dim: int. Hidden width of the scoring networks.
        dropout: float. Rate in the task's own layers.
        singletons: bool. Whether mentions without another one are predicted, too.

    Raises:
        ValueError: the backbone reads SegaBERT's indices.

    Example:
    ```python
    resolver = spanbert_tf.models.SpanBertCoreferenceResolver.from_preset("run/preset")
    texts = ["Ann has a cat. She likes it.", "Bob slept. He was tired."]
    clusters = [[[(0, 3), (15, 18)], [(8, 13), (25, 27)]], [[(0, 3), (11, 13)]]]
    resolver.compile()
    resolver.fit(x=texts, y=clusters, batch_size=1)  # characters, the ends exclusive
    ```
    """

    checkpoint_part = "coreference"
    _objective = "antecedents"
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
        if backbone.position_embeddings != "absolute":
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
        # Sums of many scores, which are compared: 8 bits are too few digits.
        self.head = CoreferenceHead(
            backbone.hidden_dim,
            max_segments,
            settings.model_dump(),
            dtype="float32",
            name="coreference_head",
        )

        # === Functional Model ===
        inputs = {
            name: keras.Input(shape=(None, None), dtype="int32", name=name)
            for name in ("token_ids", "padding_mask")
        }  # [B, G, L]
        for name in _OF_POSITIONS:
            inputs[name] = keras.Input(shape=(None,), dtype="int32", name=name)  # [B, T]
        inputs["genre_ids"] = keras.Input(shape=(), dtype="int32", name="genre_ids")
        rows = _SegmentRows(name="segment_rows")
        token_ids, padding_mask = rows(inputs["token_ids"]), rows(inputs["padding_mask"])
        encoded = backbone(
            {
                "token_ids": token_ids,  # [B · G, L]
                "segment_ids": ops.zeros_like(token_ids),
                "padding_mask": padding_mask,
            }
        )["sequence_output"]
        states = _DocumentStates(name="document_states")(encoded, inputs["token_ids"])
        features = {name: inputs[name] for name in (*_OF_POSITIONS, "genre_ids")}
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
            **kwargs: as for `keras.Model.compile`; `jit_compile` is off by default, but on JAX.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-5, global_clipnorm=1.0)
        # XLA would compile a step for each shape, and documents have all; JAX without it does so
        # with each operation.
        if keras.backend.backend() != "jax":
            kwargs = {"jit_compile": False, **kwargs}
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def objective_sums(
        self,
        x: dict,
        outputs: dict,
        y: dict,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Sums over the documents of a batch; what is right of one is the share of its spans.

        Args:
            x: as for `call`; unused.
            outputs: what `call` returned.
            y: `mention_starts` and `mention_ends`, int [B, N], positions, and `mention_clusters`,
                from 1; 0 for padding.
            sample_weight: float [B]; 1 by default.
        """
        weights = self._target_weights(y, sample_weight)
        scores = outputs["scores"]  # [B, K, 1 + C]
        is_right = right_antecedents(outputs, y)
        is_span = ops.cast(outputs["is_span"], "float32")  # [B, K]
        right_scores = ops.where(is_right, scores, NO_SCORE)
        losses = ops.logsumexp(scores, axis=-1) - ops.logsumexp(right_scores, axis=-1)
        best = ops.argmax(scores, axis=-1)  # of equal ones the first, which is none
        hits = ops.take_along_axis(ops.cast(is_right, "float32"), best[..., None], axis=-1)[..., 0]
        num_spans = ops.maximum(ops.sum(is_span, axis=1), 1.0)  # [B]
        shares = ops.sum(hits * is_span, axis=1) / num_spans
        losses = ops.sum(losses * is_span, axis=1)  # [B]
        return {self._objective: ObjectiveSums.of(losses, shares, weights)}

    def _target_weights(
        self, y: dict, sample_weight: keras.KerasTensor | None
    ) -> keras.KerasTensor:
        """Weights of the documents, float32 [B]."""
        return weights_of(y["mention_clusters"][:, 0], sample_weight)

    def get_config(self) -> dict:
        names = ("max_segments", *ResolverConfig.model_fields, "singletons")
        return super().get_config() | {name: getattr(self, name) for name in names}


def right_antecedents(outputs: dict, y: dict) -> keras.KerasTensor:
    """Which antecedents are of the span's own cluster, bool [B, K, 1 + C].

    No antecedent, the first one, is right where none of the others is.
    """
    is_mention = (
        ops.equal(outputs["span_starts"][:, :, None], y["mention_starts"][:, None])
        & ops.equal(outputs["span_ends"][:, :, None], y["mention_ends"][:, None])
        & (outputs["is_span"][:, :, None] > 0)
    )  # [B, K, N]
    clusters = ops.max(ops.where(is_mention, y["mention_clusters"][:, None], 0), axis=-1)  # [B, K]
    antecedents = outputs["antecedents"]
    shape = ops.shape(antecedents)
    flat = ops.reshape(antecedents, (shape[0], shape[1] * shape[2]))
    of_antecedents = ops.reshape(ops.take_along_axis(clusters, flat, axis=1), shape)
    is_right = ops.equal(of_antecedents, clusters[:, :, None]) & (clusters[:, :, None] > 0)
    is_right = is_right & (outputs["scores"][:, :, 1:] > NO_SCORE / 2)
    has_none = ~ops.any(is_right, axis=-1, keepdims=True)
    return ops.concatenate([has_none, is_right], axis=-1)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class _SegmentRows(keras.layers.Layer):
    """Segments of documents [B, G, L] as the rows [B · G, L] that an encoder reads."""

    def call(self, segments: keras.KerasTensor) -> keras.KerasTensor:
        shape = ops.shape(segments)
        return ops.reshape(segments, (shape[0] * shape[1], shape[2]))


@keras.saving.register_keras_serializable(package="spanbert_tf")
class _DocumentStates(keras.layers.Layer):
    """The encoder's outputs [B · G, L, H] as those of documents, [B, G · L, H]."""

    def call(self, states: keras.KerasTensor, segments: keras.KerasTensor) -> keras.KerasTensor:
        shape = ops.shape(segments)
        return ops.reshape(states, (shape[0], shape[1] * shape[2], states.shape[-1]))
