"""Losses, heads and metrics of the pretrainer against numpy, with odd and unequal sizes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from spanbert_tf.layers import TiedEmbedding
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer

VOCABULARY, WIDTH, LENGTH, SLOTS, BATCH = 41, 32, 13, 5, 3
MAX_SPAN_TARGETS, POSITION_DIM = 4, 7


def make_model(seed=0, dropout=0.0, num_layers=2, **options):
    keras.utils.set_random_seed(seed)
    backbone = SpanBertBackbone(
        VOCABULARY, num_layers, 4, WIDTH, 37, dropout=dropout, max_sequence_length=LENGTH
    )
    options = {"max_span_targets": MAX_SPAN_TARGETS, "span_position_dim": POSITION_DIM} | options
    return SpanBertPretrainer(backbone, **options)


def make_batch(seed=0):
    random = np.random.default_rng(seed)
    positions = np.sort(random.permuted(np.tile(np.arange(1, 12), (BATCH, 1)), axis=1)[:, :SLOTS])
    batch = {
        "token_ids": random.integers(0, VOCABULARY, (BATCH, LENGTH)),
        "segment_ids": np.zeros((BATCH, LENGTH)),
        "padding_mask": np.ones((BATCH, LENGTH)),
        "mask_positions": positions,
        "mask_ids": random.integers(0, VOCABULARY, (BATCH, SLOTS)),
        "span_left_positions": positions - 1,
        "span_right_positions": positions + 1,
        "span_offsets": random.integers(0, MAX_SPAN_TARGETS, (BATCH, SLOTS)),
        "next_sentence_labels": np.array([1, 0, 1]),
    }
    batch = {name: values.astype(np.int32) for name, values in batch.items()}
    batch["mask_weights"] = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], "float32")
    batch["span_weights"] = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]], "float32")
    return batch


def mean_loss(logits, labels, weights):
    chosen = np.take_along_axis(special.log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    return -(chosen[..., 0] * weights).sum() / max(weights.sum(), 1)


def mean_accuracy(logits, labels, weights):
    return ((logits.argmax(-1) == labels) * weights).sum() / weights.sum()


TARGETS = {
    "masked_lm": ("mask_ids", "mask_weights"),
    "span_boundary": ("mask_ids", "span_weights"),
    "next_sentence": ("next_sentence_labels", None),
}


def expected_metrics(model, batch):
    logits = {name: np.array(values) for name, values in model(batch).items()}
    result = {"loss": 0.0}
    for name, values in logits.items():
        labels_name, weights_name = TARGETS[name]
        weights = batch[weights_name] if weights_name else np.ones(BATCH)
        result[f"{name}_loss"] = mean_loss(values, batch[labels_name], weights)
        result[f"{name}_accuracy"] = mean_accuracy(values, batch[labels_name], weights)
        result["loss"] += result[f"{name}_loss"]
    return result


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("next_sentence", [False, True])
@pytest.mark.parametrize("span_boundary", [False, True])
def test_losses_and_accuracies_are_means_over_targets(span_boundary, next_sentence):
    model = make_model(span_boundary=span_boundary, next_sentence=next_sentence)
    model.compile(jit_compile=False)
    batch = make_batch()
    expected = expected_metrics(model, batch)
    found = model.evaluate(tf.data.Dataset.from_tensors(batch), verbose=0, return_dict=True)
    assert found == pytest.approx(expected, abs=1e-5)
    loss = model.compute_loss(x=batch, y_pred=model(batch))
    assert float(loss) == pytest.approx(expected["loss"], abs=1e-5)


def test_an_epoch_weights_batches_by_their_targets():
    model = make_model()
    model.compile(jit_compile=False)
    batches = [make_batch(1), make_batch(2)]
    batches[1]["mask_weights"] = np.eye(BATCH, SLOTS, dtype="float32")
    logits = np.concatenate([np.array(model(batch)["masked_lm"]) for batch in batches])
    labels = np.concatenate([batch["mask_ids"] for batch in batches])
    weights = np.concatenate([batch["mask_weights"] for batch in batches])
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature={
            name: tf.TensorSpec(values.shape, values.dtype) for name, values in batches[0].items()
        },
    )
    found = model.evaluate(data, verbose=0, return_dict=True)
    assert found["masked_lm_loss"] == pytest.approx(mean_loss(logits, labels, weights), abs=1e-5)


def test_span_boundary_head_is_the_papers_equation():
    model = make_model()
    head = model.span_boundary_head
    random = np.random.default_rng(3)
    for weight in head.weights:
        weight.assign(random.normal(size=weight.shape) * 0.3)
    batch = make_batch()
    x = np.array(model.backbone(batch_inputs(batch))["sequence_output"], np.float64)
    weights = {"/".join(w.path.split("/")[1:]): np.array(w, np.float64) for w in head.weights}

    def layer(h, number):
        h = h @ weights[f"dense_{number}/kernel"] + weights[f"dense_{number}/bias"]
        h = 0.5 * h * (1 + special.erf(h / np.sqrt(2)))
        h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-12)
        return h * weights[f"layer_norm_{number}/gamma"] + weights[f"layer_norm_{number}/beta"]

    rows = np.arange(BATCH)[:, None]
    h0 = np.concatenate(
        [
            x[rows, batch["span_left_positions"]],
            x[rows, batch["span_right_positions"]],
            weights["position_embedding/embeddings"][batch["span_offsets"]],
        ],
        axis=-1,
    )
    embedding = np.array(model.backbone.token_embedding.embeddings, np.float64)
    expected = layer(layer(h0, 1), 2) @ embedding.T + weights["bias"]
    np.testing.assert_allclose(np.array(model(batch)["span_boundary"]), expected, atol=2e-4)


def batch_inputs(batch):
    return {name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")}


def test_span_boundary_head_sees_only_the_boundaries():
    """Other tokens matter through the encoder alone: with it cut off, not at all."""
    model = make_model()
    head, batch = model.span_boundary_head, make_batch()
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    slots = [
        batch[name] for name in ("span_left_positions", "span_right_positions", "span_offsets")
    ]
    before = np.array(head(x, *slots))
    changed = x.copy()
    touched = np.zeros((BATCH, LENGTH), bool)
    for side in slots[:2]:
        np.put_along_axis(touched, side, True, axis=1)
    changed[~touched] = 9.0
    np.testing.assert_array_equal(np.array(head(changed, *slots)), before)


def test_no_targets_give_no_loss_and_no_nan():
    model = make_model(dropout=0.1)
    model.compile(run_eagerly=True)
    batch = make_batch()
    batch["span_weights"][:] = 0
    history = model.fit(tf.data.Dataset.from_tensors(batch), verbose=0).history
    assert history["span_boundary_loss"] == [0.0]
    batch["mask_weights"][:] = 0
    assert float(model.compute_loss(x=batch, y_pred=model(batch))) == 0.0
    assert all(np.isfinite(np.array(weight)).all() for weight in model.weights)


def test_targets_beyond_the_heads_table_are_none():
    """Of a data set that allows a span more targets than the preset's head has."""
    model, batch = make_model(), make_batch()
    beyond = batch | {"span_offsets": batch["span_offsets"].copy()}
    beyond["span_offsets"][0, 2:] += MAX_SPAN_TARGETS
    without = batch | {"span_weights": batch["span_weights"].copy()}
    without["span_weights"][0, 2:] = 0
    sums = [model.objective_sums(each, model(each))["span_boundary"] for each in (beyond, without)]
    np.testing.assert_array_equal(*(np.array(found) for found in sums))
    counts = [
        float(model.target_counts(each)["span_boundary"]) for each in (beyond, without, batch)
    ]
    assert counts[0] == counts[1] < counts[2]


def test_further_and_reordered_features_change_nothing():
    model, batch = make_model(), make_batch()
    shuffled = {name: batch[name] for name in reversed(batch)}
    shuffled = {"a_feature": np.full((BATCH, LENGTH), 7, np.int32), **shuffled}
    for name, values in model(batch).items():
        np.testing.assert_array_equal(np.array(model(shuffled)[name]), np.array(values))


def fit_losses(model, batch, steps, **compile_options):
    model.compile(optimizer=keras.optimizers.AdamW(1e-3), **compile_options)
    data = tf.data.Dataset.from_tensors(batch).repeat(steps)
    losses = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: losses.append(logs["loss"])
    )
    model.fit(data, epochs=steps, steps_per_epoch=1, verbose=0, callbacks=[record])
    return losses


@pytest.mark.slow
def test_twenty_steps_lower_the_loss():
    losses = fit_losses(make_model(dropout=0.1), make_batch(), 20, jit_compile=False)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.slow
def test_xla_gives_the_same_losses():
    plain = fit_losses(make_model(num_layers=1), make_batch(), 2, jit_compile=False)
    compiled = fit_losses(make_model(num_layers=1), make_batch(), 2, jit_compile=True)
    assert compiled == pytest.approx(plain, abs=1e-4)


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32():
    backbone = SpanBertBackbone(
        VOCABULARY, 2, 4, WIDTH, 37, max_sequence_length=LENGTH, dtype="mixed_bfloat16"
    )
    model = SpanBertPretrainer(backbone, max_span_targets=MAX_SPAN_TARGETS)
    batch = make_batch()
    # In a graph: called eagerly, KerasHub 0.32's head adds a float32 bias to bfloat16 and raises.
    logits = tf.function(model)(batch)
    assert backbone(batch_inputs(batch))["sequence_output"].dtype == tf.bfloat16
    assert {values.dtype for values in logits.values()} == {tf.float32}
    assert model.output["span_boundary"].dtype == "float32"  # KerasHub's head says bfloat16
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert np.isfinite(float(model.compute_loss(x=batch, y_pred=logits)))


def test_tied_logits_multiply_in_the_compute_dtype():
    embedding = TiedEmbedding(50, 8, dtype="mixed_bfloat16")
    rows = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    logits = embedding(rows, reverse=True)
    assert logits.dtype == tf.bfloat16 and logits.shape == (2, 3, 50)
    expected = rows @ np.array(embedding.embeddings).T
    np.testing.assert_allclose(np.array(logits, "float32"), expected, atol=0.02)


def test_the_pooler_is_trained_only_where_something_reads_it():
    without, with_next = make_model(), make_model(next_sentence=True)
    names = [[w.path for w in model.trainable_weights] for model in (without, with_next)]
    assert not any("pooled_dense" in name for name in names[0])
    assert any("pooled_dense" in name for name in names[1])
