"""Who shares a run in a step of Slurm, by what `srun` of Slurm 22.05 sets in each task."""

import pytest

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.supervision import _is_chief
from spanbert_tf.training import workers

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
    monkeypatch.setenv("PATH", "")  # there is no `nvidia-smi`
    places = [((0, "node2"), 0), ((0, "node2"), 1), ((1, "node10"), 0)]
    specs, found, are_chiefs = [], [], []
    for (node, local), number in zip(places, numbers, strict=True):
        environment(monkeypatch, "node[2,10]", "2,1", node, local, number)
        resolver = workers._cluster()
        specs.append(resolver.cluster_spec().as_dict()["worker"])
        found.append(specs[-1][workers.worker_number(resolver)])
        are_chiefs.append(_is_chief())
    first = 10_000 + (31 * 7 + 2) * 16
    assert found == [f"node2:{first}", f"node2:{first + 1}", f"node10:{first}"]
    assert specs == [found] * 3
    assert are_chiefs == [True, False, False]
    assert resolver.num_accelerators() == {"GPU": 0}


def test_jax_is_told_the_same_and_which_cards_are_a_tasks_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    first = 10_000 + (31 * 7 + 2) * 16
    for place, number, cards in (
        (((0, "node2"), 0), 0, [0]),
        (((0, "node2"), 1), 1, [1]),
        (((1, "node10"), 0), 2, [0, 1]),
    ):
        environment(monkeypatch, "node[2,10]", "2,1", *place, number)
        assert workers._known_processes() == {
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
        tasks = workers._cluster().cluster_spec().job_tasks("worker")
        ports += [int(task.rpartition(":")[2]) for task in tasks]
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
    assert list(range(seen))[workers.own_share(seen, tasks, number)] == list(own)


def test_more_tasks_than_cards_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    with pytest.raises(ConfigurationError, match="3 tasks of Slurm on a node have 2 GPUs"):
        workers.own_share(2, 3, 0)
