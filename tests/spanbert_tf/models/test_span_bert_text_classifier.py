"""The classifier against PyTorch's, from strings, and through presets."""

import keras
import keras_hub
import numpy as np
import pytest
import transformers
from torch_models import (
    SENTENCES,
    VOCABULARY,
    keras_inputs,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset


@pytest.fixture(scope="module")
def model():
    return torch_model(transformers.BertForSequenceClassification, num_labels=3)


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("presets")
    save_torch_model(model, directory / "source")
    source, preset = str(directory / "source"), str(directory / "preset")
    convert_checkpoint("huggingface", "keras", source, preset)
    return preset


@pytest.fixture(scope="module")
def classifier(preset):
    return SpanBertTextClassifier.from_preset(preset)


def test_logits_are_those_of_pytorch(classifier, model):
    rows = rows_of(VOCABULARY)
    logits = classifier(keras_inputs(rows), training=False)
    np.testing.assert_allclose(logits, torch_outputs(model, rows).logits, atol=2e-5, rtol=0)


def test_strings_and_pairs_are_packed_as_by_huggingface(classifier, model):
    preprocessor = SpanBertTextClassifierPreprocessor(classifier.preprocessor.tokenizer, 16)
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, do_lower_case=True)
    pairs = SENTENCES[:2], SENTENCES[2:]
    for texts in ((SENTENCES,), pairs):
        expected = tokenizer(*map(list, texts), padding="max_length", max_length=16)
        packed = preprocessor(x=tuple(map(list, texts)) if len(texts) == 2 else texts[0])
        for ours, theirs in (
            ("token_ids", "input_ids"),
            ("segment_ids", "token_type_ids"),
            ("padding_mask", "attention_mask"),
        ):
            np.testing.assert_array_equal(packed[ours], expected[theirs])


def test_arrays_of_strings_are_packed_as_lists_are(classifier):
    preprocessor = SpanBertTextClassifierPreprocessor(classifier.preprocessor.tokenizer, 16)
    firsts, seconds = list(SENTENCES[:2]), list(SENTENCES[2:])
    for texts in ((firsts, seconds), (firsts,)):
        packed = preprocessor(x=texts)
        for name, values in preprocessor(x=tuple(map(np.array, texts))).items():
            np.testing.assert_array_equal(values, packed[name])


@pytest.mark.usefixtures("shipped_classes_alone")
@pytest.mark.usefixtures("shipped_classes_alone")
def test_fits_on_strings_and_keeps_its_head_in_a_preset(classifier, tmp_path):
    classifier.preprocessor.sequence_length = 16
    classifier.compile(optimizer=keras.optimizers.Adam(1e-3))
    classifier.fit(list(SENTENCES), [0, 1, 2, 0], batch_size=2, verbose=0)
    expected = classifier.predict(list(SENTENCES), verbose=0)
    classifier.save_to_preset(str(tmp_path / "preset"))
    for loaded in (
        SpanBertTextClassifier.from_preset(str(tmp_path / "preset")),
        keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset")),
    ):
        assert type(loaded) is SpanBertTextClassifier
        np.testing.assert_allclose(loaded.predict(list(SENTENCES), verbose=0), expected, atol=1e-5)
    new = SpanBertTextClassifier.from_preset(str(tmp_path / "preset"), num_classes=5)
    assert not new.is_head_trained
    assert new(new.preprocessor(list(SENTENCES)), training=False).shape == (4, 5)


def segabert_classifier(num_classes=2, **options):
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16, position_embeddings="segment_aware"
    )
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 16, segment_aware=True)
    return SpanBertTextClassifier(backbone, num_classes, preprocessor, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("shipped_classes_alone")
def test_segabert_reads_pairs_of_strings_and_keeps_its_positions(tmp_path):
    classifier = segabert_classifier(dropout=0.0)
    classifier.compile(optimizer=keras.optimizers.Adam(1e-3))
    pairs = (np.array(SENTENCES[:2]), np.array(SENTENCES[2:]))
    classifier.fit(pairs, np.array([0, 1]), batch_size=2, verbose=0)
    expected = classifier.predict(pairs, verbose=0)
    swapped = classifier.predict(pairs[::-1], verbose=0)
    assert np.abs(expected - swapped).max() > 1e-6
    classifier.save_to_preset(str(tmp_path / "preset"))
    loaded = SpanBertTextClassifier.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(loaded.predict(pairs, verbose=0), expected, atol=1e-6)
    encoder = str(tmp_path / "encoder")
    classifier.backbone.save_to_preset(encoder)
    classifier.preprocessor.tokenizer.save_to_preset(encoder)
    new = SpanBertTextClassifier.from_preset(encoder, num_classes=3)
    assert new.preprocessor.segment_aware
    new.is_head_trained = True  # else it would not predict, and strings are to go all the way
    assert new.predict(pairs, verbose=0).shape == (2, 3)


def test_positions_and_labels_must_suit():
    backbone = segabert_classifier().backbone
    with pytest.raises(ValueError, match="segment_aware of the preprocessor must be True"):
        SpanBertTextClassifier(
            backbone, 2, SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
        )
    for labels in (["a"], ["a", "a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="2 different names"):
            segabert_classifier(labels=labels)


def poolings():
    """Classifiers of each pooling on one encoder, with the same head."""
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16, dropout=0.0)
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY, True), 16)
    found = {}
    for pooling in ("pooler", "cls", "mean"):
        found[pooling] = SpanBertTextClassifier(backbone, 2, preprocessor, pooling=pooling)
        found[pooling].output_dense.set_weights(found["pooler"].output_dense.get_weights())
    return found


def test_pooling_is_the_pooler_or_cls_or_the_mean_of_the_tokens():
    classifiers = poolings()
    model = classifiers["pooler"]
    rows = model.preprocessor(list(SENTENCES))
    encoded = {name: np.array(values) for name, values in model.backbone(rows).items()}
    states, lengths = encoded["sequence_output"], np.array(rows["padding_mask"]).sum(axis=1)
    assert len(set(lengths)) > 1 and lengths.max() < 16
    pooled = {
        "pooler": encoded["pooled_output"],
        "cls": states[:, 0],
        "mean": np.stack([row[:n].mean(0) for row, n in zip(states, lengths, strict=True)]),
    }
    kernel, bias = model.output_dense.get_weights()
    for pooling, classifier in classifiers.items():
        found = classifier(rows, training=False)
        np.testing.assert_allclose(found, pooled[pooling] @ kernel + bias, atol=1e-5)
        trained = {weight.path for weight in classifier.trainable_weights}
        assert any("pooled_dense" in path for path in trained) == (pooling == "pooler")
    default = SpanBertTextClassifier(model.backbone, 2)
    assert default.pooling == "pooler" and default.reads_pooler
    with pytest.raises(ValueError, match="pooling must be one of pooler, cls, mean"):
        SpanBertTextClassifier(model.backbone, 2, pooling="max")


def test_pooling_is_saved_and_another_one_has_a_new_head(tmp_path):
    classifier, preset = poolings()["mean"], str(tmp_path / "preset")
    classifier.is_head_trained = True
    rows = classifier.preprocessor(list(SENTENCES))
    expected = classifier(rows, training=False)
    classifier.save_to_preset(preset)
    classifier.save(tmp_path / "model.keras")
    for loaded in (
        SpanBertTextClassifier.from_preset(preset),
        SpanBertTextClassifier.from_preset(preset, pooling="mean"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert loaded.pooling == "mean" and loaded.is_head_trained
        np.testing.assert_allclose(loaded(rows, training=False), expected, atol=1e-6)
    other = SpanBertTextClassifier.from_preset(preset, pooling="cls")
    assert other.pooling == "cls" and not other.is_head_trained
    assert other.labels == classifier.labels


def test_other_projects_have_no_classifier_without_a_pooler(tmp_path):
    classifier = poolings()["mean"]
    classifier.is_head_trained = True
    write_preset(classifier, str(tmp_path / "preset"))
    with pytest.raises(MismatchError, match=r"reads the mean of the tokens, .*pooling=pooler"):
        source, target = str(tmp_path / "preset"), str(tmp_path / "converted")
        convert_checkpoint("keras", "huggingface", source, target)
    assert not (tmp_path / "converted").exists()


def test_one_class_is_a_regression_in_float32():
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, dtype="mixed_bfloat16")
    regressor = SpanBertTextClassifier(backbone, 1)
    rows = {name: np.ones((3, 4), "int32") for name in backbone.input}
    assert regressor(rows).dtype == "float32"
    outputs, numbers = np.array([[4.76], [0.5], [3.0]], "float32"), np.array([4.75, 1.0, 9.0])
    (sums,) = regressor.objective_sums(rows, outputs, numbers, np.array([1, 1, 0])).values()
    assert float(sums.loss) == pytest.approx(0.01**2 + 0.5**2, rel=1e-4)
    assert sums.num_correct is None and float(sums.num_targets) == 2
    weights = np.array([1, 1, 0])
    loss = regressor.compute_loss(rows, numbers, outputs, weights)
    assert float(loss) == pytest.approx((0.01**2 + 0.5**2) / 2, rel=1e-4)
