"""The task of extracting the relation between two entities.

Dimensions: B rows, S positions, N texts.
"""

import collections
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras_hub
import numpy as np
import tensorflow as tf
from rich.text import Text

from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertRelationClassifier,
    SpanBertRelationClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import text_specs
from spanbert_tf.tasks.label_task import LabelTask, known_labels
from spanbert_tf.tasks.marked_text import marked_pieces, marked_text
from spanbert_tf.tasks.pipeline import best_of, without_padding
from spanbert_tf.tasks.relation_extraction.graph import ClassifyRelations
from spanbert_tf.tasks.relation_extraction.metrics import score_semeval2010, score_tacred
from spanbert_tf.tasks.relation_extraction.records import (
    EXAMPLES_FILE,
    ExampleLine,
    RelationExtractionConfig,
    RelationExtractionManifest,
)
from spanbert_tf.tasks.relation_extraction.rows import marked_text_of
from spanbert_tf.tasks.report import (
    SHOWN_CONFUSIONS,
    ClassScores,
    MarkedPart,
    Report,
    class_scores,
    marked_parts,
    marked_places,
)
from spanbert_tf.tasks.shown_answers import View, shares_of
from spanbert_tf.tasks.task import Outcome
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_NOTES = ("subject", "object", "subject and object")
_MARKS = {"gold": "subject", "model": "object", "both": "object", "overlap": "object"}


class RelationExtraction(LabelTask[RelationExtractionManifest, RelationExtractionConfig]):
    """Classifies the relation of the subject of a text to its object."""

    name = "relation_extraction"
    cuts_texts = True
    model_class = SpanBertRelationClassifier
    config_class = RelationExtractionConfig
    manifest_class = RelationExtractionManifest
    written_files = ("answers.txt", "probabilities.jsonl")
    lines_file = EXAMPLES_FILE
    label_key = "relation"
    first_label = 1
    label_title = "relation"
    table_title = "examples by relation"
    fields = ("text", "subject", "object")
    readme = os.path.join(os.path.dirname(__file__), "readme.md")
    example: ClassVar[Mapping[str, Any]] = {
        "text": "Ann was born in Rome.",
        "subject": [0, 3],
        "object": [16, 20],
        "subject_type": "PERSON",
        "object_type": "CITY",
    }

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature, of texts, the places of both entities, and their types."""
        text, *types = text_specs("text", "subject_type", "object_type")
        places = [tf.TensorSpec([None, 2], tf.int32, name=name) for name in ("subject", "object")]
        function = ClassifyRelations(model, top_k).classify
        return {"serving_default": (function, [text, *places, *types])}

    def readme_values(self, model: keras_hub.models.Task) -> dict[str, Any]:
        """Adds the example as a text of word pieces, in which markers stand for the entities."""
        vocabulary = model.preprocessor.tokenizer.get_vocabulary()
        # The first and the last are [CLS] and [SEP].
        pieces = [vocabulary[token_id] for token_id in self.example_rows(model)["token_ids"][1:-1]]
        return {"texts": " ".join(pieces).replace(f" {CONTINUATION_PREFIX}", "")}

    def example_rows(self, model: keras_hub.models.Task) -> dict[str, tf.Tensor]:
        """Packs the example with its entities, which the preprocessor reads as well."""
        return without_padding(model.preprocessor(dict(self.example)))

    def check(self, description: Description, item: dict) -> dict:
        """Takes texts, or tokens as in TACRED; see `marked_text_of`.

        In Python an entity may also be a tuple, such as `re.Match.span()`, and have integers of
        NumPy.
        """
        item = dict(item)
        for role in ("subject", "object"):
            place = item.get(role)
            if isinstance(place, tuple | list | np.ndarray):
                item[role] = [
                    number.item() if isinstance(number, np.integer) else number for number in place
                ]
        try:
            return dict(marked_text_of(item, "input"))
        except BadInputError as error:
            raise BadInputError(str(error).removeprefix("input: ")) from error

    def answer(
        self, description: Description, item: dict, found: dict, top_k: int
    ) -> dict | list[dict]:
        """Returns the most probable relations, as the pipeline `text-classification` does."""
        answers = []
        for label, score in zip(found["labels"], found["probabilities"], strict=True):
            answers.append({"label": label.decode(), "score": float(score)})
        return best_of(answers, top_k)

    def view(self, description: Description, item: dict, answer: dict | list[dict]) -> View:
        """Shows both entities in their text, and the probabilities of the relations."""
        places = [(*item["subject"], "subject"), (*item["object"], "object")]
        return View([marked_places(item["text"], places)], shares_of(answer))

    def check_model(self, model: keras_hub.models.Task, records: Records, preset: str) -> None:
        """Refuses records with other markers or relations, for which predictions would be wrong."""
        manifest = records.manifest
        preprocessor = model.preprocessor
        for name, found, wanted in (
            ("entities", manifest.entities, preprocessor.entities),
            ("markers", manifest.markers, preprocessor.markers),
            ("labels", manifest.labels, model.labels),
        ):
            if found != wanted:
                shown = f" ({found}, {wanted})" if isinstance(found, str) else ""
                raise MismatchError(
                    f"{records}: {name} of these examples are not those of {preset}{shown}; write "
                    "them again with the training set of this model as --training-input"
                )

    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: RelationExtractionManifest,
        config: RelationExtractionConfig,
    ) -> SpanBertRelationClassifier:
        """Creates a classifier of relations that first predicts their shares."""
        preprocessor = SpanBertRelationClassifierPreprocessor(
            tokenizer,
            manifest.sequence_length,
            markers=manifest.markers,
            entities=manifest.entities,
        )
        model = self.model_class(backbone, manifest.labels, preprocessor, dropout=backbone.dropout)
        model.begin_at_shares(manifest.label_counts)
        return model

    def score(self, outcome: Outcome) -> dict[str, float]:
        """Computes the official scores of the layout."""
        return _all_scores(outcome)[0]

    def class_scores(self, outcome: Outcome) -> ClassScores:
        """Computes the scores of each relation by the rules of the layout."""
        return _all_scores(outcome)[1]

    def row_in_words(
        self, records: Records, index: int, pieces: Sequence[str], labels: np.ndarray
    ) -> Iterator[str | Text]:
        """Shows the text with its entities, the relation, and the row that the model reads."""
        line = records.lines(EXAMPLES_FILE)[index]
        parts = []
        for role in ("subject", "object"):
            start, end = line[role]
            parts.append((start, end, f"{role} {line[f'{role}_type']}".strip()))
        yield marked_text(line["text"], parts)
        yield f"  relation: {line['relation'] or 'not known'}"
        names = {piece: f"[{name}]" for name, piece in records.manifest.markers.items()}
        shown = [names.get(piece, piece) for piece in pieces]
        yield Text("  row: ").append(marked_pieces(shown, ()))

    def report(self, outcome: Outcome, scores: Mapping[str, float]) -> Report:
        """Returns a report that shows each example, with filters for frequent confusions."""
        pairs = list(zip(outcome.gold, outcome.predicted, strict=True))
        confusions = collections.Counter(pair for pair in pairs if pair[0] != pair[1])
        names: dict[tuple[str, str], str] = {}  # confusion → name of its filter
        filters: dict[str, str] = {}
        for number, (pair, _) in enumerate(confusions.most_common(SHOWN_CONFUSIONS), start=1):
            names[pair] = f"confusion-{number}"
            filters[names[pair]] = f"gold {pair[0]}, predicted {pair[1]}"
        examples = outcome.records.lines(EXAMPLES_FILE)
        records = []
        for example, pair, row in zip(examples, pairs, outcome.predictions, strict=True):
            probability = float(row.max())
            record = {
                "kinds": [names[pair]] if pair in names else [],
                "error": probability if pair in confusions else 0.0,
                "gold": pair[0],
                "predicted": pair[1],
                "probability": probability,
                "id": example["id"],
                "parts": _marked(example),
            }
            records.append(record)
        return Report(_TEMPLATE, "example", records, filters, {"scores": scores})

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes the file that the official scorer reads, and all probabilities as JSON lines."""
        examples = outcome.records.lines(EXAMPLES_FILE)
        lines = outcome.predicted
        if outcome.records.manifest.layout == "semeval2010":
            pairs = zip(examples, outcome.predicted, strict=True)
            lines = [f"{example['id']}\t{relation}" for example, relation in pairs]
        write_text(os.path.join(output, "answers.txt"), "".join(f"{line}\n" for line in lines))
        labels = known_labels(outcome.model, outcome.records)
        probabilities = []
        for example, row in zip(examples, outcome.predictions, strict=True):
            by_label = dict(zip(labels, row.tolist(), strict=True))
            probabilities.append({"id": example["id"], **by_label})
        write_json_lines(os.path.join(output, "probabilities.jsonl"), probabilities)


def _all_scores(outcome: Outcome) -> tuple[dict[str, float], ClassScores]:
    """Computes the official scores, and the scores of each relation."""
    gold = outcome.gold
    predicted = outcome.predicted
    labels = known_labels(outcome.model, outcome.records)
    if outcome.records.manifest.layout == "semeval2010":
        names = [example["id"] for example in outcome.records.lines(EXAMPLES_FILE)]
        key = dict(zip(names, gold, strict=True))
        answers = dict(zip(names, predicted, strict=True))
        return score_semeval2010(key, answers)
    unknown = sorted(set(gold) - set(labels))
    scores = score_tacred(gold, predicted, negative=labels[0])
    return scores, class_scores(gold, predicted, [*labels, *unknown], without=labels[0])


def _marked(example: ExampleLine) -> list[MarkedPart]:
    """Splits a text into parts, with subject and object marked and their types named."""
    subject = (*example["subject"], example["subject_type"])
    entity = (*example["object"], example["object_type"])
    parts = []
    for text, kind, note in marked_parts(example["text"], [subject], [entity], _NOTES):
        mark = None if kind is None else _MARKS.get(kind, kind)
        parts.append((text, mark, note))
    return parts
