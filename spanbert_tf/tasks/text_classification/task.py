"""The task of classifying texts and pairs of texts, or of predicting a number for each.

Dimensions: B rows, N texts, C classes.
"""

import dataclasses
import json
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
from spanbert_tf.files.preset import golden_digest
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import published_name
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import text_specs
from spanbert_tf.tasks.label_task import PREDICTIONS_FILE, LabelTask, known_labels
from spanbert_tf.tasks.marked_text import marked_pieces
from spanbert_tf.tasks.pipeline import best_of
from spanbert_tf.tasks.report import (
    Report,
    Table,
)
from spanbert_tf.tasks.shown_answers import View
from spanbert_tf.tasks.task import Outcome
from spanbert_tf.tasks.text_classification.glue import (
    EVALUATION_FILE,
    GLUE_TASKS,
    submission_file,
    submission_text,
)
from spanbert_tf.tasks.text_classification.metrics import (
    has_correlation,
    is_constant,
    main_metric,
    score_labels,
)
from spanbert_tf.tasks.text_classification.records import (
    EXAMPLES_FILE,
    ExampleLine,
    TextClassificationConfig,
    TextClassificationManifest,
    text_names,
)
from spanbert_tf.text.tokenization import clean_texts
from spanbert_tf.training.checkpoints import Best

# What records without and with a property hold, and the options of `prepare` that write them.
_PAIRS = ("single texts", "pairs of texts")
_PAIR_ADVICE = ("without --text-pair-column", "with --text-pair-column, or of pairs")
_NUMBERS = ("texts with classes as labels", "texts with numbers as labels")
_NUMBER_ADVICE = ("without --regression", "with --regression")
_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_SURE = 0.9
_FAR = 1.0  # error of a regression that counts as wrong; a fifth of the range of STS-B
_NUMBER_FILTERS = {"errors": f"off by {_FAR:g} or more", "right": "nearer than that"}


class TextClassification(LabelTask[TextClassificationManifest, TextClassificationConfig]):
    """Assigns a class to each text or pair of texts; a regression predicts a number instead.

    Predictions are float32 [C] for each text: probabilities, or the number of a regression.
    """

    name = "text_classification"
    cuts_texts = True
    best = None  # depends on the data set
    lines_file = EXAMPLES_FILE
    label_title = "class"
    pooler_advice = "; classifier.pooling=mean or cls does without it"
    model_class = SpanBertTextClassifier
    config_class = TextClassificationConfig
    manifest_class = TextClassificationManifest
    written_files = (PREDICTIONS_FILE, EVALUATION_FILE, *map(submission_file, GLUE_TASKS))
    readme = os.path.join(os.path.dirname(__file__), "readme.md")
    example: ClassVar[Mapping[str, Any]] = {"text": "It rains.", "text_pair": "The street is wet."}

    def best_of(self, manifest: TextClassificationManifest) -> Best:
        """Uses the metric of the data set, or the mean of its metrics."""
        metric = main_metric(manifest.dataset, is_regression=manifest.is_regression)
        return self.best or Best(metric, "max")

    def fields_of(self, model: keras_hub.models.Task) -> tuple[str, ...]:
        """Returns the names of one text, or of two for a model of pairs."""
        return text_names(model.preprocessor.is_pair)

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature, as `LabelTask` does. That of a regression returns numbers."""
        if not model.is_regression:
            return super().signatures(model, top_k)

        def regress(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            x = model.preprocessor.pack_texts(*[clean_texts(text) for text in texts])
            return self.of_rows(model, x, top_k)

        return {"serving_default": (regress, text_specs(*self.fields_of(model)))}

    def probabilities(self, model: keras_hub.models.Task, outputs: tf.Tensor) -> tf.Tensor:
        """Applies softmax, unless the model is a regression or has an activation of its own."""
        is_linear = model.output_dense.activation.__name__ == "linear"
        if model.is_regression or not is_linear:
            return tf.cast(outputs, tf.float32)
        return super().probabilities(model, outputs)

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes `probabilities`, float32 [N, C]; for a regression `scores`, float32 [N]."""
        outputs = super().of_rows(model, x, top_k)
        if model.is_regression:
            return {"scores": outputs["probabilities"][:, 0]}
        return outputs

    def targets(self, model: keras_hub.models.Task, records: Records, y: tf.Tensor) -> tf.Tensor:
        """Converts labels as `LabelTask` does. Numbers of a regression stay as they are."""
        if records.manifest.is_regression:
            return y
        return super().targets(model, records, y)

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records,
        predictions: Sequence[np.ndarray],
    ) -> Outcome:
        """Decodes predictions as `LabelTask` does. Those of a regression are numbers."""
        outcome = super().outcome(model, records, predictions)
        if records.manifest.is_regression:
            numbers = [float(row[0]) for row in predictions]
            texts = [str(number) for number in numbers]
            outcome = dataclasses.replace(outcome, predicted=numbers, texts=texts)
        return dataclasses.replace(outcome, note=_note(records.manifest, outcome.predicted))

    def tables(self, outcome: Outcome) -> Sequence[Table]:
        """Returns the tables of `LabelTask`; none for a regression."""
        if outcome.records.manifest.is_regression:
            return []
        return super().tables(outcome)

    def label_counts(self, records: Records) -> Mapping[str, int]:
        """Returns the counts of the manifest; none for a regression."""
        manifest = records.manifest
        if manifest.is_regression:
            return {}
        return dict(zip(manifest.labels, manifest.label_counts, strict=True))

    def raw_example(self, model: keras_hub.models.Task) -> Mapping[str, Any]:
        """Returns the texts of the example that the model reads."""
        return {name: self.example[name] for name in self.fields_of(model)}

    def settings_of(self, model: keras_hub.models.Task) -> Mapping[str, bool]:
        """Returns whether the model predicts a number."""
        return {"is_regression": model.is_regression}

    def check(self, description: Description, item: dict) -> dict:
        """Checks an input as `Pipeline.check`; refuses a second text for a model of one text."""
        if "text_pair" not in description.fields and item.get("text_pair") is not None:
            raise BadInputError("has a 'text_pair', and the model was trained on single texts")
        return super().check(description, item)

    def describe(
        self, model: keras_hub.models.Task, top_k: int, signature: str | None
    ) -> Description:
        """Describes a model. Its graph returns all classes, so an answer may have all of them."""
        return super().describe(model, max(top_k, len(model.labels or ())), signature)

    def answer(
        self, description: Description, item: dict, found: dict, top_k: int
    ) -> dict | list[dict]:
        """Returns labels and scores, or the number of a regression as the score of its label."""
        if not description.settings["is_regression"]:
            return super().answer(description, item, found, top_k)
        (label,) = description.labels
        return best_of([{"label": label, "score": float(found["scores"])}], top_k)

    def view(self, description: Description, item: dict, answer: dict | list[dict]) -> View:
        """Shows probabilities; a number of a regression is none."""
        if description.settings["is_regression"]:
            return View()
        return super().view(description, item, answer)

    def check_model(self, model: keras_hub.models.Task, records: Records, preset: str) -> None:
        """Refuses pairs for single texts, numbers for classes, and classes that the model lacks."""
        manifest = records.manifest
        for (without, with_it), found, wanted, advice in (
            (_PAIRS, manifest.is_pair, model.preprocessor.is_pair, _PAIR_ADVICE),
            (_NUMBERS, manifest.is_regression, model.is_regression, _NUMBER_ADVICE),
        ):
            if found != wanted:
                shown, read = (with_it, without) if found else (without, with_it)
                raise MismatchError(
                    f"{records}: holds {shown}, and {preset} is for {read}; write the records "
                    f"again {advice[wanted]}"
                )
        if manifest.is_regression:
            return
        unknown = sorted(set(manifest.labels) - set(model.labels))
        if unknown:
            raise MismatchError(
                f"{records}: label {unknown[0]!r} is none that {preset} knows: "
                f"{', '.join(model.labels)}"
            )

    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: TextClassificationManifest,
        config: TextClassificationConfig,
    ) -> SpanBertTextClassifier:
        """Creates a classifier with random weights, or weights that predict the largest class."""
        preprocessor = SpanBertTextClassifierPreprocessor(
            tokenizer,
            manifest.sequence_length,
            segment_aware=manifest.segment_aware,
            is_pair=manifest.is_pair,
        )
        model = self.model_class(
            backbone,
            len(manifest.labels),
            preprocessor,
            dropout=backbone.dropout,
            labels=manifest.labels,
            pooling=config.classifier.pooling,
        )
        if config.classifier.initial == "majority":
            _predict_shares(model, manifest)
        return model

    def baseline(self, records: Records) -> list[np.ndarray]:
        """Predicts the shares of the classes, or the mean of a regression, for every text.

        Shares and mean are those of the scored records, so no other constant prediction has a
        better accuracy or squared error.
        """
        manifest = records.manifest
        if manifest.is_regression:
            numbers = [float(line["label"] or 0) for line in records.lines(EXAMPLES_FILE)]
            row = np.array([np.mean(numbers)], "float32")
        else:
            row = np.array(manifest.label_counts, "float32") / max(sum(manifest.label_counts), 1)
        return [row] * manifest.num_rows

    def score(self, outcome: Outcome) -> dict[str, float]:
        """Computes the metrics of the GLUE task, or those for other data; see `score_labels`."""
        manifest = outcome.records.manifest
        return score_labels(
            outcome.gold,
            outcome.predicted,
            dataset=manifest.dataset,
            is_regression=manifest.is_regression,
        )

    def row_in_words(
        self, records: Records, index: int, pieces: Sequence[str], labels: np.ndarray
    ) -> Iterator[str | Text]:
        """Shows the word pieces and the name of the class."""
        yield marked_pieces(pieces, ())
        label = records.lines(EXAMPLES_FILE)[index]["label"]
        if label is None:
            yield "  no label"
        else:
            yield f"  label: {label}"

    def report(self, outcome: Outcome, scores: Mapping[str, float]) -> Report:
        """Returns a report that shows each text."""
        is_regression = outcome.records.manifest.is_regression
        certainty = "probability" if outcome.by == "model" else "share of its class"
        filters = _NUMBER_FILTERS
        if not is_regression:
            filters = {"sure": f"errors with a {certainty} over {_SURE:.0%}"}
        lines = outcome.records.lines(EXAMPLES_FILE)
        records = []
        for line, label, row in zip(lines, outcome.predicted, outcome.predictions, strict=True):
            if is_regression:
                records.append(_number_record(line, label))
            else:
                records.append(_class_record(line, label, float(row.max()), certainty))
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in scores.items())
        values = {"scores": shown, "is_regression": is_regression}
        return Report(_TEMPLATE, "text", records, filters, values)

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes `predictions.jsonl`, and the scores or, for a test set of GLUE, its submission."""
        manifest = outcome.records.manifest
        model = outcome.model
        if manifest.is_regression:
            (label,) = known_labels(model, outcome.records)
            lines = [{"label": label, "score": number} for number in outcome.predicted]
            write_json_lines(os.path.join(output, PREDICTIONS_FILE), lines)
        else:
            super().write(outcome, output)
        if manifest.is_labelled:
            # `spanbert-tf glue` recognizes a development set by its size, and the model by the
            # preset.
            preset = model.loaded_from if model else None
            content = {
                "dataset": manifest.dataset,
                "rows": manifest.num_rows,
                "preset": published_name(preset.name) if preset else None,
                "golden_sha256": golden_digest(preset) if preset else None,
                "scores": self.score(outcome),
            }
            write_text(os.path.join(output, EVALUATION_FILE), json.dumps(content, indent=1) + "\n")
        elif manifest.dataset is not None:
            text = submission_text(manifest.dataset, outcome.predicted)
            write_text(os.path.join(output, submission_file(manifest.dataset)), text)


def _note(manifest: TextClassificationManifest, predicted: Sequence[str] | Sequence[float]) -> str:
    """Returns a sentence for predictions of which a correlation is not defined, or `""`."""
    if not is_constant(predicted):
        return ""
    if not has_correlation(manifest.dataset, is_regression=manifest.is_regression):
        return ""
    return f"all predictions are {predicted[0]}: a correlation is undefined then, and counts as 0"


def _predict_shares(model: keras_hub.models.Task, manifest: TextClassificationManifest) -> None:
    """Sets weights with which the classifier predicts the shares of the classes for any text."""
    if manifest.is_regression:
        raise MismatchError(
            "classifier.initial: is majority, and these records have numbers, no classes; set it "
            "to random"
        )
    counts = np.maximum(np.array(manifest.label_counts, "float32"), np.finfo("float32").tiny)
    kernel, _ = model.output_dense.get_weights()
    model.output_dense.set_weights([np.zeros_like(kernel), np.log(counts / counts.sum())])
    model.is_head_trained = True  # these weights predict, although no step has trained them


def _class_record(line: ExampleLine, label: str, probability: float, certainty: str) -> dict:
    """Returns what the report shows of a text with a class."""
    is_wrong = label != line["label"]
    return {
        **_shown_texts(line, str(line["label"]), label),
        "kinds": ["sure"] if is_wrong and probability > _SURE else [],
        "certainty": f"{certainty} {probability:.0%}",
        "error": probability if is_wrong else 0.0,
    }


def _number_record(line: ExampleLine, number: float) -> dict:
    """Returns what the report shows of a text with a number."""
    gold = float(line["label"] or 0)
    error = abs(number - gold)
    return {
        **_shown_texts(line, f"{gold:.2f}", f"{number:.2f}"),
        "kinds": [],
        "certainty": f"off by {error:.2f}",
        "error": error if error >= _FAR else 0.0,
    }


def _shown_texts(line: ExampleLine, gold: str, predicted: str) -> dict:
    """Returns the texts of a line and their labels, as the report shows them."""
    texts = [line["text"]]
    if "text_pair" in line:
        texts.append(line["text_pair"])
    return {"texts": texts, "gold": gold, "predicted": predicted, "line": line["line"]}
