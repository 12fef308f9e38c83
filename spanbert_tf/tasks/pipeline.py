"""The base class of what a preset answers.

A pipeline computes its answers in a graph function, which the export and raw prediction share.

Dimensions: N inputs, R rows of all of them.
"""

import abc
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import ROWS, Served, Signatures
from spanbert_tf.serving.readme import BASE_TEMPLATE, describe_inputs, row_length
from spanbert_tf.serving.runtimes import RowExport
from spanbert_tf.tasks.graphs import string_tensor
from spanbert_tf.tasks.shown_answers import View, shown, shown_list
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.positions import SegmentPositions
from spanbert_tf.text.sentences import nltk_model
from spanbert_tf.text.tokenization import WordPieceTokenizer

BATCH_SIZE = 32
TEXT_ALONE = ("text",)  # `fields` of a pipeline that also takes strings
_BYTES_PER_TOKEN = 3  # at least, in most scripts


class RawInputError(BadInputError):
    """An input that cannot be used.

    Args:
        number: number of the input, from 1.
        problem: what is wrong with it.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"input {number}: {problem}")
        self.number = number
        self.problem = problem


class Pipeline(abc.ABC):
    """Answers raw inputs with a model, as the pipelines of `transformers` do.

    A class that derives from this one defines what a graph computes. This class checks inputs,
    batches them, shows progress, and names the input in errors.

    Attributes:
        name: name of the pipeline, such as `"fill_mask"`.
        model_class: class of the models in its presets.
        fields: names of the texts that a raw input must have. If `text` is the only one, an input
            may also be a string.
        example: the inputs of one request, as the graph takes them. The README shows it, a server
            warms up with it, and precisions are compared by it. A text that a signature takes and
            the example lacks is empty.
        readme: path of the template of an export's README, see `serving.readme`. The default shows
            the first paragraph of the class's docstring, and names and shapes of the inputs.
        answered_by: name of the signature that raw prediction runs, where a model has it; it runs
            `serving_default` of other models.
        row_names: names of the features that the signature `token_ids` takes; by default all
            features that the model reads.
        answer_names: names of the outputs that answers are made of; by default all outputs. A
            server keeps no others until it has the outputs for all inputs of a request.
        top_k: default number of answers to an input, for a pipeline that gives several.
        max_batch_tokens: largest number of tokens of a batch, padding counted, which bounds memory.
            Three bytes of a raw input count as a token. (English has about four bytes per token,
            Chinese three.)
        cuts_texts: whether a row is made of a text, without what it does not hold; a server then
            knows that no more is computed.
        max_text_tokens: largest number of tokens that a server computes of a text at once. `parts`
            may cut raw inputs to fewer.
    """

    name: ClassVar[str]
    model_class: ClassVar[type[keras_hub.models.Task]]
    fields: ClassVar[tuple[str, ...]] = TEXT_ALONE
    example: ClassVar[Mapping[str, Any]]
    readme: ClassVar[str] = BASE_TEMPLATE
    answered_by: ClassVar[str] = "serving_default"
    row_names: ClassVar[tuple[str, ...]] = ()
    answer_names: ClassVar[tuple[str, ...]] = ()
    top_k: ClassVar[int] = 1
    max_batch_tokens: ClassVar[int] = 2**18
    cuts_texts: ClassVar[bool] = False
    max_text_tokens: ClassVar[int] = 65_536

    @abc.abstractmethod
    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns the graph functions of texts, for exports and raw prediction.

        Args:
            model: a trained model with its preprocessor.
            top_k: number of answers to each input, for a pipeline that gives several.

        Returns:
            Name → function and the specs of its inputs. A function takes tensors [N, …] and returns
            a dict of tensors [N, …].

        Raises:
            BadInputError: the model cannot do this.
        """

    @abc.abstractmethod
    def answer(
        self, description: Description, item: dict, found: dict[str, Any], top_k: int
    ) -> Any:
        """Converts the outputs for one input to what the pipeline of `transformers` returns.

        Args:
            description: what `describe` returned for the model, or an export says of itself.
            item: the input, as `check` returned it.
            found: the outputs of the graph function for this input, as `joined` returned them.
            top_k: as for `signatures`.
        """

    def parts(self, description: Description, item: dict) -> list[dict]:
        """Cuts an input into parts, which the graph function reads one by one; by default into one.

        Args:
            description: as for `answer`.
            item: the input, as `check` returned it.
        """
        return [item]

    def joined(self, parts: Sequence[dict], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Joins the outputs for the parts of an input to the outputs for the input.

        Args:
            parts: what `parts` returned for the input.
            found: the outputs of the graph function for each part: name → array or value.
        """
        (outputs,) = found
        return outputs

    def view(self, description: Description, item: dict, answer: Any) -> View:
        """Returns what notebooks show of an answer; by default its text as Python writes it.

        Args:
            description: as for `answer`.
            item: the input, as `check` returned it.
            answer: what `answer` returned for it.
        """
        return View()

    def fields_of(self, model: keras_hub.models.Task) -> tuple[str, ...]:
        """Returns the fields that a model reads; by default they do not depend on the model."""
        return self.fields

    def settings_of(self, model: keras_hub.models.Task) -> Mapping[str, bool | int | float | str]:
        """Returns what answers depend on besides the labels of a model; by default nothing."""
        return {}

    def raw_example(self, model: keras_hub.models.Task) -> Mapping[str, Any]:
        """Returns the example as a raw input; by default it is one."""
        return self.example

    def describe(
        self, model: keras_hub.models.Task, top_k: int, signature: str | None
    ) -> Description:
        """Describes a model, so that inputs are checked and answered without it.

        Args:
            model: as for `signatures`.
            top_k: as for `signatures`.
            signature: name of the signature that answers texts, if there is one.
        """
        tokenizer = model.preprocessor.tokenizer
        return Description(
            task=self.name,
            fields=self.fields_of(model),
            labels=tuple(getattr(model, "labels", None) or ()),
            settings=self.settings_of(model),
            signature=signature,
            top_k=top_k,
            sequence_length=row_length(model),
            example=self.raw_example(model),
            text_rules=tokenizer.text_rules,
            vocabulary=tokenizer.get_vocabulary(),
        )

    def _answering(self, signatures: Signatures) -> str:
        """Returns the name of the signature that raw prediction runs."""
        return self.answered_by if self.answered_by in signatures else "serving_default"

    def check(self, description: Description, item: dict) -> dict:
        """Checks a raw input, and converts it to the inputs of the graph function by name.

        Args:
            description: as for `answer`.
            item: the input.

        Raises:
            BadInputError: the input cannot be used. The message does not name the input; the caller
                adds its number.
        """
        fields = description.fields
        for name in fields:
            if not isinstance(item.get(name), str):
                raise BadInputError(f"has no text {name!r}; an input has {' and '.join(fields)}")
        return item

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes what the signature `token_ids` returns: only numbers, for any runtime.

        Args:
            model: as for `signatures`.
            x: features of packed rows, int32 [R, …] each.
            top_k: as for `signatures`.
        """
        outputs = model(x, training=False)
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def readme_values(self, model: keras_hub.models.Task) -> dict[str, Any]:
        """Returns values for the README's template, besides those that all templates get.

        `texts` is the example as the tokenizer of a client takes it: a text, or a pair of texts.
        """
        return {"texts": self._example_texts(model)}

    def example_rows(self, model: keras_hub.models.Task) -> dict[str, tf.Tensor]:
        """Packs the example with the model's preprocessor, without the dimension of the batch."""
        return without_padding(model.preprocessor(x=self._example_texts(model)))

    def _example_texts(self, model: keras_hub.models.Task) -> str | tuple[str, ...]:
        """Returns the example as preprocessors take it: a text, or a tuple of texts."""
        texts = tuple(self.example[name] for name in self.fields_of(model))
        if len(texts) == 1:
            return texts[0]
        return texts

    def row_signature(
        self, model: keras_hub.models.Task, top_k: int
    ) -> tuple[Callable[..., dict[str, tf.Tensor]], list[tf.TensorSpec]]:
        """Returns the graph function of packed rows, and the specs of its inputs."""
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
        """Collects what an export holds.

        Args:
            model: as for `signatures`.
            top_k: as for `signatures`.
            with_texts: whether the export takes texts, for which it needs the operations of
                TensorFlow Text. It always takes rows of ids.
            runtime: the other runtime that the export is for, if it is for one.
        """
        rows = self.row_signature(model, top_k)
        texts = self.signatures(model, top_k)  # refuses what the pipeline cannot do
        if not with_texts:
            texts = {"serving_default": rows}
        example = {name: row.numpy().tolist() for name, row in self.example_rows(model).items()}
        row_inputs = runtime.inputs(rows[1], example) if runtime else rows[1]
        docstring = inspect.getdoc(type(self)) or self.name
        values = {
            "description": docstring.split("\n\n")[0],
            "fields": self.fields_of(model),
            "has_texts": with_texts,
            "inputs": describe_inputs(row_inputs, example),
            "model": model,
            "nltk_model": nltk_model(model.preprocessor.tokenizer.text_rules.language),
            "row_length": row_length(model),
            "segment_positions": [name for name in model.input if name in SegmentPositions._fields],
            "signatures": {name: specs for name, (_, specs) in texts.items()},
            **self.readme_values(model),
        }
        signatures = {**texts, ROWS: rows}
        signature = self._answering(texts) if with_texts else None
        description = self.describe(model, top_k, signature)
        return Served(signatures, {**example, **self.example}, self.readme, values, description)

    def predictor(
        self, model: keras_hub.models.Task, top_k: int | None = None
    ) -> Callable[..., list]:
        """Makes a function that answers raw inputs in their order. Its graph is traced once.

        Args:
            model: as for `signatures`.
            top_k: as for `signatures`; by default the attribute `top_k`.

        Returns:
            As `answerer`.
        """
        if top_k is None:
            top_k = self.top_k
        signatures = self.signatures(model, top_k)
        name = self._answering(signatures)
        function, specs = signatures[name]
        run = tf.function(function, input_signature=specs)
        return self.answerer(run, specs, self.describe(model, top_k, name), top_k)

    def answerer(
        self,
        run: Callable[..., Mapping[str, tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        description: Description,
        top_k: int,
    ) -> Callable[..., list]:
        """Makes a function that answers raw inputs in their order.

        Args:
            run: the graph function.
            specs: its inputs.
            description: as for `answer`.
            top_k: as for `signatures`.

        Returns:
            `(inputs, batch_size, max_tokens_in_batch)` → answers. It raises `RawInputError` if an
            input cannot be used. See `Predictor` for the arguments.
        """
        texts = [str(spec.name) for spec in specs if spec.dtype == tf.string]

        def outputs_of(batch: Sequence[dict]) -> list[dict[str, Any]]:
            outputs = run(*(input_column(batch, spec) for spec in specs))
            columns = {name: values.numpy() for name, values in outputs.items()}
            rows = []
            for row in range(len(batch)):
                rows.append({name: values[row] for name, values in columns.items()})
            return rows

        def answer_all(
            inputs: Iterable[str | dict],
            batch_size: int = BATCH_SIZE,
            max_tokens_in_batch: int | None = None,
        ) -> list:
            items = self.check_all(description, inputs)
            parts = [self.parts(description, item) for item in items]
            places = []  # of each part that is read: the number of its input, and its own
            for number, cut in enumerate(parts):
                places += [(number, part) for part in range(len(cut))]
            read = list(itertools.chain.from_iterable(parts))
            batches = self._batches(description, texts, read, batch_size, max_tokens_in_batch)
            # The outputs for the parts of each input; `{}` for a part that was not read yet.
            found: list[list[dict[str, Any]]] = [[{}] * len(cut) for cut in parts]
            answers: list = [None] * len(items)
            for indices in show_progress(batches, len(batches), "batches", doing="predicting"):
                rows = outputs_of([read[index] for index in indices])
                for index, row in zip(indices, rows, strict=True):
                    number, part = places[index]
                    found[number][part] = row
                    if all(found[number]):
                        item = items[number]
                        outputs = self.joined(parts[number], found[number])
                        answer = self.answer(description, item, outputs, top_k)
                        view = functools.partial(self.view, description, item)
                        answers[number] = shown(answer, view)
                        found[number] = []
            return shown_list(answers)

        return answer_all

    def _batches(
        self,
        description: Description,
        texts: Sequence[str],
        parts: Sequence[dict],
        batch_size: int,
        max_tokens_in_batch: int | None,
    ) -> list[list[int]]:
        """Batches parts of similar length; see `Predictor` for the last two arguments.

        Args:
            description: as for `answer`.
            texts: names of the texts of a part.
            parts: the parts of all inputs.
            batch_size: largest number of parts of a batch, unless `max_tokens_in_batch` is given.
            max_tokens_in_batch: largest number of tokens of a batch. By default a batch has at most
                `max_batch_tokens`, which are estimated by bytes.

        Returns:
            The indices of the parts of each batch.
        """
        if max_tokens_in_batch is None:
            lengths = [_num_bytes(part, texts) for part in parts]
            max_bytes = _BYTES_PER_TOKEN * self.max_batch_tokens
            return batches_by_length(lengths, batch_size, max_bytes)
        tokenizer = WordPieceTokenizer.shared(description.vocabulary, description.text_rules)
        columns = []
        for name in texts:
            columns.append(string_tensor([part[name] for part in parts]))
        lengths = count_tokens(tokenizer, columns)
        return batches_by_length(lengths, len(parts), max_tokens_in_batch)

    def check_all(self, description: Description, inputs: Iterable[str | dict]) -> list[dict]:
        """Checks inputs and converts them to dicts.

        Raises:
            RawInputError: an input cannot be used; it names the first such input.
        """
        fields = description.fields
        wanted = f"{self.name} reads dicts of {' and '.join(fields)}"
        if fields == TEXT_ALONE:
            wanted = f"{self.name} reads strings, or dicts of text"
        items = []
        for number, item in enumerate(inputs, start=1):
            if isinstance(item, str) and fields == TEXT_ALONE:
                item = {"text": item}
            if not isinstance(item, dict):
                raise RawInputError(number, f"is of type {type(item).__name__}; {wanted}")
            try:
                items.append(self.check(description, item))
            except BadInputError as error:
                raise RawInputError(number, str(error)) from error
        return items


def count_tokens(
    tokenizer: WordPieceTokenizer, texts: Sequence[tf.Tensor] | Sequence[np.ndarray]
) -> list[int]:
    """Counts the word pieces of inputs, with [CLS] and a [SEP] for each text.

    Args:
        tokenizer: the tokenizer of the model.
        texts: UTF-8 [N] for each text of an input.

    Returns:
        The number of each input.
    """
    lengths: Any = 1  # [CLS]
    for column in texts:
        counts = tokenizer.count(tf.convert_to_tensor(column, tf.string))
        lengths = lengths + counts.numpy() + 1
    return lengths.tolist()


def batches_by_length(lengths: Sequence[int], batch_size: int, max_length: int) -> list[list[int]]:
    """Batches inputs of similar length, the longest first.

    Args:
        lengths: number of bytes, or of tokens, of each input.
        batch_size: largest number of inputs of a batch.
        max_length: largest number of bytes, or of tokens, of a batch, where each input counts as
            much as the longest. An input that is longer is a batch of its own.

    Returns:
        The indices of the inputs of each batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = []
    while order:
        fitting = max_length // max(lengths[order[0]], 1)
        size = max(min(fitting, batch_size), 1)
        batches.append(order[:size])
        order = order[size:]
    return batches


def without_padding(x: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Cuts the padding from the features [S] of a row; segments of a document are left alone."""
    mask = x["padding_mask"]
    if mask.shape.rank != 1:
        return x
    size = int(tf.reduce_sum(mask))
    row = {}
    for name, values in x.items():
        row[name] = values[:size] if values.shape == mask.shape else values
    return row


def input_column(batch: Sequence[dict], spec: tf.TensorSpec) -> tf.Tensor:
    """Returns the values of one input of a signature: string [N], or numbers [N, …].

    Lists of numbers that may have any length are padded with -1.
    """
    values = [item[spec.name] for item in batch]
    if spec.dtype == tf.string:
        return string_tensor(values)
    if spec.shape.rank == 2 and spec.shape[1] is None:
        values = keras.utils.pad_sequences(values, padding="post", value=-1)
    return tf.constant(values, spec.dtype)


def best_of(answers: list[dict], top_k: int) -> dict | list[dict]:
    """Returns the first answer itself if `top_k` is 1, as `transformers`; otherwise a list."""
    if top_k == 1:
        return answers[0]
    return answers[:top_k]


def _num_bytes(part: dict, texts: Sequence[str]) -> int:
    """Returns the number of bytes of the texts of a part."""
    return sum(len(part[name].encode(errors="replace")) for name in texts)
