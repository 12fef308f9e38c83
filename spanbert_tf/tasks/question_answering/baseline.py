"""Answers without any training, to see what a score is worth."""

import difflib
import re

from spanbert_tf.tasks.question_answering.dataset import load_contexts, load_questions
from spanbert_tf.tasks.question_answering.decoding import AnsweredQuestion, Candidate

# The best of 1, 2, 3, 5 and 8 on SquadShifts' new Wikipedia questions.
_ANSWER_WORDS = 8
_WORD = re.compile(r"\w+")


def answer_by_overlap(directory: str) -> list[AnsweredQuestion]:
    """Answers with the eight words after the longest n-gram that passage and question share.

    If the passage ends there, the words before it. Case does not matter; the first of several
    n-grams of that length counts. No question counts as unanswerable.

    Args:
        directory: what `prepare squad` or `prepare mrqa` wrote.

    Returns:
        In the order of `questions.jsonl`.

    Raises:
        BadInputError: a file cannot be read.
    """
    contexts = load_contexts(directory)
    answered = []
    for line in load_questions(directory):
        context = contexts[line["context_index"]]
        start, end = _window(line["question"], context)
        candidate = Candidate(context[start:end], start, end, score=0.0, probability=1.0)
        answered.append(AnsweredQuestion(line["id"], (candidate,), null_score=-1.0))
    return answered


def _window(question: str, context: str) -> tuple[int, int]:
    """The characters of the answer; none for a passage without words."""
    words = list(_WORD.finditer(context))
    passage, asked = (
        [word.group().lower() for word in _WORD.finditer(text)] for text in (context, question)
    )
    shared = difflib.SequenceMatcher(None, passage, asked, autojunk=False).find_longest_match()
    after = shared.a + shared.size
    chosen = words[after : after + _ANSWER_WORDS]
    chosen = chosen or words[max(shared.a - _ANSWER_WORDS, 0) : shared.a] or words[-1:]
    return (chosen[0].start(), chosen[-1].end()) if chosen else (0, 0)
