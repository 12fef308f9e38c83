"""A task outside of the package: is a text about the cat or about the dog?"""

from typing import ClassVar, Literal

import click
import keras
from typing_extensions import TypedDict

from spanbert_tf.command_line import record_options
from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.records import ROW_TOKEN_IDS, SECOND_START, TaskManifest
from spanbert_tf.files.tables import read_objects
from spanbert_tf.models import SpanBertTextClassifier, SpanBertTextClassifierPreprocessor
from spanbert_tf.tasks.label_task import LabelTask
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.text.tokenization import TextTokenizer
from spanbert_tf.training.checkpoints import Best


class Line(TypedDict):
    text: str
    label: Literal["cat", "dog"]


class ToyManifest(TaskManifest):
    task: ClassVar[str] = "toy"
    labels: ClassVar = ["cat", "dog"]
    line_files: ClassVar = {"texts.jsonl": (Line, "rows")}

    def features(self):
        return {"label": Stored("int64", below=2)}


class ToyConfig(FinetuningConfig):
    task: Literal["toy"] = "toy"


class ToyRows(RowMaker):
    manifest_class, title = ToyManifest, "toy records"

    def __init__(self, path):
        super().__init__()
        self.lines["texts.jsonl"] = read_objects(path, Line)

    def rows(self, pieces, text_rules, sequence_length):
        tokenize, pack = TextTokenizer(pieces, text_rules, segment_aware=False), RowPacker(pieces)
        lines = self.lines["texts.jsonl"]
        for line, text in zip(lines, tokenize([line["text"] for line in lines]), strict=True):
            token_ids, second_start = pack(text.token_ids[: sequence_length - 2])
            numbers = {SECOND_START: second_start, "label": ToyManifest.labels.index(line["label"])}
            yield Row(numbers, {ROW_TOKEN_IDS: token_ids})


@click.command()
@record_options
def prepare(input_path, output, **options):
    """Write toy records."""
    write_task_records(ToyRows(input_path), output, **options)


@keras.saving.register_keras_serializable(package="toy")
class ToyClassifier(SpanBertTextClassifier):
    pass


class ToyTask(LabelTask):
    """Tells whether a text is about the cat or about the dog."""

    name, best, lines_file = "toy", Best("accuracy", "max"), "texts.jsonl"
    model_class, config_class, manifest_class = ToyClassifier, ToyConfig, ToyManifest
    example: ClassVar = {"text": "the cat"}

    def build(self, backbone, tokenizer, manifest, config):
        preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, manifest.sequence_length)
        options = {"preprocessor": preprocessor, "dropout": backbone.dropout}
        return ToyClassifier(backbone, labels=manifest.labels, **options)

    def score(self, outcome):
        pairs = zip(outcome.predicted, outcome.gold, strict=True)
        return {"accuracy": 100 * sum(a == b for a, b in pairs) / len(outcome.gold)}
