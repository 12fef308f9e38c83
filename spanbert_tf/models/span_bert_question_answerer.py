"""The extractive question answerer.

Shapes: B rows, S positions, H width.
"""

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers import bert_initializer
from spanbert_tf.models.objective import ObjectiveSums, weights_of
from spanbert_tf.models.preprocessing import check_positions
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_question_answerer_preprocessor import (
    SpanBertQuestionAnswererPreprocessor,
)
from spanbert_tf.models.span_bert_task import DenseHead, SpanBertTask

_SETTINGS = (
    "max_answer_tokens",
    "num_candidates",
    "stride",
    "has_unanswerable",
    "null_threshold",
)
_PADDING_LOGIT = -1e9


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswerer(SpanBertTask, keras_hub.models.Task):
    """An encoder with two linear classifiers, for the start and the end of the answer.

    The answer of an unanswerable question starts and ends at [CLS], position 0 (SpanBERT, section
    4.1). The loss of a row is the mean of the two cross-entropies; `compile()` needs no loss. With
    a preprocessor, `fit` takes questions, passages and answers as texts, see the preprocessor.
    Without one, it takes the batches of `spanbert_tf.tasks.lookup.task_dataset`.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertQuestionAnswererPreprocessor`, or `None` if the inputs are packed
            rows.
        max_answer_tokens: int. Maximum number of tokens of a predicted answer.
        num_candidates: int. Number of candidate answers to keep for each question.
        stride: int. Number of tokens from the start of a window of a long passage to the next one.
        has_unanswerable: bool. Whether questions may have no answer (SQuAD 2.0).
        null_threshold: float. "No answer" is predicted if its score exceeds that of the best answer
            by more than this. `finetune` chooses it on the validation data.

    Returns:
        A dict of `start_logits` and `end_logits`, float32 [B, S]; those of padding are -1e9.

    Example:
    ```python
    answerer = spanbert_tf.models.SpanBertQuestionAnswerer.from_preset("run/preset")
    logits = answerer.predict((["Who sat?"], ["The cat sat on the mat."]))

    answerer.compile()
    questions, passages = ["Who sat?", "Who ran?"], ["The cat sat.", "The dog sat."]
    answerer.fit(x=(questions, passages), y=["The cat", ""])  # the second question has no answer
    ```
    """

    dense_head = DenseHead("span_classifiers", "qa_outputs", "QUESTION_ANS")
    objective = "answer_span"
    _has_outputs_of_positions = True
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertQuestionAnswererPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: SpanBertQuestionAnswererPreprocessor | None = None,
        max_answer_tokens: int = 30,
        num_candidates: int = 20,
        stride: int = 128,
        has_unanswerable: bool = False,
        null_threshold: float = 0.0,
        **kwargs,
    ) -> None:
        check_positions(backbone, preprocessor)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.span_classifiers = keras.layers.Dense(
            2,
            kernel_initializer=bert_initializer(),
            dtype=backbone.dtype_policy,
            name="span_classifiers",
        )

        # === Functional Model ===
        sequence_output = backbone(backbone.input)["sequence_output"]  # [B, S, H]
        logits = ops.cast(self.span_classifiers(sequence_output), "float32")  # [B, S, 2]
        is_token = ops.cast(backbone.input["padding_mask"], "bool")
        outputs = {
            "start_logits": ops.where(is_token, logits[:, :, 0], _PADDING_LOGIT),
            "end_logits": ops.where(is_token, logits[:, :, 1], _PADDING_LOGIT),
        }
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

        # === Config ===
        self.max_answer_tokens = int(max_answer_tokens)
        self.num_candidates = int(num_candidates)
        self.stride = int(stride)
        self.has_unanswerable = has_unanswerable
        self.null_threshold = float(null_threshold)

    def objective_sums(
        self,
        x: dict,
        outputs: dict,
        y: dict,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Computes the sums over the rows of a batch. An answer is right if both ends are.

        Args:
            x: the inputs of `call`; unused.
            outputs: the outputs of `call`.
            y: `start_positions` and `end_positions`, int [B].
            sample_weight: float [B]; 1 by default.
        """
        weights = self.target_weights(y, sample_weight)  # [B]
        is_right = [
            ops.equal(
                ops.argmax(outputs[f"{end}_logits"], axis=-1),
                ops.cast(y[f"{end}_positions"], "int32"),
            )
            for end in ("start", "end")
        ]
        sums = ObjectiveSums.of(_row_losses(y, outputs), ops.logical_and(*is_right), weights)
        return {self.objective: sums}

    def target_weights(self, y: dict, sample_weight: keras.KerasTensor | None) -> keras.KerasTensor:
        """Returns the weights of the rows, float32 [B]."""
        return weights_of(y["start_positions"], sample_weight)

    def get_config(self) -> dict:
        return super().get_config() | {name: getattr(self, name) for name in _SETTINGS}


def _row_losses(y: dict, outputs: dict) -> keras.KerasTensor:
    """Computes the mean of the cross-entropies of start and end, float32 [B]."""
    losses = [
        keras.losses.sparse_categorical_crossentropy(
            y[f"{end}_positions"], outputs[f"{end}_logits"], from_logits=True
        )
        for end in ("start", "end")
    ]  # [B] each
    return (losses[0] + losses[1]) / 2
