"""Makes rows of questions, for `prepare squad` and `prepare mrqa`.

A row is `[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1), or has the question first.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spanbert_tf.data.records import POSITION_DTYPE, ROW_TOKEN_IDS, SECOND_START, SEGMENT_POSITIONS
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.tasks.question_answering.files import (
    Answer,
    Location,
    Outcome,
    Question,
    QuestionSet,
    check_questions,
    locate_answer,
)
from spanbert_tf.tasks.question_answering.records import (
    CONTEXTS_FILE,
    END_POSITION,
    FLAG_DTYPE,
    HAS_MOST_CONTEXT,
    MAX_QUESTION_TOKENS,
    OFFSET_DTYPE,
    OFFSET_ENDS,
    OFFSET_STARTS,
    PASSAGE_START,
    QUESTION_INDEX,
    QUESTIONS_FILE,
    START_POSITION,
    QuestionAnsweringInfo,
)
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import Casing

_SHOWN_LOST = 5
_COUNTS = (
    "windows",
    "training_windows",
    "untrained_questions",
    "cut_questions",
    "unanswered_questions",
    "unlabelled_questions",
    "found",
    "repaired",
    "lost",
    "round_trips",
)

Located = tuple[Answer, Outcome, Location | None]


@dataclasses.dataclass(frozen=True)
class QuestionOptions:
    """Options of the rows of questions.

    Attributes:
        sequence_length: largest number of positions of a row (SpanBERT, appendix B: 512).
        stride: number of tokens from one window to the next (appendix B: 128).
        question_first: whether rows are `[CLS] question [SEP] passage [SEP]`.
        has_unanswerable: whether questions without an answer belong to the task (SQuAD 2.0).
        segment_aware: whether rows store SegaBERT's positions. The question is paragraph 0, and the
            passage begins with paragraph 1, so this needs `question_first`.
    """

    sequence_length: int = 512
    stride: int = 128
    question_first: bool = False
    has_unanswerable: bool = False
    segment_aware: bool = False


def write_questions(
    questions: QuestionSet, output: str, *, options: QuestionOptions, **others: Any
) -> QuestionAnsweringInfo:
    """Writes the records of questions, which appear whole or not at all.

    Args:
        questions: questions of one file.
        output: directory, new or empty.
        options: options of the rows.
        **others: as for `write_task_records`: `preset`, or `vocabulary`, `lowercase` and
            `strip_accents`; `overwrite`.

    Returns:
        The manifest. Its `counts` are:

        - `questions`, `contexts`, `windows`, their `tokens`, and `cut_questions`;
        - for answers: `answers`, `found`, `repaired`, `lost`, and `round_trips`, whose tokens give
          back the same text;
        - `untrained_questions`: questions whose answers are all lost, or that have no answers while
          `has_unanswerable` is false. They are scored, but not trained; their windows follow the
          `training_windows`;
        - `unanswered_questions`: questions without a gold answer;
        - `unlabelled_questions`: those of them of which the file does not say that they have no
          answer, as in a test set.

    Raises:
        BadInputError: the questions cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    if options.segment_aware and not options.question_first:
        raise BadInputError("--segment-aware: the question is paragraph 0; add --question-first")
    check_questions(questions)
    maker = QuestionRows(questions, options)
    return write_task_records(maker, output, sequence_length=options.sequence_length, **others)


class QuestionRows(RowMaker):
    """Makes the rows of questions, and counts questions and answers."""

    info_class = QuestionAnsweringInfo
    title = "records of questions"

    def __init__(self, questions: QuestionSet, options: QuestionOptions) -> None:
        super().__init__()
        self._questions, self._options = questions, options
        self._lost: list[str] = []  # lines on the first lost answers, to print
        counts = {"contexts": len(questions.contexts), "questions": len(questions.questions)}
        self.counts.update({**dict.fromkeys(_COUNTS, 0), **counts})
        self.lines[CONTEXTS_FILE] = questions.contexts

    def rows(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        """Yields a row for each question and each window of its passage."""
        tokenize = TextTokenizer(pieces, casing, segment_aware=self._options.segment_aware)
        self._pack_segments = RowPacker(pieces)
        contexts, questions = self._questions.contexts, self._questions.questions
        passages = tokenize(contexts, first_paragraph=1)
        passages = list(show_progress(passages, len(contexts), "contexts"))
        texts = list(tokenize([question.text.replace("\n", " ") for question in questions]))
        answers = [self._answer(question, passages) for question in questions]
        self._count_unlabelled()
        trained = [self._is_trained(*pair) for pair in zip(questions, answers, strict=True)]
        self.counts["untrained_questions"] += trained.count(False)
        order = sorted(range(len(questions)), key=lambda number: not trained[number])
        for number in show_progress(order, len(order), "questions"):
            question = questions[number]
            passage = passages[question.context_index]
            for row in self._windows(number, question, texts[number], passage, answers[number]):
                self.counts["windows"] += 1
                self.counts["training_windows"] += trained[number]
                yield row

    def described(self) -> dict[str, Any]:
        """The options that the manifest stores."""
        names = ("stride", "question_first", "has_unanswerable", "segment_aware")
        return {name: getattr(self._options, name) for name in names}

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """The counts, in which rows are `windows`."""
        return {**self.counts, "tokens": written["tokens"]}

    def summary(self, info: QuestionAnsweringInfo, seconds: float) -> Iterator[str]:
        """The numbers of questions, contexts, windows and answers."""
        counts = self.counts
        yield (
            f"{counts['questions']:,} questions about {counts['contexts']:,} contexts in "
            f"{counts['windows']:,} windows, in {seconds:.1f} s"
        )
        if counts["answers"]:
            kept = counts["found"] + counts["repaired"]
            share = counts["round_trips"] / counts["answers"]
            yield (
                f"answers: {counts['answers']:,}, of which {counts['found']:,} found, "
                f"{counts['repaired']:,} repaired, {counts['lost']:,} lost; {share:.2%} come back "
                f"as the same text from their tokens ({kept - counts['round_trips']:,} begin or "
                "end inside a token)"
            )
        for line in self._lost:
            yield f"  {line}"
        if counts["untrained_questions"]:
            yield (
                f"left out of training: {counts['untrained_questions']:,} questions without an "
                "answer that was found"
            )
        if counts["cut_questions"]:
            yield (
                f"cut off: the end of {counts['cut_questions']:,} questions, after their first "
                f"{MAX_QUESTION_TOKENS} tokens"
            )

    def _answer(
        self, question: Question, passages: Sequence[TokenizedText]
    ) -> tuple[int, int] | None:
        """First and last token of a question's answer. It also keeps the line of the question."""
        passage = passages[question.context_index]
        if not len(passage.token_ids):
            raise BadInputError(
                f"{self._questions.path}: question {question.id!r}: its context has no tokens"
            )
        located = self._located(question)
        self.lines[QUESTIONS_FILE].append(_line(question, located))
        return self._answer_tokens(question, located, passage)

    def _count_unlabelled(self) -> None:
        for question in self._questions.questions:
            self.counts["unanswered_questions"] += not question.gold_texts
            self.counts["unlabelled_questions"] += not (
                question.gold_texts or question.is_impossible
            )

    def _is_trained(self, question: Question, answer: tuple[int, int] | None) -> bool:
        """Whether a question is trained; not if its answers were lost, as in the original code."""
        if answer is not None:
            return True
        # In some files only an empty list of answers says that a question has no answer. In a test
        # set, where all lists are empty, it says nothing.
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
    ) -> Iterator[Row]:
        """Yields the rows of a question."""
        options, num_tokens = self._options, len(passage.token_ids)
        self.counts["cut_questions"] += len(text.token_ids) > MAX_QUESTION_TOKENS
        question_ids = text.token_ids[:MAX_QUESTION_TOKENS]
        length = self._room(question, len(question_ids), num_tokens)
        starts = window_starts(num_tokens, length, options.stride)
        best = windows_with_most_context(starts, num_tokens, length)  # [T]
        for window, start in enumerate(starts.tolist()):
            part = slice(start, min(start + length, num_tokens))
            row, passage_start, second_start = self._pack(passage.token_ids[part], question_ids)
            first, last = answer or (-1, -1)
            is_inside = part.start <= first and last < part.stop
            shift = passage_start - part.start
            numbers = {
                QUESTION_INDEX: number,
                PASSAGE_START: passage_start,
                SECOND_START: second_start,
                START_POSITION: first + shift if is_inside else 0,
                END_POSITION: last + shift if is_inside else 0,
            }
            lists = {
                ROW_TOKEN_IDS: row,
                OFFSET_STARTS: passage.starts[part].astype(OFFSET_DTYPE),
                OFFSET_ENDS: passage.ends[part].astype(OFFSET_DTYPE),
                HAS_MOST_CONTEXT: (best[part] == window).astype(FLAG_DTYPE),
            }
            if options.segment_aware:
                asked = text.positions[: len(question_ids)]
                lists |= _position_lists(asked, passage.positions[part])
            yield Row(numbers, lists)

    def _room(self, question: Question, num_question_tokens: int, num_tokens: int) -> int:
        """The number of tokens of the passage in a row with this question."""
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
        """Packs a row; returns it, and where the passage and the second segment begin."""
        is_question_first = self._options.question_first
        parts = [question_ids, passage_ids] if is_question_first else [passage_ids, question_ids]
        row, second_start = self._pack_segments(*parts)
        return row, second_start if is_question_first else 1, second_start

    def _answer_tokens(
        self, question: Question, located: Sequence[Located], passage: TokenizedText
    ) -> tuple[int, int] | None:
        """First and last token of the first answer that is found. It counts all answers."""
        context = self._questions.contexts[question.context_index]
        spans = []
        for answer, outcome, location in located:
            span = location and passage.span(*location)
            if span is None:
                outcome = Outcome.LOST
                if len(self._lost) < _SHOWN_LOST:
                    self._lost.append(
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

    [CLS] has the position where the question begins. Each [SEP] is the next token of the sentence
    before it, as in `data.rows.segment_aware_indices`.
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


def window_starts(num_tokens: int, length: int, stride: int) -> np.ndarray:
    """The first token of each window, int64 [W]; the last is the first that reaches the end."""
    num_windows = 1 + -(-max(num_tokens - length, 0) // stride)
    return np.arange(num_windows) * stride


def windows_with_most_context(starts: np.ndarray, num_tokens: int, length: int) -> np.ndarray:
    """The window in which each token has the most text around it, int64 [T].

    A token stands in several windows; predictions count only in the window where the smaller of
    the text before and after it is largest; of equal ones, in the longer window, then the first
    (Devlin et al., 2019, code for SQuAD).
    """
    tokens = np.arange(num_tokens)
    last = np.searchsorted(starts, tokens, side="right") - 1  # that a token stands in
    best, best_score = last, np.full(num_tokens, -1.0)
    # A token is in few windows, however long the passage; from the last one back to the first.
    for back in range(_num_overlapping(starts, length)):
        window = np.maximum(last - back, 0)
        ends = np.minimum(starts[window] + length, num_tokens)  # exclusive
        before, after = tokens - starts[window], ends - 1 - tokens
        score = np.minimum(before, after) + 0.01 * (ends - starts[window])
        is_better = (after >= 0) & (score >= best_score)
        best = np.where(is_better, window, best)
        best_score = np.where(is_better, score, best_score)
    return best


def _num_overlapping(starts: np.ndarray, length: int) -> int:
    """How many windows a token stands in at most."""
    stride = int(starts[1]) if len(starts) > 1 else length
    return -(-length // stride)
