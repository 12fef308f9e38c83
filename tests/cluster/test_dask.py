"""`prepare` on Dask and several hosts: the bytes are a lone machine's, whatever is lost."""

import pathlib
import signal
import sys
import time

import pytest
from hosts import network_of, outcomes, signal_all
from small_runs import contents

pytestmark = pytest.mark.cluster

PORT = 8786
ENDS_WITHIN = 60  # seconds from a fault until the command has ended


@pytest.fixture
def hosts():
    """A scheduler on the first host."""
    with network_of(3) as hosts:
        words = ["--host", hosts[0].address, "--port", str(PORT), "--no-dashboard"]
        hosts[0].start([sys.executable, "-m", "dask", "scheduler", *words])
        yield hosts


def start_worker(host, scheduler, directory, before=()):
    words = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(directory / host.name)]
    command = [sys.executable, "-m", "dask", "worker", address(scheduler), *words]
    return host.start([*before, *command])


def address(scheduler):
    return f"tcp://{scheduler.address}:{PORT}"


def prepare(preparation, output, scheduler):
    command = [sys.executable, "-m", "spanbert_tf.cli", *preparation.command_line(output)]
    return scheduler.start(
        [*command, "--runner", "dask", "--dask_client_address", address(scheduler)]
    )


def begin(preparation, output, hosts):
    """A command, and the workers of two hosts, when one file is done, while others are not."""
    workers = [start_worker(host, hosts[0], output.parent) for host in hosts[:2]]
    process = prepare(preparation, output, hosts[0])
    spill = pathlib.Path(f"{output}.incomplete/spill")

    def num_finished():  # others have names with hyphens
        return sum(path.name.isdecimal() for path in spill.glob("*"))

    while not num_finished():
        assert process.poll() is None, outcomes([process])
        time.sleep(0.05)
    assert num_finished() < preparation.num_files
    return process, workers


def assert_written(process, output, preparation):
    [(status, printed, errors)] = outcomes([process])
    assert status == 0, errors
    records, files, then, *commands = printed.splitlines()  # nothing of Dask or of another host
    assert records.startswith(f"{output}: ")
    assert files.startswith(f"{output}: ")
    assert then == "Next:"
    assert len(commands) == 2
    assert all(command.startswith("  spanbert-tf ") for command in commands)
    assert all(line.startswith("preparing: ") for line in errors.splitlines()), errors
    assert contents(output) == contents(preparation.expected)


def assert_failed(process, output, status, seconds=ENDS_WITHIN, *, left=()):
    """In time; gives its one line. Nothing else is left."""
    start = time.monotonic()
    [(found, printed, errors)] = outcomes([process], seconds)
    print(f"{time.monotonic() - start:.0f} s: {errors.splitlines()[-1]}")
    *progress, line = filter(None, errors.splitlines())  # one follows ^C
    assert (found, printed) == (status, "")
    assert all(other.startswith("preparing: ") for other in progress), errors
    assert [path.name for path in output.parent.glob(f"{output.name}*")] == list(left)
    return line


def test_a_host_is_lost_and_another_joins(preparation, hosts, tmp_path):
    output = tmp_path / "records"
    process, workers = begin(preparation, output, hosts)
    signal_all(workers[0], signal.SIGKILL)
    start_worker(hosts[2], hosts[0], tmp_path)
    assert_written(process, output, preparation)


def test_the_scheduler_is_lost(preparation, hosts, tmp_path):
    output = tmp_path / "records"
    process, _ = begin(preparation, output, hosts)
    signal_all(hosts[0].processes[0], signal.SIGKILL)
    line = assert_failed(process, output, 2, left=["records.incomplete"])
    assert line.startswith("spanbert-tf: --runner DaskRunner: ")
    assert "scheduler" in line
    assert line.endswith(f"it goes on with the work in {output}.incomplete")


def test_an_interruption_ends_it_on_every_host(preparation, hosts, tmp_path):
    output = tmp_path / "records"
    process, _ = begin(preparation, output, hosts)
    signal_all(process, signal.SIGINT)
    assert assert_failed(process, output, 1) == "spanbert-tf: interrupted"
    # The cluster is as it was.
    assert_written(prepare(preparation, output, hosts[0]), output, preparation)


def test_a_host_without_the_files(preparation, hosts, tmp_path):
    output = tmp_path / "records"
    hidden = tmp_path.parent
    start_worker(
        hosts[1],
        hosts[0],
        tmp_path,
        ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden}; exec "$@"', "sh"],
    )
    process = prepare(preparation, output, hosts[0])
    line = assert_failed(process, output, 2, 2 * ENDS_WITHIN)  # it begins in this time, too
    assert f"not there on the host {hosts[1].name}" in line
