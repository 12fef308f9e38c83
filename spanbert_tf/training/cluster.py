"""The processes that share a run, as TF_CONFIG or Slurm names them; needs no TensorFlow."""

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

_CLUSTER_VARIABLE = "TF_CONFIG"
_SLURM_VARIABLE = "SLURM_STEP_NODELIST"
_CHIEF, _WORKER = "chief", "worker"
# Where ports of a step of Slurm begin, 16 for each: below those that Linux gives away by itself.
_FIRST_PORT, _PORTS_OF_A_STEP, _NUM_STEPS = 10_000, 16, 1_250
_STEPS_OF_A_JOB = 31  # which are not those of the next job


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that share a run, and which of them this one is.

    Attributes:
        jobs: name of a job, `chief` or `worker` → the addresses `HOST:PORT` of its processes.
        job: the job of this process.
        index: number of this process in its job.
        num_tasks_here: tasks of the step of Slurm on this node; `None` without Slurm.
        index_here: number of this process among them.
    """

    jobs: Mapping[str, Sequence[str]]
    job: str
    index: int
    num_tasks_here: int | None = None
    index_here: int = 0

    @classmethod
    def from_environment(cls) -> "Cluster":
        """The cluster that the environment names.

        Raises:
            ConfigurationError: it names none, or what TF_CONFIG says makes no sense.
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
            jobs, task = described["cluster"], described["task"]
            cluster = cls(jobs, task["type"], int(task["index"]))
            cluster._check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{_CLUSTER_VARIABLE}: not a cluster of workers and a task "
                f"({type(error).__name__}: {error})"
            ) from error
        return cluster

    def _check(self) -> None:
        """Raises `ValueError` unless the task is one of workers and at most one chief."""
        if others := ", ".join(sorted(self.jobs.keys() - {_CHIEF, _WORKER})):
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
        """The tasks of the step of Slurm that this process is one of, in Slurm's order of hosts.

        TensorFlow's own resolver asks `nvidia-smi`, which a node without a card lacks, and takes
        tasks to be numbered host by host.
        """
        step = _STEPS_OF_A_JOB * int(variables["SLURM_JOB_ID"]) + int(variables["SLURM_STEP_ID"])
        first_port = _FIRST_PORT + step % _NUM_STEPS * _PORTS_OF_A_STEP
        hosts = expand_hosts(variables[_SLURM_VARIABLE])
        nums_tasks = expand_counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        addresses = []
        for host, num_tasks in zip(hosts, nums_tasks, strict=True):
            addresses += [f"{host}:{first_port + number}" for number in range(num_tasks)]
        host, number = variables["SLURMD_NODENAME"], int(variables["SLURM_LOCALID"])
        index = addresses.index(f"{host}:{first_port + number}")
        return cls({_WORKER: addresses}, _WORKER, index, nums_tasks[hosts.index(host)], number)

    @property
    def addresses(self) -> list[str]:
        """The addresses of all processes, in the order of their numbers."""
        return [*self.jobs.get(_CHIEF, ()), *self.jobs.get(_WORKER, ())]

    @property
    def number(self) -> int:
        """The number of this process; a chief, where there is one, comes before the workers."""
        return self.index + (len(self.jobs.get(_CHIEF, ())) if self.job == _WORKER else 0)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes."""
        return self.number == 0

    @property
    def port(self) -> str:
        """The port on which this process listens."""
        return self.addresses[self.number].rpartition(":")[2]

    def own_devices(self, num_devices: int) -> slice:
        """Which of the GPUs that this process sees are its own.

        Args:
            num_devices: how many it sees: in a step of Slurm all of its job's on the node, or those
                that Slurm bound to the task.

        Raises:
            ConfigurationError: there are GPUs, and fewer than tasks.
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
    """The hosts of Slurm's notation: `n[1-2,05],m` → n1, n2, n05, m."""
    hosts = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):  # at commas outside of brackets
        choices = []
        for piece in re.findall(r"[^\[\]]+|\[[^\]]*\]", part):
            choices.append(_numbers(piece[1:-1]) if piece.startswith("[") else [piece])
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _numbers(ranges: str) -> list[str]:
    """The numbers of `1-3,07`, each with as many digits as the first of its range."""
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(str(number).zfill(len(first)))
    return numbers


def expand_counts(text: str) -> list[int]:
    """The numbers of Slurm's notation: `3(x2),1` → 3, 3, 1."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def port_is_taken(port: str) -> ConfigurationError:
    """The error for a port of this process on which another program listens."""
    return ConfigurationError(
        f"training.strategy: port {port} of this machine is taken; end what uses it, or name "
        f"another one in {_CLUSTER_VARIABLE}"
    )


def run_lock(output: str, strategy: str, command: str) -> contextlib.AbstractContextManager[None]:
    """Locks a run's directory, see `output_lock`; of several workers, the chief does.

    Args:
        output: directory of the run.
        strategy: `training.strategy` of its configuration.
        command: what writes, for others' messages.

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
