"""Who shares a run: by TF_CONFIG, and by what `srun` of Slurm 22.05 sets in each task."""

import json
import subprocess
import sys

import pytest
from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.training.cluster import Cluster, expand_counts, expand_hosts

JOB = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}


def environment(monkeypatch, hosts, tasks, node, local, number):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    named = {
        **JOB,
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURMD_NODENAME": node[1],
        "SLURM_NODEID": str(node[0]),
        "SLURM_LOCALID": str(local),
        "SLURM_PROCID": str(number),
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)


# Tasks are numbered host by host (`block`) or in turns (`cyclic`); 10 comes after 2.
@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 2, 1)])
def test_every_task_finds_itself_in_the_same_cluster(numbers, monkeypatch):
    places = [((0, "node2"), 0), ((0, "node2"), 1), ((1, "node10"), 0)]
    clusters = []
    for (node, local), number in zip(places, numbers, strict=True):
        environment(monkeypatch, "node[2,10]", "2,1", node, local, number)
        clusters.append(Cluster.from_environment())
    first = 10_000 + (31 * 7 + 2) * 16
    expected = [f"node2:{first}", f"node2:{first + 1}", f"node10:{first}"]
    assert [cluster.addresses for cluster in clusters] == [expected] * 3
    assert [cluster.number for cluster in clusters] == [0, 1, 2]
    assert [cluster.is_chief for cluster in clusters] == [True, False, False]
    assert [cluster.port for cluster in clusters] == [str(first), str(first + 1), str(first)]


@pytest.mark.parametrize(
    "hosts", ["node2", "a,b", "n[1-3],m5,o[3-4,6,7-9]", "n[08-11]", "gpu-a[1,3],gpu-b"]
)
def test_lists_of_hosts_are_those_of_tensorflows_resolver(hosts):
    assert expand_hosts(hosts) == slurm_cluster_resolver.expand_hostlist(hosts)


def test_lists_of_hosts_may_have_several_ranges_and_a_suffix():
    """TensorFlow's resolver refuses them."""
    assert expand_hosts("r[1-2]n[01,3]-ib") == ["r1n01-ib", "r1n3-ib", "r2n01-ib", "r2n3-ib"]


@pytest.mark.parametrize("counts", ["3", "2,1", "3(x2),2,1", "1(x12)"])
def test_lists_of_counts_are_those_of_tensorflows_resolver(counts):
    assert expand_counts(counts) == slurm_cluster_resolver.expand_tasks_per_node(counts)


@pytest.mark.parametrize(
    "job, index, number", [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_a_chief_comes_before_the_workers(job, index, number, monkeypatch):
    jobs = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    task = {"type": job, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    cluster = Cluster.from_environment()
    assert cluster.addresses == ["a:1", "b:2", "c:3"]
    assert (cluster.number, cluster.is_chief) == (number, number == 0)
    assert cluster.port == str(number + 1)


def test_without_a_chief_the_first_worker_writes(monkeypatch):
    for index in range(2):
        task = {"type": "worker", "index": index}
        jobs = {"worker": ["a:1", "b:2"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
        assert Cluster.from_environment().is_chief == (index == 0)


@pytest.mark.parametrize(
    "workers, named",
    [
        (["a:1", 2], "2"),
        (["a:1", "b"], "'b'"),
        (["a:port", "b:2"], "'a:port'"),
        ({"0": "a:1"}, "'0'"),
    ],
)
def test_addresses_that_cannot_be_are_refused_by_name(workers, named, monkeypatch):
    described = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(described))
    with pytest.raises(ConfigurationError, match=f"TF_CONFIG: .*{named} is not HOST:PORT"):
        Cluster.from_environment()


def test_a_cluster_is_found_without_tensorflow():
    program = "import spanbert_tf.training.cluster, sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_jax_is_told_the_same_and_which_cards_are_a_tasks_own(monkeypatch):
    jax_devices = pytest.importorskip("spanbert_tf.training.devices.jax")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    first = 10_000 + (31 * 7 + 2) * 16
    for place, number, cards in (
        (((0, "node2"), 0), 0, [0]),
        (((0, "node2"), 1), 1, [1]),
        (((1, "node10"), 0), 2, [0, 1]),
    ):
        environment(monkeypatch, "node[2,10]", "2,1", *place, number)
        assert jax_devices.cluster_options(Cluster.from_environment()) == {
            "coordinator_address": f"node2:{first}",
            "num_processes": 3,
            "process_id": number,
            "local_device_ids": cards,
        }


def test_steps_on_one_node_have_ports_of_their_own(monkeypatch):
    ports = []
    for job, step in (("7", "0"), ("7", "1"), ("8", "0")):
        environment(monkeypatch, "node2", "3", (0, "node2"), 0, 0)
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_STEP_ID", step)
        addresses = Cluster.from_environment().addresses
        ports += [int(address.rpartition(":")[2]) for address in addresses]
    assert len(set(ports)) == 9
    assert max(ports) < 32_768  # from here on Linux gives ports away by itself


@pytest.mark.parametrize(
    ("seen", "on_node", "tasks", "number", "own"),
    [
        (8, "8", 1, 0, range(8)),
        (8, "8", 4, 0, (0, 1)),
        (8, "8", 4, 3, (6, 7)),
        (2, "8", 4, 3, (0, 1)),  # bound by Slurm
        (1, None, 2, 1, (0,)),  # not counted by it
        (0, None, 2, 1, ()),
    ],
)
def test_tasks_of_a_node_share_its_cards(seen, on_node, tasks, number, own, monkeypatch):
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    if on_node:
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", on_node)
    cluster = Cluster({}, "worker", 0, num_tasks_here=tasks, index_here=number)
    assert list(range(seen))[cluster.own_devices(seen)] == list(own)


def test_more_tasks_than_cards_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    with pytest.raises(ConfigurationError, match="3 tasks of Slurm on a node have 2 GPUs"):
        Cluster({}, "worker", 0, num_tasks_here=3).own_devices(2)
