"""Raw inputs of a task: checks them and works on them in batches of similar length."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.process.progress import show_progress

_BATCH_SIZE = 32

Result = TypeVar("Result")


def check_raw_inputs(inputs: Sequence[dict], names: Sequence[str], place: str = "input") -> None:
    """Checks that each input has the task's fields, which are texts.

    Args:
        inputs: dicts.
        names: names of the fields.
        place: what to call an input in errors, with its number: `"input 3"`.

    Raises:
        BadInputError: an input is not a dict, or lacks a field.
    """
    for number, item in enumerate(inputs, start=1):
        if not isinstance(item, dict):
            raise BadInputError(f"{place} {number}: is no object with {', '.join(names)}")
        for name in names:
            if not isinstance(item.get(name), str):
                raise BadInputError(f"{place} {number}: has no text {name!r}")


def string_tensor(inputs: Sequence[dict], name: str) -> tf.Tensor:
    """The texts of a field, string [N]; halves of surrogate pairs, which JSON may have, are `?`."""
    return tf.constant([item[name].encode("utf-8", "replace") for item in inputs], tf.string)


def in_batches_by_length(
    inputs: Sequence[dict],
    names: Sequence[str],
    work: Callable[[Sequence[dict]], Sequence[Result]],
) -> list[Result]:
    """Works on inputs of similar length together, with a bar on a terminal.

    Args:
        inputs: dicts of texts.
        names: fields whose lengths matter.
        work: batch → a result for each input.

    Returns:
        The results in the order of the inputs.

    Raises:
        BadInputError: as `check_raw_inputs`.
    """
    check_raw_inputs(inputs, names)
    lengths = [sum(len(item[name]) for name in names) for item in inputs]
    order = sorted(range(len(inputs)), key=lambda number: -lengths[number])
    results: list[Result | None] = [None] * len(inputs)
    starts = range(0, len(order), _BATCH_SIZE)
    for start in show_progress(starts, len(starts), "batches", doing="predicting"):
        numbers = order[start : start + _BATCH_SIZE]
        for number, result in zip(numbers, work([inputs[n] for n in numbers]), strict=True):
            results[number] = result
    return results
