"""Optimizer, training and presets on JAX against TensorFlow, which the other tests are about."""

import importlib.util
import os
import subprocess
import sys

import backend_program
import keras
import made_up_questions
import made_up_texts
import numpy as np
import pytest
import record_files
from commands_on_jax import ON_JAX

import spanbert_tf.models
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed: the extra `jax`"
)
LENGTH = 32
VOCABULARY = [*made_up_questions.VOCABULARY, *made_up_texts.VOCABULARY]
VOCABULARY = [*dict.fromkeys(VOCABULARY), *(f"[unused{number}]" for number in range(1, 7))]
# Options of the tasks' classes; without dropout, which draws other numbers on each backend.
OPTIONS = {
    "pretrainer": {"span_position_dim": 5},
    "segment_aware_pretrainer": {"span_boundary": False},
    "masked_lm": {},
    "question_answerer": {},
    "text_classifier": {"num_classes": 3, "dropout": 0.0},
    "regression": {"num_classes": 1, "dropout": 0.0},
    "token_classifier": {"labels": ["a", "b", "c"], "dropout": 0.0},
    "relation_classifier": {"labels": ["a", "b", "c"], "dropout": 0.0},
    "coreference_resolver": {
        "max_span_width": 3,
        "top_span_ratio": 0.9,
        "feature_dim": 4,
        "ffnn_dim": 12,
        "dropout": 0.0,
    },
}


def write_preset(directory, name):
    class_name, kind = backend_program.TASKS[name]
    entries = record_files.VOCABULARY if kind in ("records", "masked rows") else VOCABULARY
    tokenizer = SpanBertTokenizer(entries, lowercase=True)
    positions = "segment_aware" if name.startswith("segment_aware") else "absolute"
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(
        len(entries),
        2,
        4,
        32,
        37,
        dropout=0.0,
        max_sequence_length=LENGTH,
        position_embeddings=positions,
    )
    task_class = getattr(spanbert_tf.models, class_name)
    if task_class.preprocessor_cls is None:
        task, options = task_class(backbone, **OPTIONS[name]), {"tokenizer": tokenizer}
    else:
        preprocessor = task_class.preprocessor_cls(tokenizer, sequence_length=LENGTH)
        task, options = task_class(backbone, preprocessor=preprocessor, **OPTIONS[name]), {}
    random = np.random.default_rng(2)
    for weight in task.weights:  # those of a new model hardly tell one input from another
        if weight.dtype == "float32":
            weight.assign_add(random.normal(0.0, 0.1, weight.shape))
    task.save_to_preset(f"{directory}/presets/{name}", **options)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Records and presets, written on TensorFlow."""
    directory = tmp_path_factory.mktemp("material")
    records = record_files.random_records(40, LENGTH)
    record_files.write_records(directory / "records", records, sequence_length=LENGTH)
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    write_questions(
        made_up_questions.made_up_questions(16, seed=1),
        str(directory / "questions"),
        vocabulary=str(vocabulary),
        lowercase=True,
        options=QuestionOptions(sequence_length=LENGTH),
    )
    for name, texts in (
        ("texts", made_up_texts.made_up_pairs(16, seed=1)),
        ("scores", made_up_texts.made_up_scores(16, seed=1)),
    ):
        made_up_texts.write_texts(texts, directory / name, vocabulary)
    for name in backend_program.TASKS:
        write_preset(directory, name)
    return str(directory)


def results_on_jax(material, output, checks):
    """What a process on JAX computes, on two devices where it is told to take both."""
    child = subprocess.run(
        [sys.executable, backend_program.__file__, material, str(output), *checks],
        env=os.environ
        | ON_JAX
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{ON_JAX['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-5000:]
    return {check: dict(np.load(output / f"{check}.npz")) for check in checks}


@pytest.fixture(scope="module")
def on_jax(material, tmp_path_factory):
    """All that takes a training on JAX, in one process."""
    checks = backend_program.CHECKS.keys() - {"optimizer"}
    return results_on_jax(material, tmp_path_factory.mktemp("results"), checks)


def check_equal(found, expected, **tolerances):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], err_msg=name, **tolerances)


@pytest.mark.slow
def test_given_gradients_move_weights_and_moments_as_on_tensorflow(tmp_path):
    """Clips, groups, loss scale, exceptions from the decay, updates that are left out."""
    found = results_on_jax("", tmp_path, ["optimizer"])["optimizer"]
    check_equal(found, backend_program.optimizer_results(""), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fit_with_adamw_ends_where_tensorflow_ends(on_jax, material):
    """Four batches, one of them without a finite loss, which changes nothing."""
    expected = backend_program.adamw_results(material)
    check_equal(on_jax["adamw"], expected, rtol=1e-4, atol=1e-5)
    num_updates, num_skipped_in_a_row = (on_jax["adamw"][f"counters {n}"] for n in (0, 1))
    assert (num_updates, num_skipped_in_a_row) == (3, 0)


@pytest.mark.slow
def test_two_devices_train_as_one(on_jax):
    found = dict(on_jax["data_parallel"])
    assert found.pop("devices") == 2
    check_equal(found, on_jax["adamw"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", backend_program.TASKS)
def test_tasks_compute_train_and_save_as_on_tensorflow(name, on_jax, material):
    found, expected = on_jax[name], backend_program.task_results(material, name)
    check_equal(found, expected, rtol=1e-4, atol=1e-5)
    assert found["is trained 0"]
    moved = [
        np.abs(found[f"after {n}"] - found[f"before {n}"]).max() for n in range(num_outputs(found))
    ]
    assert max(moved) > 1e-3


@pytest.mark.slow
def test_adapters_are_trained_and_written_as_on_tensorflow(on_jax, material):
    found, expected = on_jax["adapter"], backend_program.adapter_results(material)
    check_equal(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["loaded 0"], found["after 0"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_parts_of_a_batch_report_what_they_do_on_tensorflow(on_jax, material):
    """With a regulariser, a metric of the user's, and a batch that does not divide."""
    expected = backend_program.accumulation_results(material)
    assert {"fit accuracy 0", "evaluate loss 0"} < expected.keys()
    check_equal(on_jax["accumulation"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_frozen_layer_is_left_alone_by_any_optimizer_as_on_tensorflow(on_jax, material):
    check_equal(on_jax["frozen"], backend_program.frozen_results(material), rtol=1e-4, atol=1e-5)


STEP_ON_JAX = """
import gc, weakref
import keras, numpy as np
from spanbert_tf.models.train_step import jax as jax_step

class Line(jax_step.TrainStep, keras.Sequential):
    _objective_metrics = None

def doubled(model, x):
    traced.append(x.shape)
    return 2 * model(x)

traced, rows = [], {number: np.ones((number, 3), "float32") for number in (4, 5)}
devices = keras.distribution.list_devices()
assert len(devices) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
model = Line([keras.layers.Input((3,)), keras.layers.Dense(2)])
kernel = model.weights[0]
assert len(jax_step._here(kernel.value).sharding.device_set) == 1
for number in (4, 5, 4):
    kernel.assign(np.full((3, 2), number))
    found = jax_step.with_model(doubled, model)(rows[number])
    np.testing.assert_allclose(found, np.full((number, 2), 6 * number))
assert traced == [(4, 3), (5, 3)]

model.compile(keras.optimizers.Adam(), "mse")
model.freeze([])
try:
    model.freeze([kernel])
except ValueError as error:
    assert "compiled with a loss trains all variables" in str(error)
else:
    raise AssertionError("frozen in a step that does not know of it")
reference = weakref.ref(model)
del model, kernel
gc.collect()
assert reference() is None
"""


@pytest.mark.slow
def test_what_is_computed_with_a_model_is_compiled_once_for_one_device_and_goes_with_it():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **flags, "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", STEP_ON_JAX], env=environment, check=True)


def num_outputs(found):
    return sum(name.startswith("before") for name in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", backend_program.TASKS)
def test_presets_of_jax_give_the_same_outputs_on_both(name, on_jax, material):
    found = on_jax[name]
    preset = f"{material}/saved_on_jax/{name}"
    task = backend_program.load(material, name, preset)
    batches = backend_program.batches_of(material, backend_program.TASKS[name][1])
    x = backend_program.first_inputs(batches)
    for number, outputs in enumerate(backend_program.outputs_of(task, x)):
        np.testing.assert_array_equal(found[f"loaded {number}"], found[f"after {number}"])
        np.testing.assert_allclose(outputs, found[f"after {number}"], rtol=1e-5, atol=1e-5)
