"""The configuration of extractive question answering."""

from typing import Literal

from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig, RowsConfig
from spanbert_tf.validation import PositiveInt


class QuestionDataConfig(RowsConfig):
    """What the records of questions must be.

    Attributes:
        stride: tokens from one window of a passage to the next (appendix B: 128).
        question_first: whether the question stands before the passage.
        has_unanswerable: whether questions may have no answer.
    """

    stride: PositiveInt = 128
    question_first: bool = False
    has_unanswerable: bool = False


class AnswerConfig(PredictionConfig):
    """How answers are chosen.

    Attributes:
        max_answer_tokens: longest answer.
        num_candidates: possible answers that are kept for each question.
    """

    max_answer_tokens: PositiveInt = 30
    num_candidates: PositiveInt = 20


class QuestionAnsweringConfig(FinetuningConfig):
    """A fine-tuning run for extractive question answering.

    Attributes:
        task: `question_answering`.
        data: what the records must be.
        prediction: how answers are chosen.
    """

    task: Literal["question_answering"] = "question_answering"
    data: QuestionDataConfig = QuestionDataConfig()
    prediction: AnswerConfig = AnswerConfig()
