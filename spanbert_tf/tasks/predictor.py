"""Predictions for raw inputs: `spanbert_tf.predictor` and `spanbert-tf predict --input`."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import keras_hub

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.json_values import parse_json
from spanbert_tf.files.outputs import OutputKind, check_output_file
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.models.task_presets import is_task_preset
from spanbert_tf.presets.loading import load_trained
from spanbert_tf.tasks.fill_mask import fill_masks
from spanbert_tf.tasks.raw_inputs import BATCH_SIZE, RawInputError
from spanbert_tf.tasks.task import task_of_preset

_PREDICTIONS = OutputKind("predictions", "")
_KEYS = {"score", "clusters"}  # one of which each prediction has, and no raw input


class Predictor:
    """Predicts for raw inputs, as the `transformers` pipeline of the task does.

    Args:
        preset: name of the preset of a fine-tuned model, or of a pre-trained one, which fills in
            masks.
        precision: of weights and computations, as for `load_trained`.

    Call arguments:
        inputs: a dict of the task's natural fields, such as `{"question": …, "context": …}` or
            `{"text": …}`, or a list of them.
        top_k: predictions for each input; by default as many as the pipeline gives.
        batch_size: inputs that are worked on together at most.

    Returns:
        What the pipeline returns: for one input its prediction, for a list a list of them.

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
        preset = os.fspath(preset)
        task = task_of_preset(preset)
        if task is not None:
            self._model: keras_hub.models.Task = load_trained(task.model_class, preset, precision)
            self._from_raw = task.from_raw
        elif is_task_preset(preset, SpanBertMaskedLM):
            self._model = load_trained(SpanBertMaskedLM, preset, precision)
            self._from_raw = fill_masks
        else:
            raise BadInputError(
                f"{preset}: holds an encoder and no trained head; fine-tune it first"
            )

    def __call__(
        self,
        inputs: dict | Sequence[dict],
        top_k: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list | dict:
        """Predicts; see the class."""
        if top_k not in self._functions:
            options = {} if top_k is None else {"top_k": top_k}
            self._functions[top_k] = self._from_raw(self._model, **options)
        predict = self._functions[top_k]
        if isinstance(inputs, dict):
            return predict([inputs])[0]
        return predict(list(inputs), batch_size=batch_size)


def predict_lines(
    preset: str,
    source: str,
    output: str,
    *,
    top_k: int | None = None,
    batch_size: int = BATCH_SIZE,
    precision: str = "float32",
    overwrite: bool = False,
) -> None:
    """Reads JSON lines of raw inputs and writes a line of predictions for each.

    Args:
        preset: as for `Predictor`.
        source: path of the lines, or `-` for standard input; UTF-8, whatever the locale.
        output: path of the predictions, or `-` for standard output; UTF-8, too.
        top_k: as for `Predictor`.
        batch_size: as for `Predictor`.
        precision: as for `Predictor`.
        overwrite: whether an earlier output may be replaced.

    Raises:
        BadInputError: a line is no JSON object with the task's fields, or the output exists or
            cannot be written.
    """
    if output != "-":
        output = check_output_file(output, _PREDICTIONS, _holds_predictions, overwrite=overwrite)
    lines = dict(_read_lines(source))
    inputs = list(lines.values())
    try:
        predictions = Predictor(preset, precision)(inputs, top_k, batch_size)
    except RawInputError as error:
        line = list(lines)[error.number - 1]
        raise BadInputError(f"{_name(source)}: line {line}: {error.problem}") from error
    text = "".join(json.dumps(found, ensure_ascii=False) + "\n" for found in predictions)
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # halves of surrogate pairs
        sys.stdout.buffer.flush()
        return
    try:
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        write_text(output, text)
    except OSError as error:
        raise BadInputError(f"{output}: cannot be written ({reason(error)})") from error
    print(f"{output}: predictions for {len(inputs):,} inputs", flush=True)


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


def _read_lines(source: str) -> Iterator[tuple[int, dict]]:
    """Line number and content of each line that is not blank."""
    name = _name(source)
    try:
        # Standard input, 0, is not this function's to close.
        is_file = source != "-"
        with open(source if is_file else 0, encoding="utf-8-sig", closefd=is_file) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _read_line(line, f"{name}: line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{name}: cannot be read as UTF-8 text ({reason(error)})") from error


def _read_line(line: str, place: str) -> dict:
    found = parse_json(line, object, place)
    if not isinstance(found, dict):
        raise BadInputError(f"{place}: is no JSON object")
    return found
