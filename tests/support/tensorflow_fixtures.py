"""What tests have of TensorFlow: two devices, first weights, iterators, and tiny records.

`conftest.py` loads it where tests run.
"""

import functools
import random
import zlib

import keras
import pytest
import tensorflow as tf
from record_files import random_records, write_records
from tensorflow.python.eager import context

# Two devices, for the tests of replication.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


_last_file = None


def _set_tensorflows_seed(seed):
    """Does what `tf.random.set_seed` does, but leaves functions ready to run.

    `set_seed` drops them all, which frees memory, but those of a module's fixtures would be
    optimized anew for each test: up to five seconds.
    """
    context.context()._seed = seed
    context.context()._rng = random.Random(seed)


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item):
    """Seeds a test: it has the same weights in each run, after whichever others it runs."""
    global _last_file
    with pytest.MonkeyPatch.context() as patch:
        if item.path == _last_file and not item.get_closest_marker("slow"):
            patch.setattr(tf.random, "set_seed", _set_tensorflows_seed)
        keras.utils.set_random_seed(zlib.crc32(item.path.name.encode()))
    _last_file = item.path


@pytest.fixture
def shipped_classes_alone(monkeypatch):
    """KerasHub takes any registered class that fits, in the order of a set of addresses."""
    registered = keras.saving.get_custom_objects()
    shipped = ("spanbert_tf.", "keras.", "keras_hub.")
    for name, found in list(registered.items()):
        if not found.__module__.startswith(shipped):
            monkeypatch.delitem(registered, name)


@pytest.fixture(scope="session", autouse=True)
def iterators_end_at_once():
    """Those of tests and Keras' own, too; `spanbert_tf.data.ahead` says why ours do.

    The garbage collector deletes some, in a later test, which would wait for them.
    """
    options = tf.data.Options()
    options.autotune.enabled = False

    def untuned(dataset):
        is_untold = dataset.options().autotune.enabled is None
        return dataset.with_options(options) if is_untold else dataset

    with pytest.MonkeyPatch.context() as patch:
        # All kinds of iterators take their data set from it.
        patch.setattr(tf.data.Dataset, "_apply_debug_options", untuned)
        yield


@pytest.fixture(scope="module")
def presets_opened_once():
    """`predict_lines` opens its preset for each file; here it is opened once for all of them."""
    from spanbert_tf.tasks import prediction

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "Predictor", functools.cache(prediction.Predictor))
        yield


@pytest.fixture(scope="session")
def two_devices():
    """The one that all mirrored runs of a process share."""
    from spanbert_tf.config import TrainingConfig
    from spanbert_tf.training.devices import make_strategy

    return make_strategy(TrainingConfig(strategy="mirrored"), 2)


@pytest.fixture(scope="session")
def tiny_records(tmp_path_factory):
    """Single sequences of 24 positions: 40 training records, 10 held out."""
    return str(
        write_records(
            tmp_path_factory.mktemp("records") / "single",
            random_records(40, 24),
            random_records(10, 24, seed=1),
            sequence_length=24,
        )
    )


@pytest.fixture(scope="session")
def tiny_pair_records(tmp_path_factory):
    """Annotated pairs of 24 positions: 40 training records, 10 held out."""
    annotations = ("entities", "noun_phrases")
    return str(
        write_records(
            tmp_path_factory.mktemp("records") / "pair",
            random_records(40, 24, pair=True, annotations=annotations),
            random_records(10, 24, pair=True, annotations=annotations, seed=1),
            sequence_length=24,
            sequences="pair",
            annotations=annotations,
        )
    )
