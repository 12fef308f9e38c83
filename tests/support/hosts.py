"""Hosts on one machine: network namespaces with addresses of their own, on one bridge."""

import collections
import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest

PORT = 8888
_networks = itertools.count()


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Cable:
    """Two network devices; frames between them come late, and a few not at all, as `tc netem` does.

    Not every kernel has that one.

    Args:
        ends: names of the devices, which are made.
        delay: seconds from end to end.
        loss: share of the frames that are lost.
    """

    def __init__(self, ends, delay, loss):
        self._delay, self._loss = delay, loss
        self._ends = [_open_device(name) for name in ends]
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self):
        first, second = self._ends
        others = {first: second, second: first}
        rng, under_way = random.Random(0), collections.deque()
        while not self._cut.is_set():
            due = under_way[0][0] - time.monotonic() if under_way else 0.1
            for end in select.select(self._ends, [], [], max(due, 0))[0]:
                frame = os.read(end, 65536)
                if rng.random() >= self._loss:
                    under_way.append((time.monotonic() + self._delay, others[end], frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, end, frame = under_way.popleft()
                with contextlib.suppress(OSError):  # the link is down
                    os.write(end, frame)

    def remove(self):
        """Cuts it; the devices go with their files."""
        self._cut.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)


def _open_device(name):
    """The file of a new device of Ethernet."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    set_interface, tap, without_header = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
    fcntl.ioctl(device, set_interface, struct.pack("16sH", name.encode(), tap | without_header))
    return device


class Host:
    """A network namespace; what is started in it knows no other address than its own.

    Args:
        network: name of its bridge.
        number: from 1; the address ends with it.
        names: a file like /etc/hosts, of the network's hosts.
        quality: `delay` and `loss` of its `Cable`; none: a cable of the kernel's.
    """

    def __init__(self, network, number, names, quality=None):
        self.name = f"{network}h{number}"
        self.address = f"10.77.0.{number}"
        outside = f"{network}v{number}"
        _ip("netns", "add", self.name)
        inside = f"{network}e{number}"
        self._cable = Cable((outside, inside), **quality) if quality else None
        if not quality:
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name, "name", "eth0")
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
        if self._cable:
            self._cable.remove()
        _ip("netns", "del", self.name)


class Network:
    """A bridge and its hosts; a context, which removes them and ends what runs there."""

    def __init__(self, num_hosts, aliases=(), **quality):
        self.name = f"sb{os.getpid()}{next(_networks):03d}"  # of 15 characters with a host's
        _ip("link", "add", self.name, "type", "bridge")
        _ip("link", "set", self.name, "up")
        self._directory = tempfile.TemporaryDirectory()
        names = pathlib.Path(self._directory.name) / "hosts"
        # One bad cable lies between any two hosts, if there are two.
        qualities = [quality, *([None] * (num_hosts - 1))]
        self.hosts = [
            Host(self.name, number, names, quality) for number, quality in enumerate(qualities, 1)
        ]
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self.hosts)]
        lines.append(f"{self.hosts[0].address} {' '.join(aliases)}")
        names.write_text("".join(f"{line}\n" for line in lines))

    def __enter__(self):
        return self.hosts

    def __exit__(self, *_):
        for host in self.hosts:
            host.remove()
        self._directory.cleanup()
        _ip("link", "del", self.name)


@contextlib.contextmanager
def network_of(num_hosts, **options):
    """So many hosts; skips the test where none can be made.

    Args:
        num_hosts: their number.
        options: `aliases`, further names of the first one; `delay` and `loss` of its `Cable`.
    """
    try:
        network = Network(num_hosts, **options)
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
