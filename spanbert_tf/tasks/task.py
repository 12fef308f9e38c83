"""The base class of tasks.

`finetune`, `evaluate`, `predict`, `export`, `inspect` and `--grid` know a task through this class
alone. `tasks.table` lists the tasks.

Dimensions: B rows of a batch, S positions of a row.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from rich.text import Text

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.batches import PackedRows, packed_batches
from spanbert_tf.data.records import Records, TaskManifest
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.models.objective import ObjectiveSums, mean_loss
from spanbert_tf.models.train_step import traced_once, with_model
from spanbert_tf.tasks.marked_text import marked_pieces, pieces_of_row
from spanbert_tf.tasks.pipeline import Pipeline
from spanbert_tf.tasks.report import Table
from spanbert_tf.terminal import show_progress
from spanbert_tf.training.checkpoints import Best

Model = keras_hub.models.Task
Predictions = Sequence[Any]  # one for each item of the records; the type is the task's own


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Predictions for records, decoded once for scores, files, tables and pages.

    Attributes:
        model: the model that predicted; `None` for the task's baseline.
        records: the records.
        predictions: what `Task.predict` or `Task.baseline` returned.
        gold: the right answers, in the order of the records; the type is the task's own.
        predicted: the predicted answers, as `gold`.
        texts: the prediction for each item as text, empty where nothing is predicted. A training
            run warns if all of them are equal.
        note: what a reader of the scores has to know; empty if there is nothing.
    """

    model: Model | None
    records: Records
    predictions: Predictions
    gold: Sequence[Any]
    predicted: Sequence[Any]
    texts: Sequence[str] = ()
    note: str = ""

    @property
    def by(self) -> str:
        """Who made the predictions: `"model"`, or `"baseline"`, which has no model."""
        return "baseline" if self.model is None else "model"


class Task(Pipeline):
    """A pipeline whose models are fine-tuned. It adds records, training and scores.

    A task is a class that derives from this one. Commands create it without arguments. Its model
    implements `objectives`, `objective_sums` and `target_counts` (`models.objective.Objectives`).

    Attributes:
        best: the evaluation that counts as the best one. Its metric is a key of `score`, or `loss`,
            the loss of the validation records. `None`: the task overrides `best_of`.
        config_class: class of the task's configurations.
        manifest_class: class of the manifest of its records, `NAME_info.json`. It has an attribute
            for each key of the configuration's section `data`.
        written_files: patterns of the names of the files that `write` writes. The first one is
            always written.
        label_title: what `inspect` calls a label.
        pooler_advice: how to do without a pooler that was never trained; `finetune` prints it.
        report: `(title, outcome, scores)` → a page of HTML; `None` if the task has no report.
        baseline: `(records)` → predictions without a model, which show what a score is worth;
            `None` if the task has no baseline.
    """

    best: ClassVar[Best | None] = Best("f1", "max")
    config_class: ClassVar[type[FinetuningConfig]]
    manifest_class: ClassVar[type[TaskManifest]]
    written_files: ClassVar[tuple[str, ...]]
    label_title: ClassVar[str] = "label"
    pooler_advice: ClassVar[str] = ""
    report: Callable[[str, Outcome, Mapping[str, float]], str] | None = None
    baseline: Callable[[Records], Predictions] | None = None

    @abc.abstractmethod
    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: TaskManifest,
        config: FinetuningConfig,
    ) -> Model:
        """Creates the task's model, with its preprocessor, on an encoder.

        Args:
            backbone: the encoder.
            tokenizer: its tokenizer.
            manifest: manifest of the training records.
            config: configuration of the run.
        """

    @abc.abstractmethod
    def predict_batch(self, model: Model, x: dict, outputs: Any) -> Any:
        """Computes the predictions for a batch of rows, in a graph.

        Args:
            model: the model.
            x: features of the rows.
            outputs: what the model returned for them.

        Returns:
            A tensor [B, …], or a structure of such tensors.
        """

    @abc.abstractmethod
    def score(self, outcome: Outcome) -> dict[str, float]:
        """Returns the official metrics, in percent."""

    @abc.abstractmethod
    def write(self, outcome: Outcome, output: str) -> None:
        """Writes the official files into a directory."""

    def best_of(self, manifest: TaskManifest) -> Best:
        """The evaluation that counts as the best one on some records.

        Checkpoints, patience and `--grid` use it. By default it is `best`.
        """
        if self.best is None:
            raise NotImplementedError(f"task {self.name}: has neither `best` nor `best_of`")
        return self.best

    def check_model(self, model: Model, records: Records, preset: str) -> None:
        """Refuses records that were written for another model, beyond what all tasks check.

        Raises:
            MismatchError: the records do not fit; the message names them and the preset.
        """

    def parse(
        self, rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Any]:
        """Parses a batch of rows.

        Args:
            rows: parses the encoder's features, and the task's own.
            serialized: string [B].
            width: int32 [], S.

        Returns:
            `(x, y)`. By default `y` is the only one of the task's own features.
        """
        x, features = rows.parse(serialized, width)
        (y,) = features.values()
        return x, y

    def targets(self, model: Model, records: Records, y: Any) -> Any:
        """Converts `y` of `parse` to the model's numbering of labels; by default it is the same."""
        return y

    def dataset(self, records: Records, **options: bool | int) -> tf.data.Dataset:
        """Reads records in batches of rows of similar length; options as for `packed_batches`."""
        return packed_batches(records, self.parse, **options)

    def widest_batch(self, manifest: TaskManifest, batch_size: int) -> tuple[Any, Any]:
        """Shapes and types of the widest training batch, for `plan`.

        Args:
            manifest: manifest of the records.
            batch_size: B.

        Returns:
            `(x, y)`, structures of `tf.TensorSpec`.
        """
        parse = functools.partial(self.parse, PackedRows(manifest, 0))

        def widest(spec: tf.TensorSpec) -> tf.TensorSpec:
            shape = (batch_size, manifest.sequence_length)[: spec.shape.rank]
            return tf.TensorSpec(shape, spec.dtype)

        return tf.nest.map_structure(widest, parsed_specs(parse, batch_size))

    def collect(self, model: Model, records: Records, rows: list) -> Predictions:
        """Combines the predictions for rows, in the order of the file, into those for items."""
        return rows

    def predict(self, model: Model, records: Records, **options: Any) -> Predictions:
        """Predicts for records, in their order; options as for `predict_with_loss`."""
        return self.predict_with_loss(model, records, with_loss=False, **options)[0]

    def outcome(self, model: Model | None, records: Records, predictions: Predictions) -> Outcome:
        """Decodes predictions; by default they and the labels of the rows stay as they are."""
        return Outcome(model, records, predictions, self._labels(records), predictions)

    def _labels(self, records: Records) -> list[np.ndarray]:
        """The labels of each row, in the order of the file, where `y` is one tensor [B, …]."""
        labels: dict[int, np.ndarray] = {}
        for x, y in self.dataset(records, batch_size=32, training=False).as_numpy_iterator():
            labels.update(zip(x["row_index"].tolist(), y, strict=True))
        return [labels[index] for index in range(len(labels))]

    def calibrate(self, model: Model, records: Records, predictions: Predictions) -> None:
        """Sets what the model chooses on development data, such as a threshold."""

    def tables(self, outcome: Outcome) -> Sequence[Table]:
        """Tables that `evaluate` prints and the report shows, such as the scores of each class."""
        return ()

    def label_counts(self, records: Records) -> Mapping[str, int]:
        """How often each label occurs, for `inspect`; empty where labels have no names."""
        return {}

    def examples(self, records: Records) -> Iterator[Iterable[str | Text]]:
        """The lines that `inspect` shows of each example; by default of each row, longest first."""
        rows = self.dataset(records, batch_size=1, training=False)
        for x, labels in rows.as_numpy_iterator():
            index = int(x["row_index"][0])
            pieces = pieces_of_row(x, records.vocabulary)
            labels = tf.nest.map_structure(lambda values: values[0], labels)
            yield self.row_in_words(records, index, pieces, labels)

    def row_in_words(
        self, records: Records, index: int, pieces: Sequence[str], labels: Any
    ) -> Iterator[str | Text]:
        """The lines that `inspect` shows of a row; by default the labels are numbers.

        Args:
            records: the records.
            index: index of the row in its file.
            pieces: its word pieces.
            labels: what `parse` returned for it as `y`.
        """
        yield marked_pieces(pieces, ())
        for name, values in (labels if isinstance(labels, dict) else {"label": labels}).items():
            yield f"  {name}: {values.tolist()}"

    def predict_with_loss(
        self,
        model: Model,
        records: Records,
        *,
        batch_size: int,
        after_batch: Callable[[], None] = lambda: None,
        with_loss: bool = True,
    ) -> tuple[Predictions, float]:
        """As `predict`; and the loss, a mean over the targets of the rows that have labels.

        Args:
            model: the model.
            records: the records.
            batch_size: rows of a batch.
            after_batch: is called after each batch.
            with_loss: whether the loss is computed; it is 0 otherwise.
        """
        dataset = self.dataset(records, batch_size=batch_size, training=False)
        dataset = dataset.map(lambda x, y: (x, self.targets(model, records, y)))
        num_labelled = records.manifest.num_training_rows if with_loss else None
        compute = with_model(_outputs_and_losses, model)

        def predict_batch(x: dict, y: Any) -> tuple[Any, dict[str, tuple[tf.Tensor, tf.Tensor]]]:
            found = compute(x, y, num_labelled)
            outputs, losses = tf.nest.map_structure(tf.convert_to_tensor, found)
            return self.predict_batch(model, x, outputs), losses

        function = traced_once(predict_batch, dataset.element_spec)
        rows: dict[int, Any] = {}
        totals: dict[str, np.ndarray] = {}  # loss and targets of each objective
        for x, y in show_progress(
            dataset, int(dataset.cardinality()), "batches", doing="predicting"
        ):
            found, losses = tf.nest.map_structure(lambda values: values.numpy(), function(x, y))
            for place, number in enumerate(x["row_index"].numpy().tolist()):
                rows[number] = tf.nest.map_structure(lambda values, n=place: values[n], found)
            for name, sums in losses.items():
                totals[name] = totals.get(name, 0.0) + np.array(sums, "float64")
            after_batch()
        sums = {name: ObjectiveSums(loss, None, count) for name, (loss, count) in totals.items()}
        loss = float(mean_loss(sums))
        return self.collect(model, records, [rows[number] for number in range(len(rows))]), loss


def _outputs_and_losses(
    model: Model, x: dict, y: Any, num_labelled: int | None
) -> tuple[Any, dict[str, tuple]]:
    """Outputs for a batch; loss and targets of each objective, of the first rows of the records."""
    outputs = model(x, training=False)
    if num_labelled is None:
        return outputs, {}
    weights = keras.ops.cast(x["row_index"] < num_labelled, "float32")
    sums = model.objective_sums(x, outputs, y, weights)
    return outputs, {name: (one.loss, one.num_targets) for name, one in sums.items()}


def parsed_specs(parse: Callable[[tf.Tensor, tf.Tensor], Any], batch_size: int) -> Any:
    """Shapes and types of what a function makes of `batch_size` serialized rows and their width."""
    rows, width = tf.TensorSpec([batch_size], tf.string), tf.TensorSpec([], tf.int32)
    graph = tf.function(parse, autograph=False).get_concrete_function(rows, width)
    return graph.structured_outputs
