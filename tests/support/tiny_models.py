"""A tiny model of each task that answers raw inputs, and an input for each."""

import keras
from task_tests import SPECIAL

from spanbert_tf import models
from spanbert_tf.tasks.fill_mask import FillMask
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.tasks.table import load_task
from spanbert_tf.tasks.text_embedding import TextEmbedding

WORDS = ["ann", "bob", "has", "the", "cat", ".", "who", "?"]
MARKERS = [f"[unused{number}]" for number in range(1, 8)]
VOCABULARY = [*SPECIAL, *WORDS, *MARKERS]
LENGTH = 16
SENTENCE = "ann has the cat ."
INPUTS = {
    "question_answering": {"question": "who has the cat ?", "context": SENTENCE},
    "named_entities": {"text": SENTENCE},
    "text_classification": {"text": SENTENCE},
    "relation_extraction": {"text": SENTENCE, "subject": [0, 3], "object": [12, 15]},
    "coreference": {"text": SENTENCE},
    "fill_mask": {"text": "ann has the [MASK] ."},
}
ALL_INPUTS = {**INPUTS, "text_embedding": {"text": SENTENCE}}  # of a model without a head, too


def pipeline_of(name):
    """What answers the input of that name."""
    beside = {"fill_mask": FillMask, "text_embedding": TextEmbedding}
    return beside[name]() if name in beside else load_task(name)


def tiny_model(name, is_lowercase=True, **encoder_options):
    keras.utils.set_random_seed(1)
    backbone = models.SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=LENGTH, **encoder_options
    )
    options = {"special_tokens_in_strings": True} if name == "fill_mask" else {}
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=is_lowercase, **options)
    model_class, heads = {
        "question_answering": (models.SpanBertQuestionAnswerer, {"stride": 4}),
        "named_entities": (models.SpanBertTokenClassifier, {"labels": ["O", "B-X", "I-X"]}),
        "text_classification": (models.SpanBertTextClassifier, {"num_classes": 2}),
        "relation_extraction": (models.SpanBertRelationClassifier, {"labels": ["no", "yes"]}),
        "coreference": (models.SpanBertCoreferenceResolver, {"feature_dim": 2, "ffnn_dim": 2}),
        "fill_mask": (models.SpanBertMaskedLM, {}),
        "text_embedding": (models.SpanBertTextEmbedder, {}),
    }[name]
    preprocessor = model_class.preprocessor_cls(tokenizer, LENGTH)
    return model_class(backbone, preprocessor=preprocessor, **heads)


def export_tiny_model(name, directory, version=1):
    """Exports a tiny model as `directory/name/version`, whose path is returned."""
    model = tiny_model(name)
    model.is_head_trained = True
    preset = directory / "presets" / name
    if not preset.exists():
        model.save_to_preset(str(preset))
    return export_preset(str(preset), str(directory / name), top_k=2, version=version)
