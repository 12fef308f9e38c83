"""The processes that share a run, read from TF_CONFIG or Slurm, without TensorFlow."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.files.lock import locks, output_lock

# Until a process counts as lost. A heartbeat is sent after half of this time, and must be answered
# within the other half. TCP doubles the time after which it sends a packet again, so a heartbeat
# may need 20 s if the link is down for 10 s.
SECONDS_OF_SILENCE = 45
_CLUSTER_VARIABLE = "TF_CONFIG"
_SLURM_VARIABLE = "SLURM_STEP_NODELIST"
_CHIEF = "chief"
_WORKER = "worker"
# Each step of Slurm has 16 ports, of which 1,250 steps have different ones: 10,000 to 29,999, below
# the ports that Linux assigns by itself.
_FIRST_PORT = 10_000
_PORTS_OF_A_STEP = 16
_NUM_STEPS = 1_250
_STEPS_OF_A_JOB = 31  # steps of a job whose ports differ from those of the next job


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that share a run, and which of them this one is.

    Attributes:
        jobs: maps the name of a job, `chief` or `worker`, to the addresses `HOST:PORT` of its
            processes.
        job: the job of this process.
        index: index of this process in its job.
        num_tasks_here: number of tasks of the Slurm step on this node; `None` without Slurm.
        index_here: index of this process among these tasks.
    """

    jobs: Mapping[str, Sequence[str]]
    job: str
    index: int
    num_tasks_here: int | None = None
    index_here: int = 0

    @classmethod
    def from_environment(cls) -> "Cluster":
        """Reads the cluster from the environment variables.

        Raises:
            ConfigurationError: the environment describes no cluster, or TF_CONFIG is malformed.
        """
        if _CLUSTER_VARIABLE in os.environ:
            return cls._of_tf_config(os.environ[_CLUSTER_VARIABLE])
        if _SLURM_VARIABLE in os.environ:
            return cls._of_slurm(os.environ)
        raise ConfigurationError(
            f"training.strategy: multi_worker needs {_CLUSTER_VARIABLE} in the environment, or "
            "Slurm"
        )

    @classmethod
    def _of_tf_config(cls, text: str) -> "Cluster":
        try:
            described = json.loads(text)
            task = described["task"]
            cluster = cls(described["cluster"], task["type"], int(task["index"]))
            cluster._check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{_CLUSTER_VARIABLE}: not a cluster of workers and a task "
                f"({type(error).__name__}: {error})"
            ) from error
        return cluster

    def _check(self) -> None:
        """Raises `ValueError` unless there are workers, at most one chief, and this process."""
        others = ", ".join(sorted(self.jobs.keys() - {_CHIEF, _WORKER}))
        if others:
            raise ValueError(f"a job {others}, but there can be workers and one chief")
        if len(self.jobs.get(_CHIEF, ())) > 1:
            raise ValueError(f"{len(self.jobs[_CHIEF])} chiefs, but there can be one")
        for address in self.addresses:
            if not (isinstance(address, str) and re.fullmatch(r".+:\d+", address)):
                raise ValueError(f"{address!r} is not HOST:PORT")
        if self.job not in self.jobs:
            raise ValueError(f"no {self.job} among {', '.join(self.jobs)}")
        if not 0 <= self.index < len(self.jobs[self.job]):
            raise ValueError(f"no {self.job} {self.index} among {len(self.jobs[self.job])}")

    @classmethod
    def _of_slurm(cls, variables: Mapping[str, str]) -> "Cluster":
        """Reads the tasks of this process's Slurm step, in Slurm's order of hosts.

        TensorFlow's `SlurmClusterResolver` calls `nvidia-smi`, which a node without a GPU lacks,
        and assumes that tasks are numbered host by host.
        """
        step = _STEPS_OF_A_JOB * int(variables["SLURM_JOB_ID"]) + int(variables["SLURM_STEP_ID"])
        first_port = _FIRST_PORT + step % _NUM_STEPS * _PORTS_OF_A_STEP
        hosts = expand_hosts(variables[_SLURM_VARIABLE])
        nums_tasks = expand_counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        addresses = []
        for host, num_tasks in zip(hosts, nums_tasks, strict=True):
            for index_here in range(num_tasks):
                addresses.append(f"{host}:{first_port + index_here}")
        own_host = variables["SLURMD_NODENAME"]
        own_index_here = int(variables["SLURM_LOCALID"])
        return cls(
            {_WORKER: addresses},
            _WORKER,
            index=addresses.index(f"{own_host}:{first_port + own_index_here}"),
            num_tasks_here=nums_tasks[hosts.index(own_host)],
            index_here=own_index_here,
        )

    @property
    def addresses(self) -> list[str]:
        """The addresses of all processes; the chief comes first."""
        return [*self.jobs.get(_CHIEF, ()), *self.jobs.get(_WORKER, ())]

    @property
    def number(self) -> int:
        """The index of this process in `addresses`."""
        if self.job == _CHIEF:
            return self.index
        return len(self.jobs.get(_CHIEF, ())) + self.index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.number == 0

    @property
    def port(self) -> str:
        """The port on which this process listens."""
        return self.addresses[self.number].rpartition(":")[2]

    def own_devices(self, num_devices: int) -> slice:
        """Returns the slice of the visible GPUs that this process uses.

        Args:
            num_devices: number of GPUs that this process sees. In a Slurm step these are all GPUs
                of the job on the node, or the GPUs that Slurm bound to the task.

        Raises:
            ConfigurationError: there are fewer GPUs than tasks on the node, but at least one.
        """
        if self.num_tasks_here in (None, 1) or not num_devices:
            return slice(None)
        if num_devices != int(os.environ.get("SLURM_GPUS_ON_NODE", 0)):
            return slice(None)
        share = num_devices // self.num_tasks_here
        if not share:
            raise ConfigurationError(
                f"training.strategy: {self.num_tasks_here} tasks of Slurm on a node have "
                f"{num_devices} GPUs between them; start at most as many tasks a node as it has "
                "GPUs"
            )
        return slice(self.index_here * share, (self.index_here + 1) * share)


def expand_hosts(text: str) -> list[str]:
    """Expands a list of hosts in Slurm's notation: `n[1-2,05],m` → n1, n2, n05, m."""
    hosts: list[str] = []
    # Split at commas outside of brackets.
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        choices = []
        for piece in re.findall(r"[^\[\]]+|\[[^\]]*\]", part):
            choices.append(_numbers(piece[1:-1]) if piece.startswith("[") else [piece])
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _numbers(ranges: str) -> list[str]:
    """Expands `1-3,07`; each number gets as many digits as the first one of its range."""
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(str(number).zfill(len(first)))
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expands a list of counts in Slurm's notation: `3(x2),1` → 3, 3, 1."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def port_is_taken(port: str) -> ConfigurationError:
    """Returns the error for a port on which another program listens already."""
    return ConfigurationError(
        f"training.strategy: port {port} of this machine is taken; end what uses it, or name "
        f"another one in {_CLUSTER_VARIABLE}"
    )


def run_lock(output: str, strategy: str, command: str) -> contextlib.AbstractContextManager[None]:
    """Locks the directory of a run, see `output_lock`. Of several workers, only the chief does.

    Args:
        output: directory of the run.
        strategy: `training.strategy` of its configuration.
        command: name of the command, for the error message of another one.

    Raises:
        BadInputError: as for `output_lock`.
        ConfigurationError: as for `Cluster.from_environment`.
    """
    if strategy == "multi_worker" and not Cluster.from_environment().is_chief:
        return contextlib.nullcontext()
    return output_lock(output, command, inside=True)


def _lock_of_call(given: Mapping[str, Any], name: str) -> contextlib.AbstractContextManager[None]:
    return run_lock(given["output"], given["config"].training.strategy, name)


locks_run = locks(_lock_of_call)  # decorates a function with the arguments `config` and `output`
