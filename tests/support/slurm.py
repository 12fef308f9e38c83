"""A cluster of Slurm on hosts of this machine: a controller, and a daemon on each host."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "scancel")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
# It hands out four cores a host, whatever the machine has. A job that is queued again waits until
# its credentials have expired: 10 s in place of two minutes.
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={controller.name}({controller.address})
SlurmUser=root
AuthInfo=socket={directory}/munge.socket,cred_expire=10
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MinJobAge=300
KillWait=60
SlurmdTimeout=10
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A context; its first host has two GPUs, as far as Slurm knows."""

    def __init__(self, hosts):
        self.hosts = hosts
        # Not pytest's: Slurm's sockets have names of 108 characters at most.
        self._temporary = tempfile.TemporaryDirectory(prefix="slurm")
        self._directory = pathlib.Path(self._temporary.name)
        self._environment = {"SLURM_CONF": str(self._directory / "slurm.conf")}

    def __enter__(self):
        if lacking := [name for name in PROGRAMS if not shutil.which(name, path=_path())]:
            pytest.skip(f"Slurm is not installed (apt-get install slurm-wlm): {lacking}")
        (self._directory / "state").mkdir()
        nodes = []
        for host in self.hosts:
            cards = " Gres=gpu:2" if host is self.hosts[0] else ""
            nodes.append(f"NodeName={host.name} NodeAddr={host.address} CPUs=4{cards}")
        text = CONFIGURATION.format(
            controller=self.hosts[0], directory=self._directory, nodes="\n".join(nodes)
        )
        (self._directory / "slurm.conf").write_text(text)
        cards = f"NodeName={self.hosts[0].name} Name=gpu File=/dev/null\n"
        cards += f"NodeName={self.hosts[0].name} Name=gpu File=/dev/zero\n"
        (self._directory / "gres.conf").write_text(cards)
        key = self._directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._start_munge(key)
        self.hosts[0].start(["slurmctld", "-D"], PATH=_path(), **self._environment)
        for host in self.hosts:
            self.start_daemon(host)
        try:
            for host in self.hosts:
                self.await_node(host, "idle")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def _start_munge(self, key):
        files = {"key-file": key, "socket": self._directory / "munge.socket"}
        for name in ("pid-file", "log-file", "seed-file"):
            files[name] = self._directory / f"munge.{name}"
        options = [f"--{name}={path}" for name, path in files.items()]
        self._run(["munged", "--force", *options])

    def start_daemon(self, host):
        host.start(["slurmd", "-D"], PATH=_path(), **self._environment)

    def _run(self, command):
        environment = {**os.environ, "PATH": _path()}
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment)

    def call(self, *command):
        """Runs one of Slurm's programs on the first host; what it printed."""
        process = self.hosts[0].start(list(map(str, command)), PATH=_path(), **self._environment)
        printed, errors = process.communicate(timeout=300)
        self.hosts[0].processes.remove(process)
        assert process.returncode == 0, (command, printed, errors)
        return printed

    def await_node(self, host, state, seconds=60):
        """Until Slurm takes a host for idle, or down."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # the controller does not answer yet
                words = ["--noheader", "--nodes", host.name, "--format=%T"]
                if self.call("sinfo", *words).strip().startswith(state):
                    return
            time.sleep(0.5)
        logs = [path.read_text()[-2000:] for path in self._directory.glob("*.log")]
        raise AssertionError("\n".join(logs))

    def submit(self, *words):
        """Hands a batch script over; the number of its job."""
        return self.call("sbatch", "--parsable", *words).strip()

    def facts(self, job):
        """What Slurm knows of a job, by its own names."""
        words = self.call("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def await_end(self, job, seconds=500):
        """The facts of a job that has ended for good."""
        end = time.monotonic() + seconds
        while (facts := self.facts(job))["JobState"] not in ENDED:
            assert time.monotonic() < end and "held" not in facts["Reason"], facts
            time.sleep(1)
        return facts

    def __exit__(self, *_):
        with contextlib.suppress(FileNotFoundError):  # it was not started
            self._run(["kill", (self._directory / "munge.pid-file").read_text().strip()])
        for host in self.hosts:
            host.power_off()
        self._temporary.cleanup()


def _path():
    return f"{os.environ['PATH']}:/usr/sbin"
