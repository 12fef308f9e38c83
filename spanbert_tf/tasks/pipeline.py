"""What a preset answers: one function of raw inputs serves the export and raw prediction.

N inputs, R rows of all of them, C of a chunk.
"""

import abc
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras_hub
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.serving.exporting import ROWS, Served, Signatures
from spanbert_tf.serving.readme import BASE_TEMPLATE, describe_inputs, row_length
from spanbert_tf.serving.runtimes import RowExport
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.positions import SegmentPositions

BATCH_SIZE = 32
MAX_ROWS = 32  # what `predict` takes at once by default
TEXT_ALONE = ("text",)  # fields of a pipeline for which a string is an input


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


class Pipeline(abc.ABC):
    """What a preset answers: raw inputs in, answers as those of the `transformers` pipeline out.

    A class derives from it and says what a graph computes; checks, batches, progress and errors
    that name an input are here.

    Attributes:
        name: its name, such as `"fill_mask"`.
        model_class: class of the presets.
        fields: texts that a raw input must have; where that is `text` alone, a string is an input.
        example: inputs of one request, as the graph takes them: the README's, warm-up's, and what
            another precision is compared by. A text that a signature takes and this lacks is empty.
        readme: path of the template of an export's README, see `serving.readme`. The default shows
            the first paragraph of the class's docstring, and names and shapes of the inputs.
        answered_by: the signature that raw prediction runs.
        row_names: features that packed rows have in the signature `token_ids`; by default all that
            the model reads.
        top_k: answers to an input, where the pipeline gives several, unless others are asked for.
        max_characters: of a batch, padding counted; word pieces of longer ones fill memory.
    """

    name: ClassVar[str]
    model_class: ClassVar[type[keras_hub.models.Task]]
    fields: ClassVar[tuple[str, ...]] = TEXT_ALONE
    example: ClassVar[Mapping[str, Any]]
    readme: ClassVar[str] = BASE_TEMPLATE
    answered_by: ClassVar[str] = "serving_default"
    row_names: ClassVar[tuple[str, ...]] = ()
    top_k: ClassVar[int] = 1
    max_characters: ClassVar[int] = 2**20

    @abc.abstractmethod
    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """What an export computes of texts, and raw prediction: name → function and its inputs.

        Args:
            model: a trained model with its preprocessor.
            top_k: answers to each input, where there are several.

        Returns:
            Functions of tensors [N, …] that return a dict of tensors [N, …].
        """

    @abc.abstractmethod
    def answer(
        self, model: keras_hub.models.Task, item: dict, found: dict[str, Any], top_k: int
    ) -> Any:
        """The answer to one input, as the `transformers` pipeline of the task has it.

        Args:
            model: as for `signatures`.
            item: the input, as `check` returned it.
            found: what the graph found for it: name → array or value.
            top_k: as for `signatures`.
        """

    def fields_of(self, model: keras_hub.models.Task) -> tuple[str, ...]:
        """The fields that a model reads, where they depend on it."""
        return self.fields

    def check(self, model: keras_hub.models.Task, item: dict) -> dict:
        """Refuses or completes a raw input; it then has what the graph takes, by name.

        Raises:
            BadInputError: it cannot be used; the message says why and not where.
        """
        fields = self.fields_of(model)
        for name in fields:
            if not isinstance(item.get(name), str):
                raise BadInputError(f"has no text {name!r}; an input has {' and '.join(fields)}")
        return item

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """What the signature `token_ids` returns: numbers alone, which any runtime holds.

        Args:
            model: as for `signatures`.
            x: packed rows, int32 [R, …] each.
            top_k: as for `signatures`.
        """
        outputs = model(x, training=False)
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def readme_values(self, model: keras_hub.models.Task) -> dict[str, Any]:
        """What the README's template shows, beside the values that all templates have.

        `texts` is the example as the client's tokenizer takes it: a text, or a pair of texts.
        """
        return {"texts": self._example_texts(model)}

    def example_rows(self, model: keras_hub.models.Task) -> dict[str, tf.Tensor]:
        """The example as the model's preprocessor packs it, without a batch's dimension."""
        return without_padding(model.preprocessor(x=self._example_texts(model)))

    def _example_texts(self, model: keras_hub.models.Task) -> str | tuple[str, ...]:
        """The example as preprocessors take it: a text, or a tuple of some."""
        texts = tuple(self.example[name] for name in self.fields_of(model))
        return texts if len(texts) > 1 else texts[0]

    def row_signature(
        self, model: keras_hub.models.Task, top_k: int
    ) -> tuple[Callable[..., dict[str, tf.Tensor]], list[tf.TensorSpec]]:
        """The graph function of packed rows, and its inputs, [R, S] or as the model reads them."""
        names = self.row_names or tuple(model.input)
        specs = [tf.TensorSpec(model.input[name].shape, tf.int32, name=name) for name in names]

        def from_rows(*rows: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.of_rows(model, dict(zip(names, rows, strict=True)), top_k)

        return from_rows, specs

    def served(
        self,
        model: keras_hub.models.Task,
        top_k: int,
        *,
        with_texts: bool = True,
        runtime: RowExport | None = None,
    ) -> Served:
        """What an export holds.

        Args:
            model: as for `signatures`.
            top_k: as for `signatures`.
            with_texts: whether it takes texts, which needs the operations of TensorFlow Text; rows
                of ids it takes in any case.
            runtime: another runtime, whose README says what its file takes.
        """
        rows = self.row_signature(model, top_k)
        texts = self.signatures(model, top_k)  # which refuses what the pipeline cannot do
        if not with_texts:
            texts = {"serving_default": rows}
        example = {name: row.numpy().tolist() for name, row in self.example_rows(model).items()}
        row_inputs = runtime.inputs(rows[1], example) if runtime else rows[1]
        values = {
            "description": inspect.getdoc(type(self)).split("\n\n")[0],
            "fields": self.fields_of(model),
            "has_texts": with_texts,
            "inputs": describe_inputs(row_inputs, example),
            "model": model,
            "row_length": row_length(model),
            "segment_positions": [n for n in model.input if n in SegmentPositions._fields],
            "signatures": {name: specs for name, (_, specs) in texts.items()},
            **self.readme_values(model),
        }
        signatures = {**texts, ROWS: rows}
        return Served(signatures, {**example, **self.example}, self.readme, values)

    def predictor(
        self, model: keras_hub.models.Task, top_k: int | None = None
    ) -> Callable[..., list]:
        """A function of raw inputs and a `batch_size`, traced once; it answers in their order.

        It raises `RawInputError` where an input cannot be used.

        Args:
            model: as for `signatures`.
            top_k: as for `signatures`; by default the pipeline's own.
        """
        top_k = self.top_k if top_k is None else top_k
        function, specs = self.signatures(model, top_k)[self.answered_by]
        run = tf.function(function, input_signature=specs)
        texts = [spec.name for spec in specs if spec.dtype == tf.string]

        def answer_batch(batch: Sequence[dict]) -> list:
            found = run(*(_column(batch, spec) for spec in specs))
            columns = {name: values.numpy() for name, values in found.items()}
            return [
                self.answer(model, item, {name: v[row] for name, v in columns.items()}, top_k)
                for row, item in enumerate(batch)
            ]

        def answer_all(inputs: Iterable[str | dict], batch_size: int = BATCH_SIZE) -> list:
            items = self._checked(model, inputs)
            lengths = [sum(len(item[name]) for name in texts) for item in items]
            batches = batches_by_length(lengths, batch_size, self.max_characters)
            answers: list = [None] * len(items)
            for numbers in show_progress(batches, len(batches), "batches", doing="predicting"):
                found = answer_batch([items[number] for number in numbers])
                for number, answer in zip(numbers, found, strict=True):
                    answers[number] = answer
            return answers

        return answer_all

    def _checked(self, model: keras_hub.models.Task, inputs: Iterable[str | dict]) -> list[dict]:
        """Inputs as dicts that the graph takes; errors name the first that is none."""
        fields, items = self.fields_of(model), []
        wanted = f"{self.name} reads dicts of {' and '.join(fields)}"
        if fields == TEXT_ALONE:
            wanted = f"{self.name} reads strings, or dicts of text"
        for number, item in enumerate(inputs, start=1):
            if isinstance(item, str) and fields == TEXT_ALONE:
                item = {"text": item}
            if not isinstance(item, dict):
                raise RawInputError(number, f"is of type {type(item).__name__}; {wanted}")
            try:
                items.append(self.check(model, item))
            except BadInputError as error:
                raise RawInputError(number, str(error)) from error
        return items


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_characters: int
) -> list[list[int]]:
    """Numbers of the inputs of each batch, those of similar length together, the longest first.

    Args:
        lengths: characters of each input.
        batch_size: inputs of a batch at most.
        max_characters: of a batch, if each input were as long as its longest; a longer input is a
            batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batches = []
    while order:
        fitting = max_characters // max(lengths[order[0]], 1)
        size = max(min(fitting, batch_size), 1)
        batches.append(order[:size])
        order = order[size:]
    return batches


def without_padding(x: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """A row [S] without its padding; other features, such as segments of documents, as they are."""
    mask = x["padding_mask"]
    size = int(tf.reduce_sum(mask))
    return {
        name: values[:size] if mask.shape.rank == 1 and values.shape == mask.shape else values
        for name, values in x.items()
    }


def text_specs(*names: str) -> list[tf.TensorSpec]:
    """Inputs of a signature that are texts, string [N]."""
    return [tf.TensorSpec([None], tf.string, name=name) for name in names]


def clean_texts(texts: tf.Tensor) -> tf.Tensor:
    """Texts of a request, string [N]; bytes that are not UTF-8 are replaced."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def string_tensor(texts: Sequence[str]) -> tf.Tensor:
    """Texts, string [N]; halves of surrogate pairs, which JSON may have, are `?`."""
    return tf.constant([text.encode("utf-8", "replace") for text in texts], tf.string)


def _column(batch: Sequence[dict], spec: tf.TensorSpec) -> tf.Tensor:
    """The values of one input of a signature, string [N] or numbers int32 [N, …]."""
    values = [item[spec.name] for item in batch]
    return string_tensor(values) if spec.dtype == tf.string else tf.constant(values, spec.dtype)


def best_of(answers: list[dict], top_k: int) -> dict | list[dict]:
    """The first of some answers where one is asked for, as pipelines have it; else so many."""
    return answers[0] if top_k == 1 else answers[:top_k]


def map_row_chunks(
    function: Callable[[tf.Tensor], object],
    rows: object,
    dtypes: object,
    max_rows: int | tf.Tensor = MAX_ROWS,
) -> object:
    """Applies a function to chunks of rows, one after the other, in a graph or not.

    So the memory that long texts take is bounded.

    Args:
        function: what `rows` is, of tensors [C, …] → a structure of tensors [C, …].
        rows: a structure of tensors [R, …].
        dtypes: structure of the types that the function returns.
        max_rows: C at most. Chunks have the same size, and the last row may be repeated for that.

    Returns:
        What the function returns, of tensors [R, …].
    """
    num_rows = tf.shape(tf.nest.flatten(rows)[0])[0]
    num_chunks = tf.maximum(-(-num_rows // max_rows), 1)  # the function has a say on no rows, too
    size = -(-num_rows // num_chunks)  # C

    def of_chunk(number: tf.Tensor) -> object:
        taken = tf.minimum(number * size + tf.range(size), num_rows - 1)
        return function(tf.nest.map_structure(lambda values: tf.gather(values, taken), rows))

    chunks = tf.map_fn(
        of_chunk, tf.range(num_chunks), parallel_iterations=1, fn_output_signature=dtypes
    )

    def joined(values: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([[num_chunks * size], tf.shape(values)[2:]], axis=0)
        return tf.reshape(values, shape)[:num_rows]

    return tf.nest.map_structure(joined, chunks)
