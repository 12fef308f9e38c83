"""The model that is pre-trained: an encoder with the heads of its objectives.

Shapes: B rows, S positions, K prediction slots, H width.
"""

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers import SpanBoundaryHead, bert_initializer, masked_lm_head, operations
from spanbert_tf.models.objective import ObjectiveSums, are_targets, weights_of
from spanbert_tf.models.pretraining_heads import HEAD_ARGUMENTS, PretrainerPresets
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.models.work import slot_operations

_SLOT_INPUTS = {
    "masked_lm": ("mask_positions",),
    "span_boundary": ("span_left_positions", "span_right_positions", "span_offsets"),
}
# The names of the labels and of the weights of each objective in a batch.
_TARGETS = {
    "masked_lm": ("mask_ids", "mask_weights"),
    "span_boundary": ("mask_ids", "span_weights"),
    "next_sentence": ("next_sentence_labels", "mask_weights"),
}


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertPretrainer(  # type: ignore[misc]  # `save_to_preset` also needs the tokenizer
    PretrainerPresets, SpanBertTask, keras_hub.models.Task
):
    """An encoder with the heads of SpanBERT's objectives (SpanBERT, sections 3.1 to 3.3).

    `fit` takes the batches of `spanbert_tf.data.pretraining_dataset`: one dict of features, from
    which the model selects its inputs, labels and weights by name. The loss is the mean over all
    masked tokens of the global batch, plus the mean over all its span boundary targets, plus the
    mean loss of next sentence prediction if it is trained. It does not depend on the number of
    replicas.

    The metrics are means over the targets of an epoch: `masked_lm_loss`, `masked_lm_accuracy`,
    `span_boundary_loss`, `span_boundary_accuracy`, `next_sentence_loss`, `next_sentence_accuracy`,
    and `loss`, the sum of the losses.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: must be `None`, because the batches are preprocessed.
        span_boundary: bool. Whether to train the span boundary objective.
        next_sentence: bool. Whether to train next sentence prediction, with records of pairs.
        max_span_targets: int. Maximum number of span boundary targets of a span, as in the options
            of the data set.
        span_position_dim: int. Width of the position embeddings of the span boundary objective.

    Example:
    ```python
    dataset = spanbert_tf.data.pretraining_dataset("records/", batch_size=32, seed=1)
    model = spanbert_tf.models.SpanBertPretrainer(backbone)
    model.compile(optimizer=spanbert_tf.training.adamw(1e-4, warmup_steps=100, total_steps=1000))
    model.fit(dataset, steps_per_epoch=1000)
    model.save_to_preset("preset", tokenizer=tokenizer)  # the preset of a `SpanBertMaskedLM`
    ```
    """

    _learning_rate = 1e-4
    backbone_cls = SpanBertBackbone
    preprocessor_cls = None

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: None = None,
        span_boundary: bool = True,
        next_sentence: bool = False,
        max_span_targets: int = 20,
        span_position_dim: int = 200,
        **kwargs,
    ) -> None:
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.masked_lm_head = masked_lm_head(backbone)
        self.span_boundary_head = None
        self.next_sentence_head = None
        if span_boundary:
            self.span_boundary_head = SpanBoundaryHead(
                backbone.token_embedding,
                max_span_targets=max_span_targets,
                span_position_dim=span_position_dim,
                layer_norm_epsilon=backbone.layer_norm_epsilon,
                initializer=bert_initializer(),
                dtype=backbone.dtype_policy,
                name="span_boundary_head",
            )
        if next_sentence:
            self.next_sentence_head = keras.layers.Dense(
                2,
                kernel_initializer=bert_initializer(),
                dtype=backbone.dtype_policy,
                name="next_sentence_head",
            )

        # === Functional Model ===
        slot_names = list(_SLOT_INPUTS["masked_lm"])
        if span_boundary:
            slot_names += _SLOT_INPUTS["span_boundary"]
        slots = {name: keras.Input(shape=(None,), dtype="int32", name=name) for name in slot_names}
        encoded = backbone(backbone.input)
        sequence_output = encoded["sequence_output"]  # [B, S, H]
        outputs = {"masked_lm": self.masked_lm_head(sequence_output, slots["mask_positions"])}
        if self.span_boundary_head is not None:
            outputs["span_boundary"] = self.span_boundary_head(
                sequence_output, *(slots[name] for name in _SLOT_INPUTS["span_boundary"])
            )
        if self.next_sentence_head is not None:
            outputs["next_sentence"] = self.next_sentence_head(encoded["pooled_output"])  # [B, 2]
        super().__init__(inputs={**backbone.input, **slots}, outputs=outputs, **kwargs)

        # === Config ===
        self.span_boundary = span_boundary
        self.next_sentence = next_sentence
        self.reads_pooler = next_sentence
        self.max_span_targets = max_span_targets
        self.span_position_dim = span_position_dim

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives for which the model has heads."""
        return tuple(self.output)

    def objective_sums(
        self,
        x: dict,
        outputs: dict,
        y: None = None,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Computes the sums of each objective over a batch.

        Args:
            x: a batch, with labels and weights.
            outputs: the outputs of `call`.
            y: must be `None`, because the labels are in `x`.
            sample_weight: float [B]; 1 by default.
        """
        sums = {}
        for objective, values in outputs.items():
            labels, weights = self._targets(x, objective, sample_weight)
            losses, is_correct = operations.vocabulary_crossentropy(
                labels, ops.cast(values, "float32")
            )
            sums[objective] = ObjectiveSums.of(losses, is_correct, weights)
        return sums

    def target_counts(
        self, x: dict, y: None = None, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Counts the targets of each objective in a batch; float32 scalars."""
        counts = {}
        for objective in self.objectives:
            _, weights = self._targets(x, objective, sample_weight)
            counts[objective] = ops.sum(are_targets(weights))
        return counts

    def step_operations(self, x: dict) -> keras.KerasTensor | float:
        """Computes the operations of a training step in billions: the encoder's and the heads'.

        A head multiplies each slot by its dense layers and by the token embedding.
        """
        table = self.backbone.token_embedding.embeddings
        masked_lm = [self.masked_lm_head._intermediate_dense.kernel, table]
        total = super().step_operations(x)
        total += slot_operations(x["mask_positions"], masked_lm, self._is_trained)
        if self.span_boundary_head is not None:
            span_boundary = [dense.kernel for dense in self.span_boundary_head.dense_layers]
            span_boundary.append(table)
            total += slot_operations(x["span_offsets"], span_boundary, self._is_trained)
        if self.next_sentence_head is not None:
            next_sentence = [self.backbone.pooled_dense.kernel, self.next_sentence_head.kernel]
            labels = x["next_sentence_labels"]
            total += slot_operations(labels, next_sentence, self._is_trained)
        return total

    def _targets(
        self, batch: dict, objective: str, row_weights: keras.KerasTensor | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Returns labels and float32 weights of an objective: [B, K], or [B] for next sentences."""
        labels_name, weights_name = _TARGETS[objective]
        weights = ops.cast(batch[weights_name], "float32")
        if objective == "next_sentence":
            # Texts have masked tokens. Only the empty rows that fill a held-out batch have none.
            weights = ops.cast(ops.any(weights > 0, axis=1), "float32")
        if objective == "span_boundary":
            # The data set may have more targets of a span than this head has positions.
            weights *= ops.cast(batch["span_offsets"] < self.max_span_targets, "float32")
        if row_weights is not None:
            weights *= weights_of(weights, row_weights)
        return batch[labels_name], weights

    def get_config(self) -> dict:
        return super().get_config() | {name: getattr(self, name) for name in HEAD_ARGUMENTS}
