import contextlib
import gc
import math
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import zlib

# PyTorch and transformers import Triton where it is installed. Its LLVM and TensorFlow's cannot
# live in one process: "LLVM ERROR: inconsistency in registered CommandLine options".
sys.modules["triton"] = None
# Where pytest keeps the files of its last runs; importing the package sets another directory.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())

import hypothesis
import pytest

# As the command line has it. TensorFlow's own lines come once a process, in any test.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import tensorflow as tf
from record_files import random_records, write_records

pytest.register_assert_rewrite("task_tests")

# A shell that runs the tests in the background has them and their children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two devices, for the tests of replication.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
# The same examples in each run; no example is timed.
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")
# Seconds since the epoch after which no test begins; `.ci/run` sets it, for slow tests alone.
END_BY = float(os.environ.get("SPANBERT_TF_TESTS_END_BY", "inf"))


def pytest_collection_finish():
    """What was imported stays; the garbage collector would go through it again and again.

    Keras collects whenever a variable is deleted. No test may unfreeze: that would be for all.
    """
    gc.freeze()
    gc.set_threshold(700, 10, 30)  # all the rest less often, too: a second of a test's time


def pytest_configure(config):
    marker = "quick_cases(n): of its cases, spread over all, n are quick and the others slow"
    config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    cases = {}
    for item in items:
        if item.get_closest_marker("quick_cases") and not item.get_closest_marker("slow"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for same in cases.values():  # those that stay quick are spread over all
        num_quick = same[0].get_closest_marker("quick_cases").args[0]
        quick = {len(same) * number // num_quick for number in range(num_quick)}
        for number, item in enumerate(same):
            if number not in quick:
                item.add_marker(pytest.mark.slow)
    # The longest first, so that neither process ends long before the other.
    items.sort(key=lambda item: item.path.parent.name not in ("pretraining", "training"))
    if math.isfinite(END_BY):  # each day others are the last: files, and of hosts, tests
        day = f"{END_BY // 86400} "

        def order(item):
            name = item.nodeid
            if not item.get_closest_marker("cluster"):
                name = name.partition("::")[0]
            return zlib.crc32((day + name).encode())

        items.sort(key=order)


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item):
    if time.time() > END_BY:
        pytest.skip("no time is left for it")
    # The same weights in each run, whichever process runs the file and after which other.
    keras.utils.set_random_seed(zlib.crc32(item.path.name.encode()))


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


@pytest.fixture(autouse=True)
def environment_as_before():
    """Commands set variables of their process, which here is that of the tests after them."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def shared_data():
    """The developers' real data; tests that need it are skipped where it is not."""
    default = pathlib.Path(__file__).parents[2] / "shared" / "data"
    directory = pathlib.Path(os.environ.get("SPANBERT_TF_DATA", default))
    if not directory.is_dir():
        pytest.skip(f"{directory}: no developers' data; set SPANBERT_TF_DATA")
    return directory


@pytest.fixture
def full_disk(monkeypatch):
    """A context in which no file can grow beyond so many bytes."""

    @contextlib.contextmanager
    def limited(num_bytes):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python leaves what it could write of a module's bytecode, for all that import it later.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(scope="session")
def two_devices():
    """One for all tests: TensorFlow counts the collectives of each strategy from the same number,
    and would take those of a second one for the first one's."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


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


@pytest.fixture(scope="session")
def tiny_overrides():
    """Settings that make any configuration as small as `tiny_records`: 2 layers of width 32."""
    settings = {
        "model.num_layers": 2,
        "model.num_heads": 2,
        "model.hidden_dim": 32,
        "model.intermediate_dim": 48,
        "model.max_sequence_length": 24,
        "objectives.span_position_dim": 8,
        "optimizer.learning_rate": 0.01,
        "optimizer.warmup_steps": 2,
        "training.batch_size": 4,
        "training.steps": 12,
        "training.schedule_steps": 20,
        "training.strategy": "one_device",
        "training.log_every": 2,
        "training.evaluate_every": 5,
        "training.checkpoint_every_steps": 4,
        "data.sequence_length": 24,
    }
    return [f"{key}={value}" for key, value in settings.items()]
