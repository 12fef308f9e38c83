"""Jobs of Slurm on two nodes: scripts of docs/sbatch, tasks, cards, ports, a node that is lost."""

import json
import pathlib
import re
import time

import pytest
from hosts import network_of, spanbert_tf
from slurm import Slurm
from small_runs import (
    FAULT_AT,
    STEPS,
    assert_equal_weights,
    await_step,
    command_line,
    contents,
    last_step,
    weights_of,
)

pytestmark = pytest.mark.cluster

SCRIPTS = pathlib.Path(__file__).parents[2] / "docs" / "sbatch"
# What a task finds, on a line of its own.
TASK = """
import json, os
from spanbert_tf.training.cluster import Cluster
cluster = Cluster.from_environment()
cards = os.environ.get("CUDA_VISIBLE_DEVICES")
found = [cluster.number, os.environ["SLURMD_NODENAME"], cards, cluster.addresses]
print(json.dumps(found), flush=True)
"""


@pytest.fixture
def slurm():
    with network_of(2) as hosts, Slurm(hosts) as slurm:
        yield slurm


@pytest.fixture
def submit(slurm, tmp_path):
    """Hands over a script of docs/sbatch; its output goes to `log`."""

    def submitted(script, *words, options=()):
        options = [f"--output={tmp_path}/log", f"--chdir={tmp_path}", "--mem=0", *options]
        return slurm.submit(*options, SCRIPTS / script, *words)

    return submitted


def options_of(command, place, steps=STEPS):
    """The words of a command without its name and its --output."""
    words = command_line(command, place, "RUN", steps)
    position = words.index("--output")
    return [*words[1:position], *words[position + 2 :]]


def log(tmp_path):
    return (tmp_path / "log").read_text()


def await_queued_again(slurm, job, run, reason):
    start = time.monotonic()
    while slurm.facts(job)["JobState"] == "RUNNING":
        time.sleep(0.5)
    print(f"{reason}: queued again after {time.monotonic() - start:.0f} s, step {last_step(run)}")


def test_a_run_that_is_signalled_or_loses_a_node_is_queued_again_and_goes_on(
    slurm, submit, place, undisturbed, tmp_path
):
    run, steps = tmp_path / "run", 150  # workers agree on the last one within seconds
    job = submit("pretrain.sh", run, *options_of("pretrain", place, steps))
    await_step(run, FAULT_AT, [])
    slurm.call("scancel", "--signal=TERM", job)  # what Slurm does before the time is up
    await_queued_again(slurm, job, run, "SIGTERM")
    await_step(run, last_step(run) + FAULT_AT, [])
    slurm.hosts[1].power_off()
    await_queued_again(slurm, job, run, "a node is lost")
    assert last_step(run) < steps
    slurm.await_node(slurm.hosts[1], "down")
    slurm.start_daemon(slurm.hosts[1])
    facts = slurm.await_end(job)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "2"), log(tmp_path)
    assert_equal_weights(weights_of("pretrain", run), undisturbed("pretrain", steps))


def test_a_run_on_jax_that_is_signalled_is_queued_again_and_goes_on(
    slurm, submit, place, tmp_path, monkeypatch
):
    run, steps = tmp_path / "run", 150
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    job = submit("pretrain.sh", run, *options_of("pretrain", place, steps))
    await_step(run, FAULT_AT, [])
    slurm.call("scancel", "--signal=TERM", job)
    await_queued_again(slurm, job, run, "SIGTERM")
    facts = slurm.await_end(job)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), log(tmp_path)
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    spanbert_tf(*command_line("pretrain", place, tmp_path / "alone", steps), *devices)
    expected = weights_of("pretrain", tmp_path / "alone")
    assert_equal_weights(weights_of("pretrain", run), expected)


def test_a_mistake_is_not_queued_again(slurm, submit, place, tmp_path):
    words = [*options_of("pretrain", place), "--set", "training.stepps=3"]
    facts = slurm.await_end(submit("pretrain.sh", tmp_path / "run", *words))
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "2:0", "0")
    assert "training.stepps" in log(tmp_path)


def tasks(printed):
    """What tasks printed, by their numbers."""
    found = sorted(map(json.loads, printed.splitlines()))
    assert [number for number, *_ in found] == list(range(len(found)))
    return found


def test_tasks_know_each_other_and_no_step_has_anothers_ports(slurm):
    first, second = slurm.hosts
    program = ["python", "-c", TASK]
    ports = set()
    for options, expected in (
        (["--nodes=2", "--ntasks-per-node=2"], [first, first, second, second]),
        (["--nodes=2", "--ntasks=3", "--distribution=cyclic"], [first, first, second]),
        (["--nodelist", first.name, "--gres=gpu:2", "--ntasks=2"], [first, first]),
    ):
        found = tasks(slurm.call("srun", "--mem=0", *options, *program))
        hosts, addresses = [host.name for host in expected], found[0][-1]
        assert [address.partition(":")[0] for address in addresses] == hosts
        cards = "0,1" if "--gres=gpu:2" in options else None
        assert [task[1:] for task in found] == [[host, cards, addresses] for host in hosts]
        assert len(set(addresses)) == len(addresses)
        taken = {address.partition(":")[2] for address in addresses}
        assert not taken & ports
        ports |= taken


def test_two_jobs_train_on_the_same_nodes(slurm, submit, place, undisturbed, tmp_path):
    runs = [tmp_path / "one", tmp_path / "two"]
    jobs = [submit("pretrain.sh", run, *options_of("pretrain", place)) for run in runs]
    assert [slurm.await_end(job)["JobState"] for job in jobs] == ["COMPLETED"] * 2, log(tmp_path)
    for run in runs:
        assert_equal_weights(weights_of("pretrain", run), undisturbed("pretrain"))


def test_an_array_of_seeds(slurm, submit, place, tmp_path):
    words = options_of("finetune", place)
    job = submit("finetune.sh", tmp_path / "runs", *words, options=["--array=1-2"])
    for number in (1, 2):
        assert slurm.await_end(f"{job}_{number}")["JobState"] == "COMPLETED", log(tmp_path)
    seeds = [weights_of("finetune", tmp_path / "runs" / f"seed-{number}") for number in (1, 2)]
    arguments = command_line("finetune", place, tmp_path / "alone")
    spanbert_tf(*arguments, "--set", "training.seed=2")
    assert_equal_weights(seeds[1], weights_of("finetune", tmp_path / "alone"))
    assert any((one != two).any() for one, two in zip(*seeds, strict=True))


def test_an_array_of_a_grid_is_what_the_grid_compares(slurm, submit, place, tmp_path, monkeypatch):
    words, runs = options_of("finetune", place), tmp_path / "runs"
    monkeypatch.setenv("RATES", "0.0001 2e-05")
    monkeypatch.setenv("SIZES", "8")
    job = submit("finetune.sh", runs, *words, options=["--array=0-1"])
    for number in (0, 1):
        assert slurm.await_end(f"{job}_{number}")["JobState"] == "COMPLETED", log(tmp_path)
    names = ["learning-rate-0.0001-batch-8", "learning-rate-2e-05-batch-8"]
    assert sorted(path.name for path in runs.iterdir()) == names
    trained = [last_step(runs / name) for name in names]
    before = [(runs / name / "metrics.jsonl").read_bytes() for name in names]
    grid = ["--set", "grid.learning_rates=[0.0001,2e-05]", "--set", "grid.batch_sizes=[8]"]
    printed = spanbert_tf("finetune", *words, "--output", runs, "--grid", *grid)
    assert re.search(r"best on .*learning-rate-", printed)
    assert [(runs / name / "metrics.jsonl").read_bytes() for name in names] == before
    assert trained[0] == trained[1] > 0


def test_dask_on_the_nodes_of_a_job(slurm, submit, preparation, tmp_path):
    output = tmp_path / "records"
    words = preparation.command_line(output)[2:]
    job = submit("prepare.sh", *words, options=["--ntasks-per-node=1"])
    assert slurm.await_end(job)["JobState"] == "COMPLETED", log(tmp_path)
    assert contents(output) == contents(preparation.expected)
    assert not list(tmp_path.glob("dask-*"))
