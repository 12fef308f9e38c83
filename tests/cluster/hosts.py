"""Hosts on one machine: network namespaces with addresses of their own, on one bridge."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

PORT = 8888
_networks = itertools.count()


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Host:
    """A network namespace; what is started in it knows no other address than its own.

    Args:
        network: name of its bridge.
        number: from 1; the address ends with it.
        names: a file like /etc/hosts, of the network's hosts.
    """

    def __init__(self, network, number, names):
        self.name = f"{network}h{number}"
        self.address = f"10.77.0.{number}"
        outside = f"{network}v{number}"
        _ip("netns", "add", self.name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", outside, "master", network, "up")
        for command in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *command)
        self._outside, self._names = outside, names
        self.processes = []

    def start(self, command, **environment):
        """Starts a command there, in a session of its own."""
        # Not `ip netns exec`, which hides /sys/fs/cgroup.
        inside = ["nsenter", f"--net=/var/run/netns/{self.name}"]
        own = f'hostname {self.name}; mount --bind {self._names} /etc/hosts; exec "$@"'
        inside += ["unshare", "--uts", "--mount", "sh", "-c", own, "sh"]
        process = subprocess.Popen(
            [*inside, *command],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def set_link(self, state):
        """Pulls the cable ("down") or puts it back ("up")."""
        _ip("link", "set", self._outside, state)

    def power_off(self):
        """Kills all that runs there."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for number in map(int, listed.stdout.split()):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(number, signal.SIGKILL)

    def remove(self):
        self.power_off()
        for process in self.processes:
            process.communicate()
        _ip("netns", "del", self.name)


class Network:
    """A bridge and its hosts; a context, which removes them and ends what runs there."""

    def __init__(self, num_hosts):
        self.name = f"sb{os.getpid()}{chr(97 + next(_networks))}"  # of 15 characters with a host's
        _ip("link", "add", self.name, "type", "bridge")
        _ip("link", "set", self.name, "up")
        self._directory = tempfile.TemporaryDirectory()
        names = pathlib.Path(self._directory.name) / "hosts"
        self.hosts = [Host(self.name, number + 1, names) for number in range(num_hosts)]
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self.hosts)]
        names.write_text("".join(f"{line}\n" for line in lines))

    def __enter__(self):
        return self.hosts

    def __exit__(self, *_):
        for host in self.hosts:
            host.remove()
        self._directory.cleanup()
        _ip("link", "del", self.name)


@contextlib.contextmanager
def network_of(num_hosts):
    """So many hosts; skips the test where none can be made."""
    try:
        network = Network(num_hosts)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"hosts are network namespaces, which root makes by `ip`: {error}")
    with network as hosts:
        yield hosts


def spanbert_tf(*arguments):
    """Runs a command on this machine, outside of all hosts; what it printed."""
    command = [sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def start_workers(hosts, arguments):
    """Starts `spanbert-tf` with these arguments on each host, as the workers of one run."""
    addresses = [f"{host.address}:{PORT}" for host in hosts]
    workers = []
    for number, host in enumerate(hosts):
        cluster = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": number},
        }
        command = [sys.executable, "-m", "spanbert_tf.cli", *arguments]
        command += ["--set", "training.strategy=multi_worker"]
        workers.append(host.start(command, TF_CONFIG=json.dumps(cluster)))
    return workers


def outcomes(workers, seconds=300.0):
    """Waits no longer than so long for each; status, standard output and error."""
    found = []
    for worker in workers:
        printed, errors = worker.communicate(timeout=seconds)
        found.append((worker.returncode, printed, errors))
    return found


def signal_all(process, number):
    """Sends a signal to a worker and its child, as the machine that ends or stops them would."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, number)
