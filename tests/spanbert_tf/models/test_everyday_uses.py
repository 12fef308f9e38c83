"""What people do with a KerasHub classifier, with ours.

docs/everyday_uses.md lists these tests; a row there is one here.
"""

import concurrent.futures
import copy
import os
import pickle
import re
import subprocess
import sys

import grain
import keras
import keras_hub
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from tiny_models import VOCABULARY

from spanbert_tf import models

TEXTS = [
    "ann has the cat .",
    "bob has the cat",
    "who has the cat ?",
    "ann . bob .",
    "bob",
    "the cat",
]
LABELS = np.array([0, 1, 1, 0, 1, 0])
LENGTH = 16
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
SIZES["max_sequence_length"] = LENGTH
RATE = 1e-2


def make(**options):
    """A classifier of two classes with its preprocessor; the same weights in each call."""
    keras.utils.set_random_seed(1)
    backbone = models.SpanBertBackbone(len(VOCABULARY), dropout=0.0, **SIZES)
    tokenizer = models.SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = models.SpanBertTextClassifierPreprocessor(tokenizer, LENGTH)
    model = models.SpanBertTextClassifier(backbone, 2, preprocessor, dropout=0.0, **options)
    model.is_head_trained = True  # it warns in `predict` otherwise
    random = np.random.default_rng(1)  # new weights tell hardly one text from another
    model.set_weights([w + random.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture
def model():
    model = make()
    compiled(model)
    return model


def compiled(model, rate=RATE, **options):
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )


def texts():
    return np.array(TEXTS)


def logits(model):
    return model.predict(texts(), verbose=0)


def loss(model):
    """Of all texts, as `evaluate` tells it, alone or among metrics."""
    return model.evaluate(texts(), LABELS, verbose=0, return_dict=True)["loss"]


def fit(model, x=None, y=None, **options):
    x = texts() if x is None else x
    y = LABELS if y is None and isinstance(x, np.ndarray) else y
    return model.fit(x, y, verbose=0, **{"epochs": 6, **options})


def assert_learns(model, *arguments, **options):
    before = loss(model)
    history = fit(model, *arguments, **options)
    assert loss(model) < before
    return history.history


slow = pytest.mark.slow


def test_fit_arrays(model):
    assert_learns(model)


def test_fit_lists(model):
    before = loss(model)
    model.fit(TEXTS, list(map(int, LABELS)), epochs=6, verbose=0)
    assert loss(model) < before


@slow
def test_fit_without_compiling():
    """KerasHub's tasks are compiled by themselves; so are ours."""
    model = make()
    before = logits(model)
    model.fit(texts(), LABELS, verbose=0)
    assert np.abs(logits(model) - before).max() > 0


@slow
def test_fit_a_data_set(model):
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(4).repeat()
    assert_learns(model, data, steps_per_epoch=2)


@slow
def test_fit_a_generator_as_a_data_set(model):
    """(KerasHub's tasks make data sets of what they get, and take no generator itself.)"""

    def batches():
        while True:
            yield texts(), LABELS

    signature = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    assert_learns(model, data, steps_per_epoch=2)


@slow
@pytest.mark.parametrize("packed", [False, True])
def test_fit_from_grain(packed):
    model = make()
    rows = TEXTS
    if packed:
        columns, model.preprocessor = model.preprocessor(texts()), None
        rows = [{name: np.array(v[n]) for name, v in columns.items()} for n in range(len(TEXTS))]
    compiled(model)
    data = grain.MapDataset.source(list(zip(rows, LABELS, strict=True))).seed(1).shuffle().batch(3)
    history = fit(model, data).history["loss"]
    assert history[-1] < history[0]


@slow
def test_fit_rows_that_are_packed_already():
    model = make()
    rows, model.preprocessor = model.preprocessor(texts()), None
    compiled(model)
    before = model.evaluate(rows, LABELS, verbose=0)
    model.fit(rows, LABELS, epochs=6, verbose=0)
    assert model.evaluate(rows, LABELS, verbose=0) < before


@slow
def test_fit_with_weights_of_rows(model):
    """Rows of weight 0 are not learned."""
    weights = np.array([1.0, 1, 1, 0, 0, 0])
    fit(model, sample_weight=weights, epochs=30)
    losses = keras.losses.sparse_categorical_crossentropy(LABELS, logits(model), from_logits=True)
    assert np.mean(losses[:3]) < np.mean(losses[3:])


@slow
def test_fit_with_weights_of_classes(model):
    fit(model, class_weight={0: 1.0, 1: 0.0}, epochs=30)
    assert (logits(model).argmax(1) == 0).all()


@slow
def test_fit_with_a_share_for_validation(model):
    assert "val_loss" in fit(model, validation_split=0.5).history


@slow
def test_fit_with_metrics(model):
    compiled(model, metrics=["accuracy"])
    history = fit(model, epochs=40).history
    assert history["accuracy"][-1] >= history["accuracy"][0]
    assert model.evaluate(texts(), LABELS, verbose=0, return_dict=True)["accuracy"] > 0.5


@slow
def test_a_batch_at_a_time(model):
    before = model.test_on_batch(texts(), LABELS, return_dict=True)["loss"]
    for _ in range(6):
        model.train_on_batch(texts(), LABELS)
    assert model.test_on_batch(texts(), LABELS, return_dict=True)["loss"] < before
    assert model.predict_on_batch(texts()).shape == (6, 2)


@slow
def test_backup_and_restore(tmp_path):
    """What was stopped after an epoch goes on with the next one."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    backup = str(tmp_path / "backup")
    first, whole = make(), make()
    for model in (first, whole):
        compiled(model)
    fit(whole, epochs=4, shuffle=False)
    with pytest.raises(KeyboardInterrupt):
        callbacks = [keras.callbacks.BackupAndRestore(backup), Stop()]
        fit(first, epochs=4, shuffle=False, callbacks=callbacks)
    second = make()
    compiled(second)
    restore = [keras.callbacks.BackupAndRestore(backup)]
    history = fit(second, epochs=4, shuffle=False, callbacks=restore)
    assert history.epoch == [2, 3]
    np.testing.assert_allclose(logits(second), logits(whole), atol=1e-5)


@slow
@pytest.mark.parametrize("name", ["{epoch}.weights.h5", "{epoch}.keras"])
def test_model_checkpoint(name, model, tmp_path):
    weights_only = name.endswith(".weights.h5")
    callback = keras.callbacks.ModelCheckpoint(str(tmp_path / name), save_weights_only=weights_only)
    fit(model, callbacks=[callback], epochs=2)
    last = str(tmp_path / name.format(epoch=2))
    if not weights_only:
        other = keras.saving.load_model(last)
    else:
        other = make()
        other.load_weights(last)
    np.testing.assert_allclose(logits(other), logits(model), atol=1e-6)


@slow
def test_early_stopping_brings_the_best_weights_back(model):
    class Score(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["score"] = -epoch  # the first one is the best

    stop = keras.callbacks.EarlyStopping("score", patience=1, restore_best_weights=True, mode="max")
    history = fit(model, callbacks=[Score(), stop], epochs=9, shuffle=False)
    assert len(history.epoch) == 2
    twin = make()
    compiled(twin)
    fit(twin, epochs=1, shuffle=False)
    np.testing.assert_allclose(logits(model), logits(twin), atol=1e-6)


@slow
def test_keras_tuner_over_a_preset(model, tmp_path):
    """Each trial begins at the preset's encoder; the best one's model is given back."""
    model.save_to_preset(str(tmp_path / "preset"))

    def build(choices):
        found = type(model).from_preset(str(tmp_path / "preset"))
        compiled(found, choices.Choice("learning_rate", [1e-7, RATE]))
        return found

    tuner = keras_tuner.GridSearch(build, "val_loss", directory=tmp_path, project_name="trials")
    tuner.search(
        texts(), LABELS, epochs=6, validation_data=(texts(), LABELS), shuffle=False, verbose=0
    )
    assert tuner.get_best_hyperparameters()[0].get("learning_rate") == RATE
    assert loss(tuner.get_best_models()[0]) < loss(model)


@slow
def test_tensorboard(model, tmp_path):
    callback = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1, profile_batch=(1, 2))
    fit(model, callbacks=[callback], epochs=2)
    assert list(tmp_path.glob("train/events*")) and list(tmp_path.glob("train/plugins/profile/*"))


@slow
def test_a_frozen_encoder_stays():
    model = make()
    model.backbone.trainable = False
    compiled(model)
    before = [w.numpy() for w in model.backbone.weights]
    assert_learns(model)
    for weight, values in zip(model.backbone.weights, before, strict=True):
        np.testing.assert_array_equal(weight, values)


@slow
def test_a_keras_file_in_a_fresh_process(model, tmp_path):
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    program = (
        "import sys, numpy as np, keras, spanbert_tf.models\n"
        "model = keras.saving.load_model(sys.argv[1])\n"
        "np.save(sys.argv[2], model.predict(np.array(sys.argv[3:]), verbose=0))\n"
    )
    paths = (str(tmp_path / "model.keras"), str(tmp_path / "found.npy"))
    child = subprocess.run(
        [sys.executable, "-c", program, *paths, *TEXTS], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]
    np.testing.assert_allclose(np.load(paths[1]), logits(model), atol=1e-6)


@slow
@pytest.mark.usefixtures("shipped_classes_alone")
def test_a_preset_and_kerashubs_base_class(model, tmp_path):
    fit(model, epochs=1)
    model.save_to_preset(str(tmp_path / "preset"))
    other = keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset"))
    assert type(other) is type(model)
    np.testing.assert_allclose(logits(other), logits(model), atol=1e-6)


COPIES = {
    "clone": keras.models.clone_model,
    "config": lambda model: type(model).from_config(model.get_config()),
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@slow
@pytest.mark.parametrize("way", COPIES)
def test_copies(way, model):
    """`deepcopy` and `pickle` have the weights, the others new ones; all are models apart."""
    other, rows = COPIES[way](model), model.preprocessor(texts())
    if way in ("clone", "config"):
        other.set_weights(model.get_weights())
    before = model(rows).numpy()
    np.testing.assert_allclose(other(rows), before, atol=1e-6)
    compiled(other)
    # A configuration has no vocabulary, and a clone is a plain model: both read rows.
    other.preprocessor = None
    other.fit(rows, LABELS, verbose=0)
    assert np.abs(other(rows) - before).max() > 0
    np.testing.assert_array_equal(model(rows), before)


@slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_precisions(policy, tmp_path):
    exact = make()
    exact.save_to_preset(str(tmp_path / "preset"))
    model = type(exact).from_preset(str(tmp_path / "preset"), dtype=policy)
    assert model.backbone.compute_dtype == policy.removeprefix("mixed_")
    np.testing.assert_allclose(logits(model).astype("float32"), logits(exact), atol=0.1)
    if policy.startswith("mixed_"):  # weights of 8 bits take no small step
        compiled(model)
        assert_learns(model, epochs=20)


@slow
def test_the_encoder_in_a_model_of_ones_own():
    task = make()
    states = task.backbone(task.backbone.input)["sequence_output"]
    own = keras.Model(task.backbone.input, keras.layers.Dense(3)(keras.ops.max(states, axis=1)))
    own.compile(keras.optimizers.Adam(RATE), "mse")
    rows, targets = task.preprocessor(texts()), np.ones((6, 3))
    history = own.fit(rows, targets, epochs=6, verbose=0).history["loss"]
    assert history[-1] < history[0]


@slow
def test_a_subclass():
    class Own(models.SpanBertTextClassifier):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **options):
            return 2 * super().compute_loss(x, y, y_pred, sample_weight, **options)

    plain = make()
    own = Own(plain.backbone, num_classes=2, preprocessor=plain.preprocessor, dropout=0.0)
    own.set_weights(plain.get_weights())
    own.is_head_trained = True
    for model in (plain, own):
        compiled(model)
    assert loss(own) == pytest.approx(2 * loss(plain), rel=1e-5)


@slow
def test_two_models_of_one_program():
    first, second = make(), make()
    for model in (first, second):
        compiled(model)
    before = logits(second)
    fit(first)
    np.testing.assert_array_equal(logits(second), before)
    fit(second)
    np.testing.assert_allclose(logits(second), logits(first), atol=1e-4)


@slow
def test_four_threads_of_one_model(model):
    expected = logits(model)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: model(model.preprocessor(texts())), range(8)))
    for values in found:
        np.testing.assert_allclose(values, expected, atol=1e-5)


@slow
def test_eagerly():
    """Python is called in each step."""
    plain, other = make(), make()
    compiled(plain)
    compiled(other, run_eagerly=True)
    calls, call = [], other.backbone.transformer_layers[0].call
    other.backbone.transformer_layers[0].call = lambda *a, **k: calls.append(1) or call(*a, **k)
    for model in (plain, other):
        fit(model, epochs=3, shuffle=False)
    assert len(calls) >= 3
    np.testing.assert_allclose(logits(other), logits(plain), atol=1e-4)


@slow
def test_compiled_by_xla():
    plain, other = make(), make()
    compiled(plain)
    compiled(other, jit_compile=True)
    for model in (plain, other):
        fit(model, epochs=2, shuffle=False)
    assert other.jit_compile and not plain.jit_compile
    np.testing.assert_allclose(logits(other), logits(plain), atol=1e-4)


@slow
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"use_ema": True, "ema_momentum": 0.5},
        {"global_clipnorm": 0.1},
        {"learning_rate": keras.optimizers.schedules.CosineDecay(RATE, 50)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_keras_optimizers(options):
    model = make()
    model.compile(
        keras.optimizers.AdamW(**{"learning_rate": RATE, **options}),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    assert_learns(model, batch_size=3)


@slow
def test_distributions_of_keras_on_jax():
    """Two devices of JAX have the outputs and, after steps, the loss of one."""
    program = os.path.join(os.path.dirname(tiny_models.__file__), "distributed_program.py")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "KERAS_BACKEND": "jax"}
    found = []
    for name in ("None", "DataParallel", "ModelParallel"):
        child = subprocess.run(
            [sys.executable, program, name],
            capture_output=True,
            text=True,
            env={**os.environ, **flags},
        )
        assert child.returncode == 0, child.stderr[-2000:]
        found.append([float(number) for number in child.stdout.splitlines()[-1].split()])
    for losses in found[1:]:
        np.testing.assert_allclose(losses, found[0], rtol=1e-4)


def test_the_page_lists_these_tests():
    here = os.path.dirname(__file__)
    path = os.path.join(here, "..", "..", "..", "docs", "everyday_uses.md")
    with open(path, encoding="utf-8") as page:
        listed = re.findall(r"\| `(test_\w+)` \|", page.read())
    with open(__file__, encoding="utf-8") as source:
        tests = re.findall(r"^def (test_\w+)", source.read(), re.M)
    assert listed == [name for name in tests if name != "test_the_page_lists_these_tests"]
