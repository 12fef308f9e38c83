"""What all tasks share: predictions in the order of the file, from one graph, and the loss."""

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import LENGTH, VOCABULARY, tiny_model

from spanbert_tf.models.objective import ObjectiveSums
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.named_entities.rows import read_entity_lines, write_entities
from spanbert_tf.tasks.table import load_task
from spanbert_tf.tasks.task import Task
from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.rows import write_labelled_texts


class Widest(Task):
    """Rows → their largest token. A row's loss is its label."""

    name = "widest"
    build = score = write = signatures = answer = None

    def dataset(self, records, **options):
        def batches():
            for rows, width in (([3, 0], 5), ([1, 4], 7), ([2], 2)):
                ids = np.repeat(np.array(rows, "int32")[:, np.newaxis], width, axis=1)
                yield {"row_index": np.array(rows, "int32"), "token_ids": ids}, np.array(rows, "f4")

        specs = {
            "row_index": tf.TensorSpec([None], tf.int32),
            "token_ids": tf.TensorSpec([None, None], tf.int32),
        }
        return tf.data.Dataset.from_generator(
            batches, output_signature=(specs, tf.TensorSpec([None], tf.float32))
        ).apply(tf.data.experimental.assert_cardinality(3))

    def predict_batch(self, model, x, outputs):
        return {"largest": outputs, "row": x["row_index"]}


class Model:
    def __init__(self):
        self.traces = []

    def __call__(self, x, training):
        self.traces.append(x)
        return tf.reduce_max(x["token_ids"], axis=1)

    def objective_sums(self, x, outputs, y, sample_weight):
        half = ObjectiveSums.of(y / 2, None, sample_weight)
        return {"whole": ObjectiveSums.of(y, None, sample_weight), "half": half}


def records_of(num_training_rows):
    return types.SimpleNamespace(
        manifest=types.SimpleNamespace(num_training_rows=num_training_rows)
    )


def test_batches_of_other_sizes_and_widths_need_no_second_trace():
    model, batches = Model(), []
    found = Widest().predict(
        model, records_of(5), batch_size=2, after_batch=lambda: batches.append(None)
    )
    assert found == [{"largest": row, "row": row} for row in range(5)]
    assert len(model.traces) == 1 and len(batches) == 3


@pytest.mark.parametrize(("num_labelled", "expected"), [(5, 2 + 1), (3, 1 + 0.5), (0, 0)])
def test_the_loss_is_a_mean_over_the_rows_with_labels_added_over_objectives(num_labelled, expected):
    """Batches have unequal numbers of them."""
    found, loss = Widest().predict_with_loss(Model(), records_of(num_labelled), batch_size=2)
    assert len(found) == 5 and loss == pytest.approx(expected)


def write_entity_records(path, output, options):
    """Labels O, B-A, I-A, B-W, I-W, B-X, I-X, where the model has O, B-X, I-X."""
    places = {"W": (0, 3), "A": (8, 11), "X": (12, 15)}
    entities = [{"start": a, "end": b, "label": name} for name, (a, b) in places.items()]
    lines = [
        {"text": "ann has the cat .", "entities": entities},
        {"text": "bob has the cat ?", "entities": entities[2:]},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_entities(read_entity_lines(str(path)), output, **options)


def write_text_records(path, output, options):
    """Classes in another order than the model's, LABEL_0 and LABEL_1."""
    examples = [LabelledText(n, ("ann has the cat",), "LABEL_1") for n in (1, 2)]
    examples += [LabelledText(3, ("who ?",), "LABEL_0")]
    texts = LabelledTexts("x", examples, ("LABEL_1", "LABEL_0"), is_pair=False)
    write_labelled_texts(texts, output, **options)


@pytest.mark.parametrize(
    ("name", "write"),
    [("named_entities", write_entity_records), ("text_classification", write_text_records)],
)
def test_the_loss_pairs_labels_by_their_names(name, write, tmp_path):
    """What the model does not know is no target."""
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    options = {"vocabulary": str(tmp_path / "vocab.txt"), "lowercase": True}
    output = str(tmp_path / "records")
    write(tmp_path / "lines.jsonl", output, {**options, "sequence_length": LENGTH})
    task, model, records = load_task(name), tiny_model(name), open_records(output)
    head = next(layer for layer in model.layers if layer.name == "logits")
    head.bias.assign(np.arange(len(model.labels)))  # a label's loss tells which it is
    losses = []
    for x, y in task.dataset(records, batch_size=2, training=False):
        logs = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(x)))
        for row, number in zip(logs.reshape([-1, logs.shape[-1]]), np.ravel(y), strict=True):
            label = records.manifest.labels[number] if number >= 0 else None
            losses += [-row[model.labels.index(label)]] if label in model.labels else []
    _, loss = task.predict_with_loss(model, records, batch_size=2)
    assert len(losses) == {"named_entities": 8, "text_classification": 3}[name]
    assert loss == pytest.approx(np.mean(losses), abs=1e-6)
