"""The base class of tasks.

`finetune`, `evaluate`, `predict`, `export`, `inspect` and `--grid` know a task only through this
class and its base, `Pipeline`. `tasks.table` lists the tasks.

Dimensions: B rows of a batch, S positions of a row.
"""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from rich.text import Text

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.batches import PackedRows, packed_batches
from spanbert_tf.data.records import ManifestT, Records
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.models.objective import ObjectiveSums, mean_loss
from spanbert_tf.models.train_step import traced_once, with_model
from spanbert_tf.tasks.marked_text import marked_pieces, pieces_of_row
from spanbert_tf.tasks.pipeline import Pipeline
from spanbert_tf.tasks.report import Report, Table
from spanbert_tf.terminal import show_progress
from spanbert_tf.training.checkpoints import Best

ConfigT = TypeVar("ConfigT", bound=FinetuningConfig)
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

    model: keras_hub.models.Task | None
    records: Records
    predictions: Predictions
    gold: Sequence[Any]
    predicted: Sequence[Any]
    texts: Sequence[str] = ()
    note: str = ""

    @property
    def by(self) -> str:
        """`"model"` or `"baseline"`, whichever made the predictions."""
        return "baseline" if self.model is None else "model"


class Task(Pipeline, Generic[ManifestT, ConfigT]):
    """A pipeline whose models are fine-tuned. It adds records, training and scores.

    A task is a class that derives from this one, or from `Task[ManifestClass, ConfigClass]`, by
    which a type checker knows its manifest and its configuration. Commands create it without
    arguments. Its model derives from `SpanBertTask` and names its objective
    (`models.objective.Objectives`).

    Attributes:
        best: the evaluation that counts as the best one. Its metric is a key of `score`, or `loss`,
            the loss of the validation records. `None`: the task overrides `best_of`.
        config_class: class of the task's configurations.
        manifest_class: class of the manifest of its records, `NAME_info.json`. It has an attribute
            for each key of the configuration's section `data`.
        written_files: patterns of the names of the files that `write` writes. The first one is
            always written.
        metrics: names of the rules that predictions can be scored by, for `evaluate --metric`. The
            first one is the default. Empty: the task has one rule.
        label_title: what `inspect` calls a label.
        pooler_advice: how to do without a pooler that was never trained; `finetune` prints it.
        report: `(outcome, scores)` → what the page of the report shows; `None` if the task has no
            report.
        baseline: `(records)` → predictions without a model, which show what a score is worth;
            `None` if the task has no baseline.
    """

    best: ClassVar[Best | None] = Best("f1", "max")
    config_class: type[ConfigT]
    manifest_class: type[ManifestT]
    written_files: ClassVar[tuple[str, ...]]
    metrics: ClassVar[tuple[str, ...]] = ()
    label_title: ClassVar[str] = "label"
    pooler_advice: ClassVar[str] = ""
    report: Callable[[Outcome, Mapping[str, float]], Report] | None = None
    baseline: Callable[[Records], Predictions] | None = None

    @abc.abstractmethod
    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: ManifestT,
        config: ConfigT,
    ) -> keras_hub.models.Task:
        """Creates the task's model, with its preprocessor, on an encoder.

        Args:
            backbone: the encoder.
            tokenizer: its tokenizer.
            manifest: manifest of the training records.
            config: configuration of the run.
        """

    @abc.abstractmethod
    def predict_batch(self, model: keras_hub.models.Task, x: dict, outputs: Any) -> Any:
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

    @functools.cached_property
    def metric(self) -> str:
        """The one of `metrics` that `score`, `tables` and `report` compute; see `score_by`."""
        return self.metrics[0] if self.metrics else ""

    def score_by(self, metric: str) -> None:
        """Scores by one of `metrics` from now on.

        Raises:
            BadInputError: the task has no such metric.
        """
        if metric not in self.metrics:
            known = f"its metrics are {', '.join(self.metrics)}" if self.metrics else "it has none"
            raise BadInputError(f"metric {metric!r}: {self.name} has no such metric; {known}")
        self.metric = metric

    def configure(self, config: ConfigT) -> None:
        """Takes from the configuration of a run what its scores depend on, such as a metric."""

    def check_metric(self, records: Records[ManifestT]) -> None:
        """Checks that the metric can score records, and prints a line if it does not fit them.

        Raises:
            BadInputError: it cannot.
        """

    def best_of(self, manifest: ManifestT) -> Best:
        """Returns the evaluation that counts as the best one on some records.

        Checkpoints, patience and `--grid` use it. By default it is `best`.
        """
        if self.best is None:
            raise NotImplementedError(f"task {self.name}: has neither `best` nor `best_of`")
        return self.best

    def check_model(
        self, model: keras_hub.models.Task, records: Records[ManifestT], preset: str
    ) -> None:
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

    def targets(self, model: keras_hub.models.Task, records: Records[ManifestT], y: Any) -> Any:
        """Converts `y` of `parse` to the model's numbering of labels; by default it is the same."""
        return y

    def dataset(self, records: Records[ManifestT], **options: Any) -> tf.data.Dataset:
        """Reads records in batches of rows of similar length; options as for `packed_batches`."""
        return packed_batches(records, self.parse, **options)

    def widest_batch(self, manifest: ManifestT, batch_size: int) -> tuple[Any, Any]:
        """Returns the shapes and types of the widest training batch, for `plan`.

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

    def collect(
        self, model: keras_hub.models.Task, records: Records[ManifestT], rows: list
    ) -> Predictions:
        """Combines the predictions for rows, in the order of the file, into those for items."""
        return rows

    def predict(
        self, model: keras_hub.models.Task, records: Records[ManifestT], **options: Any
    ) -> Predictions:
        """Predicts for records, in their order; options as for `predict_with_loss`."""
        return self.predict_with_loss(model, records, with_loss=False, **options)[0]

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records[ManifestT],
        predictions: Predictions,
    ) -> Outcome:
        """Decodes predictions; by default they and the labels of the rows stay as they are."""
        return Outcome(model, records, predictions, self._labels(records), predictions)

    def _labels(self, records: Records) -> list[np.ndarray]:
        """Returns the labels of each row in the order of the file, if `y` is one tensor [B, …]."""
        labels: dict[int, np.ndarray] = {}
        for x, y in self.dataset(records, batch_size=32, training=False).as_numpy_iterator():
            labels.update(zip(x["row_index"].tolist(), y, strict=True))
        return [labels[index] for index in range(len(labels))]

    def calibrate(
        self, model: keras_hub.models.Task, records: Records[ManifestT], predictions: Predictions
    ) -> None:
        """Sets the values of the model that development data decide, such as a threshold."""

    def tables(self, outcome: Outcome) -> Sequence[Table]:
        """Returns the tables that `evaluate` prints and the report shows, such as class scores."""
        return ()

    def label_counts(self, records: Records) -> Mapping[str, int]:
        """Counts each label, for `inspect`; returns no counts if labels have no names."""
        return {}

    def examples(self, records: Records) -> Iterator[Iterable[str | Text]]:
        """Yields the lines that `inspect` shows of each example.

        By default an example is a row, and the longest rows come first.
        """
        rows = self.dataset(records, batch_size=1, training=False)
        for x, labels in rows.as_numpy_iterator():
            index = int(x["row_index"][0])
            pieces = pieces_of_row(x, records.vocabulary)
            labels = tf.nest.map_structure(lambda values: values[0], labels)
            yield self.row_in_words(records, index, pieces, labels)

    def row_in_words(
        self, records: Records, index: int, pieces: Sequence[str], labels: Any
    ) -> Iterator[str | Text]:
        """Yields the lines that `inspect` shows of a row. By default labels are shown as numbers.

        Args:
            records: the records.
            index: index of the row in its file.
            pieces: its word pieces.
            labels: what `parse` returned for it as `y`.
        """
        yield marked_pieces(pieces, ())
        if not isinstance(labels, dict):
            labels = {"label": labels}
        for name, values in labels.items():
            yield f"  {name}: {values.tolist()}"

    def predict_with_loss(
        self,
        model: keras_hub.models.Task,
        records: Records[ManifestT],
        *,
        batch_size: int,
        after_batch: Callable[[], None] = lambda: None,
        with_loss: bool = True,
    ) -> tuple[Predictions, float]:
        """Predicts for records, and computes the loss.

        Args:
            model: the model.
            records: the records.
            batch_size: number of rows of a batch.
            after_batch: function that is called after each batch.
            with_loss: whether the loss is computed; it is 0 otherwise.

        Returns:
            The predictions in the order of the records, and the loss, a mean over the targets of
            the rows that have labels.
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
            for place, row_index in enumerate(x["row_index"].numpy().tolist()):
                rows[row_index] = tf.nest.map_structure(operator.itemgetter(place), found)
            for name, sums in losses.items():
                totals[name] = totals.get(name, 0.0) + np.array(sums, "float64")
            after_batch()
        sums = {name: ObjectiveSums(loss, None, count) for name, (loss, count) in totals.items()}
        loss = float(mean_loss(sums))
        in_order = [rows[row_index] for row_index in range(len(rows))]
        return self.collect(model, records, in_order), loss


def _outputs_and_losses(
    model: keras_hub.models.Task, x: dict, y: Any, num_labelled: int | None
) -> tuple[Any, dict[str, tuple]]:
    """Computes the outputs for a batch, and the loss and the targets of each objective.

    Args:
        model: the model.
        x: features of the rows.
        y: labels of the rows.
        num_labelled: number of rows, from the first of the records, whose losses count. `None`: no
            loss is computed.

    Returns:
        The outputs; and name of an objective → sum of losses, number of targets.
    """
    outputs = model(x, training=False)
    if num_labelled is None:
        return outputs, {}
    weights = keras.ops.cast(x["row_index"] < num_labelled, "float32")
    sums = model.objective_sums(x, outputs, y, weights)
    losses = {name: (objective.loss, objective.num_targets) for name, objective in sums.items()}
    return outputs, losses


def parsed_specs(parse: Callable[[tf.Tensor, tf.Tensor], Any], batch_size: int) -> Any:
    """Returns the shapes and types that a function returns for serialized rows and their width.

    Args:
        parse: takes rows, string [B], and a width, int32 [].
        batch_size: B.
    """
    rows = tf.TensorSpec([batch_size], tf.string)
    width = tf.TensorSpec([], tf.int32)
    graph = tf.function(parse, autograph=False).get_concrete_function(rows, width)
    return graph.structured_outputs
