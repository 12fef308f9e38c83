"""A task outside of the package: is a text about the cat or about the dog?"""

import os
from typing import ClassVar, Literal

import click
import keras
import tensorflow as tf
from typing_extensions import TypedDict

from spanbert_tf.command_line import record_options
from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.records import ROW_TOKEN_IDS, SECOND_START, TaskManifest
from spanbert_tf.files.text_files import read_json_objects, write_json_lines
from spanbert_tf.models import SpanBertTextClassifier, SpanBertTextClassifierPreprocessor
from spanbert_tf.tasks.pipeline import text_specs
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.tasks.task import Task
from spanbert_tf.text.tokenization import TextTokenizer
from spanbert_tf.training.checkpoints import Best

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


class ToyTask(Task):
    """Tells whether a text is about the cat or about the dog."""

    name, best, written_files = "toy", Best("accuracy", "max"), ("animals.jsonl",)
    model_class, config_class, info_class = ToyClassifier, ToyConfig, ToyInfo
    features: ClassVar = {"label": "int64"}
    example: ClassVar = {"text": "the cat"}

    def build(self, backbone, tokenizer, info, config):
        preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, info.sequence_length)
        return ToyClassifier(backbone, len(ANIMALS), preprocessor, dropout=backbone.dropout)

    def predict_batch(self, model, x, outputs):
        return tf.nn.softmax(tf.cast(outputs, tf.float32))

    def score(self, outcome):
        pairs = zip(outcome.predicted, outcome.gold, strict=True)
        return {"accuracy": 100 * sum(row.argmax() == n for row, n in pairs) / len(outcome.gold)}

    def write(self, outcome, output):
        rows = [dict(zip(ANIMALS, row.tolist(), strict=True)) for row in outcome.predicted]
        write_json_lines(os.path.join(output, "animals.jsonl"), rows)

    def signatures(self, model, top_k):
        def classify(text):
            x = model.preprocessor(text)
            return {"probabilities": self.predict_batch(model, x, model(x, training=False))}

        return {"serving_default": (classify, text_specs("text"))}

    def answer(self, model, item, found, top_k):
        best = found["probabilities"].argmax()
        return {"label": ANIMALS[best], "score": float(found["probabilities"][best])}
