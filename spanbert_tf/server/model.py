"""One version of an export, loaded from its SavedModel."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.server.batching import Arrays, Work
from spanbert_tf.server.errors import RequestError
from spanbert_tf.serving.loading import SAVED_MODEL_FILE, load_export
from spanbert_tf.tasks.pipeline import Pipeline, RawInputError, count_tokens, input_column
from spanbert_tf.tasks.prediction import load_pipeline
from spanbert_tf.terminal import print_line
from spanbert_tf.text.tokenization import WordPieceTokenizer

DEFAULT_SIGNATURE = "serving_default"
_SERVE = "serve"  # the tag of graphs that serve
_MAX_INPUTS = 2_048  # of a request; as many as OpenAI's interface takes


class Asked(NamedTuple):
    """A raw input as it was checked, and the parts in which it is read."""

    item: dict
    parts: list[dict]


class Model:
    """A version of an export.

    Args:
        name: name of the model.
        directory: directory of the version; its name is the version.

    Raises:
        BadInputError: it is no export, or cannot be loaded.
    """

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self.version = os.path.basename(directory)
        self.description, self._functions = load_export(directory)
        self.pipeline: Pipeline = load_pipeline(self.description.task)
        try:
            self.signature_protos = _signature_protos(directory)
        except (OSError, ValueError, KeyError) as error:
            raise BadInputError(f"{directory}: cannot be loaded ({reason(error)})") from error
        self._tokenizer = WordPieceTokenizer.shared(
            self.description.vocabulary, self.description.text_rules
        )

    def input_specs(self, signature: str) -> Mapping[str, tf.TensorSpec]:
        """Returns name → spec of the inputs of a signature.

        Raises:
            RequestError: there is no such signature.
        """
        return self._function(signature).structured_input_signature[1]

    def output_specs(self, signature: str) -> Mapping[str, tf.TensorSpec]:
        """Returns name → spec of the outputs of a signature."""
        return self._function(signature).structured_outputs

    def _function(self, signature: str) -> Any:
        if signature not in self._functions:
            known = ", ".join(self._functions)
            raise RequestError(400, f"no signature {signature!r}; the model has {known}")
        return self._functions[signature]

    def compute(self, signature: str, inputs: Arrays) -> Arrays:
        """Computes the outputs of a signature.

        Args:
            signature: name of the signature.
            inputs: name → array [N, …] of the type of its spec.

        Raises:
            RequestError: the model refuses the inputs, or failed.
        """
        function = self._function(signature)
        try:
            outputs = function(**{name: tf.constant(values) for name, values in inputs.items()})
            return {name: values.numpy() for name, values in outputs.items()}
        except tf.errors.InvalidArgumentError as error:
            raise RequestError(400, f"the model refuses the inputs: {_cause(error)}") from error
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            raise RequestError(503, "not enough memory for this request") from error
        except Exception as error:  # the server lives on
            print_line(f"{self.name}: a request failed: {type(error).__name__}")
            raise RequestError(500, "the model failed") from error

    def work(self, signature: str, inputs: Arrays) -> Work:
        """Makes what a worker computes of tensors.

        Raises:
            RequestError: a row is too long for the task.
        """
        longest = self._longest(inputs)
        self._check_length(longest)
        outputs = self.output_specs(signature).values()
        has_fixed_shapes = all(spec.shape[1:].is_fully_defined() for spec in outputs)
        return Work(signature, inputs, longest, has_fixed_shapes)

    def _check_length(self, num_tokens: int) -> None:
        """Checks the length of what is computed at once: others wait for it.

        Raises:
            RequestError: it has too many tokens.
        """
        limit = self.pipeline.max_text_tokens
        if num_tokens > limit:
            raise RequestError(
                413,
                f"a text has {num_tokens:,} tokens; {self.pipeline.name} computes {limit:,} at "
                "once: send shorter ones (/answer reads long texts of coreference in windows)",
            )

    def _longest(self, inputs: Arrays) -> int:
        """Returns the number of tokens of the longest row."""
        texts = [values for values in inputs.values() if values.dtype == object]
        if texts:
            return max([1, *self._row_lengths(texts)])
        widths = [values.shape[1] for values in inputs.values() if values.ndim > 1]
        return max([1, *widths])

    def _row_lengths(self, texts: Sequence[np.ndarray]) -> list[int]:
        """Returns the number of tokens that the model reads of each row.

        Args:
            texts: bytes [N] for each text of a row.
        """
        lengths = count_tokens(self._tokenizer, texts)
        if self.pipeline.cuts_texts:
            return [min(length, self.description.sequence_length) for length in lengths]
        return lengths

    def raw_works(self, inputs: Sequence[Any]) -> tuple[list[Asked], list[Work]]:
        """Checks raw inputs, and makes what a worker computes of them.

        Args:
            inputs: inputs as `predict` takes them.

        Returns:
            The inputs as they were checked, and the work of each of their parts.

        Raises:
            RequestError: an input cannot be used or is too long, there are too many, or the export
                takes only ids.
        """
        if len(inputs) > _MAX_INPUTS:
            raise RequestError(413, f"has {len(inputs):,} inputs; {_MAX_INPUTS:,} are taken")
        signature = self.description.signature
        if signature is None:
            raise RequestError(400, f"{self.name} takes only rows of ids; it answers no texts")
        try:
            items = self.pipeline.check_all(self.description, inputs)
        except RawInputError as error:
            raise RequestError(400, str(error)) from error
        asked = [Asked(item, self.pipeline.parts(self.description, item)) for item in items]
        specs = self.input_specs(signature)
        rows = []
        turns = []  # of a part among those of its input
        for one in asked:
            for turn, part in enumerate(one.parts):
                rows.append({name: _column(part, spec) for name, spec in specs.items()})
                turns.append(turn)
        texts = []
        for name, spec in specs.items():
            if spec.dtype == tf.string:
                texts.append(np.array([row[name][0] for row in rows], object))
        lengths = self._row_lengths(texts)  # of all parts at once, since each call takes 0.2 ms
        self._check_length(max(lengths, default=0))
        kept = self.pipeline.answer_names
        works = [
            Work(signature, row, length, is_gathered=True, turn=turn, kept=kept)
            for row, length, turn in zip(rows, lengths, turns, strict=True)
        ]
        return asked, works

    def answers(self, asked: Sequence[Asked], outputs: Sequence[Arrays], top_k: int) -> list:
        """Converts the outputs for the parts of checked inputs to what `predict` writes."""
        rows = iter(outputs)
        answers = []
        for item, parts in asked:
            found = []
            for columns in itertools.islice(rows, len(parts)):
                found.append({name: values[0] for name, values in columns.items()})
            joined = self.pipeline.joined(parts, found)
            answers.append(self.pipeline.answer(self.description, item, joined, top_k))
        return answers

    def warm_up(self) -> None:
        """Computes the example once, so that the first request does not wait."""
        if self.description.signature is None:
            return
        _, works = self.raw_works([dict(self.description.example)])
        for work in works:
            self.compute(work.signature, work.inputs)


def _column(item: dict, spec: tf.TensorSpec) -> np.ndarray:
    """Returns the value of an input of a signature, [1, …].

    Raises:
        RequestError: the value is not of the spec's type.
    """
    try:
        return input_column([item], spec).numpy()
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise RequestError(400, f"{spec.name!r} is missing or of a wrong type") from error


def _cause(error: tf.errors.OpError) -> str:
    """Returns the line of an error that says what is wrong; others name places in the program."""
    lines = error.message.splitlines()
    for line, following in itertools.pairwise(lines):
        if following.lstrip().startswith("[[{{node"):
            return line
    return lines[0] if lines else type(error).__name__


def _signature_protos(directory: str) -> dict[str, dict]:
    """Returns name → `SignatureDef` of a SavedModel, as JSON."""
    saved_model = saved_model_pb2.SavedModel()
    with open(os.path.join(directory, SAVED_MODEL_FILE), "rb") as file:
        saved_model.ParseFromString(file.read())
    for graph in saved_model.meta_graphs:
        if _SERVE in graph.meta_info_def.tags:
            return {
                name: json_format.MessageToDict(proto, preserving_proto_field_name=True)
                for name, proto in graph.signature_def.items()
            }
    raise ValueError(f"has no graph with the tag {_SERVE!r}")
