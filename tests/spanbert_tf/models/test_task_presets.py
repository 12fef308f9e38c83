"""One policy for the presets of all task classes: heads, lengths of rows, and weights alone."""

import logging
import warnings

import h5py
import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertRelationClassifier,
    SpanBertRelationClassifierPreprocessor,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.models.keras_hub_presets import NewHeadWarning
from spanbert_tf.presets.preset import Preset
from spanbert_tf.tasks.prediction import Predictor

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "."]
VOCABULARY += [f"[unused{number}]" for number in range(1, 7)]
TEXTS = ["the cat sat.", "the cat."]
POSITIONS = {f"{end}_positions": np.array([1, 2]) for end in ("start", "end")}
MARKED = {
    "text": np.array(TEXTS),
    "subject": np.array([[0, 3], [4, 7]]),
    "object": np.array([[4, 7], [0, 3]]),
    "subject_type": np.array(["", ""]),
    "object_type": np.array(["", "CAT"]),
}
# Class → options of `from_preset`, training data, inputs.
TASKS = {
    SpanBertQuestionAnswerer: ({}, ((TEXTS, TEXTS), POSITIONS), (TEXTS, TEXTS)),
    SpanBertTextClassifier: ({"num_classes": 3}, (TEXTS, np.array([2, 0])), TEXTS),
    SpanBertRelationClassifier: ({"labels": ["a", "b", "c"]}, (MARKED, np.array([2, 0])), MARKED),
    SpanBertTokenClassifier: (
        {"labels": ["a", "b", "c"]},
        (tf.ragged.constant([["the", "cat"], ["cat"]]), tf.ragged.constant([[0, 2], [1]])),
        TEXTS,
    ),
    SpanBertMaskedLM: ({}, (TEXTS,), TEXTS),
}
DOCUMENTS = (TEXTS, [[[(0, 3), (8, 11)]], [[(0, 3), (4, 7)]]])  # and their clusters
PREPROCESSORS = {
    SpanBertMaskedLM: SpanBertMaskedLMPreprocessor,
    SpanBertQuestionAnswerer: SpanBertQuestionAnswererPreprocessor,
    SpanBertTextClassifier: SpanBertTextClassifierPreprocessor,
    SpanBertRelationClassifier: SpanBertRelationClassifierPreprocessor,
    SpanBertTokenClassifier: SpanBertTokenClassifierPreprocessor,
}


def make_backbone(**options):
    keras.utils.set_random_seed(1)
    return SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=40, **options)


@pytest.fixture(scope="module")
def encoder_preset(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("presets") / "encoder")
    make_backbone().save_to_preset(directory)
    SpanBertTokenizer(VOCABULARY).save_to_preset(directory)
    return directory


def train(task, data):
    task.compile(optimizer=keras.optimizers.Adam(1e-2), run_eagerly=True)
    task.fit(*data, batch_size=2, verbose=0)


# The preset's code is the same for all tasks: two of them at once, the others with the slow tests.
# (The graph of masks takes seconds to trace.)
TWO_KINDS = [
    pytest.param(
        kind,
        marks=()
        if kind in (SpanBertQuestionAnswerer, SpanBertTextClassifier)
        else pytest.mark.slow,
    )
    for kind in TASKS
]


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_an_encoder_gets_a_new_head_which_is_not_for_prediction(kind, encoder_preset, tmp_path):
    options, data, _ = TASKS[kind]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = kind.from_preset(encoder_preset, **options)
    # Who names the classes asks for a new head.
    messages = [str(warning.message) for warning in caught if "head" in str(warning.message)]
    assert len(messages) == (not options) and all(encoder_preset in text for text in messages)
    assert not task.is_head_trained
    with pytest.raises(BadInputError, match="encoder: has no trained head"):
        Preset(encoder_preset).trained_task(kind)
    task.save_to_preset(str(tmp_path / "new"))
    with pytest.raises(BadInputError, match=r"new: the head of its .* was never trained"):
        Preset(str(tmp_path / "new")).trained_task(kind)
    train(task, data)
    assert task.is_head_trained
    task.compile()  # a new optimizer
    assert task.is_head_trained
    task.save_to_preset(str(tmp_path / "trained"))
    loaded = Preset(str(tmp_path / "trained")).trained_task(kind)
    for expected, actual in zip(task.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


ALL_TASKS = TASKS | {
    SpanBertCoreferenceResolver: ({"feature_dim": 2, "ffnn_dim": 4}, DOCUMENTS, TEXTS)
}


def with_new_head(kind, encoder_preset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind.from_preset(encoder_preset, **ALL_TASKS[kind][0])


@pytest.mark.parametrize("kind", ALL_TASKS)
@pytest.mark.quick_cases(2)
def test_predict_warns_of_a_new_head(kind, encoder_preset):
    task, inputs = with_new_head(kind, encoder_preset), ALL_TASKS[kind][-1]
    with pytest.warns(NewHeadWarning, match=f"^{kind.__name__}: its head is new .* `fit` it"):
        task.predict_on_batch(inputs)


@pytest.mark.parametrize(
    "kind",
    [*TASKS, pytest.param(SpanBertCoreferenceResolver, marks=pytest.mark.slow)],
)
@pytest.mark.quick_cases(1)
def test_a_head_predicts_after_fit_and_from_weights_that_were_saved_then(
    kind, encoder_preset, tmp_path
):
    """KerasHub's way goes on: `from_preset`, `fit`, `predict`."""
    _, data, inputs = ALL_TASKS[kind]
    task, loaded = (with_new_head(kind, encoder_preset) for _ in range(2))
    train(task, data)
    task.predict(inputs, verbose=0)
    task.save_weights(tmp_path / "task.weights.h5")
    loaded.compile(run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the optimizer
        loaded.load_weights(tmp_path / "task.weights.h5")
    loaded.predict(inputs, verbose=0)
    for expected, actual in zip(task.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_weights_from_elsewhere_count_as_trained_where_their_user_says_so():
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 12)
    classifier = SpanBertTextClassifier(make_backbone(), 2, preprocessor)
    kernel, bias = classifier.output_dense.get_weights()
    classifier.output_dense.set_weights([kernel, bias + 0.1])
    with pytest.warns(NewHeadWarning, match="set is_head_trained to True"):
        classifier.predict(TEXTS, verbose=0)
    classifier.is_head_trained = True
    expected = classifier.predict(TEXTS, verbose=0)
    classifier.output_dense.set_weights([kernel, bias])
    np.testing.assert_allclose(classifier.predict(TEXTS, verbose=0), expected - 0.1, atol=1e-6)


def test_weights_of_a_trained_task_are_those_of_a_plain_model(tmp_path):
    task, other = (SpanBertTextClassifier(make_backbone(), 2) for _ in range(2))
    task.is_head_trained = True
    task.output_dense.bias.assign([1.0, 2.0])
    task.save_weights(tmp_path / "task.weights.h5")
    plain = keras.Model(other.input, other.output)
    plain.load_weights(tmp_path / "task.weights.h5")
    for expected, actual in zip(task.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    plain.save_weights(tmp_path / "plain.weights.h5")
    new = SpanBertTextClassifier(make_backbone(), 2)
    new.load_weights(tmp_path / "plain.weights.h5")
    assert new.is_head_trained and np.array_equal(new.output_dense.bias, [1.0, 2.0])


@pytest.mark.parametrize("says", [True, False])
def test_the_file_says_whether_the_head_was_trained_not_its_weights(says, tmp_path):
    """Trained weights that are 0, and others that are not."""
    tokenizer = SpanBertTokenizer(VOCABULARY)
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=12)
    masked_lm = SpanBertMaskedLM(make_backbone(), preprocessor)
    head = masked_lm.masked_lm_head
    head.set_weights([np.full(w.shape, 0.0 if says else 0.1) for w in head.get_weights()])
    masked_lm.is_head_trained = says
    masked_lm.save_to_preset(str(tmp_path / "preset"))
    masked_lm.save(tmp_path / "model.keras")
    for loaded in (
        keras_hub.models.MaskedLM.from_preset(str(tmp_path / "preset")),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert loaded.is_head_trained is says


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_preset_holds_weights_alone(kind, encoder_preset, tmp_path, caplog):
    options, data, _ = TASKS[kind]
    task = kind.from_preset(encoder_preset, **options)
    train(task, data)
    moments = [np.array(variable) for variable in task.optimizer.variables]
    task.save_to_preset(str(tmp_path / "preset"))
    for expected, actual in zip(moments, task.optimizer.variables, strict=True):
        np.testing.assert_array_equal(actual, expected)  # still there, to train on
    num_values = []
    with h5py.File(tmp_path / "preset" / "task.weights.h5") as file:
        file.visititems(lambda _, part: num_values.append(getattr(part, "size", 0)))
    in_encoder = {id(weight) for weight in task.backbone.weights}
    head = [weight for weight in task.weights if id(weight) not in in_encoder]
    assert sum(num_values) == sum(np.prod(w.shape) for w in head)
    caplog.clear()  # of `fit`
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        kind.from_preset(str(tmp_path / "preset"))
    assert not caplog.records


def test_what_cannot_be_used_is_a_value_error_as_in_keras(tmp_path):
    for use in (
        lambda: SpanBertTokenizer(["[PAD]", "[PAD]"]),
        lambda: SpanBertTextClassifier.from_preset(str(tmp_path)),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert caught.type is BadInputError


@pytest.mark.parametrize("has_tokenizer", [False, True])
@pytest.mark.parametrize("kind", TASKS)
def test_a_model_without_a_preprocessor_is_not_for_the_commands(
    kind, has_tokenizer, encoder_preset, tmp_path
):
    task = kind.from_preset(encoder_preset, preprocessor=None, **TASKS[kind][0])
    task.is_head_trained = True
    task.save_to_preset(str(tmp_path / "preset"))
    if has_tokenizer:
        SpanBertTokenizer(VOCABULARY).save_to_preset(str(tmp_path / "preset"))
    for load in (Predictor, lambda preset: Preset(preset).trained_task(kind)):
        with pytest.raises(BadInputError, match=r"preset: was saved without a preprocessor.*;"):
            load(str(tmp_path / "preset"))


@pytest.mark.usefixtures("shipped_classes_alone")
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_rows_are_as_long_as_the_preset_says(kind, encoder_preset, tmp_path):
    options, _, inputs = TASKS[kind]
    # KerasHub's class finds ours, and does not come by our `from_preset`.
    base = next(each for each in kind.__mro__ if each.__module__.startswith("keras_hub"))
    classes = (kind,) if base is keras_hub.models.Task else (kind, base)
    for loaded in (each.from_preset(encoder_preset, **options) for each in classes):
        assert type(loaded) is kind
        assert loaded.preprocessor.sequence_length == 40  # that of the encoder
        loaded.is_head_trained = True
        assert len(loaded.predict(inputs, verbose=0)) == 2
    # A task of any class packs 12: so do all others that are made of its preset.
    other = next(name for name in TASKS if name is not kind)
    preprocessor = PREPROCESSORS[other](SpanBertTokenizer(VOCABULARY), sequence_length=12)
    other(make_backbone(), preprocessor=preprocessor, **TASKS[other][0]).save_to_preset(
        str(tmp_path / "preset")
    )
    loaded = kind.from_preset(str(tmp_path / "preset"), **options)
    assert loaded.preprocessor.sequence_length == 12
    found = PREPROCESSORS[kind].from_preset(str(tmp_path / "preset"))
    assert found.sequence_length == 12
    assert PREPROCESSORS[kind].from_preset(encoder_preset, sequence_length=9).sequence_length == 9


@pytest.mark.slow
def test_a_question_answerer_of_segabert_tells_its_positions(tmp_path):
    make_backbone(position_embeddings="segment_aware").save_to_preset(str(tmp_path / "preset"))
    SpanBertTokenizer(VOCABULARY).save_to_preset(str(tmp_path / "preset"))
    answerer = SpanBertQuestionAnswerer.from_preset(str(tmp_path / "preset"))
    answerer.is_head_trained = True
    logits = answerer.predict((["the cat"], ["the cat sat."]), verbose=0)
    assert logits["start_logits"].shape == (1, 40)
