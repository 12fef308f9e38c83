"""The files of a set of questions, as `prepare squad` and `prepare mrqa` write them.

`windows.tfrecord` holds packed rows, one for each window of a passage and each question about it;
`questions.jsonl` and `contexts.jsonl` what they were made of. Nothing here needs TensorFlow.
"""

import dataclasses
import json
import os

from spanbert_tf.errors import BadInputError

QUESTION_ANSWERING_VERSION = 1
WINDOWS_FILE, QUESTIONS_FILE, CONTEXTS_FILE = (
    "windows.tfrecord",
    "questions.jsonl",
    "contexts.jsonl",
)
INFO_FILE = "question_answering_info.json"

# Features of a window (a tf.train.Example). Lists are little-endian unsigned integers.
WINDOW_TOKEN_IDS = "token_ids"  # the row with [CLS] and [SEP], not padded; `token_id_dtype`
SECOND_START = "second_start"  # int64; position where the second segment begins
PASSAGE_START = "passage_start"  # int64; position of the passage's first token in the row
START_POSITION = "start_position"  # int64; of the answer in the row; 0: none in this window
END_POSITION = "end_position"  # int64; inclusive
QUESTION_INDEX = "question_index"  # int64; line of questions.jsonl, from 0
# For each token of the passage in this window: where it stands in the context, in characters, and
# whether no other window shows more of the text around it.
OFFSET_STARTS, OFFSET_ENDS = "offset_starts", "offset_ends"
HAS_MOST_CONTEXT = "has_most_context"
OFFSET_DTYPE, FLAG_DTYPE = "uint32", "uint8"
# With `segment_aware`, for each position of the row.
SEGMENT_POSITIONS = ("paragraph_indices", "sentence_indices", "token_indices")
POSITION_DTYPE = "uint32"


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringInfo:
    """The content of `question_answering_info.json`.

    Attributes:
        vocabulary_hash: of `vocab.txt`, as in `schema.vocabulary_hash`.
        vocabulary_size: entries of the vocabulary.
        lowercase: whether text was lower-cased and stripped of accents.
        sequence_length: positions of a row at most.
        stride: tokens from one window of a passage to the next.
        question_first: whether rows are `[CLS] question [SEP] passage [SEP]`.
        has_unanswerable: whether questions without an answer belong to the task (SQuAD 2.0).
        counts: what was read and what became of it.
        segment_aware: whether rows tell SegaBERT's positions.
    """

    vocabulary_hash: str
    vocabulary_size: int
    lowercase: bool
    sequence_length: int
    stride: int
    question_first: bool
    has_unanswerable: bool
    counts: dict[str, int]
    segment_aware: bool = False
    version: int = QUESTION_ANSWERING_VERSION

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, directory: str) -> "QuestionAnsweringInfo":
        """Reads the file in a directory.

        Raises:
            BadInputError: it is missing, no such description, or of another version.
        """
        path = os.path.join(directory, INFO_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                info = cls(**json.load(file))
        except OSError as error:
            raise BadInputError(
                f"{path}: cannot be read; write records with `spanbert-tf prepare squad`"
            ) from error
        except (ValueError, TypeError) as error:
            raise BadInputError(f"{path}: not a description of questions ({error})") from error
        if info.version != QUESTION_ANSWERING_VERSION:
            raise BadInputError(
                f"{path}: version is not {QUESTION_ANSWERING_VERSION}; write the records again"
            )
        return info
