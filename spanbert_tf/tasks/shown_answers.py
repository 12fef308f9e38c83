"""Answers that notebooks show in their texts.

They are the lists and dicts that pipelines return, and say how they look as HTML.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import markupsafe

from spanbert_tf.tasks.report import render_answers

_MOST_SHOWN = 20  # answers of a list: a notebook keeps what it shows


class View(NamedTuple):
    """What is shown of an answer.

    Attributes:
        texts: texts with their marks.
        shares: names and probabilities.
    """

    texts: Sequence[markupsafe.Markup] = ()
    shares: Sequence[tuple[str, float]] = ()


def shares_of(answer: dict | list[dict]) -> list[tuple[str, float]]:
    """Returns the labels of an answer and their probabilities."""
    answers = [answer] if isinstance(answer, dict) else answer
    return [(one["label"], one["score"]) for one in answers]


class AnswerList(list):
    """A list of answers, or of the parts of one.

    Args:
        answer: the answers.
        views: makes what is shown of them.
    """

    def __init__(self, answer: Iterable, views: Callable[[], list[View]]) -> None:
        super().__init__(answer)
        self.views = views

    def _repr_html_(self) -> str | None:
        return _html(self.views())

    def __reduce__(self) -> tuple:
        """A copy is a plain list."""
        return list, (list(self),)


class AnswerDict(dict):
    """An answer.

    Args:
        answer: its items.
        views: makes what is shown of it.
    """

    def __init__(self, answer: dict, views: Callable[[], list[View]]) -> None:
        super().__init__(answer)
        self.views = views

    def _repr_html_(self) -> str | None:
        return _html(self.views())

    def __reduce__(self) -> tuple:
        """A copy is a plain dict."""
        return dict, (dict(self),)


def shown(answer: Any, view: Callable[[Any], View]) -> Any:
    """Returns an answer that notebooks show, if it is a list or a dict.

    Args:
        answer: the answer.
        view: makes what is shown of it.
    """
    make_views = functools.partial(_one_view, view, answer)
    if isinstance(answer, list):
        return AnswerList(answer, make_views)
    return AnswerDict(answer, make_views) if isinstance(answer, dict) else answer


def shown_list(answers: list) -> AnswerList:
    """Returns a list of answers to several inputs, of which notebooks show the first ones."""

    def views() -> list[View]:
        first = answers[:_MOST_SHOWN]
        of_answers = [one.views() for one in first if isinstance(one, AnswerList | AnswerDict)]
        shown_views = list(itertools.chain.from_iterable(of_answers))
        num_more = len(answers) - len(first)
        if shown_views and num_more:
            shown_views.append(View([markupsafe.Markup(f"… {num_more:,} more")], []))
        return shown_views

    return AnswerList(answers, views)


def _one_view(view: Callable[[Any], View], answer: Any) -> list[View]:
    return [view(answer)]


def _html(views: list[View]) -> str | None:
    """Renders views; `None`, for which notebooks show the text, if they show nothing."""
    return str(render_answers(views)) if any(map(any, views)) else None
