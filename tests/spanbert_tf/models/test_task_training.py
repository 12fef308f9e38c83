"""Plain `fit` of every task class: two replicas against one, weights of rows, and the pooler."""

import warnings

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertPretrainer,
    SpanBertQuestionAnswerer,
    SpanBertTextClassifier,
    SpanBertTokenClassifier,
)
from spanbert_tf.models.objective import loss_of
from spanbert_tf.training import adamw
from spanbert_tf.training.configured_optimizer import set_gradient_checkpointing

VOCABULARY, LENGTH, SLOTS, BATCH = 29, 9, 3, 6
TASKS = {
    "pretrainer": lambda backbone: SpanBertPretrainer(
        backbone, max_span_targets=4, span_position_dim=5, next_sentence=True
    ),
    "masked_lm": SpanBertMaskedLM,
    "question_answerer": SpanBertQuestionAnswerer,
    "text_classifier": lambda backbone: SpanBertTextClassifier(backbone, 3, dropout=0.0),
}
OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.1, momentum=0.9),  # shows the gradients' scale
    # The bias of start and end has no gradient but rounding, which a smaller epsilon would magnify.
    "ours": lambda: adamw(1e-2, warmup_steps=0, total_steps=10, global_clipnorm=0.05, epsilon=1e-6),
}


def make_task(name):
    keras.utils.set_random_seed(3)
    backbone = SpanBertBackbone(VOCABULARY, 1, 4, 32, 37, dropout=0.0, max_sequence_length=LENGTH)
    return TASKS[name](backbone)


def random_rows(name, num_rows):
    """Features, labels and weights of rows, in which no two rows are alike."""
    random = np.random.default_rng(5)

    def ids(limit, *shape):
        return random.integers(0, limit, (num_rows, *shape)).astype("int32")

    x = {
        "token_ids": ids(VOCABULARY, LENGTH),
        "segment_ids": ids(2, LENGTH),
        "padding_mask": np.ones((num_rows, LENGTH), "int32"),
    }
    if name in ("pretrainer", "masked_lm"):
        x["mask_positions"] = ids(LENGTH, SLOTS)
    if name == "masked_lm":
        return x, ids(VOCABULARY, SLOTS), (random.random((num_rows, SLOTS)) < 0.7).astype("float32")
    if name == "question_answerer":
        return x, {f"{end}_positions": ids(LENGTH) for end in ("start", "end")}, None
    if name == "text_classifier":
        return x, ids(3), None
    x |= {f"span_{side}_positions": ids(LENGTH, SLOTS) for side in ("left", "right")}
    x |= {"span_offsets": ids(4, SLOTS), "mask_ids": ids(VOCABULARY, SLOTS)}
    for weights in ("mask_weights", "span_weights"):
        x[weights] = (random.random((num_rows, SLOTS)) < 0.7).astype("float32")
    return x | {"next_sentence_labels": ids(2)}, np.zeros(num_rows), None


def dataset(parts, batch_size):
    parts = parts if parts[2] is not None else parts[:2]
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)


def trained(name, optimizer, data, strategy=None, steps=2):
    """The losses of each step, and the weights at the end; without a strategy, eagerly."""
    with (strategy or tf.distribute.get_strategy()).scope():
        task = make_task(name)
        # Without a strategy no graph is needed, and tracing it would take most of the time.
        task.compile(OPTIMIZERS[optimizer](), run_eagerly=strategy is None)
    losses = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: losses.append(logs["loss"])
    )
    task.fit(data.repeat(), epochs=steps, steps_per_epoch=1, verbose=0, callbacks=[record])
    return losses, task.get_weights()


def check_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param("question_answerer", "ours", marks=pytest.mark.slow),
        ("masked_lm", "keras"),
        *(
            pytest.param(name, "keras", marks=pytest.mark.slow)
            for name in TASKS
            if name != "masked_lm"
        ),
    ],
)
def test_two_replicas_train_as_one(name, optimizer, two_devices):
    """Loss and weights; the second batch has other numbers of targets on the two replicas."""
    data = dataset(random_rows(name, 2 * BATCH), BATCH)
    assert two_devices.num_replicas_in_sync == 2
    check_equal(trained(name, optimizer, data, two_devices), trained(name, optimizer, data))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", TASKS)
def test_a_row_counts_once_whatever_its_weight_and_one_of_weight_0_not_at_all(name):
    """As in Keras a weight scales a row's loss."""
    x, y, weights = random_rows(name, BATCH)
    row_weights = np.array([1, 0, 0.5, 2, 0, 1], "float32")
    weights = row_weights if weights is None else weights * row_weights[:, None]
    kept = keras.tree.map_structure(lambda values: values[row_weights > 0], (x, y, weights))
    expected = trained(name, "keras", dataset(kept, BATCH), steps=1)
    check_equal(trained(name, "keras", dataset((x, y, weights), BATCH), steps=1), expected)
    light = dataset((x, y, weights / 64), BATCH)
    loss, _ = trained(name, "keras", light, steps=1)
    np.testing.assert_allclose(loss, np.array(expected[0]) / 64, rtol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_what_has_no_gradient_is_not_trained_and_the_backbone_stays_trainable(name):
    task = make_task(name)
    pooler = {variable.path for variable in task.backbone.pooled_dense.variables}
    reads_pooler = name in ("pretrainer", "text_classifier")
    assert (pooler <= {v.path for v in task.trainable_variables}) == reads_pooler
    for trained_part, rest, whole in (
        (task.trainable_variables, task.non_trainable_variables, task.variables),
        (task.trainable_weights, task.non_trainable_weights, task.weights),
    ):
        assert {id(v) for v in whole} == {id(v) for v in (*trained_part, *rest)}
        assert len(whole) == len(trained_part) + len(rest)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns of variables without a gradient
        task.compile(optimizer=OPTIMIZERS["keras"](), run_eagerly=True)
        task.fit(dataset(random_rows(name, 2), 2), shuffle=False, verbose=0)
    classifier = SpanBertTextClassifier(task.backbone, 3)
    before = task.backbone.pooled_dense.get_weights()
    assert pooler <= {v.path for v in classifier.trainable_variables}
    classifier.compile(optimizer=OPTIMIZERS["keras"](), run_eagerly=True)
    classifier.fit(dataset(random_rows("text_classifier", 2), 2), verbose=0)
    assert not np.array_equal(task.backbone.pooled_dense.get_weights()[0], before[0])


@pytest.mark.parametrize("name", TASKS)
def test_regularisers_are_part_of_the_loss(name):
    task = make_task(name)
    x, y, weights = random_rows(name, 2)
    outputs = task(x, training=False)
    before = float(task.compute_loss(x, y, outputs, weights))
    embeddings = task.backbone.token_embedding.embeddings
    embeddings.regularizer = keras.regularizers.L2(0.25)
    after = float(task.compute_loss(x, y, outputs, weights))
    assert after - before == pytest.approx(0.25 * float(np.sum(np.square(embeddings))), rel=1e-4)


def rows_of(batch, first, last):
    def cut(values):
        return None if values is None else values[first:last]

    return keras.tree.map_structure(cut, batch)


@pytest.mark.parametrize("name", TASKS)
def test_losses_of_parts_add_up_to_that_of_the_batch(name):
    """Parts of unequal sizes, with unequal numbers of targets; a regularizer counts once."""
    task = make_task(name)
    task.backbone.token_embedding.embeddings.regularizer = keras.regularizers.L2(1.0)
    batch = random_rows(name, BATCH)
    parts = [rows_of(batch, 0, 2), rows_of(batch, 2, BATCH)]
    num_targets = task.target_counts(*batch)
    losses = [float(loss_of(task, part, num_targets, num_parts=2).loss) for part in parts]
    expected = float(loss_of(task, batch).loss)
    assert sum(losses) == pytest.approx(expected, rel=1e-5)
    x, y, weights = batch
    own = task.compute_loss(x, y, task(x, training=False), weights)
    assert float(own) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_two_replicas_regularise_as_one(two_devices, monkeypatch):
    make_plain = make_task

    def make_regularised(name):
        task = make_plain(name)
        task.backbone.token_embedding.embeddings.regularizer = keras.regularizers.L2(1.0)
        return task

    data = dataset(random_rows("question_answerer", 2 * BATCH), BATCH)
    plain = trained("question_answerer", "keras", data)
    monkeypatch.setitem(globals(), "make_task", make_regularised)
    one, two = (trained("question_answerer", "keras", data, where) for where in (None, two_devices))
    assert abs(one[0][0] - plain[0][0]) > 0.1
    check_equal(two, one)


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError(), {"start_logits": "mse"}])
@pytest.mark.parametrize("name", ["pretrainer", "question_answerer", "token_classifier"])
def test_a_loss_beside_the_own_objective_is_refused(name, loss):
    options = {"token_classifier": lambda backbone: SpanBertTokenClassifier(backbone, ["O", "B"])}
    task = {**TASKS, **options}[name](SpanBertBackbone(VOCABULARY, 1, 4, 32, 37))
    for own in ("auto", None):
        task.compile("sgd", loss=own)
    with pytest.raises(ValueError, match="loss must be 'auto' or None"):
        task.compile("sgd", loss=loss)


@pytest.mark.parametrize(
    ("name", "num_rows", "weights", "run_eagerly"),
    [
        ("pretrainer", 6, None, True),
        ("text_classifier", 6, [1, 0, 0.5, 2, 0, 1], True),
        ("text_classifier", 7, [1, 0, 0.5, 2, 0, 1, 1], True),
        ("masked_lm", 7, "own", True),
        ("text_classifier", 7, None, False),  # where no shape tells how many rows there are
    ],
)
@pytest.mark.quick_cases(2)
def test_a_batch_in_parts_trains_as_a_whole(name, num_rows, weights, run_eagerly):
    """Two micro-batches with other numbers of targets, and a regulariser, which counts once."""
    x, y, own = random_rows(name, num_rows)
    weights = own if weights in (None, "own") else np.array(weights, "float32")
    data, results = dataset((x, y, weights), num_rows), []
    for accumulation_steps in (1, 2):
        task = make_task(name)
        task.backbone.token_embedding.embeddings.regularizer = keras.regularizers.L2(1.0)
        task.compile(
            OPTIMIZERS["keras"](), accumulation_steps=accumulation_steps, run_eagerly=run_eagerly
        )
        logs = task.fit(data, shuffle=False, verbose=0).history
        results.append((list(logs.values()), task.get_weights()))
    check_equal(results[1], results[0])


@pytest.mark.slow
@pytest.mark.parametrize("accumulation_steps", [1, 2])
@pytest.mark.parametrize("name", ["question_answerer", "pretrainer"])
def test_layers_that_are_computed_again_train_as_those_that_are_kept(name, accumulation_steps):
    """With dropout; what is held gets no gradient in either way."""
    data, results = dataset(random_rows(name, BATCH), BATCH), []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(3)
        task = TASKS[name](SpanBertBackbone(VOCABULARY, 2, 4, 32, 37, max_sequence_length=LENGTH))
        set_gradient_checkpointing(task, checkpointing)
        task.compile(OPTIMIZERS["ours"](), accumulation_steps=accumulation_steps)
        task.freeze(task.backbone.transformer_layers[0].variables)
        losses = task.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
        results.append((losses, task.get_weights()))
    check_equal(*results)
    assert len(set(results[0][0])) == 3


@pytest.mark.slow
def test_replicas_compute_their_layers_again_with_masks_of_their_own(two_devices):
    data, results = dataset(random_rows("question_answerer", BATCH), BATCH), []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(3)
        with two_devices.scope():
            backbone = SpanBertBackbone(VOCABULARY, 1, 4, 32, 37, max_sequence_length=LENGTH)
            task = TASKS["question_answerer"](backbone)
            set_gradient_checkpointing(task, checkpointing)
            task.compile(OPTIMIZERS["ours"]())
        losses = task.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
        results.append((losses, task.get_weights()))
    check_equal(*results)


def test_what_is_held_before_the_first_fit_is_trained_later():
    data = dataset(random_rows("text_classifier", BATCH), BATCH)
    task = make_task("text_classifier")
    layer = task.backbone.transformer_layers[0]
    task.compile(OPTIMIZERS["ours"]())
    begun = layer.get_weights()
    task.freeze(layer.variables)
    task.fit(data, verbose=0)
    held = layer.get_weights()
    task.freeze(())
    task.fit(data, verbose=0)
    for before, between, after in zip(begun, held, layer.get_weights(), strict=True):
        assert np.all(before == between) and np.any(between != after)


def test_an_optimizer_that_scales_the_loss_is_the_only_one_that_does():
    backbone = SpanBertBackbone(VOCABULARY, 1, 4, 32, 37, dtype="mixed_float16")
    task = TASKS["text_classifier"](backbone)
    for scales in (True, False):
        optimizer = adamw(1e-2, 0, 10, dynamic_loss_scale=scales)
        task.compile(optimizer)
        assert (task.optimizer is optimizer) == scales


def test_gradient_checkpointing_is_refused_without_transformer_layers():
    other = keras_hub.models.BertBackbone(VOCABULARY, 1, 4, 32, 37)
    set_gradient_checkpointing(other, False)
    with pytest.raises(ConfigurationError, match=r"BertBackbone has no transformer layers .*false"):
        set_gradient_checkpointing(other, True)


def test_a_batch_in_parts_of_a_model_in_bfloat16():
    """Sums of gradients are in float32; the variables are not."""
    data, results = dataset(random_rows("text_classifier", BATCH), BATCH), []
    for accumulation_steps in (1, 2):
        keras.utils.set_random_seed(3)
        backbone = SpanBertBackbone(
            VOCABULARY, 1, 4, 32, 37, dropout=0.0, max_sequence_length=LENGTH, dtype="bfloat16"
        )
        task = TASKS["text_classifier"](backbone)
        task.compile("sgd", accumulation_steps=accumulation_steps, run_eagerly=True)
        results.append(task.fit(data, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*results, rtol=0.02)


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_fewer_micro_batches_than_one_are_refused(number):
    with pytest.raises(ValueError, match=f"accumulation_steps must be 1 or more: {number}"):
        make_task("masked_lm").compile(accumulation_steps=number)


def test_labels_in_a_column_are_those_of_a_row():
    x, y, _ = random_rows("text_classifier", BATCH)
    task, found = make_task("text_classifier"), []
    task.compile(run_eagerly=True)
    for labels in (y, y[:, None]):
        found.append(task.evaluate(x, labels, return_dict=True, verbose=0))
    assert found[1] == pytest.approx(found[0])


@pytest.mark.parametrize("metrics", [{"metrics": ["accuracy"]}, {"metrics": None}])
def test_metrics_are_those_of_the_objective_and_of_the_user(metrics):
    """By hand, on two batches: means over the rows that have a weight, of losses by it."""
    x, y, _ = random_rows("text_classifier", 2 * BATCH)
    weights = np.array([1, 0, 0.5, 2, 0, 1, 3, 0, 0, 0, 0, 1], "float32")
    task = make_task("text_classifier")
    task.compile(**metrics, run_eagerly=True)
    found = task.evaluate(dataset((x, y, weights), BATCH), return_dict=True, verbose=0)
    logits = np.array(task(x, training=False), "float64")
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    losses, hits = -np.log(shares[np.arange(len(y)), y]), logits.argmax(axis=-1) == y
    num_rows = np.count_nonzero(weights)
    loss = (losses * weights).sum() / num_rows
    expected = {"loss": loss}
    expected["classification_accuracy"] = hits[weights > 0].sum() / num_rows
    if metrics["metrics"]:
        expected["accuracy"] = hits.mean()  # Keras' own, which takes no weights
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_loss_of_the_user_has_kerass_own_step_and_metrics():
    """Keras' mean counts masked tokens of weight 0, too."""
    x, y, weights = random_rows("masked_lm", BATCH)
    weights[0] = 0.0
    task = make_task("masked_lm")
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(OPTIMIZERS["keras"](), loss=own, weighted_metrics=[], run_eagerly=True)
    expected = float(own(y, task(x, training=False), weights))
    logs = task.fit(dataset((x, y, weights), BATCH), shuffle=False, verbose=0).history
    assert logs == {"loss": [pytest.approx(expected, rel=1e-5)]}
