"""Every public class in the test base of KerasHub; where one departs on purpose, a line says so."""

import inspect
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf import layers, models
from spanbert_tf.config.positions import POSITION_EMBEDDINGS

base = pytest.importorskip("keras_hub.src.tests.test_case")  # wants grain and portpicker

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{n}]" for n in range(1, 8))]
VOCABULARY = [*SPECIAL, "ann", "bob", "has", "the", "cat", ".", "who"]
LENGTH, WIDTH = 12, 8
TEXTS = ["ann has the cat .", "bob . the cat has bob"]
RANDOM = np.random.default_rng(1)


@pytest.fixture
def case(tmp_path, monkeypatch):
    """KerasHub's base, as `pytest` runs it."""
    case = base.TestCase("run_layer_test")
    monkeypatch.setattr(case, "get_temp_dir", lambda: str(tmp_path))
    return case


def floats(*shape):
    return tf.constant(RANDOM.normal(size=shape), "float32")


def ints(limit, *shape):
    return tf.constant(RANDOM.integers(0, limit, shape), "int32")


def embedding():
    tied = layers.TiedEmbedding(20, WIDTH)
    tied.build()
    return tied


# Class → arguments, inputs, shape of the output, and how many weights are trained and are not, and
# how many variables are not. The two layers that are not here have outputs of several types.
LAYERS = {
    "TiedEmbedding": ({"input_dim": 20, "output_dim": 8}, ints(20, 2, 5), (2, 5, 8), (1, 0, 0)),
    "TransformerEncoder": (
        {"intermediate_dim": 12, "num_heads": 2, "dropout": 0.1},
        floats(2, 5, 8),
        (2, 5, 8),
        (16, 0, 3),
    ),
    "LowRankAdapter": ({"rank": 3, "alpha": 6}, floats(2, 8), (2, 8), (2, 0, 0)),
    "SegmentAwareEmbedding": (
        {"table_sizes": {"paragraph_indices": 4, "token_indices": 5}, "hidden_dim": WIDTH},
        {"paragraph_indices": ints(4, 2, 5), "token_indices": ints(5, 2, 5)},
        (2, 5, 8),
        (2, 0, 0),
    ),
    "SpanBoundaryHead": (
        {"token_embedding": embedding(), "max_span_targets": 4, "span_position_dim": 3},
        {
            "sequence_output": floats(2, 5, 8),
            **{name: ints(5, 2, 3) for name in ("left_positions", "right_positions")},
            "offsets": ints(4, 2, 3),
        },
        (2, 3, 20),
        (11, 0, 0),
    ),
    "ScoringNetwork": ({"input_dim": 8, "hidden_dim": 6}, floats(2, 5, 8), (2, 5), (4, 0, 1)),
    "MentionScorer": (
        {"hidden_dim": 8, "max_span_width": 3, "feature_dim": 2, "ffnn_dim": 4},
        {
            "states": floats(2, 5, 8),
            **{
                name: tf.ones((2, 5), "int32")
                for name in ("sentence_indices", "begins_word", "ends_word")
            },
        },
        (2, 5, 3),
        (12, 0, 3),
    ),
}
# Their outputs are float32 in any precision: logits of a vocabulary, and sums of many scores.
IN_FLOAT32 = ("SpanBoundaryHead", "ScoringNetwork", "MentionScorer")


def few_are_quick(names, *quick):
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, case, monkeypatch):
    options, inputs, shape, numbers = LAYERS[name]
    kind = getattr(layers, name)
    if name == "SegmentAwareEmbedding":  # takes one dict, as the base knows it of one class alone
        monkeypatch.setattr(base, "FeaturePyramid", kind)
    case.run_layer_test(
        kind,
        dict(options),
        inputs,
        shape,
        None,
        *numbers,
        # It scores in a loop unless it is told that it is trained, which the base does not tell it.
        run_training_check=name != "MentionScorer",
        run_precision_checks=name not in IN_FLOAT32,
    )


def features(**further):
    return {
        "token_ids": ints(len(VOCABULARY), 2, 5),
        "segment_ids": ints(2, 2, 5),
        "padding_mask": tf.ones((2, 5), "int32"),
        **further,
    }


def backbone_options(**options):
    sizes = {"vocabulary_size": len(VOCABULARY), "num_layers": 2, "num_heads": 2}
    return {**sizes, "hidden_dim": 8, "intermediate_dim": 12, "max_sequence_length": 16, **options}


@pytest.mark.parametrize("positions", few_are_quick(POSITION_EMBEDDINGS))
def test_backbones(positions, case):
    inputs = features(**{name: ints(4, 2, 5) for name in POSITION_EMBEDDINGS[positions].indices})
    case.run_backbone_test(
        models.SpanBertBackbone,
        backbone_options(position_embeddings=positions),
        inputs,
        {"sequence_output": (2, 5, 8), "pooled_output": (2, 8)},
        variable_length_data=[
            {name: value[:, :n] for name, value in inputs.items()} for n in (2, 3)
        ],
        run_quantization_check=False,  # our layers cannot be quantized
    )


CLUSTERS = models.SpanBertCoreferenceResolverPreprocessor.clusters_tensor(
    [[[(0, 3), (12, 15)]], [[(0, 3), (18, 21)], [(6, 13)]]]
)
RELATIONS = {
    "text": tf.constant(TEXTS),
    "subject": tf.constant([[0, 3], [18, 21]]),
    "object": tf.constant([[12, 15], [10, 13]]),
    "subject_type": tf.constant(["PERSON", ""]),
    "object_type": tf.constant(["", ""]),
}
QUESTIONS = (tf.constant(["who has", "who"]), tf.constant(TEXTS))
# Class → arguments, and what `fit` takes.
TASKS = {
    "TextClassifier": ({"num_classes": 2}, (tf.constant(TEXTS), np.array([0, 1]))),
    "TokenClassifier": ({"labels": ["a", "b"]}, (tf.constant(TEXTS), ints(2, 2, LENGTH).numpy())),
    "RelationClassifier": ({"labels": ["a", "b"]}, (RELATIONS, np.array([0, 1]))),
    "QuestionAnswerer": ({}, (QUESTIONS, tf.constant(["the cat", "bob"]))),
    "CoreferenceResolver": ({"feature_dim": 2, "ffnn_dim": 4}, (tf.constant(TEXTS), CLUSTERS)),
    "MaskedLM": ({}, (tf.constant(TEXTS),)),
    "TextEmbedder": ({"pooling_mode": "cls"}, (tf.constant(TEXTS), floats(2, 8))),
}
DEPART = {
    "MaskedLM": "each call draws new masks, and the base wants the same three times",
    "CoreferenceResolver": "documents have any length, and so have the arrays of a batch",
}


def tokenizer():
    return models.SpanBertTokenizer(VOCABULARY, lowercase=True)


def preprocessor(name):
    return getattr(models, f"SpanBert{name}Preprocessor")(tokenizer(), LENGTH)


def test_tokenizer(case):
    case.run_preprocessing_layer_test(
        models.SpanBertTokenizer,
        {"vocabulary": VOCABULARY, "lowercase": True},
        TEXTS,
        expected_detokenize_output=TEXTS,
    )


@pytest.mark.parametrize("name", few_are_quick(TASKS, "TextClassifier"))
def test_preprocessors(name, case):
    if name in DEPART:
        case.run_serialization_test(preprocessor(name))
        pytest.skip(DEPART[name])
    kind = getattr(models, f"SpanBert{name}Preprocessor")
    case.init_kwargs = {"tokenizer": tokenizer(), "sequence_length": LENGTH}
    case.run_preprocessor_test(kind, case.init_kwargs, TASKS[name][1])


@pytest.mark.parametrize("name", few_are_quick(TASKS))
def test_tasks(name, case):
    if name == "MaskedLM":
        pytest.skip(DEPART[name])
    kind = getattr(models, f"SpanBert{name}")
    options = {
        "backbone": models.SpanBertBackbone(**backbone_options()),
        "preprocessor": preprocessor(name),
        **TASKS[name][0],
    }
    # The embedder has no loss of its own. XLA compiles two of them, which takes most of the time.
    compiled = {"loss": "mse"} if name == "TextEmbedder" else {}
    compiled["jit_compile"] = name in ("TextClassifier", "RelationClassifier")
    case.run_task_test(kind, options, TASKS[name][1], compile_kwargs=compiled)


@pytest.mark.parametrize("name", few_are_quick([*TASKS, "Pretrainer"], "TextClassifier"))
def test_models_that_are_saved(name, case):
    options = {
        "backbone": models.SpanBertBackbone(**backbone_options()),
        **TASKS.get(name, [{}])[0],
    }
    kind = getattr(models, f"SpanBert{name}")
    model = kind(**options)
    inputs = {
        name: np.ones([size or 2 for size in values.shape], "int32")
        for name, values in model.input.items()
    }
    case.run_model_saving_test(kind, options, inputs)


def made_classes():
    """One of each public class whose test is above."""
    made = [getattr(layers, name)(**options) for name, (options, *_) in LAYERS.items()]
    backbone = models.SpanBertBackbone(**backbone_options(lora_rank=2))
    made += [backbone, models.SpanBertPretrainer(backbone)]
    for name, (options, _) in TASKS.items():
        made.append(preprocessor(name))
        made.append(getattr(models, f"SpanBert{name}")(backbone=backbone, **options))
    return made


def test_a_configuration_has_every_argument():
    """A preset without it would have the default, and layers without it would share a graph."""
    for one in made_classes():
        arguments = inspect.signature(type(one).__init__).parameters.keys()
        missing = arguments - one.get_config().keys() - {"self", "kwargs"}
        assert not missing, type(one)


def test_the_page_lists_every_public_class():
    page = pathlib.Path(__file__).parents[3] / "docs" / "everyday_uses.md"
    table = page.read_text("utf-8").partition("## KerasHub's own tests")[2]
    shown = {
        name
        for name, found in [*vars(models).items(), *vars(layers).items()]
        if isinstance(found, type) and issubclass(found, keras.layers.Layer)
    }
    rows = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    # A preprocessor is tested with its task.
    assert rows == {name for name in shown if not name.endswith("Preprocessor")}
