"""Predictions for raw inputs: `spanbert_tf.predictor` and `spanbert-tf predict --input`."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator

import keras_hub

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.outputs import OutputKind, check_output_file
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.files.writing import write_output
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.models.keras_hub_presets import is_task_preset
from spanbert_tf.presets.loading import load_trained
from spanbert_tf.tasks.fill_mask import fill_masks
from spanbert_tf.tasks.raw_inputs import BATCH_SIZE, TEXT_ALONE, RawInputError, as_dicts
from spanbert_tf.tasks.task import task_of_preset
from spanbert_tf.terminal import print_line

SOURCE_FORMATS = ("jsonlines", "text")
_ADVICE = (
    "a line is an object of the task's fields; for plain texts, a line each, give --format text"
)
_PREDICTIONS = OutputKind("predictions", "")
_SHOWN_LABELS = 20
_KEYS = {"score", "clusters"}  # one of which each prediction has, and no raw input


class Predictor:
    """Predicts for raw inputs, as the `transformers` pipeline of the task does.

    Args:
        preset: name of the preset of a fine-tuned model, or of a pre-trained one, which fills in
            masks.
        precision: of weights and computations, as for `load_trained`.

    Call arguments:
        inputs: a dict of the task's natural fields, such as `{"question": …, "context": …}`, or
            several, in a list or anything else that can be gone through. For a task that reads one
            text (`fields` is `text` alone), a string is as good as a dict.
        top_k: predictions for each input; by default as many as the pipeline gives.
        batch_size: inputs that are worked on together at most.

    Returns:
        What the pipeline returns: for one input its prediction, for a list a list of them.

    Attributes:
        preset: its name.
        task: name of the task; `fill_mask` for a pre-trained model.
        fields: names of the fields that an input must have.
        labels: names of the classes, where the task has some.

    Raises:
        BadInputError: the preset cannot be used or was never trained, or an input lacks a field.

    Example:
    ```python
    answer = spanbert_tf.predictor("runs/squad/preset")
    answer([{"question": "Who sat?", "context": "The cat sat on the mat."}])
    ```
    """

    def __init__(self, preset: str | os.PathLike, precision: str = "float32") -> None:
        self._functions: dict[int | None, Callable[..., list]] = {}  # traced once each
        self.preset = preset = os.fspath(preset)
        task = task_of_preset(preset)
        if task is not None:
            self._model: keras_hub.models.Task = load_trained(task.model_class, preset, precision)
            self.task, self._from_raw = task.name, task.from_raw
            self.fields = tuple(task.fields(self._model))
        elif is_task_preset(preset, SpanBertMaskedLM):
            self._model = load_trained(SpanBertMaskedLM, preset, precision)
            self.task, self._from_raw, self.fields = "fill_mask", fill_masks, TEXT_ALONE
        else:
            raise BadInputError(
                f"{preset}: holds an encoder and no trained head; fine-tune it first"
            )
        self.labels: tuple[str, ...] = tuple(getattr(self._model, "labels", None) or ())

    def __repr__(self) -> str:
        parts = [f"{self.preset!r}", f"task={self.task!r}", f"fields={self.fields!r}"]
        if self.labels:
            more = len(self.labels) - _SHOWN_LABELS
            shown = ", ".join(map(repr, self.labels[:_SHOWN_LABELS]))
            parts.append(f"labels=({shown}{f', … {more} more' if more > 0 else ''})")
        return f"Predictor({', '.join(parts)})"

    def __call__(
        self,
        inputs: str | dict | Iterable[str | dict],
        top_k: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list | dict:
        """Predicts; see the class."""
        if top_k not in self._functions:
            options = {} if top_k is None else {"top_k": top_k}
            self._functions[top_k] = self._from_raw(self._model, **options)
        predict = self._functions[top_k]
        is_single = isinstance(inputs, str | dict)
        if not (is_single or isinstance(inputs, Iterable)) or isinstance(inputs, bytes):
            inputs = [inputs]  # is refused
        dicts = as_dicts([inputs] if is_single else inputs, self.fields, self.task)
        found = predict(dicts, batch_size=batch_size)
        return found[0] if is_single else found


def predict_lines(
    preset: str,
    source: str,
    output: str,
    *,
    source_format: str = "jsonlines",
    top_k: int | None = None,
    batch_size: int = BATCH_SIZE,
    precision: str = "float32",
    overwrite: bool = False,
) -> None:
    """Reads lines of raw inputs and writes a line of predictions for each.

    Args:
        preset: as for `Predictor`.
        source: path of the lines, or `-` for standard input; UTF-8, whatever the locale.
        output: path of the predictions, or `-` for standard output; UTF-8, too.
        source_format: one of `SOURCE_FORMATS`: `"jsonlines"`, objects of the task's fields, blank
            lines passed over; `"text"`, a text a line, blank ones too, so that the predictions'
            lines are those of the texts.
        top_k: as for `Predictor`.
        batch_size: as for `Predictor`.
        precision: as for `Predictor`.
        overwrite: whether an earlier output may be replaced.

    Raises:
        BadInputError: a line is no JSON object with the task's fields, or a text of a task that
            reads more; or the output exists or cannot be written.
    """
    if output != "-":
        output = check_output_file(output, _PREDICTIONS, _holds_predictions, overwrite=overwrite)
    lines = dict(_read_lines(source, source_format))
    inputs = list(lines.values())
    predict = Predictor(preset, precision)
    if source_format == "text" and predict.fields != TEXT_ALONE:
        raise BadInputError(
            f"{_name(source)}: holds texts (--format text), and {predict.task} reads "
            f"{' and '.join(predict.fields)}; write JSON lines of these fields"
        )
    try:
        predictions = predict(inputs, top_k, batch_size)
    except RawInputError as error:
        line = list(lines)[error.number - 1]
        raise BadInputError(f"{_name(source)}: line {line}: {error.problem}") from error
    text = "".join(json.dumps(found, ensure_ascii=False) + "\n" for found in predictions)
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # halves of surrogate pairs
        sys.stdout.buffer.flush()
        return
    write_output(output, text)
    print_line(f"{output}: predictions for {len(inputs):,} inputs")


def _holds_predictions(path: str) -> bool:
    """Whether the first line of a file is a prediction, or a list of such."""
    try:
        with open(path, encoding="utf-8") as file:
            found = parse_json(file.readline(), object, path)
    except (BadInputError, OSError, UnicodeDecodeError):
        return False
    while isinstance(found, list) and found:
        found = found[0]
    return found == [] or (isinstance(found, dict) and not _KEYS.isdisjoint(found))


def _name(source: str) -> str:
    return "standard input" if source == "-" else source


def _read_lines(source: str, source_format: str) -> Iterator[tuple[int, str | dict]]:
    """Line number and raw input of each line; of JSON lines, of each that is not blank."""
    name = _name(source)
    try:
        # Standard input, 0, is not this function's to close.
        is_file = source != "-"
        with open(source if is_file else 0, encoding="utf-8-sig", closefd=is_file) as lines:
            for number, line in enumerate(lines, start=1):
                if source_format == "text":
                    yield number, line.removesuffix("\n")
                elif line.strip():
                    yield number, _read_line(line, f"{name}: line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{name}: cannot be read as UTF-8 text ({reason(error)})") from error


def _read_line(line: str, place: str) -> dict:
    found = parse_json(line, object, place, _ADVICE)
    if not isinstance(found, dict):
        raise BadInputError(f"{place}: is no JSON object; {_ADVICE}")
    return found
