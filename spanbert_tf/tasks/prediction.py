"""`predict` and `export`: predictions for records and for raw inputs, and exports of models."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras_hub
import tensorflow as tf

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import refuse_device
from spanbert_tf.files.output import FileKind, Output, OutputKind, write_output
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.presets.preset import Preset
from spanbert_tf.serving.exporting import Served, export_model
from spanbert_tf.serving.loading import find_version, load_export
from spanbert_tf.serving.runtimes import RowExport
from spanbert_tf.tasks.evaluation import load_task_model
from spanbert_tf.tasks.fill_mask import FillMask
from spanbert_tf.tasks.lookup import open_records, task_of_preset, task_of_records
from spanbert_tf.tasks.pipeline import BATCH_SIZE, TEXT_ALONE, Pipeline, RawInputError
from spanbert_tf.tasks.table import load_task
from spanbert_tf.tasks.text_embedding import TextEmbedding
from spanbert_tf.terminal import is_control, print_line

_ADVICE = (
    "a line is an object of the task's fields; for plain texts, a line each, give --format text"
)
SAVED_MODEL = "saved_model"
_SHOWN_LABELS = 20
# The keys of each kind of prediction. A file contains predictions if a line has exactly such keys.
_SHAPES = (
    {"label", "score"},
    {"entity_group", "score", "word", "start", "end"},
    {"score", "start", "end", "answer"},
    {"score", "token", "token_str", "sequence"},
    {"text", "clusters", "strings"},
    {"doc_key", "text", "clusters", "strings"},
    {"embedding"},
)


class Predictor:
    """Predicts for raw inputs, as the pipelines of `transformers` do.

    Args:
        preset: name of the preset of a fine-tuned model, or of a pre-trained model, which fills in
            masks; or the directory of an export of one, or of a version of it.
        precision: precision of weights and computations, as for `Preset.trained_task`. An export
            has its own.

    Call arguments:
        inputs: a dict of the task's fields, such as `{"question": …, "context": …}`, or an iterable
            of such dicts. A task that reads one text (`fields` is `("text",)`) also takes strings.
        top_k: number of predictions for each input; by default that of the pipeline.
        batch_size: largest number of inputs of a batch.
        max_tokens_in_batch: largest number of tokens of a batch, in which each input counts as much
            as the longest. It replaces `batch_size`. An input that is longer is a batch of its own.

    Returns:
        What the pipeline returns for an input; for an iterable, a list of that.

    Attributes:
        preset: name of the preset or path of the export.
        task: name of the task; `fill_mask` for a pre-trained model.
        fields: names of the fields that an input must have.
        labels: names of the classes, if the task has classes.

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
        version = find_version(preset)
        if version is not None and precision != "float32":
            raise BadInputError(f"{preset}: is an export, which has its own precision")
        opened = _open_preset(preset, precision) if version is None else _open_export(version)
        self.preset = os.fspath(preset)
        self.task = opened.task
        self.fields = opened.fields
        self.labels = opened.labels
        self._make_answerer = opened.make_answerer

    def __repr__(self) -> str:
        parts = [f"{self.preset!r}", f"task={self.task!r}", f"fields={self.fields!r}"]
        if self.labels:
            shown = ", ".join(repr(label) for label in self.labels[:_SHOWN_LABELS])
            more = len(self.labels) - _SHOWN_LABELS
            if more > 0:
                shown += f", … {more} more"
            parts.append(f"labels=({shown})")
        return f"Predictor({', '.join(parts)})"

    def __call__(
        self,
        inputs: str | dict | Iterable[str | dict],
        top_k: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens_in_batch: int | None = None,
    ) -> list | dict:
        """Predicts for one input or several; see the class."""
        if max_tokens_in_batch is not None and max_tokens_in_batch < 1:
            raise BadInputError(f"max_tokens_in_batch={max_tokens_in_batch}: give at least 1")
        if top_k not in self._functions:
            self._functions[top_k] = self._make_answerer(top_k)
        answer = self._functions[top_k]
        # The items of a data frame of pandas are its columns.
        if hasattr(inputs, "to_dict") and hasattr(inputs, "columns"):
            raise BadInputError(
                f"a {type(inputs).__name__} is no list of inputs; give df.to_dict('records'), or a "
                "column of texts"
            )
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)
        if isinstance(inputs, str | dict):
            return answer([inputs], batch_size, max_tokens_in_batch)[0]
        if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
            return answer([inputs], batch_size)  # raises an error that says what is wrong
        return answer(inputs, batch_size, max_tokens_in_batch)


class _Opened(NamedTuple):
    """What a predictor has of a preset or an export; see `Predictor`."""

    task: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    make_answerer: Callable[[int | None], Callable[..., list]]  # top_k → see `Pipeline.answerer`


def _open_preset(preset: str | os.PathLike, precision: str) -> _Opened:
    """Loads the model of a preset.

    Raises:
        BadInputError: as `Predictor`.
    """
    opened = Preset.of(preset)
    pipeline = pipeline_of_preset(opened)
    if pipeline is None:
        raise BadInputError(f"{opened}: holds an encoder and no trained head; fine-tune it first")
    model = opened.trained_task(pipeline.model_class, precision)
    labels = tuple(getattr(model, "labels", None) or ())

    def make_answerer(top_k: int | None) -> Callable[..., list]:
        return pipeline.predictor(model, top_k)

    return _Opened(pipeline.name, pipeline.fields_of(model), labels, make_answerer)


def _open_export(version: str) -> _Opened:
    """Loads a version of an export.

    Raises:
        BadInputError: it is damaged, takes only ids, or gives fewer answers than are asked for.
    """
    description, signatures = load_export(version)
    pipeline = load_pipeline(description.task)
    if description.signature is None:
        raise BadInputError(f"{version}: takes only rows of ids; it answers no texts")
    function: Any = signatures[description.signature]
    specs = list(function.structured_input_signature[1].values())

    def run(*columns: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return function(**{spec.name: values for spec, values in zip(specs, columns, strict=True)})

    def make_answerer(top_k: int | None) -> Callable[..., list]:
        largest = description.top_k
        top_k = min(pipeline.top_k, largest) if top_k is None else top_k
        if not 1 <= top_k <= largest:
            raise BadInputError(
                f"{version}: gives 1 to {largest} predictions, and not {top_k}; export it with "
                f"--top-k {top_k}"
            )
        return pipeline.answerer(run, specs, description, top_k)

    return _Opened(pipeline.name, description.fields, description.labels, make_answerer)


def pipeline_of_preset(preset: Preset) -> Pipeline | None:
    """Returns the pipeline of a preset, or `None` if no trained model answers inputs.

    It is the task of a fine-tuned model, and masked language modelling or text embedding of others.

    Raises:
        BadInputError: there is no such preset.
    """
    task = task_of_preset(preset)
    if task is not None:
        return task
    for pipeline in _beside_tasks():
        if preset.holds(pipeline.model_class):
            return pipeline
    return None


def load_pipeline(name: str) -> Pipeline:
    """Returns the pipeline with this name.

    Raises:
        ConfigurationError: no pipeline has this name, or its package cannot be imported.
    """
    for pipeline in _beside_tasks():
        if pipeline.name == name:
            return pipeline
    return load_task(name)


def _beside_tasks() -> tuple[Pipeline, ...]:
    """Returns the pipelines that are not tasks."""
    return FillMask(), TextEmbedding()


def run_prediction(
    preset: str | os.PathLike,
    data: str | os.PathLike,
    output: str | os.PathLike,
    *,
    batch_size: int = 32,
    precision: str = "float32",
    overwrite: bool = False,
) -> None:
    """Predicts for records and writes the predictions in the task's official formats.

    Args:
        preset: name of the preset of a task's model.
        data: directory of records.
        output: directory of the predictions, which appears whole or not at all.
        batch_size: number of rows of a batch.
        precision: precision of weights and computations, as for `Preset.trained_task`.
        overwrite: whether earlier predictions may be replaced.

    Raises:
        BadInputError: a file cannot be used, or the output exists or cannot be written.
        MismatchError: the records were written for another model.
    """
    task = task_of_records(data)
    kind = OutputKind("predictions", task.written_files[0], task.written_files[1:])
    target = Output(output, kind, overwrite=overwrite)
    target.check()
    records = open_records(data, task)
    task, model = load_task_model(preset, [records], precision)
    with records.named_damage():
        predictions = task.predict(model, records, batch_size=batch_size)
        outcome = task.outcome(model, records, predictions)
    with target.written() as directory:
        task.write(outcome, directory)
    print_line(f"{target.path}: predictions for {len(predictions):,} records")


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
    """Reads raw inputs, one a line, and writes a line of predictions for each.

    Args:
        preset: as for `Predictor`.
        source: path of the inputs, or `-` for standard input. They are UTF-8 in any locale.
        output: path of the predictions, or `-` for standard output. They are UTF-8 as well.
        source_format: `"jsonlines"`: objects of the task's fields; blank lines are skipped.
            `"text"`: a text on each line; a blank line is a text, so that lines of texts and
            predictions correspond. A carriage return alone does not end a line.
        top_k: as for `Predictor`.
        batch_size: as for `Predictor`.
        precision: as for `Predictor`.
        overwrite: whether an earlier output may be replaced.

    Raises:
        BadInputError: a line is not a JSON object with the task's fields, or texts are given to a
            task that reads more; or the output is the source, exists or cannot be written.
    """
    if output != "-":
        both_exist = os.path.exists(source) and os.path.exists(output)
        if both_exist and os.path.samefile(source, output):
            raise BadInputError(f"{output}: is also --input; name another output")
        kind = FileKind("predictions", _holds_predictions)
        output = Output(output, kind, overwrite=overwrite).check()
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
    text = "".join(_as_json(found) + "\n" for found in predictions)
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # halves of surrogate pairs
        sys.stdout.buffer.flush()
        return
    write_output(output, text)
    print_line(f"{output}: predictions for {len(inputs):,} inputs")


def export_preset(
    preset: str | os.PathLike | Preset,
    output: str,
    *,
    top_k: int = 5,
    embeddings: bool = False,
    without_text_ops: bool = False,
    file_format: str = SAVED_MODEL,
    sequence_length: int | None = None,
    int8: bool = False,
    **options: Any,
) -> str:
    """Writes `output/version/`, a SavedModel for TF Serving or a file for another runtime.

    A SavedModel needs only TensorFlow and TensorFlow Text to load. A README and, for TF Serving,
    `models.config` and `batching_parameters.txt` lie beside the versions.

    Args:
        preset: preset of a fine-tuned model, or of a masked-language model with a trained head; for
            embeddings, of any encoder.
        output: the model's directory for TF Serving. Its name is the name of the model.
        top_k: number of predictions for each input, for a task that gives several.
        embeddings: whether the export computes vectors of texts, whatever the preset is for.
        without_text_ops: whether the export takes only ids. It then loads without TensorFlow Text.
        file_format: `SAVED_MODEL`, or a key of `RUNTIMES`, which take only ids.
        sequence_length: number of positions of a row, for `"litert"`.
        int8: whether weights have 8 bits, for `"litert"`.
        **options: `version`, `precision` and `overwrite`, as for `export_model`.

    Returns:
        The path of the version.

    Raises:
        BadInputError: the preset cannot be used, options do not go together, the version exists,
            or it cannot be written.
    """
    preset = Preset.of(preset)
    pipeline = TextEmbedding() if embeddings else pipeline_of_preset(preset)
    if pipeline is None:
        raise BadInputError(
            f"{preset}: has no trained head of a task here; use the preset of such a model, or "
            "give --embeddings for what its encoder computes"
        )
    runtime = None
    if file_format != SAVED_MODEL:
        _check_runtime(pipeline, file_format, options.get("precision", "float32"))
        runtime = RowExport(file_format, sequence_length, int8)
    elif sequence_length is not None or int8:
        raise BadInputError("--sequence-length and --int8 are options of --format litert")

    def served(model: keras_hub.models.Task) -> Served:
        if sequence_length is not None:
            longest = model.backbone.max_sequence_length
            if sequence_length > longest:
                raise BadInputError(
                    f"--sequence-length {sequence_length}: the model reads {longest} positions at "
                    "most"
                )
            model.preprocessor.sequence_length = sequence_length  # for the rows in the README
        with_texts = runtime is None and not without_text_ops
        return pipeline.served(model, top_k, with_texts=with_texts, runtime=runtime)

    return export_model(
        pipeline.model_class,
        preset,
        output,
        served,
        runtime=runtime,
        **options,
    )


def _check_runtime(pipeline: Pipeline, file_format: str, precision: str) -> None:
    """Raises `BadInputError` if another runtime than TensorFlow cannot run a pipeline's model."""
    needs_tensorflow = getattr(pipeline.model_class, "needs_tensorflow", "")
    if needs_tensorflow:
        raise BadInputError(f"--format {file_format}: {needs_tensorflow}")
    if precision != "float32":
        raise BadInputError(f"--format {file_format}: computes in float32; leave --precision out")


def _as_json(found: list | dict) -> str:
    """Formats predictions as a line of JSON. Characters that control a terminal are escaped."""
    text = json.dumps(found, ensure_ascii=False)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(letter) if is_control(letter) else letter for letter in text)


def _escaped(character: str) -> str:
    """Returns JSON's escape for a character."""
    if character == "\x7f":  # `json` does not escape it
        return r"\u007f"
    if "\ud800" <= character <= "\udfff":  # half of a surrogate pair; it is written as `?`
        return character
    return json.dumps(character)[1:-1]


def _holds_predictions(path: str) -> bool:
    """Whether a file is empty, or its first line is a prediction or a list of predictions."""
    try:
        if not os.path.getsize(path):
            return True
        with open(path, encoding="utf-8") as file:
            found = parse_json(file.readline(), object, path)
    except (BadInputError, OSError, UnicodeDecodeError):
        return False
    while isinstance(found, list) and found:
        found = found[0]
    return found == [] or (isinstance(found, dict) and found.keys() in _SHAPES)


def _name(source: str) -> str:
    """Returns the name of the inputs in errors."""
    return "standard input" if source == "-" else source


def _read_lines(source: str, source_format: str) -> Iterator[tuple[int, str | dict]]:
    """Yields the number and the raw input of each line. Blank lines of JSON lines are skipped."""
    name = _name(source)
    is_file = source != "-"
    if is_file:
        refuse_device(source)
    file = source if is_file else 0  # 0 is standard input, which stays open
    try:
        with open(file, encoding="utf-8-sig", newline="\n", closefd=is_file) as lines:
            for number, line in enumerate(lines, start=1):
                if source_format == "text":
                    yield number, line.removesuffix("\n").removesuffix("\r")
                elif line.strip():
                    yield number, _read_line(line, f"{name}: line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{name}: cannot be read as UTF-8 text ({reason(error)})") from error


def _read_line(line: str, place: str) -> dict:
    """Parses a line that must be a JSON object."""
    found = parse_json(line, object, place, _ADVICE)
    if not isinstance(found, dict):
        raise BadInputError(f"{place}: is no JSON object; {_ADVICE}")
    return found
