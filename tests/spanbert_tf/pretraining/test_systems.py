"""Every shipped configuration, made small, is fed, trained and saved."""

import keras
import numpy as np
import pytest

from spanbert_tf.config import load_config, shipped_names
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.presets.pretraining import load_preset_into, save_pretraining_preset
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.model import build_pretrainer, compiled_pretrainer
from spanbert_tf.text.vocabulary import load_vocabulary

NAMES = shipped_names("pretrain")
VOCABULARY_SIZE, BATCH_SIZE, LENGTH = 60, 4, 24

# One of each kind of model: the others differ from these in their masks only. The first two
# hold all objectives, and BERT's and SegaBERT's positions.
KINDS_OF_MODEL = (
    "bert_2seq_nsp",
    "segaspanbert",
    "bert_with_ps",
    "spanbert",
    "bert_1seq",
    "segabert_base",
)
# Their batches are those of `spanbert_base`, `bert_1seq`, `segabert_base` or a masking scheme.
SLOW_TWINS = {
    *("continue", "spanbert", "spanbert_large", "spanbert_tiny", "spans_1seq", "spans_1seq_sbo"),
    *("bert_base_for_segabert", "masking_subwords", "spans_2seq_nsp", "segabert_large"),
}


@pytest.fixture(scope="module")
def small(tiny_overrides):
    overrides = [*tiny_overrides, "model.dropout=0.1", "optimizer.warmup_steps=0"]
    return lambda name: load_config(name, overrides)


@pytest.fixture(scope="module")
def one_batch(small, tiny_records, tiny_pair_records):
    records = {"single": tiny_records, "pair": tiny_pair_records}

    def first_of(name):
        config = small(name)
        return configured_dataset(config, records[config.data.sequences], split="train").take(1)

    return first_of


@pytest.fixture(scope="module")
def new_model(small):
    """Makes models of equal initial weights; those of one kind are one, set back to the start."""
    models = {}

    def model_of(name):
        config = small(name)
        kind = str([config.model.model_dump(), config.objectives.model_dump()])
        if kind not in models:
            keras.utils.set_random_seed(0)
            model = compiled_pretrainer(config, VOCABULARY_SIZE)
            state = [*model.variables, *model.optimizer.variables]
            models[kind] = model, state, [variable.numpy() for variable in state]
        model, state, values = models[kind]
        for variable, value in zip(state, values, strict=True):
            variable.assign(value)
        return model

    return model_of


def test_all_variables_are_decayed_where_a_configuration_excludes_none(tiny_overrides):
    """fairseq's Adam, `p -= weight_decay * rate * p`: of gradients of 0 that is all there is."""
    options = ["optimizer.warmup_steps=0", "optimizer.weight_decay=0.5"]
    for excluded, spared in (("[]", ()), ("[beta]", ("beta",)), (None, ("bias", "gamma", "beta"))):
        own = [] if excluded is None else [f"optimizer.exclude_from_weight_decay={excluded}"]
        config = load_config("spanbert_base", [*tiny_overrides, *options, *own])
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
        variables = model.trainable_variables
        for variable in variables:
            variable.assign(keras.ops.ones_like(variable))
        model.optimizer.apply([keras.ops.zeros_like(v) for v in variables], variables)
        for variable in variables:
            is_spared = variable.path.endswith(spared) if spared else False
            expected = 1.0 if is_spared else 1.0 - 0.5 * 0.01
            np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6, err_msg=variable.path)


def _block_lengths(batch):
    """Tokens of the blocks of each row, special tokens apart: [B] for each block."""
    text = batch["padding_mask"].sum(axis=1)
    second = (batch["segment_ids"] * batch["padding_mask"]).sum(axis=1)
    if not second.any():
        return [text - 2]
    return [text - second - 2, second - 1]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW_TWINS else ()) for name in NAMES],
)
def test_batch_keeps_its_contract(name, small, one_batch):
    config = small(name)
    dataset = one_batch(name)
    (batch,) = dataset.as_numpy_iterator()
    rows = {"token_ids", "segment_ids", "padding_mask"}
    if config.model.segment_aware:
        rows |= {"paragraph_indices", "sentence_indices", "token_indices"}
    spans = {"span_left_positions", "span_right_positions", "span_offsets", "span_weights"}
    slots = {"mask_positions", "mask_ids", "mask_weights"} | spans
    labels = {"next_sentence_labels"} if config.data.sequences == "pair" else set()
    assert set(batch) == rows | slots | labels
    num_slots = 5 if config.data.sequences == "pair" else 4  # 0.15 * 21 and 0.15 * 22, rounded up
    shapes = dict.fromkeys(rows, (BATCH_SIZE, LENGTH)) | dict.fromkeys(labels, (BATCH_SIZE,))
    shapes |= dict.fromkeys(slots, (BATCH_SIZE, num_slots))
    for key, spec in dataset.element_spec.items():
        assert spec.shape == shapes[key], key
        assert spec.dtype == ("float32" if key.endswith("_weights") else "int32"), key

    budgets = sum(-(-15 * length // 100) for length in _block_lengths(batch))
    np.testing.assert_array_equal(batch["mask_weights"].sum(axis=1), budgets)
    assert np.all(batch["span_weights"] <= batch["mask_weights"])
    for row in range(BATCH_SIZE):
        used = batch["mask_weights"][row] == 1
        positions = batch["mask_positions"][row][used]
        assert len(set(positions)) == len(positions)
        restored = batch["token_ids"][row].copy()
        restored[positions] = batch["mask_ids"][row][used]
        text = restored[batch["padding_mask"][row] == 1]
        assert (text == 2).sum() == 1  # one [CLS], never masked
        assert (text == 3).sum() == len(_block_lengths(batch))  # a [SEP] after each block
        assert not np.isin([0, 4], text).any()  # no [PAD]; no [MASK] once all is restored


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_twenty_steps_lower_the_loss_on_one_batch(name, new_model, one_batch):
    model, batch = new_model(name), one_batch(name).cache().repeat()
    before = model.evaluate(batch, steps=1, return_dict=True, verbose=0)
    model.fit(batch, steps_per_epoch=20, shuffle=False, verbose=0)
    after = model.evaluate(batch, steps=1, return_dict=True, verbose=0)
    for measure in before:
        if measure.endswith("loss"):
            assert after[measure] < before[measure], measure
    # Not by a hair: 60 entries cost 4.1 nats untrained.
    assert after["masked_lm_loss"] < before["masked_lm_loss"] - 0.5


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_preset_gives_identical_outputs(name, small, new_model, one_batch, tiny_records, tmp_path):
    model, (batch,) = new_model(name), one_batch(name)
    model.train_on_batch(batch)
    expected = model(batch)
    tokenizer = SpanBertTokenizer(load_vocabulary(f"{tiny_records}/vocab.txt"))
    preset = str(tmp_path / "preset")
    save_pretraining_preset(model, tokenizer, preset, sequence_length=LENGTH)

    masked_lm = SpanBertMaskedLM.from_preset(preset)
    features = {key: batch[key] for key in masked_lm.input}
    np.testing.assert_array_equal(masked_lm(features), expected["masked_lm"])

    keras.utils.set_random_seed(1)
    other = build_pretrainer(small(name), VOCABULARY_SIZE)
    assert set(load_preset_into(other, preset).values()) == {"taken over"}
    actual = other(batch)
    for objective, values in expected.items():
        np.testing.assert_array_equal(actual[objective], values, objective)


def test_kinds_of_model_are_complete(small):
    def kind(name):
        config = small(name)
        objectives = config.objectives
        return config.model.position_embeddings, objectives.span_boundary, objectives.next_sentence

    assert {kind(name) for name in NAMES} == {kind(name) for name in KINDS_OF_MODEL}
