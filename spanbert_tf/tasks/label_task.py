"""The base class of tasks whose models assign labels with probabilities.

Dimensions: B rows of a batch, S positions of a row, C labels.
"""

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.batches import PackedRows
from spanbert_tf.data.records import ManifestT, Records
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import text_specs
from spanbert_tf.tasks.pipeline import best_of
from spanbert_tf.tasks.report import (
    ClassScores,
    Table,
    class_scores,
    class_table,
    confusion_table,
)
from spanbert_tf.tasks.shown_answers import View, shares_of
from spanbert_tf.tasks.task import ConfigT, Outcome, Task
from spanbert_tf.text.tokenization import clean_texts

PREDICTIONS_FILE = "predictions.jsonl"


class LabelTask(Task[ManifestT, ConfigT]):
    """Assigns labels to texts, to pairs of texts, or to word pieces.

    The model and the manifest have `labels`, the names of the labels in the order of their numbers.
    The lines of `lines_file` have the names of the gold labels, and predictions are the
    probabilities of all labels, float32 [C], for each line.

    The defaults are complete for a task that assigns one label to a text, or to a pair of texts,
    with a model whose preprocessor has `pack_texts`; such a task adds `build` and `score`.

    Attributes:
        lines_file: name of the file of JSON lines, beside the rows, that holds gold labels.
        label_key: key of a line's gold label; the value is `None` where the label is not known.
        first_label: the number that the first label is stored as. If it is 1, a row without a label
            stores 0, which is read as -1.
        table_title: title of the table of the labels' scores.
    """

    written_files: ClassVar[tuple[str, ...]] = (PREDICTIONS_FILE,)
    lines_file: ClassVar[str]
    label_key: ClassVar[str] = "label"
    first_label: ClassVar[int] = 0
    table_title: ClassVar[str] = "texts by class"

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature: texts → the most probable label, and the probabilities of all."""

        def classify(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            x = model.preprocessor.pack_texts(*[clean_texts(text) for text in texts])
            outputs = self.of_rows(model, x, top_k)
            best = tf.argmax(outputs["probabilities"], axis=-1)
            return {"labels": tf.gather(tf.constant(model.labels), best), **outputs}

        return {"serving_default": (classify, text_specs(*self.fields_of(model)))}

    def answer(
        self, description: Description, item: dict, found: dict, top_k: int
    ) -> dict | list[dict]:
        """Returns the most probable labels, as the pipeline `text-classification` does."""
        probabilities = found["probabilities"]
        answers = []
        for label_id in (-probabilities).argsort(kind="stable")[:top_k]:
            score = float(probabilities[label_id])
            answers.append({"label": description.labels[label_id], "score": score})
        return best_of(answers, top_k)

    def view(self, description: Description, item: dict, answer: Any) -> View:
        """Shows the probabilities of the labels."""
        return View((), shares_of(answer))

    def parse(
        self, rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Parses rows as `Task.parse`; labels are numbers from 0, int32 [B] or [B, S]."""
        x, labels = super().parse(rows, serialized, width)
        if self.first_label:
            labels -= self.first_label
        return x, labels

    def targets(self, model: keras_hub.models.Task, records: Records, y: tf.Tensor) -> tf.Tensor:
        """Converts the records' labels to the model's by their names; -1 if the model lacks one."""
        model_ids = {name: label_id for label_id, name in enumerate(model.labels)}
        ids_of_records = [model_ids.get(name, -1) for name in records.manifest.labels]
        return tf.gather(tf.constant([-1, *ids_of_records], y.dtype), y + 1)

    def probabilities(self, model: keras_hub.models.Task, outputs: tf.Tensor) -> tf.Tensor:
        """Computes the probabilities of labels, float32 [..., C], from the outputs of the model."""
        return tf.nn.softmax(tf.cast(outputs, tf.float32))

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes the probabilities of all labels, as `probabilities`."""
        return {"probabilities": self.probabilities(model, model(x, training=False))}

    def predict_batch(self, model: keras_hub.models.Task, x: dict, outputs: tf.Tensor) -> Any:
        """Computes the probabilities of all labels, float32 [B, C]."""
        return self.probabilities(model, outputs)

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records,
        predictions: Sequence[np.ndarray],
    ) -> Outcome:
        """Decodes predictions to the names of the most probable labels.

        A baseline predicts the labels of the records.
        """
        labels = known_labels(model, records)
        gold = [line[self.label_key] for line in records.lines(self.lines_file)]
        predicted = [labels[int(row.argmax())] for row in predictions]
        return Outcome(model, records, predictions, gold, predicted, predicted)

    def class_scores(self, outcome: Outcome) -> ClassScores:
        """Computes the scores of each label."""
        return class_scores(outcome.gold, outcome.predicted, all_labels(outcome))

    def tables(self, outcome: Outcome) -> Sequence[Table]:
        """Returns the table of the labels' scores, and the confusion matrix."""
        scores = class_table(self.table_title, self.class_scores(outcome))
        labels = all_labels(outcome)
        return [scores, confusion_table(outcome.gold, outcome.predicted, labels)]

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes `predictions.jsonl`: a line for each text with its label and all probabilities."""
        labels = known_labels(outcome.model, outcome.records)
        lines = [
            {
                "label": label,
                "score": float(row.max()),
                "probabilities": dict(zip(labels, row.tolist(), strict=True)),
            }
            for label, row in zip(outcome.predicted, outcome.predictions, strict=True)
        ]
        write_json_lines(os.path.join(output, PREDICTIONS_FILE), lines)

    def gold_labels(self, line: Mapping[str, Any]) -> Sequence[str]:
        """Returns the gold labels of a line."""
        label = line[self.label_key]
        return [] if label is None else [label]

    def label_counts(self, records: Records) -> Mapping[str, int]:
        """Counts the gold labels. Those that the manifest does not name come last."""
        counts: collections.Counter[str] = collections.Counter()
        for line in records.lines(self.lines_file):
            counts.update(self.gold_labels(line))
        known = {label: counts[label] for label in records.manifest.labels}
        return {**known, **counts}


def known_labels(model: keras_hub.models.Task | None, records: Records) -> Sequence[str]:
    """Returns the labels that are predicted: the model's, or the records' for a baseline."""
    return records.manifest.labels if model is None else model.labels


def all_labels(outcome: Outcome) -> list[str]:
    """Returns the labels that are predicted, followed by other gold labels."""
    labels = [*known_labels(outcome.model, outcome.records), *outcome.gold]
    return list(dict.fromkeys(labels))
