"""What `finetune`, `evaluate`, `predict`, `export`, `inspect` and `--grid` know of a task.

`tasks.table` says where each is found. B rows of a batch, S positions of it.
"""

import abc
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from rich.text import Text

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.console import DataConsole
from spanbert_tf.data.batches import PackedRows, packed_batches
from spanbert_tf.data.examples import Stored, named_damage
from spanbert_tf.data.records import Records, TaskManifest, row_features
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.kinds import ANY_TASK, info_file, refuse_other_records
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.models.keras_hub_presets import is_task_preset
from spanbert_tf.tasks.inspection import marked_pieces
from spanbert_tf.tasks.pipeline import Pipeline
from spanbert_tf.tasks.report import Table, print_table
from spanbert_tf.tasks.table import TASKS, load_task, task_names
from spanbert_tf.terminal import show_progress
from spanbert_tf.training.checkpoints import Best

if keras.backend.backend() == "jax":
    from spanbert_tf.models.jax_train_step import jitted

Model = keras_hub.models.Task
Predictions = Sequence[Any]  # a type of the task's own, one for each item of the records


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Predictions for some records, decoded once for scores, files, tables and pages.

    Attributes:
        model: what predicted; `None`: the task's baseline.
        records: the records.
        predictions: what `Task.predict` or `Task.baseline` returned.
        gold: what is right, in the order of the records; a type of the task's own.
        predicted: what was predicted, as `gold`.
        texts: what is predicted for each item, as text, empty where it is nothing; a training run
            says so where all are the same.
    """

    model: Model | None
    records: Records
    predictions: Predictions
    gold: Sequence[Any]
    predicted: Sequence[Any]
    texts: Sequence[str] = ()

    @property
    def by(self) -> str:
        """Whose predictions these are: the model's, or the baseline's, which has no model."""
        return "baseline" if self.model is None else "model"


class Task(Pipeline):
    """A pipeline whose models are fine-tuned: it adds records, training and scores.

    A class derives from it, and a table or an entry point names the class; commands make one of it
    without arguments. The model offers `objectives`, `objective_sums` and `target_counts`
    (`models.objective.Objectives`).

    Attributes:
        best: which evaluation is the best, see `best_of`. Its metric is one of `score`, or `loss`,
            that of the validation records. `None`: `best_of` says it.
        config_class: class of its configurations.
        info_class: class of the description of its records, `NAME_info.json`, which has an
            attribute for each key of the configuration's section `data`.
        written_files: patterns of the names that `write` writes, the first of which is always
            there.
        features: what a row has beside the encoder's features: name → how it is stored, as for
            `PackedRows.parse`.
        first_label: what the first label is stored as; 1 where 0 is stored for none, which is read
            as -1.
        pooler_advice: how to do without a pooler that nothing has trained, said by `finetune`.
        report: `(title, outcome, scores)` → a page of HTML; `None`: there is none.
        baseline: `(records)` → predictions without a model, to see what a score is worth; `None`:
            there are none.
    """

    best: ClassVar[Best | None] = Best("f1", "max")
    config_class: ClassVar[type[FinetuningConfig]]
    info_class: ClassVar[type[TaskManifest]]
    written_files: ClassVar[tuple[str, ...]]
    features: ClassVar[Mapping[str, str]] = {}
    first_label: ClassVar[int] = 0
    pooler_advice: ClassVar[str] = ""
    report: Callable[[str, Outcome, Mapping[str, float]], str] | None = None
    baseline: Callable[[Records], Predictions] | None = None

    @abc.abstractmethod
    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        info: TaskManifest,
        config: FinetuningConfig,
    ) -> Model:
        """The task's model on an encoder, with its preprocessor, for records as `info` has them."""

    @abc.abstractmethod
    def predict_batch(self, model: Model, x: dict, outputs: Any) -> Any:
        """What is predicted for a batch of rows, in a graph.

        Args:
            model: the model.
            x: features of the rows.
            outputs: what the model computed for them.

        Returns:
            A tensor [B, …], or a structure of such.
        """

    @abc.abstractmethod
    def score(self, outcome: Outcome) -> dict[str, float]:
        """The official metrics, in percent."""

    @abc.abstractmethod
    def write(self, outcome: Outcome, output: str) -> None:
        """Writes the official files into a directory."""

    def best_of(self, info: TaskManifest) -> Best:
        """Which evaluation on some records is the best: checkpoints, patience and `--grid` ask it.

        By default it is `best`, whatever the records.
        """
        if self.best is None:
            raise NotImplementedError(f"task {self.name}: has neither `best` nor `best_of`")
        return self.best

    def check_model(self, model: Model, records: Records, preset: str) -> None:
        """Refuses records that were written for another model, beyond what all tasks check.

        Raises:
            MismatchError: they were; the message names them and the preset.
        """

    def parse(
        self, rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Any]:
        """Tensors of a batch of rows: `(x, y)`; by default `y` is the one of `features`.

        Args:
            rows: knows the description of the records, and the encoder's features.
            serialized: string [B].
            width: int32 [], S.
        """
        x, found = rows.parse(serialized, width, self.features, self.bounds(rows.info))
        (y,) = found.values()
        return x, y - self.first_label if self.first_label else y

    def bounds(self, info: TaskManifest) -> Mapping[str, int | str]:
        """What the numbers of some of `features` are below, as `row_features` takes it."""
        return {}

    def stored(self, info: TaskManifest) -> Mapping[str, Stored]:
        """What each row holds, by which a damaged one is found."""
        return row_features(info, self.features, self.bounds(info))

    def named_damage(self, records: Records) -> contextlib.AbstractContextManager:
        """Names the damaged row where TensorFlow, which meets it inside, would not."""
        return named_damage(lambda: records.damage(self.stored(records.info)))

    def targets(self, model: Model, records: Records, y: Any) -> Any:
        """`y` of `parse` as the model numbers its labels; by default as the records do."""
        return y

    def dataset(self, records: Records, **options: bool | int) -> tf.data.Dataset:
        """Batches of the records, rows of similar length together; options of `packed_batches`."""
        return packed_batches(records, self.parse, **options)

    def labels_of(self, records: Records) -> list[np.ndarray]:
        """The labels of each row, in the order of the file, where `y` is one tensor [B, …]."""
        labels: dict[int, np.ndarray] = {}
        for x, y in self.dataset(records, batch_size=32, training=False).as_numpy_iterator():
            labels.update(zip(x["row_index"].tolist(), y, strict=True))
        return [labels[number] for number in range(len(labels))]

    def collect(self, model: Model, records: Records, rows: list) -> Predictions:
        """The predictions of items, from those of all rows in the order of the file."""
        return rows

    def predict(self, model: Model, records: Records, **options: Any) -> Predictions:
        """The predictions for records, in their order; options as for `predict_with_loss`."""
        return self.predict_with_loss(model, records, with_loss=False, **options)[0]

    def outcome(self, model: Model | None, records: Records, predictions: Predictions) -> Outcome:
        """Predictions beside what is right, decoded once; by default, as they are."""
        return Outcome(model, records, predictions, self.labels_of(records), predictions)

    def calibrate(self, model: Model, records: Records, predictions: Predictions) -> None:
        """Sets what the model chooses on development data, such as a threshold."""

    def tables(self, outcome: Outcome) -> Sequence[Table]:
        """Tables that `evaluate` prints and its report shows, such as the scores of the classes."""
        return ()

    def details(self, outcome: Outcome, console: DataConsole) -> None:
        """Prints what `evaluate` shows beside the scores; by default the tables."""
        for table in self.tables(outcome):
            print_table(console, table)

    def inspect(self, records: Records, console: DataConsole, num_examples: int) -> None:
        """Prints counts, and some of the records, for `spanbert-tf inspect`."""
        console.print(f"{records}: {self.describe(records.info)}")
        for name, count in records.info.counts.items():
            console.print(f"  {name.replace('_', ' ')}: {count:,}")
        self.show_labels(records, console)
        if num_examples:
            self.show_examples(records, console, num_examples)

    def describe(self, info: TaskManifest) -> str:
        """What `inspect` says of all records."""
        return (
            f"{self.name.replace('_', ' ')} in rows of up to {info.sequence_length}, "
            f"{info.casing.describe()}, vocabulary of {info.vocabulary_size:,}"
            + ", with SegaBERT's positions"
            * info.segment_aware
        )

    def show_labels(self, records: Records, console: DataConsole) -> None:
        """Prints how often each label occurs in all records, where labels have names."""

    def show_examples(self, records: Records, console: DataConsole, num_examples: int) -> None:
        """Prints some rows as the model reads them, the longest first, and their labels."""
        rows = self.dataset(records, batch_size=1, training=False)
        for x, labels in rows.take(num_examples).as_numpy_iterator():
            console.print()
            pieces, number = pieces_of_row(x, records.vocabulary), int(x["row_index"][0])
            of_row = tf.nest.map_structure(lambda values: values[0], labels)
            for line in self.row_in_words(records, number, pieces, of_row):
                console.print(line, highlight=False)

    def row_in_words(
        self, records: Records, number: int, pieces: Sequence[str], labels: Any
    ) -> Iterator[str | Text]:
        """The lines that `inspect` shows of a row; by default its labels are numbers.

        Args:
            records: the records.
            number: number of the row in its file, from 0.
            pieces: its word pieces.
            labels: what `parse` returned for it as `y`.
        """
        yield marked_pieces(pieces, ())
        for name, values in (labels if isinstance(labels, dict) else {"label": labels}).items():
            yield f"  {name}: {values.tolist()}"

    def open(self, records: str | os.PathLike | Records) -> Records:
        """Opens records of the task, unless they are open.

        Raises:
            BadInputError: a file is missing, damaged or not what the description says.
        """
        return Records.of(records, self.info_class)

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
        num_labelled = records.info.num_training_rows if with_loss else None
        with_model = jitted if keras.backend.backend() == "jax" else functools.partial
        compute = with_model(_outputs_and_losses, model)

        def predict_batch(x: dict, y: Any) -> tuple[Any, dict[str, tuple[tf.Tensor, tf.Tensor]]]:
            found = compute(x, y, num_labelled)
            outputs, losses = tf.nest.map_structure(tf.convert_to_tensor, found)
            return self.predict_batch(model, x, outputs), losses

        function = predict_batch
        if keras.backend.backend() == "tensorflow":  # one trace, whatever the batches' shapes
            function = tf.function(predict_batch, input_signature=dataset.element_spec)
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
        loss = sum(float(total) / float(max(count, 1)) for total, count in totals.values())
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


def renumbered(numbers: tf.Tensor, labels: Sequence[str], known: Sequence[str]) -> tf.Tensor:
    """Numbers of labels as those of known ones, int32 [...]; -1 for none, and what is not known."""
    number_of = {name: number for number, name in enumerate(known)}
    of_labels = tf.constant([-1, *(number_of.get(name, -1) for name in labels)], numbers.dtype)
    return tf.gather(of_labels, numbers + 1)


def pieces_of_row(x: dict[str, np.ndarray], vocabulary: Sequence[str]) -> list[str]:
    """The word pieces of the first row of a batch, without padding.

    Args:
        x: `token_ids` and `padding_mask`, int [B, S].
        vocabulary: entries in order of their ids.
    """
    length = int(x["padding_mask"][0].sum())
    return [vocabulary[token] for token in x["token_ids"][0, :length]]


def task_of_records(directory: str | os.PathLike) -> Task:
    """The task that records were written for, by the name of their description.

    Raises:
        BadInputError: the directory holds no records of a task.
    """
    name = _records_task(directory)
    if name is not None:
        return load_task(name)
    refuse_other_records(directory, ANY_TASK)
    raise BadInputError(
        f"{directory}: holds no records of a task; write them with `spanbert-tf prepare`, "
        "for example `prepare squad`"
    )


def open_records(directory: str | os.PathLike | Records) -> Records:
    """Opens the records of any task, unless they are open.

    Raises:
        BadInputError: the directory holds no records of a task, or they are damaged.
    """
    if isinstance(directory, Records):
        return directory
    return task_of_records(directory).open(directory)


def inspect_records(
    data: str,
    config: str,
    overrides: Sequence[str] = (),
    *,
    png: str | None = None,
    num_examples: int = 3,
    overwrite: bool = False,
    console: DataConsole | None = None,
) -> None:
    """Prints what records of any kind hold; arguments as for those for pre-training."""
    console = console or DataConsole()
    if _records_task(data) is None:
        from spanbert_tf.pretraining import inspection  # nothing of a task needs it

        options = {"png": png, "num_examples": num_examples, "overwrite": overwrite}
        inspection.inspect_records(data, config, overrides, console, **options)
    elif png or overrides:
        raise ConfigurationError(
            f"{data}: holds records of a task, which no masks are drawn for; leave out --png and "
            "--set"
        )
    else:
        task = task_of_records(data)
        records = task.open(data)
        with task.named_damage(records):
            task.inspect(records, console, num_examples)


def task_dataset(directory: str | os.PathLike | Records, **options: bool | int) -> tf.data.Dataset:
    """The batches of the records of any task, for `fit` and `predict` of its model.

    Args:
        directory: what a `prepare` of the task wrote, or records.
        **options: `batch_size`, `training`, `seed` and `first_batch`, as for `packed_batches`.

    Returns:
        A data set of `(x, y)`, for training `(x, y, sample_weight)`, as `packed_batches` has it.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    records = open_records(directory)
    return load_task(records.info.task).dataset(records, **options)


def task_of_preset(preset: str, records_task: str | None = None) -> Task | None:
    """The task whose model a preset holds; `None` where it is another model.

    Tasks can share a class of models. The preset is then of the task of the records that it is to
    read, before that of this package's, whatever other packages are there.

    Args:
        preset: what `from_preset` takes.
        records_task: name of the records' task, where there are records.

    Raises:
        BadInputError: there is no preset of that name, or it may be of two tasks of other packages.
    """
    others = [name for name in task_names() if name not in TASKS]
    named = [records_task] if records_task else []
    for names in (named, *([name] for name in TASKS), others):
        tasks = [t for t in map(load_task, names) if is_task_preset(preset, t.model_class)]
        if len(tasks) > 1:
            raise BadInputError(
                f"{preset}: its model is of a class that the tasks "
                f"{' and '.join(task.name for task in tasks)} share; give one of them a class of "
                "its own, or remove its package"
            )
        if tasks:
            return tasks[0]
    return None


def _records_task(directory: str | os.PathLike) -> str | None:
    """The name of the task whose description lies in a directory."""
    for name in task_names():
        if os.path.isfile(os.path.join(directory, info_file(name))):
            return name
    return None
