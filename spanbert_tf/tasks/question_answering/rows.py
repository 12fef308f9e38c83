"""Makes rows of questions, for `prepare squad` and `prepare mrqa`.

A row is `[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1), or has the question first.
The graph of `data.windows`, which exports also use, packs the rows.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.records import POSITION_DTYPE, ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.data.windows import PlannedWindows, WindowPacker, Windows
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
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
    QuestionAnsweringManifest,
)
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.positions import SegmentPositions
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import SpecialTokenIds, TextRules

_SHOWN_LOST = 5
_QUESTIONS_AT_ONCE = 256
_WINDOWS_AT_ONCE = 512
_COUNTS = (
    "windows",
    "training_windows",
    "untrained_questions",
    "cut_questions",
    "empty_questions",
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
) -> QuestionAnsweringManifest:
    """Writes the records of questions, completely or not at all.

    Args:
        questions: questions of one file.
        output: directory that is new or empty.
        options: options of the rows.
        **others: as for `write_task_records`: `preset`, or `vocabulary`, `lowercase` and
            `strip_accents`; `overwrite`.

    Returns:
        The manifest. Its `counts` are:

        - `questions`, `contexts`, `windows`, their `tokens`, `cut_questions`, and
          `empty_questions`, which have no text;
        - for answers: `answers`, `found`, `repaired`, `lost`, and `round_trips`, the answers whose
          tokens give the same text again;
        - `untrained_questions`: questions whose answers are all lost, or that have no answers while
          `has_unanswerable` is false. They are scored, but not trained; their windows follow the
          `training_windows`;
        - `unanswered_questions`: questions without a gold answer;
        - `unlabelled_questions`: unanswered questions of which the file does not say that they have
          no answer, as in a test set.

    Raises:
        BadInputError: the questions cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    if options.segment_aware and not options.question_first:
        raise BadInputError("--segment-aware: the question is paragraph 0; add --question-first")
    check_questions(questions)
    maker = QuestionRows(questions, options)
    return write_task_records(maker, output, sequence_length=options.sequence_length, **others)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A question and its passage, in word pieces.

    Attributes:
        index: index of the question.
        text: word pieces of the question.
        passage: word pieces of its context.
        answer: first and last token of the answer in the passage; `None` without one.
        is_trained: whether its windows are trained.
    """

    index: int
    text: TokenizedText
    passage: TokenizedText
    answer: tuple[int, int] | None
    is_trained: bool


class QuestionRows(RowMaker[QuestionAnsweringManifest]):
    """Makes the rows of questions, and counts questions and answers."""

    manifest_class = QuestionAnsweringManifest
    title = "records of questions"

    def __init__(self, questions: QuestionSet, options: QuestionOptions) -> None:
        super().__init__()
        self._questions = questions
        self._options = options
        self._lost: list[str] = []  # lines on the first lost answers, to print
        self._num_packed = 0  # questions, for the progress bar
        self.counts.update(dict.fromkeys(_COUNTS, 0))
        self.counts["contexts"] = len(questions.contexts)
        self.counts["questions"] = len(questions.questions)
        self._question_lines: list[dict] = []
        self.lines[QUESTIONS_FILE] = self._question_lines
        self.lines[CONTEXTS_FILE] = questions.contexts

    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields a row for each question and each window of its passage."""
        tokenize = TextTokenizer(pieces, text_rules, segment_aware=self._options.segment_aware)
        contexts = self._questions.contexts
        questions = self._questions.questions
        tokenized = tokenize(contexts, first_paragraph=1)
        passages = list(show_progress(tokenized, len(contexts), "contexts"))
        texts = list(tokenize([question.text.replace("\n", " ") for question in questions]))
        answers = [self._answer(question, passages) for question in questions]
        self._count_unlabelled()
        asked: list[_Asked] = []
        for index, question in enumerate(questions):
            passage = passages[question.context_index]
            is_trained = self._is_trained(question, answers[index])
            self.counts["untrained_questions"] += not is_trained
            self.counts["empty_questions"] += not question.text.strip()
            asked.append(_Asked(index, texts[index], passage, answers[index], is_trained))
        asked.sort(key=lambda question: not question.is_trained)  # stable
        rows = self._packed(asked, self._packer(pieces, sequence_length))
        yield from show_progress(rows, len(asked), "questions", done=lambda: self._num_packed)

    def described(self) -> dict[str, Any]:
        """Returns the options that the manifest stores."""
        names = ("stride", "question_first", "has_unanswerable", "segment_aware")
        return {name: getattr(self._options, name) for name in names}

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """Returns the counts, in which rows are `windows`."""
        return {**self.counts, "tokens": written["tokens"]}

    def summary(self, manifest: QuestionAnsweringManifest, seconds: float) -> Iterator[str]:
        """Yields the numbers of questions, contexts, windows and answers."""
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
        if counts["empty_questions"]:
            number = counts["empty_questions"]
            yield f"without text: {number:,} questions, whose rows have the passage alone"

    def _answer(
        self, question: Question, passages: Sequence[TokenizedText]
    ) -> tuple[int, int] | None:
        """Returns first and last token of a question's answer, and adds the question's line."""
        passage = passages[question.context_index]
        if not len(passage.token_ids):
            raise BadInputError(
                f"{self._questions.path}: question {question.id!r}: its context has no tokens"
            )
        located = self._located(question)
        self._question_lines.append(_line(question, located))
        return self._answer_tokens(question, located, passage)

    def _count_unlabelled(self) -> None:
        """Counts the unanswered and the unlabelled questions."""
        for question in self._questions.questions:
            self.counts["unanswered_questions"] += not question.gold_texts
            self.counts["unlabelled_questions"] += not (
                question.gold_texts or question.is_impossible
            )

    def _is_trained(self, question: Question, answer: tuple[int, int] | None) -> bool:
        """Whether a question is trained; not if its answers are lost, as in the original code."""
        if answer is not None:
            return True
        # In some files an empty list of answers means that a question has no answer. In a test set
        # all lists are empty, which means nothing.
        is_labelled = self.counts["unlabelled_questions"] < len(self._questions.questions)
        return self._options.has_unanswerable and is_labelled and not question.gold_texts

    def _located(self, question: Question) -> list[Located]:
        """Finds the answers of a question in its context."""
        context = self._questions.contexts[question.context_index]
        return [(answer, *locate_answer(context, answer)) for answer in question.answers]

    def _packer(self, pieces: Sequence[str], sequence_length: int) -> WindowPacker:
        """Returns what packs questions and passages as windows."""
        special = SpecialTokenIds.from_vocabulary(pieces)
        return WindowPacker(
            special.start,
            special.end,
            special.pad,
            sequence_length=sequence_length,
            stride=self._options.stride,
            max_question_tokens=MAX_QUESTION_TOKENS,
            question_first=self._options.question_first,
        )

    def _packed(self, asked: Sequence[_Asked], pack: WindowPacker) -> Iterator[Row]:
        """Yields the rows of questions; they are packed a few at a time."""
        for first in range(0, len(asked), _QUESTIONS_AT_ONCE):
            batch = asked[first : first + _QUESTIONS_AT_ONCE]
            for question in batch:
                self._check_room(question)
                self.counts["cut_questions"] += len(question.text.token_ids) > MAX_QUESTION_TOKENS
            planned = self._plan(batch, pack)
            num_windows = int(planned.num_windows)
            for first_window in range(0, num_windows, _WINDOWS_AT_ONCE):
                end = min(first_window + _WINDOWS_AT_ONCE, num_windows)
                packed = planned.pack(tf.range(first_window, end))
                windows = tf.nest.map_structure(np.asarray, packed)
                for row, index in enumerate(windows.question_index):
                    self.counts["windows"] += 1
                    self.counts["training_windows"] += batch[index].is_trained
                    yield _stored_row(windows, row, batch[index])
            self._num_packed += len(batch)

    def _plan(self, asked: Sequence[_Asked], pack: WindowPacker) -> PlannedWindows:
        """Plans the windows of some questions."""
        texts = [each.text for each in asked]
        passages = [each.passage for each in asked]
        positions = None
        if self._options.segment_aware:
            positions = _ragged_positions(texts), _ragged_positions(passages)
        return pack.plan(
            _ragged([text.token_ids for text in texts]),
            _ragged([passage.token_ids for passage in passages]),
            positions,
        )

    def _check_room(self, asked: _Asked) -> None:
        """Raises `BadInputError` for a question that leaves too little room for its passage."""
        options = self._options
        num_question_tokens = min(len(asked.text.token_ids), MAX_QUESTION_TOKENS)
        room = options.sequence_length - 3 - num_question_tokens  # [CLS], [SEP], [SEP]
        if room < 1 or (len(asked.passage.token_ids) > room and room < options.stride):
            question = self._questions.questions[asked.index]
            raise BadInputError(
                f"{self._questions.path}: question {question.id!r}: leaves room for "
                f"{max(room, 0)} tokens of its context in a row, less than --stride "
                f"({options.stride}); give a larger --sequence-length or a smaller --stride"
            )

    def _answer_tokens(
        self, question: Question, located: Sequence[Located], passage: TokenizedText
    ) -> tuple[int, int] | None:
        """Returns first and last token of the first answer that is found; counts all answers."""
        context = self._questions.contexts[question.context_index]
        spans = []
        for answer, how_located, location in located:
            outcome = how_located
            span = None if location is None else passage.span(location.start, location.end)
            if location is None or span is None:
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


def _ragged_positions(texts: Sequence[TokenizedText]) -> SegmentPositions:
    """Returns the positions of texts as ragged tensors."""
    columns = []
    for column in range(len(SegmentPositions._fields)):
        columns.append(_ragged([text.positions[:, column] for text in texts]))
    return SegmentPositions(*columns)


def _ragged(rows: Sequence[np.ndarray]) -> tf.RaggedTensor:
    """Returns rows of different lengths as a ragged tensor."""
    lengths = [len(row) for row in rows]
    return tf.RaggedTensor.from_row_lengths(np.concatenate(rows), lengths)


def _stored_row(windows: Windows, row: int, asked: _Asked) -> Row:
    """Returns a window as it is stored.

    Args:
        windows: packed windows, as arrays.
        row: index of the window.
        asked: its question.
    """
    length = int(windows.padding_mask[row].sum())
    places = np.flatnonzero(windows.passage_tokens[row] >= 0)
    tokens = windows.passage_tokens[row, places]
    part = slice(tokens[0], tokens[-1] + 1)  # of the passage
    shift = places[0] - tokens[0]
    first, last = asked.answer or (-1, -1)
    is_inside = part.start <= first and last < part.stop
    numbers = {
        QUESTION_INDEX: asked.index,
        PASSAGE_START: int(places[0]),
        SECOND_START: length - int(windows.segment_ids[row].sum()),
        START_POSITION: int(first + shift) if is_inside else 0,
        END_POSITION: int(last + shift) if is_inside else 0,
    }
    lists = {
        ROW_TOKEN_IDS: windows.token_ids[row, :length],
        OFFSET_STARTS: asked.passage.starts[part].astype(OFFSET_DTYPE),
        OFFSET_ENDS: asked.passage.ends[part].astype(OFFSET_DTYPE),
        HAS_MOST_CONTEXT: windows.has_most_context[row, places].astype(FLAG_DTYPE),
    }
    for name, positions in windows.segment_positions.items():
        lists[name] = positions[row, :length].astype(POSITION_DTYPE)
    return Row(numbers, lists)


def _line(question: Question, located: Sequence[Located]) -> dict:
    """Returns a line of `questions.jsonl`."""
    gold_spans = {location for _, _, location in located if location}
    return {
        "id": question.id,
        "question": question.text,
        "context_index": question.context_index,
        "gold_texts": list(question.gold_texts),
        "gold_spans": sorted(gold_spans),
        "is_impossible": question.is_impossible,
    }
