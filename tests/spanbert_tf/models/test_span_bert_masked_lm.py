"""The masked language model on raw strings, and its preprocessor against plain Python."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.masking import MaskingOptions
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)

WORDS = ["the", "a", "cat", "dog", "sat", "##s", "on", "mat", "."]
# [PAD] is not 0, so that a 0 which should be [PAD] is seen.
VOCABULARY = ["[CLS]", "[SEP]", "[MASK]", *WORDS, "[UNK]", "[PAD]"]
CLS, SEP, PAD = (VOCABULARY.index(token) for token in ("[CLS]", "[SEP]", "[PAD]"))
TEXTS = ["the cats sat on a mat.", "dog", "", "the dogs sat on the mats. a cat sat on the dogs."]
LENGTH = 13


def make_preprocessor(**options):
    options = {"sequence_length": LENGTH, "seed": 5} | options
    return SpanBertMaskedLMPreprocessor(SpanBertTokenizer(VOCABULARY), **options)


def make_model(preprocessor=None):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=LENGTH)
    return SpanBertMaskedLM(backbone, preprocessor)


def ids(text):
    return SpanBertTokenizer(VOCABULARY)([text])[0]


def packed_row(*segments):
    """Ids and segments of a row, in plain Python; segments that fit."""
    row, segment_ids = [CLS], [0]
    for number, segment in enumerate(segments):
        row += [*segment, SEP]
        segment_ids += [number] * (len(segment) + 1)
    missing = LENGTH - len(row)
    return row + [PAD] * missing, segment_ids + [0] * missing


def restored(features, labels, weights):
    """The rows before masking."""
    rows = np.array(features["token_ids"])
    for row, positions, tokens, counts in zip(
        rows, features["mask_positions"], labels, weights, strict=True
    ):
        for position, token, count in zip(positions, tokens, counts, strict=True):
            if count:
                row[position] = token
    return rows


def check_batch(outputs, rows, budgets):
    features, labels, weights = keras.tree.map_structure(np.array, outputs)
    token_ids, segment_ids = zip(*rows, strict=True)
    np.testing.assert_array_equal(restored(features, labels, weights), token_ids)
    np.testing.assert_array_equal(features["segment_ids"], segment_ids)
    np.testing.assert_array_equal(features["padding_mask"], np.array(token_ids) != PAD)
    np.testing.assert_array_equal(weights.sum(axis=1), budgets)
    masked = np.take_along_axis(np.array(token_ids), features["mask_positions"], axis=1)
    assert not np.isin(masked[weights > 0], [CLS, SEP, PAD]).any()


def budget(num_tokens):
    return -(-3 * num_tokens // 20)  # ceil(0.15 n)


@pytest.mark.parametrize("where", ["eagerly", "in_dataset"])
def test_single_texts_are_packed_and_masked(where):
    preprocessor = make_preprocessor()
    if where == "eagerly":
        outputs = preprocessor(TEXTS)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(len(TEXTS))
        outputs = dataset.map(preprocessor).get_single_element()
    blocks = [ids(text)[: LENGTH - 2] for text in TEXTS]
    assert max(map(len, blocks)) == LENGTH - 2 < len(ids(TEXTS[-1]))
    check_batch(outputs, [packed_row(block) for block in blocks], [budget(len(b)) for b in blocks])
    assert outputs[1].shape == (len(TEXTS), budget(LENGTH - 2))


@pytest.mark.parametrize("where", ["eagerly", "in_dataset"])
def test_pairs_are_masked_each_on_its_own(where):
    first, second = ["the cat", "", "the cats sat"], ["a dog.", "a mat", ""]
    preprocessor = make_preprocessor()
    if where == "eagerly":
        outputs = preprocessor(x=(first, second))
    else:
        dataset = tf.data.Dataset.from_tensors((first, second))
        outputs = dataset.map(lambda *pair: preprocessor(x=pair)).get_single_element()
    pairs = [(ids(a), ids(b)) for a, b in zip(first, second, strict=True)]
    budgets = [budget(len(a)) + budget(len(b)) for a, b in pairs]
    check_batch(outputs, [packed_row(*pair) for pair in pairs], budgets)


def test_single_string_gives_a_row_without_batch():
    features, labels, weights = make_preprocessor()("the cat sat")
    assert features["token_ids"].shape == (LENGTH,)
    assert labels.shape == weights.shape == features["mask_positions"].shape
    assert np.sum(weights) == 1


def test_calls_draw_different_masks_of_the_whole_text():
    preprocessor = make_preprocessor()
    text = ["the cat sat on a mat ."]
    positions = {int(preprocessor(text)[0]["mask_positions"][0][0]) for _ in range(40)}
    assert positions == set(range(1, 8)) - {7}  # two neighbours are masked; the first of them


def test_masking_options_take_effect_and_travel_in_the_configuration():
    masking = {"scheme": "subwords", "rate": 0.9, "mask_token_rate": 1, "random_token_rate": 0}
    preprocessor = make_preprocessor(masking=masking)
    config = preprocessor.get_config()
    copy = SpanBertMaskedLMPreprocessor.from_config(
        config | {"tokenizer": SpanBertTokenizer(VOCABULARY)}
    )
    assert copy.masking == preprocessor.masking
    assert copy.get_config()["masking"] == config["masking"]
    for each in (preprocessor, copy):
        features, _, _ = each(["the cats sat"])
        mask = VOCABULARY.index("[MASK]")
        np.testing.assert_array_equal(features["token_ids"][0][:6], [CLS, *[mask] * 4, SEP])


def test_random_tokens_come_from_all_of_the_vocabulary():
    masking = {"mask_token_rate": 0, "random_token_rate": 1, "rate": 0.9}
    features, _, weights = make_preprocessor(masking=masking)([TEXTS[3]] * 100)
    token_ids, positions = np.array(features["token_ids"]), np.array(features["mask_positions"])
    tokens = np.take_along_axis(token_ids, positions, axis=1)
    assert set(tokens[np.array(weights) == 1]) == set(range(len(VOCABULARY)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_preprocessor(mask_selection_rate=0.2), "mask_selection_rate"),
        (lambda: make_preprocessor(masking="entities"), "annotated records"),
        (lambda: make_preprocessor(masking={"random_tokens": "unigrams"}), "counts of records"),
        (lambda: make_preprocessor(masking=MaskingOptions()), "counts of records"),
        (lambda: make_preprocessor()((["a"], ["the"])), "must be None"),
        (lambda: make_preprocessor()(x=(["a"], ["the"], ["cat"])), "one text or two"),
    ],
)
def test_what_would_have_no_effect_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.slow
def test_fit_on_strings_learns_and_predict_follows():
    model = make_model(make_preprocessor())
    assert isinstance(model, keras_hub.models.MaskedLM)
    model.compile(
        optimizer=keras.optimizers.Adam(5e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    texts = ["the cat sat on a mat."] * 192
    losses = model.fit(texts, batch_size=8, epochs=2, verbose=0).history["loss"]
    # A model that knows how common each word is and no more reaches log 7 on seven words.
    assert losses[-1] < np.log(7) / 2
    pairs = (["the cat", "a dog"], ["sat.", "a mat."])
    assert model.predict(pairs, verbose=0).shape == (2, 3, len(VOCABULARY))


def test_configuration_builds_the_same_model():
    model = make_model()
    copy = SpanBertMaskedLM.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    inputs = {
        "token_ids": np.array([[0, 3, 2, 5, 1]]),
        "segment_ids": np.zeros((1, 5), "int32"),
        "padding_mask": np.ones((1, 5), "int32"),
        "mask_positions": np.array([[2]]),
    }
    np.testing.assert_allclose(copy(inputs), model(inputs), rtol=1e-5, atol=1e-6)


def test_keras_file_holds_model_and_tokenizer(tmp_path):
    model = make_model(make_preprocessor())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.preprocessor.tokenizer.get_vocabulary() == VOCABULARY
    for expected, actual in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.slow
def test_each_epoch_of_a_data_set_has_new_masks_which_the_seed_tells(seed):
    def epochs(global_seed):
        keras.utils.set_random_seed(global_seed)
        preprocessor = make_preprocessor(seed=seed)
        data = tf.data.Dataset.from_tensors([TEXTS[3]] * 8).map(preprocessor)
        return [next(iter(data))[0]["mask_positions"].numpy() for _ in range(3)]

    first, second, third = epochs(1)
    assert (first != second).any() and (second != third).any() and (first != third).any()
    np.testing.assert_array_equal(epochs(1), [first, second, third])
    assert (np.array(epochs(2)) == [first, second, third]).all() == (seed is not None)
