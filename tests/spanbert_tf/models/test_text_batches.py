"""What `fit`, `evaluate` and `predict` make of arrays and data sets of texts."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import VOCABULARY

import spanbert_tf
from spanbert_tf import models
from spanbert_tf.errors import BadInputError
from spanbert_tf.models.keras_hub_presets import NewHeadWarning

LENGTH = 64  # widths are multiples of 8
TEXTS = ["ann has the cat .", "bob has the cat", "who has the cat ?", "ann", "bob", "the cat"]
CLASSES = np.array([0, 1, 1, 0, 1, 0])
NAMES = np.array(["no", "yes"])[CLASSES]
WORDS = tf.ragged.constant([["ann", "has"], ["bob"], ["the", "cat", "."], ["ann"], ["who"], ["?"]])
RELATIONS = {
    "text": np.array(["ann has the cat ."] * 6),
    "subject": np.array([[0, 3]] * 6),
    "object": np.array([[12, 15]] * 6),
    "subject_type": np.array([""] * 6),
    "object_type": np.array([""] * 6),
}
# Class → its arguments, and what `fit` is given.
TASKS = {
    "TextClassifier": ({"num_classes": 2}, np.array(TEXTS), CLASSES),
    "RelationClassifier": ({"labels": ["no", "yes"]}, RELATIONS, CLASSES),
    "TokenClassifier": ({"labels": ["a", "b"]}, WORDS, WORDS.with_values(tf.range(9) % 2)),
    "QuestionAnswerer": ({}, (np.array(["who has"] * 6), np.array(TEXTS)), np.array(["cat"] * 6)),
    "TextEmbedder": ({}, np.array(TEXTS), np.eye(6, 8, dtype="float32")),
}


def make(name, **options):
    """A model without dropout; the same weights for the same class."""
    keras.utils.set_random_seed(1)
    backbone = models.SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, dropout=0.0, max_sequence_length=LENGTH
    )
    kind = getattr(models, f"SpanBert{name}")
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = kind.preprocessor_cls(tokenizer, LENGTH)
    if name not in ("QuestionAnswerer", "TextEmbedder"):
        options["dropout"] = 0.0
    model = kind(backbone, preprocessor=preprocessor, **options)
    loss = "mse" if name == "TextEmbedder" else "auto"
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True)  # tracing takes seconds
    return model


def with_widths(name, **options):
    """A model, and the list of the widths of its batches from then on."""
    model, widths = make(name, **options), []
    encode = model.backbone.call

    def call(inputs, *args, **kwargs):
        widths.append(inputs["token_ids"].shape[1])
        return encode(inputs, *args, **kwargs)

    model.backbone.call = call
    return model, widths


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.quick_cases(2)
def test_short_texts_have_short_rows_and_the_results_of_long_ones(name):
    options, x, y = TASKS[name]
    found = []
    for is_packed in (False, True):
        model, widths = with_widths(name, **options)
        data = (x, y)
        if is_packed:
            data = model.preprocessor(x=x, y=y)
            preprocessor, model.preprocessor = model.preprocessor, None
        history = model.fit(*data, epochs=2, batch_size=3, shuffle=False, verbose=0).history
        scores = model.evaluate(*data, batch_size=3, return_dict=True, verbose=0)
        assert set(widths) == {LENGTH} if is_packed else max(widths) <= 16
        widths.clear()
        inputs = preprocessor(x=x) if is_packed else x
        predicted = model.predict(inputs, batch_size=3, verbose=0)
        if not is_packed and name not in ("TokenClassifier", "QuestionAnswerer"):
            assert max(widths) <= 16
        found.append((history["loss"], scores, predicted))
    short, whole = found
    np.testing.assert_allclose(short[0], whole[0], rtol=1e-4)
    assert short[1] == pytest.approx(whole[1], rel=1e-4)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), short[2], whole[2]
    )


@pytest.mark.slow
def test_masked_texts_have_short_rows():
    model, widths = with_widths("MaskedLM")
    model.fit(np.array(TEXTS), verbose=0)
    model.evaluate(np.array(TEXTS), verbose=0)
    assert max(widths) <= 16


def test_labels_beyond_the_text_keep_their_positions():
    """Labels of packed positions are all trained, wherever they stand."""
    model, widths = with_widths("TokenClassifier", labels=["a", "b"])
    y = np.full((6, LENGTH), -1)
    y[0, 20] = 1
    model.fit(np.array(TEXTS), y, verbose=0)
    assert set(widths) == {24}


@pytest.mark.slow
def test_a_step_that_xla_compiles_has_whole_rows():
    model, shapes = make("TextClassifier", num_classes=2), []
    encode = model.backbone.call
    model.backbone.call = lambda x, *a, **k: (
        shapes.append(x["token_ids"].shape) or encode(x, *a, **k)
    )
    model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    model.fit(np.array(TEXTS), CLASSES, verbose=0)
    model.predict(np.array(TEXTS), verbose=0)
    assert {shape[1] for shape in shapes} == {LENGTH}


def test_a_preprocessor_that_is_called_directly_makes_whole_rows():
    model = make("TextClassifier", num_classes=2)
    assert model.preprocessor(TEXTS)["token_ids"].shape == (6, LENGTH)
    rows = tf.data.Dataset.from_tensors(TEXTS).map(model.preprocessor)
    assert rows.element_spec["token_ids"].shape[1] == LENGTH
    assert model.preprocess_samples(np.array(TEXTS))["token_ids"].shape == (6, LENGTH)


def seen_texts(shuffle, epochs=2, **options):
    """The texts in the order in which `fit` takes them."""
    texts, model = [], make("TextClassifier", num_classes=2)
    model.preprocessor = None
    x = dict.fromkeys(("segment_ids", "padding_mask"), np.ones((40, 4), "int32"))
    x["token_ids"] = np.tile(np.arange(40, dtype="int32")[:, None] % len(VOCABULARY), (1, 4))
    encode = model.backbone.call
    model.backbone.call = lambda x, *a, **k: (
        texts.append(x["token_ids"][:, 0]) or encode(x, *a, **k)
    )
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, np.zeros(40), epochs=epochs, verbose=0, **shuffle, **options)
    return np.concatenate(texts).reshape(epochs, -1)


def test_arrays_are_shuffled_in_each_epoch_and_nobody_warns():
    """(KerasHub leaves them in their order, and Keras warns that it ignores `shuffle`.)"""
    order = np.arange(40) % len(VOCABULARY)
    for shuffle in ({}, {"shuffle": True}):
        first, second = seen_texts(shuffle)
        assert sorted(first) == sorted(second) == sorted(order)
        assert not np.array_equal(first, order) and not np.array_equal(first, second)
    np.testing.assert_array_equal(seen_texts({"shuffle": False}), [order, order])
    # The last rows are held out, as in Keras: what is trained is among the first 30.
    trained = seen_texts({}, epochs=1, validation_split=0.25)[0]
    assert sorted(trained[:30]) == sorted(order[:30])
    np.testing.assert_array_equal(trained[30:], order[30:])


def test_of_a_data_set_keras_warns_where_a_program_wants_it_shuffled():
    model, data = (
        make("TextClassifier", num_classes=2),
        tf.data.Dataset.from_tensors((TEXTS, CLASSES)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(data, verbose=0)
    with pytest.warns(UserWarning, match="shuffle=True"):
        model.fit(data, shuffle=True, verbose=0)


def data_sets(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)


@pytest.mark.parametrize("given", [lambda x, y: (x, y), lambda x, y: (data_sets(x, y),)])
def test_a_model_that_was_trained_on_pairs_takes_pairs(given, tmp_path):
    model = make("TextClassifier", num_classes=2)
    texts = np.array(TEXTS)
    model.fit(*given((texts, texts[::-1]), CLASSES), verbose=0)
    model.save_to_preset(str(tmp_path / "pairs"))
    answer = spanbert_tf.predictor(str(tmp_path / "pairs"))
    [[best]] = (answer([{"text": "ann", "text_pair": "bob"}]),)
    logits = model.predict((np.array(["ann"]), np.array(["bob"])), verbose=0)
    assert best["label"] == f"LABEL_{logits.argmax()}"
    model.fit(*given(texts, CLASSES), verbose=0)
    model.evaluate((texts, texts), CLASSES, verbose=0)
    assert not model.preprocessor.is_pair


def test_labels_may_be_the_names_of_classes():
    found = []
    for labels in (CLASSES, NAMES, NAMES.tolist()):
        model = make("TextClassifier", labels=["no", "yes"])
        options = {"validation_data": (TEXTS, labels), "shuffle": False, "verbose": 0}
        found.append(model.fit(np.array(TEXTS), labels, **options).history)
        found.append(model.fit(data_sets(TEXTS, labels), shuffle=False, verbose=0).history)
        found.append({"loss": model.train_on_batch(np.array(TEXTS), labels)})
    for result, expected in zip(found[3:], found[:3] * 2, strict=True):
        keras.tree.map_structure(np.testing.assert_allclose, result, expected)


def test_labels_of_words_and_relations_may_be_names():
    numbers = WORDS.with_values(tf.range(9) % 2)
    found = []
    for y in (numbers, numbers.with_values(tf.gather(["O", "B-X"], numbers.values))):
        model = make("TokenClassifier", labels=["O", "B-X"])
        found.append(model.evaluate(WORDS, y, verbose=0))
    for y in (CLASSES, NAMES):
        model = make("RelationClassifier", labels=["no", "yes"])
        found.append(model.evaluate(RELATIONS, y, verbose=0))
    assert found[0] == pytest.approx(found[1]) and found[2] == pytest.approx(found[3])


def test_an_unknown_label_is_one_sentence():
    model, names = make("TextClassifier", labels=["no", "yes"]), ["no", "maybe"] * 3
    known = r"\(no, yes\)"
    for data in ((np.array(TEXTS), names), (data_sets(TEXTS, names),)):
        for method in (model.fit, model.evaluate):
            with pytest.raises(ValueError, match=f"^y has a label .* {known}: maybe$"):
                method(*data, verbose=0)
    with pytest.raises(ValueError, match="y must be numbers"):
        make("TextClassifier", num_classes=1).fit(TEXTS, ["1", "2"] * 3, verbose=0)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("TextClassifier", {"num_classes": 2}, {"loss", "sparse_categorical_accuracy"}),
        ("TextClassifier", {"num_classes": 1}, {"loss"}),
        pytest.param(
            "MaskedLM", {}, {"loss", "sparse_categorical_accuracy"}, marks=pytest.mark.slow
        ),
        ("TokenClassifier", {"labels": ["a"]}, {"loss", "token_classification_accuracy"}),
    ],
)
def test_each_metric_is_told_once(name, options, expected):
    model = make(name, **options)
    y = None if name == "MaskedLM" else np.zeros((6, LENGTH) if name == "TokenClassifier" else 6)
    values = model.evaluate(np.array(TEXTS), y, verbose=0, return_dict=True)
    assert set(values) == expected
    assert np.size(model.evaluate(np.array(TEXTS), y, verbose=0)) == len(expected)


def test_a_new_head_warns_once_from_python_and_is_refused_elsewhere(tmp_path):
    model = make("TextClassifier", num_classes=2)
    with pytest.warns(NewHeadWarning, match="means nothing") as found:
        for _ in range(2):
            assert model.predict(TEXTS, verbose=0).shape == (6, 2)
            model.predict_on_batch(np.array(TEXTS))
    assert len(found) == 1 and found[0].filename == __file__
    model.save_to_preset(str(tmp_path / "preset"))
    with pytest.raises(BadInputError, match="never trained"):
        spanbert_tf.predictor(str(tmp_path / "preset"))
    model.fit(TEXTS, CLASSES, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(TEXTS, verbose=0)
