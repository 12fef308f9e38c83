"""The processes that share a run: found by TF_CONFIG or Slurm, joined by TensorFlow or JAX."""

import contextlib
import functools
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import context

from spanbert_tf.errors import ConfigurationError, reason
from spanbert_tf.supervision import waiting_for_others
from spanbert_tf.terminal import print_line

_CLUSTER_VARIABLE, _SLURM_VARIABLE = "TF_CONFIG", "SLURM_STEP_NODELIST"
# Where ports of a step of Slurm begin, 16 for each: below those that Linux gives away by itself.
_FIRST_PORT, _PORTS_OF_A_STEP, _NUM_STEPS = 10_000, 16, 1_250
_STEPS_OF_A_JOB = 31  # which are not those of the next job
_WORKER = "worker"
_SILENCE_LIMIT = 30  # seconds
# Seconds, on JAX: who watches over this process has less patience; and the first one scores and
# writes while the others have ended.
_JOINING_LIMIT, _ENDING_LIMIT = 3_600, 86_400
_STDOUT, _STDERR = 1, 2
# What TensorFlow's server tells of itself, that its log begins and where it listens; and Gloo.
_OF_SERVER = re.compile(rb"WARNING: All log messages before absl::|I\d{4} .* Started server with ")
_OF_GLOO = re.compile(rb"\[Gloo\] Rank ")
_Resolver = tf.distribute.cluster_resolver.ClusterResolver


@functools.cache
def join_workers() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Opens this worker's port, and waits until all the others have theirs.

    Once a process: TensorFlow counts the collectives of each strategy from the same number, and
    would take those of a grid's second run for the first one's.

    Raises:
        ConfigurationError: neither TF_CONFIG nor Slurm says who shares the run, what TF_CONFIG
            says makes no sense, or the port is taken.
    """
    cluster = _cluster()
    own = cluster.cluster_spec().task_address(cluster.task_type, cluster.task_id)
    port = own.rpartition(":")[2]
    print_line(
        f"training.strategy: this worker listens on port {port} of all networks; "
        "whoever reaches it can read and write files here (docs/devices.md, Security)"
    )
    _endure_silence(cluster.cluster_spec())
    try:
        with waiting_for_others(), _hidden_lines(_STDERR, _OF_SERVER):
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=cluster)
    except tf.errors.UnknownError as error:
        if "start gRPC server" not in str(error):
            raise
        raise _port_is_taken(port) from error


def _port_is_taken(port: str) -> ConfigurationError:
    return ConfigurationError(
        f"training.strategy: port {port} of this machine is taken; end what uses it, or name "
        f"another one in {_CLUSTER_VARIABLE}"
    )


@functools.cache
def join_processes() -> None:
    """Joins the processes of a run on JAX, and waits until all are there; once a process.

    Raises:
        ConfigurationError: nothing says who shares the run, what TF_CONFIG says makes no sense, or
            the first process's port is taken.
    """
    import jax
    from jax.experimental import multihost_utils

    known = _known_processes()
    print_line(
        "training.strategy: JAX listens on ports of all networks; whoever reaches them can disturb "
        "the run (docs/devices.md, Security)"
    )
    # JAX's preemption service would take SIGTERM from Python, until training takes it back.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with waiting_for_others():
            jax.distributed.initialize(
                **known,
                cluster_detection_method="deactivate",  # it would give a task of Slurm one card
                initialization_timeout=_JOINING_LIMIT,
                heartbeat_timeout_seconds=_SILENCE_LIMIT,
                shutdown_timeout_seconds=_ENDING_LIMIT,
            )
        with _hidden_lines(_STDOUT, _OF_GLOO):
            multihost_utils.sync_global_devices("all have joined")
    except (ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"training.strategy: JAX's processes do not reach each other ({reason(error)}); "
            "look at their names and ports"
        ) from error


def _known_processes() -> dict[str, Any]:
    """What JAX is told of the processes, which are named as for TensorFlow."""
    cluster = _cluster()
    jobs, number = cluster.cluster_spec().as_dict(), worker_number(cluster)
    addresses = [*jobs.get("chief", ()), *jobs.get(_WORKER, ())]
    if number == 0:
        port = addresses[0].rpartition(":")[2]
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:  # JAX would crash
            raise _port_is_taken(port) from error
    return {
        "coordinator_address": addresses[0],
        "num_processes": len(addresses),
        "process_id": number,
        "local_device_ids": _own_cards(addresses),
    }


def _own_cards(addresses: Sequence[str]) -> list[int] | None:
    """Which of the cards that a task of Slurm sees are its own; `None`: all."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if _CLUSTER_VARIABLE in os.environ or not seen:
        return None
    cards = range(len(seen.split(",")))
    return list(cards[own_share(len(cards), *_tasks_here(addresses))])


@contextlib.contextmanager
def _hidden_lines(descriptor: int, hidden: re.Pattern[bytes]) -> Iterator[None]:
    """Hides lines that libraries of C++ write; all others are shown as soon as the context ends.

    They come from below what TF_CPP_MIN_LOG_LEVEL rules, and are no matter of Python's streams.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "3":  # the user wants to see them
        yield
        return
    (sys.stdout if descriptor == _STDOUT else sys.stderr).flush()
    shown = os.dup(descriptor)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), descriptor)
        try:
            yield
        finally:
            os.dup2(shown, descriptor)
            os.close(shown)
            lines.seek(0)
            os.write(descriptor, b"".join(line for line in lines if not hidden.match(line)))


def _endure_silence(cluster: tf.train.ClusterSpec) -> None:
    """Makes the limit of TensorFlow's heartbeats longer than a switch takes to start again.

    `MultiWorkerMirroredStrategy` sets its 10 s where nothing else was set, and has no argument for
    it, nor has TensorFlow a public function.
    """
    context.context().configure_coordination_service(
        "standalone",
        service_leader=multi_worker_util.coordination_leader(cluster),
        heartbeat_timeout_in_ms=_SILENCE_LIMIT * 1000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
            for job in cluster.jobs
        ],
    )


def worker_number(resolver: _Resolver) -> int:
    """The number of this process; a job `chief`, where there is one, comes before the workers."""
    comes_after = resolver.task_type == _WORKER and "chief" in resolver.cluster_spec().jobs
    return (resolver.task_id or 0) + comes_after


def _cluster() -> _Resolver:
    if _CLUSTER_VARIABLE in os.environ:
        try:
            cluster = json.loads(os.environ[_CLUSTER_VARIABLE])
            _check_task(cluster["cluster"], cluster["task"]["type"], cluster["task"]["index"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{_CLUSTER_VARIABLE}: not a cluster of workers and a task "
                f"({type(error).__name__}: {error})"
            ) from error
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if _SLURM_VARIABLE in os.environ:
        return _cluster_of_slurm()
    raise ConfigurationError(
        f"training.strategy: multi_worker needs {_CLUSTER_VARIABLE} in the environment, or Slurm"
    )


def _cluster_of_slurm() -> _Resolver:
    """The tasks of the step of Slurm that this process is one of.

    TensorFlow's resolver finds their hosts. What it does beside that fails: it asks `nvidia-smi`,
    which a node without a card lacks, and takes tasks to be numbered host by host.
    """
    job, step = (int(os.environ[f"SLURM_{name}_ID"]) for name in ("JOB", "STEP"))
    number = (_STEPS_OF_A_JOB * job + step) % _NUM_STEPS
    first_port = _FIRST_PORT + number * _PORTS_OF_A_STEP
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=first_port,
        gpus_per_node=int(os.environ["SLURM_STEP_NUM_TASKS"]),  # as many as it may want
        gpus_per_task=1,
        auto_set_gpu=False,
    )
    # Slurm's own order of the hosts, by which the first worker is known without TensorFlow.
    order = list(resolver._task_configuration)
    addresses = resolver.cluster_spec().job_tasks(_WORKER)
    addresses.sort(key=lambda address: order.index(address.rpartition(":")[0]))
    num_tasks, number = _tasks_here(addresses)
    gpus = tf.config.list_physical_devices("GPU")
    gpus = gpus[own_share(len(gpus), num_tasks, number)]
    tf.config.set_visible_devices(gpus, "GPU")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({_WORKER: addresses}),
        task_type=_WORKER,
        task_id=addresses.index(f"{os.environ['SLURMD_NODENAME']}:{first_port + number}"),
        num_accelerators={"GPU": len(gpus)},
        rpc_layer="grpc",
    )


def _tasks_here(addresses: Sequence[str]) -> tuple[int, int]:
    """How many tasks of the step of Slurm are on this node, and which of them this one is."""
    host = os.environ["SLURMD_NODENAME"]
    num_tasks = sum(address.rpartition(":")[0] == host for address in addresses)
    return num_tasks, int(os.environ["SLURM_LOCALID"])


def own_share(num_gpus: int, num_tasks: int, number: int) -> slice:
    """Which of the GPUs that a task of Slurm sees are its own.

    Args:
        num_gpus: how many it sees: all of its job's on the node, or those that Slurm bound to it.
        num_tasks: tasks of the step on the node.
        number: of the task on the node, from 0.

    Raises:
        ConfigurationError: there are GPUs, and fewer than tasks.
    """
    are_all = num_gpus == int(os.environ.get("SLURM_GPUS_ON_NODE", 0))
    if not are_all or not num_gpus or num_tasks == 1:
        return slice(None)
    if not (share := num_gpus // num_tasks):
        raise ConfigurationError(
            f"training.strategy: {num_tasks} tasks of Slurm on a node have {num_gpus} GPUs between "
            "them; start at most as many tasks a node as it has GPUs"
        )
    return slice(number * share, (number + 1) * share)


def _check_task(jobs: Mapping[str, Sequence[str]], job: str, number: int) -> None:
    """Raises `ValueError` unless a task is one of workers and at most one chief."""
    if others := ", ".join(sorted(jobs.keys() - {"chief", "worker"})):
        raise ValueError(f"a job {others}, but there can be workers and one chief")
    if len(jobs.get("chief", ())) > 1:
        raise ValueError(f"{len(jobs['chief'])} chiefs, but there can be one")
    if job not in jobs:
        raise ValueError(f"no {job} among {', '.join(jobs)}")
    if not 0 <= number < len(jobs[job]):
        raise ValueError(f"no {job} {number} among {len(jobs[job])}")
