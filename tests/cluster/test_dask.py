"""`prepare` on Dask and several hosts: the bytes are a lone machine's, whatever is lost."""

import pathlib
import random
import signal
import sys
import time

import pytest
from hosts import network_of, outcomes, signal_all, spanbert_tf

pytestmark = pytest.mark.cluster

PORT = 8786
ENDS_WITHIN = 60  # seconds from a fault until the command has ended
NUM_FILES = 12


def texts():
    """A corpus that takes two processes some seconds."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 8))) for _ in range(2_000)]
    for _ in range(NUM_FILES):
        paragraph = " ".join(f"{' '.join(rng.choices(words, k=12))}." for _ in range(8))
        yield f"{paragraph}\n\n" * 6_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, its vocabulary, and its records as this machine alone writes them."""
    place = tmp_path_factory.mktemp("dask")
    (place / "corpus").mkdir()
    for number, text in enumerate(texts()):
        (place / "corpus" / f"{number}.txt").write_text(text)
    vocabulary = ["--input", place / "corpus" / "0.txt", "--vocabulary-size", 200, "--lowercase"]
    spanbert_tf("prepare", "vocabulary", *vocabulary, "--output", place / "vocab.txt")
    spanbert_tf(*command_line(place, place / "expected"))
    return place


def command_line(place, output):
    words = ["--input", place / "corpus" / "*", "--vocabulary", place / "vocab.txt"]
    words += ["--sequence-length", 128, "--num-shards", 5, "--lowercase", "--output", output]
    return ["prepare", "pretraining", *map(str, words)]


@pytest.fixture
def hosts():
    """A scheduler on the first host."""
    with network_of(3) as hosts:
        words = ["--host", hosts[0].address, "--port", str(PORT), "--no-dashboard"]
        hosts[0].start([sys.executable, "-m", "dask", "scheduler", *words])
        yield hosts


def start_worker(host, scheduler, before=()):
    words = ["--nthreads", "1", "--no-dashboard", "--local-directory", f"/tmp/{host.name}"]
    command = [sys.executable, "-m", "dask", "worker", address(scheduler), *words]
    return host.start([*before, *command])


def address(scheduler):
    return f"tcp://{scheduler.address}:{PORT}"


def prepare(place, output, scheduler):
    command = [sys.executable, "-m", "spanbert_tf.cli", *command_line(place, output)]
    return scheduler.start(
        [*command, "--runner", "dask", "--dask_client_address", address(scheduler)]
    )


def await_first_file(output, process):
    """Until one file is done, while others are not."""
    results = pathlib.Path(f"{output}.incomplete/results")
    while not list(results.glob("file-*")):
        assert process.poll() is None, outcomes([process])
        time.sleep(0.05)
    assert len(list(results.glob("file-*"))) < NUM_FILES


def assert_written(process, output, place):
    [(status, printed, errors)] = outcomes([process])
    assert status == 0, errors
    assert len(printed.splitlines()) == 1
    assert all(line.startswith("preparing: ") for line in errors.splitlines()), errors
    assert contents(output) == contents(place / "expected")


def assert_failed(process, output, status):
    """Within a minute; gives its one line. Nothing is left."""
    [(found, printed, errors)] = outcomes([process], ENDS_WITHIN)
    *progress, line = filter(None, errors.splitlines())  # one follows ^C
    assert (found, printed) == (status, "")
    assert all(other.startswith("preparing: ") for other in progress), errors
    assert not list(output.parent.glob(f"{output.name}*"))
    return line


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_host_is_lost_and_another_joins(place, hosts, tmp_path):
    output = tmp_path / "records"
    lost, _ = (start_worker(host, hosts[0]) for host in hosts[:2])
    process = prepare(place, output, hosts[0])
    await_first_file(output, process)
    signal_all(lost, signal.SIGKILL)
    start_worker(hosts[2], hosts[0])
    assert_written(process, output, place)


def test_the_scheduler_is_lost(place, hosts, tmp_path):
    output = tmp_path / "records"
    for host in hosts[:2]:
        start_worker(host, hosts[0])
    process = prepare(place, output, hosts[0])
    await_first_file(output, process)
    signal_all(hosts[0].processes[0], signal.SIGKILL)
    line = assert_failed(process, output, 2)
    assert line.startswith("spanbert-tf: --runner DaskRunner: ")
    assert "scheduler" in line


def test_an_interruption_ends_it_on_every_host(place, hosts, tmp_path):
    output = tmp_path / "records"
    for host in hosts[:2]:
        start_worker(host, hosts[0])
    process = prepare(place, output, hosts[0])
    await_first_file(output, process)
    signal_all(process, signal.SIGINT)
    assert assert_failed(process, output, 1) == "spanbert-tf: interrupted"
    # The cluster is as it was.
    assert_written(prepare(place, output, hosts[0]), output, place)


def test_a_host_without_the_files(place, hosts, tmp_path):
    output = tmp_path / "records"
    hidden = tmp_path.parent
    start_worker(
        hosts[1],
        hosts[0],
        ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden}; exec "$@"', "sh"],
    )
    line = assert_failed(prepare(place, output, hosts[0]), output, 2)
    assert f"not there on the host {hosts[1].name}" in line
