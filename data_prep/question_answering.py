"""Writes questions as packed rows: what `prepare squad` and `prepare mrqa` share.

`[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1), or the question first. Offsets are
those of the project's one tokenizer.
"""

import collections
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from data_prep.answers import Location, Outcome, locate_answer, token_span
from data_prep.example_features import serialize_features
from data_prep.passage_windows import has_most_context, window_starts
from data_prep.questions import Answer, Question, QuestionSet, check_questions
from data_prep.tokenized_text import TextTokenizer, TokenizedText
from spanbert_tf.data import question_answering_schema as schema
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype, vocabulary_hash
from spanbert_tf.errors import BadInputError
from spanbert_tf.vocabulary import END_TOKEN, START_TOKEN, check_case, load_vocabulary
from spanbert_tf.whole_directory import write_directory

_SHOWN_LOST = 5

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
    options: QuestionOptions,
) -> schema.QuestionAnsweringInfo:
    """Writes a directory of rows, questions and contexts; it appears whole or not at all.

    Args:
        questions: of one file.
        output: directory that does not exist.
        vocabulary: path of a WordPiece vocabulary.
        lowercase: lower-case the text and strip accents; must suit the vocabulary.
        options: of the rows.

    Returns:
        The description that was written. Its `counts` tell `questions`, `contexts`, `windows`,
        `tokens` in them, `cut_questions`, and of the answers `answers`, `found`, `repaired`,
        `lost`, `round_trips` (those whose tokens give back the same text), and
        `untrained_questions`, whose answers are all lost.

    Raises:
        BadInputError: the questions cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    started = time.monotonic()
    if options.segment_aware and not options.question_first:
        raise BadInputError("--segment-aware: the question is paragraph 0; add --question-first")
    check_questions(questions)
    if os.path.exists(output):
        raise BadInputError(f"{output}: exists already; name another --output")
    pieces = load_vocabulary(vocabulary)
    check_case(pieces, vocabulary, lowercase)
    writer = _Writer(questions, pieces, lowercase, options)

    def write(unfinished: str) -> None:
        writer.write(unfinished)
        info = schema.QuestionAnsweringInfo(
            vocabulary_hash=vocabulary_hash(pieces),
            vocabulary_size=len(pieces),
            lowercase=lowercase,
            sequence_length=options.sequence_length,
            stride=options.stride,
            question_first=options.question_first,
            has_unanswerable=options.has_unanswerable,
            segment_aware=options.segment_aware,
            counts=dict(writer.counts),
        )
        _write_text(unfinished, VOCABULARY_FILE, "".join(f"{piece}\n" for piece in pieces))
        _write_text(unfinished, schema.INFO_FILE, info.to_json())

    write_directory(output, write)
    _print_summary(output, writer, time.monotonic() - started)
    return schema.QuestionAnsweringInfo.load(output)


class _Writer:
    """Writes the rows of a set of questions and counts what became of them."""

    def __init__(
        self,
        questions: QuestionSet,
        pieces: Sequence[str],
        lowercase: bool,
        options: QuestionOptions,
    ) -> None:
        self.counts = collections.Counter(
            dict.fromkeys(("cut_questions", "found", "repaired", "lost", "round_trips"), 0)
        )
        self.lost: list[str] = []  # the first ones, for people
        self._questions = questions
        self._options = options
        self._tokenize = TextTokenizer(
            pieces, lowercase=lowercase, segment_aware=options.segment_aware
        )
        self._start, self._end = pieces.index(START_TOKEN), pieces.index(END_TOKEN)
        self._id_dtype = f"<{np.dtype(token_id_dtype(len(pieces))).str[1:]}"

    def write(self, directory: str) -> None:
        contexts, questions = self._questions.contexts, self._questions.questions
        self.counts.update(contexts=len(contexts), questions=len(questions))
        passages = list(self._tokenize(contexts, first_paragraph=1))
        texts = self._tokenize([question.text.replace("\n", " ") for question in questions])
        path, lines = os.path.join(directory, schema.WINDOWS_FILE), []
        with tf.io.TFRecordWriter(path) as writer:
            for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
                passage = passages[question.context_index]
                if not len(passage.token_ids):
                    raise BadInputError(
                        f"{self._questions.path}: question {question.id!r}: its context has no "
                        "tokens"
                    )
                located = self._located(question)
                lines.append(_line(question, located))
                answer = self._answer_tokens(question, located, passage)
                for example in self._windows(number, question, text, passage, answer):
                    writer.write(example)
                    self.counts["windows"] += 1
        for name, values in ((schema.QUESTIONS_FILE, lines), (schema.CONTEXTS_FILE, contexts)):
            _write_text(directory, name, "".join(f"{json.dumps(value)}\n" for value in values))

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
    ) -> Iterator[bytes]:
        options, num_tokens = self._options, len(passage.token_ids)
        self.counts["cut_questions"] += len(text.token_ids) > options.max_question_tokens
        question_ids = text.token_ids[: options.max_question_tokens]
        length = self._room(question, len(question_ids), num_tokens)
        starts = window_starts(num_tokens, length, options.stride)
        most = has_most_context(starts, num_tokens, length)  # [W, T]
        for start, is_best in zip(starts.tolist(), most, strict=True):
            part = slice(start, min(start + length, num_tokens))
            row, passage_start, second_start = self._pack(passage.token_ids[part], question_ids)
            first, last = answer or (-1, -1)
            is_inside = part.start <= first and last < part.stop
            shift = passage_start - part.start
            self.counts["tokens"] += len(row)
            numbers = {
                schema.QUESTION_INDEX: number,
                schema.PASSAGE_START: passage_start,
                schema.SECOND_START: second_start,
                schema.START_POSITION: first + shift if is_inside else 0,
                schema.END_POSITION: last + shift if is_inside else 0,
            }
            lists = {
                schema.WINDOW_TOKEN_IDS: row.astype(self._id_dtype),
                schema.OFFSET_STARTS: passage.starts[part].astype(schema.OFFSET_DTYPE),
                schema.OFFSET_ENDS: passage.ends[part].astype(schema.OFFSET_DTYPE),
                schema.HAS_MOST_CONTEXT: is_best[part].astype(schema.FLAG_DTYPE),
            }
            if options.segment_aware:
                asked = text.positions[: len(question_ids)]
                lists |= _position_lists(asked, passage.positions[part])
            yield serialize_features(
                numbers, {name: values.tobytes() for name, values in lists.items()}
            )

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
        row = np.concatenate([[self._start], parts[0], [self._end], parts[1], [self._end]])
        second_start = 2 + len(parts[0])
        return row, second_start if is_question_first else 1, second_start

    def _answer_tokens(
        self, question: Question, located: Sequence[Located], passage: TokenizedText
    ) -> tuple[int, int] | None:
        """Tokens of the first answer that can be found; counts all of them."""
        context, spans = self._questions.contexts[question.context_index], []
        for answer, outcome, location in located:
            span = location and token_span(location, passage.starts, passage.ends)
            if span is None:
                outcome = Outcome.LOST
                if len(self.lost) < _SHOWN_LOST:
                    self.lost.append(
                        f"{self._questions.path}: question {question.id!r}: {answer.text!r} is not "
                        f"at character {answer.start} of its context"
                    )
            else:
                text = context[passage.starts[span[0]] : passage.ends[span[1]]]
                self.counts["round_trips"] += text == answer.text.strip()
                spans.append(span)
            self.counts[outcome.value] += 1
            self.counts["answers"] += 1
        if question.answers and not spans:
            self.counts["untrained_questions"] += 1
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
    columns = np.concatenate(rows).astype(schema.POSITION_DTYPE).T  # [3, S]
    return dict(zip(schema.SEGMENT_POSITIONS, columns, strict=True))


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


def _write_text(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(text)


def _print_summary(output: str, writer: _Writer, seconds: float) -> None:
    counts = writer.counts
    print(
        f"{output}: {counts['questions']:,} questions about {counts['contexts']:,} contexts in "
        f"{counts['windows']:,} windows, in {seconds:.1f} s"
    )
    if counts["answers"]:
        kept = counts["found"] + counts["repaired"]
        share = counts["round_trips"] / counts["answers"]
        print(
            f"answers: {counts['answers']:,}, of which {counts['found']:,} found, "
            f"{counts['repaired']:,} repaired, {counts['lost']:,} lost; {share:.2%} come back as "
            f"the same text from their tokens ({kept - counts['round_trips']:,} begin or end "
            "inside a token)"
        )
    for line in writer.lost:
        print(f"  {line}")
