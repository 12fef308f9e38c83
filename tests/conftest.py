import collections
import contextlib
import gc
import os
import pathlib
import resource
import signal
import sys
import tempfile

# PyTorch and transformers import Triton where it is installed. Its LLVM and TensorFlow's cannot
# live in one process: "LLVM ERROR: inconsistency in registered CommandLine options".
sys.modules["triton"] = None
# Where pytest keeps the files of its last runs; importing the package sets another directory.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
# As the command line has it. TensorFlow's own lines come once a process, in any test.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import pytest

pytest.register_assert_rewrite("task_tests")

# A shell that runs the tests in the background has them and their children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run; no example is timed.
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")
# A process takes a whole file, so that none of those whose slow tests take the longest, four to
# seven minutes, may be the last one.
LONGEST = (
    "test_papers_size.py",
    "test_accelerator.py",
    "test_coreference_task.py",
    "test_shipped_configurations.py",
    "test_keras_hub_base.py",
    "test_pretraining_on_jax.py",
    "test_workers.py",
)


def pytest_collection_finish():
    """What was imported stays; the garbage collector would go through it again and again.

    Keras collects whenever a variable is deleted. No test may unfreeze: that would be for all.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(700, 10, 30)  # all the rest less often, too: a second of a test's time


def pytest_configure(config):
    marker = "quick_cases(n): of its cases, n with various values are quick and the others slow"
    config.addinivalue_line("markers", marker)
    # The process of pytest that hands tests out to others runs none, and imports no TensorFlow.
    hands_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not hands_out:
        gc.disable()  # until all is imported
        config.pluginmanager.import_plugin("tensorflow_fixtures")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    cases = {}
    for item in items:
        if item.get_closest_marker("quick_cases") and not item.get_closest_marker("slow"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for same in cases.values():
        quick = various_cases(same, same[0].get_closest_marker("quick_cases").args[0])
        for item in same:
            if item not in quick:
                item.add_marker(pytest.mark.slow)
    # The longest first, so that neither process ends long before the other.
    items.sort(key=lambda item: item.path.parent.name not in ("pretraining", "training"))
    items.sort(key=lambda item: item.path.name not in LONGEST)


def various_cases(items, num_cases):
    """Returns cases of a test in which every value of its parameters occurs, if they suffice.

    Each next one has the values that the cases before it have had least.
    """
    chosen = []
    uses = collections.Counter()
    for _ in range(min(num_cases, len(items))):
        rest = [item for item in items if item not in chosen]
        chosen.append(min(rest, key=lambda item: sum(uses[value] for value in values_of(item))))
        uses.update(values_of(chosen[-1]))
    return chosen


def values_of(item):
    """Returns the name and the value of each parameter of a case, as texts."""
    return [(name, repr(value)) for name, value in item.callspec.params.items()]


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
