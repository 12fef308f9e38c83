"""A task outside of the package: is a text about the cat or about the dog? By the pooled output.

Its JSON lines have a `text` and the `animal`.
"""

import functools
import os
from typing import ClassVar, Literal

import click
import keras
import tensorflow as tf
from typing_extensions import TypedDict

from spanbert_tf.command_line import record_options
from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.batches import packed_batches
from spanbert_tf.data.records import ROW_TOKEN_IDS, SECOND_START, Records, TaskManifest
from spanbert_tf.data.rows import NUMBER
from spanbert_tf.files.text_files import read_json_objects, write_json_lines
from spanbert_tf.models import SpanBertTextClassifier, SpanBertTextClassifierPreprocessor
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.text_function import TextFunction
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.tasks.raw_inputs import in_batches_by_length, string_tensor
from spanbert_tf.tasks.row_predictions import predict_rows, row_labels
from spanbert_tf.tasks.task import Task
from spanbert_tf.text.tokenization import TextTokenizer

ANIMALS = ("cat", "dog")


class ToyInfo(TaskManifest):
    task: ClassVar[str] = "toy"


class ToyConfig(FinetuningConfig):
    task: Literal["toy"] = "toy"


@keras.saving.register_keras_serializable(package="toy")
class ToyClassifier(SpanBertTextClassifier):
    pass


class Line(TypedDict):
    text: str
    animal: Literal["cat", "dog"]


class ToyRows(RowMaker):
    info_class, title = ToyInfo, "toy records"

    def __init__(self, path):
        super().__init__()
        self.read = read_json_objects(path, Line)

    def rows(self, pieces, casing, sequence_length):
        tokenize, pack = TextTokenizer(pieces, casing, segment_aware=False), RowPacker(pieces)
        texts = tokenize([line["text"] for line in self.read])
        for line, text in zip(self.read, texts, strict=True):
            token_ids, second_start = pack(text.token_ids[: sequence_length - 2])
            numbers = {SECOND_START: second_start, "label": ANIMALS.index(line["animal"])}
            yield Row(numbers, {ROW_TOKEN_IDS: token_ids})


@click.command()
@record_options
def prepare(input_path, output, **options):
    """Write toy records."""
    write_task_records(ToyRows(input_path), output, **options)


def parse(rows, serialized, width):
    x, record = rows.parse(serialized, width, {"label": NUMBER})
    return x, record["label"]


def dataset(directory, **options):
    return packed_batches(Records.of(directory, ToyInfo), parse, **options)


def build(backbone, tokenizer, info, config):
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, info.sequence_length)
    return ToyClassifier(backbone, len(ANIMALS), preprocessor, dropout=backbone.dropout)


def probabilities(model, x):
    return tf.nn.softmax(tf.cast(model(x, training=False), tf.float32))


def predict(model, directory, *, batch_size, after_batch=lambda: None):
    rows = dataset(directory, batch_size=batch_size, training=False)
    return predict_rows(functools.partial(probabilities, model), rows, after_batch)


def score(model, directory, predictions):
    labels = row_labels(dataset(directory, batch_size=32, training=False))
    right = [row.argmax() == label for row, label in zip(predictions, labels, strict=True)]
    return {"accuracy": 100 * sum(right) / len(right)}


def write(model, directory, predictions, output):
    rows = [dict(zip(ANIMALS, row.tolist(), strict=True)) for row in predictions]
    write_json_lines(os.path.join(output, "animals.jsonl"), rows)


def served(model, top_k):
    def classify(text):
        return {"probabilities": probabilities(model, model.preprocessor(text))}

    texts = {"text": ["the cat"]}
    about = Manual("Cat or dog.", texts, "probabilities", "[texts, 2]", "`serving_default`")
    return TextFunction(classify, about)


def from_raw(model, *, top_k=1):
    def classify(batch):
        rows = probabilities(model, model.preprocessor(string_tensor(batch, "text")))
        pairs = [sorted(zip(row, ANIMALS, strict=True), reverse=True) for row in rows.numpy()]
        found = [[{"label": n, "score": float(p)} for p, n in each[:top_k]] for each in pairs]
        return [best[0] for best in found] if top_k == 1 else found

    return functools.partial(in_batches_by_length, names=("text",), work=classify)


TASK = Task(
    name="toy",
    main_metric="accuracy",
    model_class=ToyClassifier,
    config_class=ToyConfig,
    info_class=ToyInfo,
    build=build,
    dataset=dataset,
    predict=predict,
    score=score,
    write=write,
    written_files=("animals.jsonl",),
    served=served,
    from_raw=from_raw,
)
