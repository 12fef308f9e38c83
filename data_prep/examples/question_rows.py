"""Writes questions as packed rows: what `prepare squad` and `prepare mrqa` share.

`[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1), or the question first. Offsets are
those of the project's one tokenizer.
"""

import collections
import dataclasses
import functools
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.examples.answers import Location, Outcome, locate_answer
from data_prep.examples.features import serialize_features
from data_prep.examples.passage_windows import window_starts, windows_with_most_context
from data_prep.examples.questions import Answer, Question, QuestionSet, check_questions
from data_prep.examples.row_writer import RowWriter
from data_prep.examples.task_records import RowPacker, write_task_records
from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.rows_info import (
    POSITION_DTYPE,
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
)
from spanbert_tf.data.schema import VOCABULARY_FILE
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.outputs import OutputKind, check_output
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.process.console import show_progress
from spanbert_tf.process.lines import print_line
from spanbert_tf.tasks.question_answering import schema
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import Casing, check_case, load_vocabulary

QUESTIONS = OutputKind(
    "records of questions",
    schema.INFO_FILE,
    (
        schema.WINDOWS_FILE,
        os.path.basename(lengths_path(schema.WINDOWS_FILE)),
        schema.QUESTIONS_FILE,
        schema.CONTEXTS_FILE,
        VOCABULARY_FILE,
    ),
)
_SHOWN_LOST = 5
_COUNTS = ("windows", "training_windows", "untrained_questions", "cut_questions")
_COUNTS += ("unanswered_questions", "unlabelled_questions")
_COUNTS += ("found", "repaired", "lost", "round_trips")

Located = tuple[Answer, Outcome, Location | None]


@dataclasses.dataclass(frozen=True)
class QuestionOptions:
    """How questions become rows.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 512).
        stride: tokens from one window to the next (appendix B: 128).
        max_question_tokens: tokens of a question at most; the rest is cut off and counted.
        question_first: `[CLS] question [SEP] passage [SEP]`, for checkpoints fine-tuned so.
        has_unanswerable: whether questions without an answer belong to the task (SQuAD 2.0).
        segment_aware: whether rows tell SegaBERT's positions: the question is paragraph 0, the
            passage begins with paragraph 1. Needs `question_first`.
    """

    sequence_length: int = 512
    stride: int = 128
    max_question_tokens: int = 64
    question_first: bool = False
    has_unanswerable: bool = False
    segment_aware: bool = False


def write_questions(
    questions: QuestionSet,
    output: str,
    *,
    vocabulary: str,
    lowercase: bool,
    strip_accents: bool | None = None,
    options: QuestionOptions,
    overwrite: bool = False,
) -> schema.QuestionAnsweringInfo:
    """Writes a directory of rows, questions and contexts; it appears whole or not at all.

    Args:
        questions: questions of one file.
        output: directory, new or empty.
        vocabulary: path of a WordPiece vocabulary.
        lowercase: lower-case the text; must suit the vocabulary.
        strip_accents: and strip accents; `None`: where it is lower-cased.
        options: options of the rows.
        overwrite: whether earlier records of questions may be replaced.

    Returns:
        The description that was written. Its `counts` tell `questions`, `contexts`, `windows`,
        their `tokens`, `cut_questions`, and for the answers `answers`, `found`, `repaired`,
        `lost`, `round_trips` (those whose tokens give back the same text). Questions whose answers
        are all lost, or that have no answers where `has_unanswerable` is false, are scored but not
        trained: `untrained_questions`; their windows follow the `training_windows`. Questions
        without a gold answer are `unanswered_questions`; those of which the file does not say
        either that they have none are `unlabelled_questions`, as in a test set.

    Raises:
        BadInputError: the questions cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    started = time.monotonic()
    if options.segment_aware and not options.question_first:
        raise BadInputError("--segment-aware: the question is paragraph 0; add --question-first")
    output = check_output(output, QUESTIONS, overwrite=overwrite)
    check_questions(questions)
    pieces = load_vocabulary(vocabulary)
    casing = Casing.of(lowercase, strip_accents)
    check_case(pieces, vocabulary, casing)
    writer = _Writer(questions, pieces, casing, options)

    describe = functools.partial(
        schema.QuestionAnsweringInfo,
        lowercase=casing.lowercase,
        strip_accents=casing.strip_accents,
        sequence_length=options.sequence_length,
        stride=options.stride,
        question_first=options.question_first,
        has_unanswerable=options.has_unanswerable,
        segment_aware=options.segment_aware,
    )
    info = write_task_records(
        output, QUESTIONS, pieces, writer.write, describe, overwrite=overwrite
    )
    _print_summary(output, writer, time.monotonic() - started)
    return info


class _Writer:
    """Writes the rows of a set of questions and counts what became of them."""

    def __init__(
        self,
        questions: QuestionSet,
        pieces: Sequence[str],
        casing: Casing,
        options: QuestionOptions,
    ) -> None:
        self.counts = collections.Counter(dict.fromkeys(_COUNTS, 0))
        self.lost: list[str] = []  # the first ones, for people
        self.max_question_tokens = options.max_question_tokens
        self._questions = questions
        self._options = options
        self._tokenize = TextTokenizer(pieces, casing, segment_aware=options.segment_aware)
        self._pack_segments = RowPacker(pieces)

    def write(self, directory: str) -> collections.Counter:
        """Writes the files into a directory; returns what became of the questions."""
        contexts, questions = self._questions.contexts, self._questions.questions
        self.counts.update(contexts=len(contexts), questions=len(questions))
        passages = self._tokenize(contexts, first_paragraph=1)
        passages = list(show_progress(passages, len(contexts), "contexts"))
        texts = list(self._tokenize([question.text.replace("\n", " ") for question in questions]))
        lines, answers = [], []
        for question in questions:
            passage = passages[question.context_index]
            if not len(passage.token_ids):
                raise BadInputError(
                    f"{self._questions.path}: question {question.id!r}: its context has no tokens"
                )
            located = self._located(question)
            lines.append(_line(question, located))
            answers.append(self._answer_tokens(question, located, passage))
        self._count_unlabelled()
        trained = [self._is_trained(*pair) for pair in zip(questions, answers, strict=True)]
        self.counts["untrained_questions"] += trained.count(False)
        with RowWriter(os.path.join(directory, schema.WINDOWS_FILE)) as writer:
            order = sorted(range(len(questions)), key=lambda number: not trained[number])
            for number in show_progress(order, len(order), "questions"):
                question = questions[number]
                passage = passages[question.context_index]
                for row in self._windows(number, question, texts[number], passage, answers[number]):
                    writer.write(*row)
                    self.counts["windows"] += 1
                    self.counts["training_windows"] += trained[number]
        for name, values in ((schema.QUESTIONS_FILE, lines), (schema.CONTEXTS_FILE, contexts)):
            write_json_lines(os.path.join(directory, name), values)
        return self.counts

    def _count_unlabelled(self) -> None:
        for question in self._questions.questions:
            self.counts["unanswered_questions"] += not question.gold_texts
            self.counts["unlabelled_questions"] += not (
                question.gold_texts or question.is_impossible
            )

    def _is_trained(self, question: Question, answer: tuple[int, int] | None) -> bool:
        """Whether it is trained: not if its answers were lost (as in the original code)."""
        if answer is not None:
            return True
        # Some files mark a question without an answer by its empty list alone; test sets, where no
        # question has one, tell nothing by it.
        is_labelled = self.counts["unlabelled_questions"] < len(self._questions.questions)
        return self._options.has_unanswerable and is_labelled and not question.gold_texts

    def _located(self, question: Question) -> list[Located]:
        context = self._questions.contexts[question.context_index]
        return [(answer, *locate_answer(context, answer)) for answer in question.answers]

    def _windows(
        self,
        number: int,
        question: Question,
        text: TokenizedText,
        passage: TokenizedText,
        answer: tuple[int, int] | None,
    ) -> Iterator[tuple[bytes, int]]:
        """The rows of a question, serialized, and their tokens."""
        options, num_tokens = self._options, len(passage.token_ids)
        self.counts["cut_questions"] += len(text.token_ids) > options.max_question_tokens
        question_ids = text.token_ids[: options.max_question_tokens]
        length = self._room(question, len(question_ids), num_tokens)
        starts = window_starts(num_tokens, length, options.stride)
        best = windows_with_most_context(starts, num_tokens, length)  # [T]
        for window, start in enumerate(starts.tolist()):
            part = slice(start, min(start + length, num_tokens))
            row, passage_start, second_start = self._pack(passage.token_ids[part], question_ids)
            first, last = answer or (-1, -1)
            is_inside = part.start <= first and last < part.stop
            shift = passage_start - part.start
            self.counts["tokens"] += len(row)
            numbers = {
                schema.QUESTION_INDEX: number,
                schema.PASSAGE_START: passage_start,
                SECOND_START: second_start,
                schema.START_POSITION: first + shift if is_inside else 0,
                schema.END_POSITION: last + shift if is_inside else 0,
            }
            lists = {
                ROW_TOKEN_IDS: row,
                schema.OFFSET_STARTS: passage.starts[part].astype(schema.OFFSET_DTYPE),
                schema.OFFSET_ENDS: passage.ends[part].astype(schema.OFFSET_DTYPE),
                schema.HAS_MOST_CONTEXT: (best[part] == window).astype(schema.FLAG_DTYPE),
            }
            if options.segment_aware:
                asked = text.positions[: len(question_ids)]
                lists |= _position_lists(asked, passage.positions[part])
            raw = {name: values.tobytes() for name, values in lists.items()}
            yield serialize_features(numbers, raw), len(row)

    def _room(self, question: Question, num_question_tokens: int, num_tokens: int) -> int:
        """How many tokens of a passage a row with this question shows."""
        options = self._options
        room = options.sequence_length - 3 - num_question_tokens  # [CLS], [SEP], [SEP]
        if room < 1 or (num_tokens > room and room < options.stride):
            raise BadInputError(
                f"{self._questions.path}: question {question.id!r}: leaves room for "
                f"{max(room, 0)} tokens of its context in a row, less than --stride "
                f"({options.stride}); give a larger --sequence-length or a smaller --stride"
            )
        return room

    def _pack(
        self, passage_ids: np.ndarray, question_ids: np.ndarray
    ) -> tuple[np.ndarray, int, int]:
        """The row, where the passage begins in it, and where the second segment does."""
        is_question_first = self._options.question_first
        parts = [question_ids, passage_ids] if is_question_first else [passage_ids, question_ids]
        row, second_start = self._pack_segments(*parts)
        return row, second_start if is_question_first else 1, second_start

    def _answer_tokens(
        self, question: Question, located: Sequence[Located], passage: TokenizedText
    ) -> tuple[int, int] | None:
        """Tokens of the first answer that can be found; counts all of them."""
        context, spans = self._questions.contexts[question.context_index], []
        for answer, outcome, location in located:
            span = location and passage.span(*location)
            if span is None:
                outcome = Outcome.LOST
                if len(self.lost) < _SHOWN_LOST:
                    self.lost.append(
                        f"{self._questions.path}: question {question.id!r}: {answer.text!r} is not "
                        f"at character {answer.start} of its context"
                    )
            else:
                text = context[passage.starts[span[0]] : passage.ends[span[1]]]
                self.counts["round_trips"] += text == context[location.start : location.end]
                spans.append(span)
            self.counts[outcome.value] += 1
            self.counts["answers"] += 1
        return spans[0] if spans else None


def _position_lists(question: np.ndarray, passage: np.ndarray) -> dict[str, np.ndarray]:
    """SegaBERT's positions of a row with the question first, from those of its parts [tokens, 3].

    [CLS] is where the question begins; each [SEP] goes on counting the tokens of the sentence
    before it (as in `packing.segment_aware_indices`).
    """
    rows = [np.zeros([1, 3], "int32")]
    for part in (question, passage):
        end = part[-1:] + np.array([[0, 0, 1]]) if len(part) else np.zeros([1, 3], "int32")
        rows += [part, end]
    columns = np.concatenate(rows).astype(POSITION_DTYPE).T  # [3, S]
    return dict(zip(SEGMENT_POSITIONS, columns, strict=True))


def _line(question: Question, located: Sequence[Located]) -> dict:
    """A line of `questions.jsonl`."""
    return {
        "id": question.id,
        "question": question.text,
        "context_index": question.context_index,
        "gold_texts": list(question.gold_texts),
        "gold_spans": sorted({location for _, _, location in located if location}),
        "is_impossible": question.is_impossible,
    }


def _print_summary(output: str, writer: _Writer, seconds: float) -> None:
    counts = writer.counts
    print_line(
        f"{output}: {counts['questions']:,} questions about {counts['contexts']:,} contexts in "
        f"{counts['windows']:,} windows, in {seconds:.1f} s"
    )
    if counts["answers"]:
        kept = counts["found"] + counts["repaired"]
        share = counts["round_trips"] / counts["answers"]
        print_line(
            f"answers: {counts['answers']:,}, of which {counts['found']:,} found, "
            f"{counts['repaired']:,} repaired, {counts['lost']:,} lost; {share:.2%} come back as "
            f"the same text from their tokens ({kept - counts['round_trips']:,} begin or end "
            "inside a token)"
        )
    for line in writer.lost:
        print_line(f"  {line}")
    if counts["untrained_questions"]:
        print_line(
            f"left out of training: {counts['untrained_questions']:,} questions without an answer "
            "that was found"
        )
    if counts["cut_questions"]:
        print_line(
            f"cut off: the end of {counts['cut_questions']:,} questions, after their first "
            f"{writer.max_question_tokens} tokens"
        )
