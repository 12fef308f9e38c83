"""Raw inputs of a task: checks them and works on them in batches of similar length."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.terminal import show_progress

BATCH_SIZE = 32
TEXT_ALONE = ("text",)  # the fields of a task of one text
_MAX_CHARACTERS = 2**20  # of a batch, padding counted; word pieces of longer ones fill memory

Result = TypeVar("Result")


class RawInputError(BadInputError):
    """An input cannot be used.

    Args:
        number: its number, from 1.
        problem: what is wrong with it.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"input {number}: {problem}")
        self.number = number
        self.problem = problem


@contextlib.contextmanager
def input_place(number: int) -> Iterator[str]:
    """The place of an input, for errors that name one; they come out as `RawInputError`.

    Args:
        number: its number, from 1.
    """
    place = f"input {number}"
    try:
        yield place
    except BadInputError as error:
        raise RawInputError(number, str(error).removeprefix(f"{place}: ")) from error


def as_dicts(inputs: Iterable[str | dict], fields: Sequence[str], task: str) -> list[dict]:
    """Inputs as dicts: a string is the `text` of a task that reads one text.

    Args:
        inputs: strings and dicts; what dicts hold is the task's to check.
        fields: names of the fields that an input must have.
        task: name of the task, for errors.

    Raises:
        RawInputError: an input is a string, and the task reads more; or it is neither.
    """
    wanted = f"{task} reads dicts of {' and '.join(fields)}"
    if tuple(fields) == TEXT_ALONE:
        wanted = f"{task} reads strings, or dicts of text"
    dicts = []
    for number, item in enumerate(inputs, start=1):
        if isinstance(item, str) and tuple(fields) == TEXT_ALONE:
            item = {"text": item}
        if not isinstance(item, dict):
            raise RawInputError(number, f"is of type {type(item).__name__}; {wanted}")
        dicts.append(item)
    return dicts


def check_raw_inputs(inputs: Sequence[dict], names: Sequence[str]) -> None:
    """Checks that each input has the task's fields, which are texts.

    Args:
        inputs: dicts.
        names: names of the fields.

    Raises:
        RawInputError: an input is not a dict, or lacks a field.
    """
    for number, item in enumerate(inputs, start=1):
        if not isinstance(item, dict):
            raise RawInputError(number, f"is no object with {', '.join(names)}")
        for name in names:
            if not isinstance(item.get(name), str):
                raise RawInputError(
                    number, f"has no text {name!r}; an input has {' and '.join(names)}"
                )


def string_tensor(inputs: Sequence[dict], name: str) -> tf.Tensor:
    """The texts of a field, string [N]; halves of surrogate pairs, which JSON may have, are `?`."""
    return tf.constant([item[name].encode("utf-8", "replace") for item in inputs], tf.string)


def in_batches_by_length(
    inputs: Sequence[dict],
    names: Sequence[str],
    work: Callable[[Sequence[dict]], Sequence[Result]],
    *,
    batch_size: int = BATCH_SIZE,
    max_characters: int = _MAX_CHARACTERS,
) -> list[Result]:
    """Works on inputs of similar length together, with a bar on a terminal.

    Args:
        inputs: dicts of texts.
        names: fields whose lengths matter.
        work: batch → a result for each input.
        batch_size: inputs of a batch at most.
        max_characters: characters of a batch at most, if each input were as long as the longest;
            a longer input is a batch of its own.

    Returns:
        The results in the order of the inputs.

    Raises:
        RawInputError: as `check_raw_inputs`.
    """
    check_raw_inputs(inputs, names)
    lengths = [sum(len(item[name]) for name in names) for item in inputs]
    batches = _batches(lengths, batch_size, max_characters)
    results: list[Result | None] = [None] * len(inputs)
    for numbers in show_progress(batches, len(batches), "batches", doing="predicting"):
        for number, result in zip(numbers, work([inputs[n] for n in numbers]), strict=True):
            results[number] = result
    return results


def _batches(lengths: Sequence[int], batch_size: int, max_characters: int) -> list[Sequence[int]]:
    """Numbers of the inputs of each batch, the longest first."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batches = []
    while order:
        fitting = max_characters // max(lengths[order[0]], 1)
        size = max(min(fitting, batch_size), 1)
        batches.append(order[:size])
        order = order[size:]
    return batches
