"""The task of coreference resolution.

Dimensions: B documents, T positions of a document, K spans.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.examples import NoExampleError, example_fault, read_example
from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.coreference.dataset import coreference_dataset, parse_documents
from spanbert_tf.tasks.coreference.files import WRITTEN_FILES, row_in_words, write_predictions
from spanbert_tf.tasks.coreference.graph import (
    LinkedSpans,
    ResolveTexts,
    clusters_of,
    link_spans,
)
from spanbert_tf.tasks.coreference.metrics import link_equal_strings, score_documents
from spanbert_tf.tasks.coreference.records import (
    DOCUMENTS_FILE,
    Clusters,
    CoreferenceConfig,
    CoreferenceManifest,
    gold_clusters,
)
from spanbert_tf.tasks.coreference.report import coreference_report, marked_clusters, tables
from spanbert_tf.tasks.coreference.windows import cut_text, join_windows
from spanbert_tf.tasks.graphs import sentences_of, string_tensor
from spanbert_tf.tasks.report import Report, Table
from spanbert_tf.tasks.shown_answers import View
from spanbert_tf.tasks.task import Outcome, Task, parsed_specs
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.training.checkpoints import Best


class Coreference(Task[CoreferenceManifest, CoreferenceConfig]):
    """Finds the clusters of mentions of documents that refer to the same entity.

    Predictions and gold answers are `Clusters` of words. A raw input has a `text` and, for a
    dialogue, `speakers`: names in a list or on lines, one for each line of the text, or for each
    line with words. The answer is like that of `get_clusters` of fastcoref.

    Attributes:
        max_window_tokens: largest number of positions of a window, in which long texts are read.
    """

    name = "coreference"
    best = Best("average_f1", "max")
    model_class = SpanBertCoreferenceResolver
    config_class = CoreferenceConfig
    manifest_class = CoreferenceManifest
    written_files = WRITTEN_FILES
    readme = os.path.join(os.path.dirname(__file__), "readme.md")
    example: ClassVar[Mapping[str, Any]] = {
        "text": "Ann has a cat. She likes it.",
        "sentence_starts": [0, 15],
    }
    answered_by = "sentences"
    max_window_tokens: ClassVar[int] = 4_096
    max_batch_tokens = max_window_tokens
    max_text_tokens = 16_384

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns signatures of texts, dialogues and sentences. `top_k` has no effect."""
        return ResolveTexts(model).signatures()

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Finds the clusters of spans. Starts and ends are positions instead of words."""
        positions = tf.range(tf.shape(x["begins_word"])[1])
        words = tf.zeros_like(x["begins_word"]) + positions  # [B, T]
        linked = link_spans(model, {"word_indices": words}, model(x, training=False))
        return dict(zip(("starts", "ends", "clusters"), linked, strict=True))

    def check(self, description: Description, item: dict) -> dict:
        """Finds sentences, and converts `speakers` to lines, one name for each line with words."""
        item = super().check(description, item)
        names = _names(item)
        if names:
            names = _of_lines_with_words(description, item["text"], names)
        starts = sentences_of(description, item["text"])
        return {**item, "speakers": "\n".join(names), "sentence_starts": starts}

    def parts(self, description: Description, item: dict) -> list[dict]:
        """Cuts a text of more than `max_window_tokens` into windows that overlap."""
        return cut_text(description, item, self.max_window_tokens)

    def joined(self, parts: Sequence[dict], found: Sequence[dict]) -> dict:
        """Joins the clusters of windows that share a mention."""
        if len(parts) == 1:
            return super().joined(parts, found)
        return join_windows(parts, found)

    def answer(self, description: Description, item: dict, found: dict, top_k: int) -> dict:
        """Returns the clusters of a text.

        The keys are `text`; `clusters` of characters, ends exclusive; their `strings`; and
        `doc_key`, if the input has one.
        """
        text = without_surrogates(item["text"])
        found_clusters = clusters_of(found["starts"], found["ends"], found["clusters"])
        clusters = []
        strings = []
        for spans in found_clusters:
            clusters.append([list(span) for span in spans])
            strings.append([text[start:end] for start, end in spans])
        key = {"doc_key": item["doc_key"]} if "doc_key" in item else {}
        return {**key, "text": text, "clusters": clusters, "strings": strings}

    def view(self, description: Description, item: dict, answer: dict) -> View:
        """Shows the mentions in the text, with the number and the colour of their cluster."""
        return View([marked_clusters(answer["text"], answer["clusters"])])

    def check_model(self, model: keras_hub.models.Task, records: Records, preset: str) -> None:
        """Refuses segments of another length than those that the model was trained on."""
        found = records.manifest.sequence_length
        wanted = model.preprocessor.sequence_length
        if found != wanted:
            raise MismatchError(
                f"{records}: sequence_length of these documents is {found}, of {preset} {wanted}; "
                f"write them again with --sequence-length {wanted}"
            )

    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: CoreferenceManifest,
        config: CoreferenceConfig,
    ) -> SpanBertCoreferenceResolver:
        """Creates a resolver on the encoder."""
        return self.model_class(
            backbone,
            SpanBertCoreferenceResolverPreprocessor(tokenizer, manifest.sequence_length),
            max_segments=manifest.max_training_segments,
            singletons=config.prediction.singletons,
            **config.resolver.model_dump(),
        )

    def dataset(self, records: Records, **options: Any) -> tf.data.Dataset:
        """Reads whole documents; for training, random runs of their segments."""
        return coreference_dataset(records, **options)

    def predict_batch(
        self, model: keras_hub.models.Task, x: dict, outputs: dict[str, tf.Tensor]
    ) -> LinkedSpans:
        """Finds the spans of each document and their clusters, int32 [B, K]."""
        return link_spans(model, x, outputs)

    def collect(
        self, model: keras_hub.models.Task, records: Records, rows: list[LinkedSpans]
    ) -> list[Clusters]:
        """Returns the clusters of each document, as spans of words."""
        return [clusters_of(*row) for row in rows]

    def baseline(self, records: Records) -> list[Clusters]:
        """Links words and names that are written the same."""
        return link_equal_strings(records.lines(DOCUMENTS_FILE))

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records,
        predictions: Sequence[Clusters],
    ) -> Outcome:
        """Pairs predicted with gold clusters. As text, a document without clusters is empty."""
        gold = [gold_clusters(line) for line in records.lines(DOCUMENTS_FILE)]
        texts = [str(found or "") for found in predictions]
        return Outcome(model, records, predictions, gold, predictions, texts)

    def score(self, outcome: Outcome) -> dict[str, float]:
        """Computes the scores of the official CoNLL scorer."""
        return score_documents(zip(outcome.gold, outcome.predicted, strict=True)).as_dict()

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes files in CoNLL's format, as JSON lines and as text."""
        write_predictions(outcome.records.lines(DOCUMENTS_FILE), outcome.predicted, output)

    def tables(self, outcome: Outcome) -> list[Table]:
        """Returns tables of the official metrics, and of links from pronouns and other mentions."""
        return tables(outcome)

    def widest_batch(self, manifest: CoreferenceManifest, batch_size: int) -> tuple[Any, Any]:
        """Returns shapes of documents with as many segments as are trained at once.

        There is one mention for every 4 positions.
        """
        num_segments = manifest.max_training_segments
        num_positions = num_segments * manifest.sequence_length

        def parse(serialized: tf.Tensor, width: tf.Tensor) -> tuple[dict, dict]:
            keys = tf.zeros([batch_size], tf.uint64)
            return parse_documents(manifest, 0, num_segments, serialized, width, keys)

        x, y = parsed_specs(parse, batch_size)
        shapes = {
            1: [batch_size],
            2: [batch_size, num_positions],
            3: [batch_size, num_segments, manifest.sequence_length],
        }
        x = {name: tf.TensorSpec(shapes[spec.shape.rank], spec.dtype) for name, spec in x.items()}
        mentions = [batch_size, num_positions // 4]
        return x, {name: tf.TensorSpec(mentions, spec.dtype) for name, spec in y.items()}

    def examples(self, records: Records) -> Iterator[Iterator[str]]:
        """Yields documents as the model reads them, with mentions in brackets, and their clusters.

        Raises:
            NoExampleError: a record is damaged.
        """
        stored = records.manifest.stored()
        for index, line in enumerate(records.lines(DOCUMENTS_FILE)):
            (record,) = records.rows.read([index])
            if fault := example_fault(record, stored):
                raise NoExampleError(fault)
            yield row_in_words(line, read_example(record, stored), records.vocabulary)

    def report(self, outcome: Outcome, scores: Mapping[str, float]) -> Report:
        """Returns a report that shows each document, gold clusters beside predicted ones."""
        return coreference_report(outcome, scores)


def _names(item: dict) -> list[str]:
    """Returns the speakers of a raw input; empty if it has none."""
    speakers = item.get("speakers") or []
    if isinstance(speakers, str):
        # If the text ends with a line end, the last line end of the speakers begins no new line.
        if item["text"].endswith("\n"):
            speakers = speakers.removesuffix("\n")
        return speakers.split("\n")
    if isinstance(speakers, list | tuple) and all(isinstance(name, str) for name in speakers):
        return [" ".join(name.split()) for name in speakers]
    raise BadInputError("'speakers' is no list of names, one for each line")


def _of_lines_with_words(description: Description, text: str, names: list[str]) -> list[str]:
    """Returns names for the lines with words, from names for these lines or for all lines."""
    lines = text.removesuffix("\n").split("\n")
    reader = WordPieceTokenizer.shared(description.vocabulary, description.text_rules)
    has_words = np.array(reader.tokenize(string_tensor(lines)).row_lengths()) > 0
    if len(names) == has_words.sum():
        return names
    if len(names) == len(lines):
        return [name for name, is_kept in zip(names, has_words, strict=True) if is_kept]
    raise BadInputError(
        f"has {len(names):,} speakers for {has_words.sum():,} lines with words; name one for each "
        "line"
    )
