"""What preprocessors make of one text, and of NumPy's strings."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf import models

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{n}]" for n in range(1, 8))]
VOCABULARY = [*SPECIAL, "ann", "bob", "has", "the", "cat", ".", "who"]
LENGTH = 12
TEXTS = ["ann has the cat .", "bob . the cat has bob"]
CLUSTERS = models.SpanBertCoreferenceResolverPreprocessor.clusters_tensor(
    [[[(0, 3), (12, 15)]], [[(0, 3), (18, 21)], [(6, 13)]]]
)
RELATIONS = {
    "text": TEXTS,
    "subject": [[0, 3], [18, 21]],
    "object": [[12, 15], [10, 13]],
    "subject_type": ["PERSON", ""],
    "object_type": ["", ""],
}
CASES = {
    "question_answerer": ((["who has", "who"], TEXTS), ["the cat", "bob"]),
    "question_answerer, starts": ((["who has", "who"], TEXTS), (["ann", "bob"], [0, 18])),
    "relation_classifier": (RELATIONS, [0, 1]),
    "coreference_resolver": (TEXTS, CLUSTERS),
    "text_classifier": (TEXTS, [0, 1]),
    "token_classifier": (TEXTS, [0, 1]),
}
CLASSES = {
    "question_answerer": models.SpanBertQuestionAnswererPreprocessor,
    "relation_classifier": models.SpanBertRelationClassifierPreprocessor,
    "coreference_resolver": models.SpanBertCoreferenceResolverPreprocessor,
    "text_classifier": models.SpanBertTextClassifierPreprocessor,
    "token_classifier": models.SpanBertTokenClassifierPreprocessor,
}


def tensors(values):
    """Lists as tensors; tuples and dicts are structure."""
    if isinstance(values, tuple):
        return tuple(map(tensors, values))
    if isinstance(values, dict):
        return {name: tensors(value) for name, value in values.items()}
    return values if isinstance(values, tf.RaggedTensor) else tf.constant(values)


def element(values, number):
    return tf.nest.map_structure(lambda value: value[number], values)


@pytest.mark.parametrize("with_labels", [True, False])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick_cases(2)
def test_one_input_gives_what_it_gives_in_a_batch_without_its_dimension(name, with_labels):
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = CLASSES[name.partition(",")[0]](tokenizer, LENGTH)
    x, y = tensors(CASES[name])
    batch = {"x": x, "y": y} if with_labels else {"x": x}
    in_data_set = tf.data.Dataset.from_tensor_slices(batch).map(lambda one: preprocessor(**one))
    for number, mapped in zip(range(len(TEXTS)), in_data_set, strict=True):
        expected = preprocessor(**element(batch, slice(number, number + 1)))
        for outputs in (preprocessor(**element(batch, number)), mapped):
            tf.nest.map_structure(
                lambda value, wanted: np.testing.assert_array_equal(value, wanted[0], strict=True),
                outputs,
                expected,
            )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", CASES)
def test_another_length_counts_from_the_next_call_on(name):
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    kind = CLASSES[name.partition(",")[0]]
    x, y = tensors(CASES[name])
    preprocessor = kind(tokenizer, LENGTH)
    preprocessor(x=x, y=y)
    preprocessor.sequence_length = 8
    expected = kind(tokenizer, 8)(x=x, y=y)
    tf.nest.map_structure(np.testing.assert_array_equal, preprocessor(x=x, y=y), expected)
    preprocessor.sequence_length = 20
    expected = kind(tokenizer, 20)(x=x, y=y)
    in_data_set = tf.data.Dataset.from_tensors((x, y)).map(lambda x, y: preprocessor(x=x, y=y))
    tf.nest.map_structure(np.testing.assert_array_equal, next(iter(in_data_set)), expected)
    if name != "coreference_resolver":  # whose documents have any length
        assert {spec.shape[-1] for spec in in_data_set.element_spec[0].values()} == {20}


def tiny_model(model_class, **heads):
    keras.utils.set_random_seed(1)
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    backbone = models.SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, dropout=0.0, max_sequence_length=LENGTH
    )
    preprocessor = model_class.preprocessor_cls(tokenizer, LENGTH)
    model = model_class(backbone, preprocessor=preprocessor, **heads)
    model.compile("sgd", run_eagerly=True)
    model.is_head_trained = True
    return model


HEADS = {
    "question_answerer": (models.SpanBertQuestionAnswerer, {}),
    "relation_classifier": (models.SpanBertRelationClassifier, {"labels": ["a", "b"]}),
    "coreference_resolver": (models.SpanBertCoreferenceResolver, {"feature_dim": 2, "ffnn_dim": 2}),
    "text_classifier": (models.SpanBertTextClassifier, {"num_classes": 2}),
    "token_classifier": (models.SpanBertTokenClassifier, {"labels": ["a", "b"]}),
}


@pytest.mark.parametrize("name", HEADS)
def test_features_are_the_inputs_of_the_model(name):
    kind, heads = HEADS[name]
    model = tiny_model(kind, **heads)
    assert set(model.preprocessor(x=tensors(CASES[name][0]))) == set(model.input)


LABELLED = {
    "text_classifier": (
        lambda: tiny_model(models.SpanBertTextClassifier, num_classes=2, dropout=0.0),
        np.array([0, 1]),
    ),
    "token_classifier": (
        lambda: tiny_model(models.SpanBertTokenClassifier, labels=["O", "B-X"], dropout=0.0),
        np.array([[-1, 0, 1, 0, 1, 0, -1, -1, -1, -1, -1, -1]] * 2),
    ),
}


@pytest.mark.parametrize("dtype", ["U", "S", object])
@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.quick_cases(2)
def test_batches_of_numpy_s_strings_are_trained_scored_and_predicted(name, dtype):
    make, y = LABELLED[name]
    texts = np.array(TEXTS, dtype)
    for method, labels in (
        ("predict_on_batch", {}),
        ("test_on_batch", {"y": y}),
        ("train_on_batch", {"y": y}),
    ):
        found = getattr(make(), method)(texts, **labels)
        np.testing.assert_allclose(found, getattr(make(), method)(TEXTS, **labels), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["U", "S", object])
def test_batches_of_numpy_s_strings_are_masked(dtype):
    masked_lm = tiny_model(models.SpanBertMaskedLM)
    texts = np.array(TEXTS, dtype)
    shapes = [masked_lm.predict_on_batch(x).shape for x in (texts, TEXTS)]
    assert shapes[0] == shapes[1]
    assert masked_lm.test_on_batch(texts)[0] > 0
    assert masked_lm.train_on_batch(texts)[0] > 0


PAIRS = [["ann has", "the cat"], ["bob .", "who has"], ["who", "ann"]]


@pytest.mark.parametrize("in_data_set", [False, True])
@pytest.mark.parametrize("name", ["text_classifier", "coreference_resolver", "masked_lm"])
@pytest.mark.quick_cases(3)
def test_texts_in_rows_are_not_flattened(name, in_data_set):
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    kind = CLASSES.get(name, models.SpanBertMaskedLMPreprocessor)
    preprocessor = kind(tokenizer, LENGTH)

    def packed(texts):
        if in_data_set:
            return next(iter(tf.data.Dataset.from_tensors(texts).map(preprocessor)))
        return preprocessor(texts)

    with pytest.raises(ValueError, match=r"shape \[batch\]; give pairs as a tuple of two"):
        packed(PAIRS)
    for first, column in zip(
        tf.nest.flatten(packed([pair[0] for pair in PAIRS])),
        tf.nest.flatten(packed([pair[:1] for pair in PAIRS])),
        strict=True,
    ):
        assert first.shape == column.shape


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("text_classifier", ("who", ["bob .", "ann"]), "there must be as many second texts"),
        ("text_classifier", (["who"], ["bob .", "ann"]), "there must be as many second texts"),
        ("masked_lm", (["who"], ["bob .", "ann"]), "there must be as many second texts"),
        ("text_classifier", (["a"], ["b"], ["c"]), "x must be one text or two. Received: 3"),
        ("relation_classifier", {"text": TEXTS}, "a dict of text, subject and object"),
        ("relation_classifier", TEXTS, "a dict of text, subject and object"),
        ("coreference_resolver", {"speakers": TEXTS}, "a dict of text and speakers"),
    ],
)
def test_what_lacks_a_text_is_refused(name, x, message):
    kind = CLASSES.get(name, models.SpanBertMaskedLMPreprocessor)
    preprocessor = kind(models.SpanBertTokenizer(VOCABULARY, lowercase=True), LENGTH)
    with pytest.raises(ValueError, match=message):
        preprocessor(x=x)


@pytest.mark.parametrize("name", ["text_classifier", "coreference_resolver"])
def test_of_no_texts_there_are_no_rows(name):
    preprocessor = CLASSES[name](models.SpanBertTokenizer(VOCABULARY, lowercase=True), LENGTH)
    for values in preprocessor(tf.constant([], tf.string)).values():
        assert values.shape[0] == 0


def test_types_and_speakers_may_be_missing_and_further_columns_are_not_read():
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    x = RELATIONS | {"subject_type": ["", ""]}
    some = {name: x[name] for name in ("text", "subject", "object")} | {"id": [7, 8]}
    for name, whole, part in (
        ("relation_classifier", x, some),
        ("coreference_resolver", TEXTS, {"text": TEXTS}),
    ):
        preprocessor = CLASSES[name](tokenizer, LENGTH)
        expected, found = preprocessor(whole), preprocessor(part)
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("in_data_set", [False, True])
def test_words_in_rows_of_one_length_are_words_of_one_text_each(in_data_set):
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = models.SpanBertTokenClassifierPreprocessor(tokenizer, LENGTH)
    words, labels = [["ann", "has."], ["the cat", "bob"]], [[2, 1], [0, 3]]
    expected = preprocessor(tf.ragged.constant(words), tf.ragged.constant(labels))
    found = preprocessor(tf.constant(words), tf.constant(labels))
    if in_data_set:
        data = tf.data.Dataset.from_tensor_slices((words, labels)).batch(2)
        (found,) = data.map(preprocessor)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert preprocessor(tf.constant(words))["token_ids"].shape == (2, LENGTH)
    with pytest.raises(tf.errors.InvalidArgumentError, match="each word must have one label"):
        preprocessor(
            tf.ragged.constant([["ann", "has"], ["bob"]]), tf.ragged.constant([[0], [1, 2]])
        )


def test_weights_of_words_are_where_their_labels_are():
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = models.SpanBertTokenClassifierPreprocessor(tokenizer, 8)
    words = tf.ragged.constant([["ann", "has.", "the"], ["bob"]])
    labels, weights = tf.ragged.constant([[2, 1, 0], [3]]), tf.ragged.constant([[0.5, 2, 3], [1]])
    _, y, found = preprocessor(words, labels, weights)
    assert y.numpy().tolist() == [[-1, 2, 1, -1, 0, -1, -1, -1], [-1, 3] + [-1] * 6]
    assert found.numpy().tolist() == [[0, 0.5, 2, 0, 3, 0, 0, 0], [0, 1] + [0] * 6]
    for of_rows in (tf.constant([0.5, 1]), tf.constant([[0.5], [1]])):
        assert preprocessor(words, labels, of_rows)[2] is of_rows


def test_a_question_answerer_says_how_it_takes_texts():
    questions, passages = ["who has", "who"], TEXTS
    message = r"x must be a tuple of questions and passages"
    model = tiny_model(models.SpanBertQuestionAnswerer)
    for x in (
        (questions, passages),
        [["who has", "ann has the cat ."], ["who", "bob ."]],
        "who",
        {"question": questions},
    ):
        with pytest.raises(ValueError, match=message):
            model.preprocessor(x)
    data = tf.data.Dataset.from_tensor_slices((questions, passages)).batch(2)
    with pytest.raises(ValueError, match=message):
        model.predict(data, verbose=0)
    logits = model.predict(data.map(lambda *x: (x,)), verbose=0)
    expected = model.predict((questions, passages), verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, logits, expected)


@pytest.mark.slow
def test_texts_with_clusters_are_scored_as_they_are_trained():
    clusters = [[[(0, 3), (12, 15)]], [[(0, 3), (18, 21)], [(6, 13)]]]
    heads = {"feature_dim": 2, "ffnn_dim": 2, "dropout": 0.0}
    resolver = tiny_model(models.SpanBertCoreferenceResolver, **heads)
    resolver.optimizer.learning_rate = 0.0
    # As a data set, which needs no conversion of lists.
    documents = tf.data.Dataset.from_tensor_slices((TEXTS, CLUSTERS)).batch(2)

    def loss_of(*data, **options):
        return resolver.evaluate(*data, **options, return_dict=True, verbose=0)["loss"]

    loss = loss_of(documents)
    assert loss > 0
    np.testing.assert_allclose(loss_of(TEXTS, clusters), loss, rtol=1e-5)
    weighted = (TEXTS, clusters, np.array([1.0, 0.0]))
    history = resolver.fit(TEXTS, clusters, validation_data=weighted, verbose=0).history
    np.testing.assert_allclose(history["loss"], [loss], rtol=1e-5)
    split = resolver.fit(TEXTS, clusters, validation_split=0.5, verbose=0).history
    parts = [loss_of(TEXTS[part], clusters[part]) for part in (slice(1), slice(1, None))]
    np.testing.assert_allclose([split["loss"], split["val_loss"]], [[p] for p in parts], rtol=1e-5)
    with pytest.raises(ValueError, match="leaves 0 of 2"):
        resolver.fit(TEXTS, clusters, validation_split=0.9)
    found = loss_of(*weighted[:2], sample_weight=weighted[2])
    np.testing.assert_allclose(history["val_loss"], [found], rtol=1e-5)
    assert abs(found - loss) > 1e-3
