"""The configuration and the records of question answering.

`windows.tfrecord` has a packed row for each question and each window of its passage, with the rows
that are not trained at the end, and `windows.lengths.npy` their lengths. `questions.jsonl` and
`contexts.jsonl` have the questions and passages themselves.

Importing this module does not import TensorFlow.
"""

import dataclasses
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Lt
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig, RowsConfig
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.records import ROW_TOKEN_IDS, TaskManifest
from spanbert_tf.validation import PositiveInt

WINDOWS_FILE = "windows.tfrecord"
QUESTIONS_FILE = "questions.jsonl"
CONTEXTS_FILE = "contexts.jsonl"

# Features of a window, beside those of each row (`data.records`).
PASSAGE_START = "passage_start"  # int64; position of the passage's first token in the row
START_POSITION = "start_position"  # int64; position in the row; 0: no answer in this window
END_POSITION = "end_position"  # int64; inclusive
QUESTION_INDEX = "question_index"  # int64; line of questions.jsonl, from 0
# For each token of the passage in this window: its characters in the context, and whether no other
# window has more of the text around it.
OFFSET_STARTS = "offset_starts"
OFFSET_ENDS = "offset_ends"
HAS_MOST_CONTEXT = "has_most_context"
OFFSET_DTYPE = "uint32"
FLAG_DTYPE = "uint8"

# How answers are compared with gold answers (`evaluators`); the first is the default.
Metric = Literal["squad", "mlqa", "cmrc2018"]
METRICS: tuple[str, ...] = get_args(Metric)

MAX_QUESTION_TOKENS = 64  # of a question in a row; longer questions are cut


class QuestionDataConfig(RowsConfig):
    """What the records must be.

    Attributes:
        stride: tokens from one window of a passage to the next (appendix B: 128).
        question_first: whether the question comes before the passage.
        has_unanswerable: whether questions may have no answer.
    """

    stride: PositiveInt = 128
    question_first: bool = False
    has_unanswerable: bool = False


class AnswerConfig(PredictionConfig):
    """How answers are chosen and scored.

    Attributes:
        max_answer_tokens: largest number of tokens of an answer.
        num_candidates: number of possible answers that are kept for each question.
        metric: whose official script scores the answers, as `evaluate --metric`: `squad`; `mlqa`,
            by the language of the records; `cmrc2018`, for Chinese.
    """

    max_answer_tokens: PositiveInt = 30
    num_candidates: PositiveInt = 20
    metric: Metric = "squad"


class QuestionAnsweringConfig(FinetuningConfig):
    """A fine-tuning run for extractive question answering.

    Attributes:
        task: `question_answering`.
        data: what the records must be.
        prediction: how answers are chosen and scored.
    """

    task: Literal["question_answering"] = "question_answering"
    data: QuestionDataConfig = QuestionDataConfig()
    prediction: AnswerConfig = AnswerConfig()


class QuestionLine(TypedDict):
    """A line of `questions.jsonl`."""

    id: str
    question: str
    context_index: Annotated[int, Ge(0)]
    gold_texts: list[str]
    gold_spans: list[list[int]]
    is_impossible: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnsweringManifest(TaskManifest):
    """The content of `question_answering_info.json`.

    Attributes:
        stride: tokens from one window of a passage to the next.
        question_first: whether rows are `[CLS] question [SEP] passage [SEP]`.
        has_unanswerable: whether questions without an answer belong to the task (SQuAD 2.0).
        counts: `windows` is the number of rows, and `training_windows` that of the first rows,
            which are trained. `unanswered_questions` counts questions without a gold answer, and
            `unlabelled_questions` those of them of which nothing is known.
    """

    task: ClassVar[str] = "question_answering"
    rows_file: ClassVar[str] = WINDOWS_FILE
    line_files: ClassVar = {
        QUESTIONS_FILE: (QuestionLine, "questions"),
        CONTEXTS_FILE: (str, "contexts"),
    }
    needed_counts: ClassVar[tuple[str, ...]] = (
        "contexts",
        "questions",
        "unanswered_questions",
        "unlabelled_questions",
        "windows",
        "training_windows",
        "tokens",
    )
    segment_aware_options: ClassVar[str] = "--question-first --segment-aware"

    stride: Annotated[int, Gt(0), Lt(2**31)]
    question_first: bool
    has_unanswerable: bool

    def features(self) -> dict[str, Stored]:
        """Returns the features of a window: question, positions, and lists for its passage."""
        position = Stored("int64", below=ROW_TOKEN_IDS)
        return {
            QUESTION_INDEX: Stored("int64", below=self.counts["questions"]),
            PASSAGE_START: position,
            START_POSITION: position,
            END_POSITION: position,
            OFFSET_STARTS: Stored(OFFSET_DTYPE),
            OFFSET_ENDS: Stored(OFFSET_DTYPE),
            HAS_MOST_CONTEXT: Stored(FLAG_DTYPE),
        }

    def describe_rows(self) -> str:
        """Describes the rows with the order of question and passage."""
        text = f"questions in rows of up to {self.sequence_length}, stride {self.stride}, "
        text += "question first" if self.question_first else "passage first"
        if self.has_unanswerable:
            text += ", some without an answer"
        return text

    @property
    def shipped_config(self) -> str:
        """Name of the shipped configuration for these records."""
        return "squad_v2" if self.has_unanswerable else "squad_v1"

    @property
    def num_rows(self) -> int:
        """Number of rows, one for each question and window."""
        return self.counts["windows"]

    @property
    def num_training_rows(self) -> int:
        """Number of rows to train on, which are the first ones."""
        return self.counts["training_windows"]

    @property
    def is_labelled(self) -> bool:
        """Whether answers can be scored: unless `has_unanswerable`, each question needs one."""
        if self.has_unanswerable:
            return self.counts["unlabelled_questions"] < self.counts["questions"]
        return not self.counts["unanswered_questions"]

    @property
    def lack_of_labels(self) -> str:
        """The error message for records that cannot be scored."""
        without = self.counts["unanswered_questions"]
        if without == self.counts["questions"]:
            return super().lack_of_labels
        return (
            f"{without:,} of {self.counts['questions']:,} questions have no answer to score by, as "
            "in SQuAD 2.0; write the questions again with --version-2, and fine-tune for them"
        )
