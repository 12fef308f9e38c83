"""Runs of two hosts: they train what two devices do, and what one that is lost does to them."""

import functools
import json
import pathlib
import re
import signal
import sys
import time

import numpy as np
import pytest
from hosts import network_of, outcomes, signal_all, spanbert_tf, start_workers
from tiny_models import VOCABULARY

from spanbert_tf.config import load_config
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertPretrainer,
    SpanBertTextClassifier,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.training.metrics_log import read_metrics

pytestmark = pytest.mark.cluster

ENDS_WITHIN = 60  # seconds from a fault until every process has ended
STEPS, FAULT_AT = 150, 20
MODELS = {"pretrain": SpanBertPretrainer, "finetune": SpanBertTextClassifier}
# With BERT's epsilon, Adam would blow rounding errors of gradients near 0 up to whole steps.
COMMON = (
    "training.log_every=2 training.precision=float32 optimizer.epsilon=1e-4 "
    "training.checkpoint_every_steps=7"
)
SETTINGS = {
    "pretrain": f"model.dropout=0.0 training.batch_size=16 training.steps={STEPS} "
    f"training.schedule_steps={STEPS + 1} training.evaluate_every={STEPS}",
    "finetune": f"training.batch_size=8 training.max_steps={STEPS} data.sequence_length=32 "
    "training.keep_best=false training.evaluations_per_epoch=1 "
    "training.min_steps_between_evaluations=100",
}


@pytest.fixture
def hosts():
    with network_of(2) as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_overrides, tiny_records):
    """What both commands need."""
    place = tmp_path_factory.mktemp("cluster")
    (place / "config.yaml").write_text(load_config("spanbert_base", tiny_overrides).to_yaml())
    (place / "records").symlink_to(tiny_records)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, dropout=0.0, max_sequence_length=32)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(place / "encoder"), tokenizer=tokenizer)
    (place / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    texts = [{"text": "ann has the cat", "label": "a"}, {"text": "who ? bob", "label": "b"}] * 12
    (place / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in texts))
    options = ["--sequence-length", 32, "--vocabulary", place / "vocab.txt", "--lowercase"]
    options += ["--text-column", "text", "--label-column", "label"]
    inputs = ["--input", place / "texts.jsonl", "--output", place / "texts"]
    spanbert_tf("prepare", "classification", *options, *inputs)
    return place


@pytest.fixture(scope="module")
def undisturbed(place):
    """The weights of each command's run of two hosts, found when asked for."""

    @functools.cache
    def weights(command):
        run = place / f"{command}-undisturbed"
        with network_of(2) as hosts:
            assert_succeed(start_workers(hosts, command_line(command, place, run)))
        return weights_of(command, run)

    return weights


def command_line(command, place, run):
    if command == "pretrain":
        words = ["--config", place / "config.yaml", "--data", place / "records"]
    else:
        words = ["--config", "classification", "--preset", place / "encoder"]
        words += ["--data", place / "texts", "--validation-data", place / "texts"]
    words = [command, *map(str, words), "--output", str(run)]
    settings = f"{COMMON} {SETTINGS[command]}".split()
    return [*words, *(word for setting in settings for word in ("--set", setting))]


def weights_of(command, run):
    return MODELS[command].from_preset(str(run / "preset")).get_weights()


def last_step(run):
    if not (run / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in read_metrics(str(run / "metrics.jsonl"))), default=0)


def await_step(run, step, workers):
    while last_step(run) < step:
        assert all(worker.poll() is None for worker in workers), outcomes(workers)
        time.sleep(0.1)


def assert_succeed(workers):
    ended = outcomes(workers)
    assert [status for status, *_ in ended] == [0, 0], ended
    assert f"after step {STEPS}" in ended[0][1], ended


def assert_equal_weights(found, expected):
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(values, others)


@pytest.mark.parametrize("command", MODELS)
def test_two_hosts_train_what_two_devices_of_one_do(command, place, undisturbed, tmp_path):
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    spanbert_tf(*command_line(command, place, tmp_path / "run"), *devices)
    found = weights_of(command, tmp_path / "run")
    for values, others in zip(found, undisturbed(command), strict=True):
        np.testing.assert_allclose(values, others, atol=1e-5)


@pytest.mark.parametrize("command", MODELS)
def test_a_link_that_is_down_for_ten_seconds_changes_no_bit(
    command, hosts, place, undisturbed, tmp_path
):
    run = tmp_path / "run"
    workers = start_workers(hosts, command_line(command, place, run))
    await_step(run, FAULT_AT, workers)
    hosts[1].set_link("down")
    time.sleep(10)
    hosts[1].set_link("up")
    assert last_step(run) < STEPS
    assert_succeed(workers)
    assert_equal_weights(weights_of(command, run), undisturbed(command))


FAULTS = {
    "the other worker is killed": lambda hosts, workers: signal_all(workers[1], signal.SIGKILL),
    "the chief is killed": lambda hosts, workers: signal_all(workers[0], signal.SIGKILL),
    "the other worker is stopped": lambda hosts, workers: signal_all(workers[1], signal.SIGSTOP),
    "the link is down for good": lambda hosts, workers: hosts[1].set_link("down"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", MODELS)
def test_a_lost_host_ends_all_with_a_line_and_the_same_command_goes_on(
    command, fault, hosts, place, undisturbed, tmp_path
):
    run = tmp_path / "run"
    arguments = command_line(command, place, run)
    workers = start_workers(hosts, arguments)
    await_step(run, FAULT_AT, workers)
    FAULTS[fault](hosts, workers)
    start = time.monotonic()
    survivors = [worker for worker in workers if "stopped" not in fault or worker is workers[0]]
    ended = outcomes(survivors, ENDS_WITHIN)
    seconds = time.monotonic() - start
    signal_all(workers[1], signal.SIGCONT)
    if len(survivors) == 1:  # finds itself left when gRPC next tries, after 1, 6, 16 … s
        ended += outcomes(workers[1:])
    for status, _, errors in ended:
        if status != -signal.SIGKILL:
            assert status == 1
            assert "start all workers again" in errors.splitlines()[-1], errors
    print(f"{command}: {fault}: {seconds:.0f} s, step {last_step(run)}")
    hosts[1].set_link("up")
    assert_succeed(start_workers(hosts, arguments))
    assert_equal_weights(weights_of(command, run), undisturbed(command))


def start_service(host):
    """The program of docs/devices.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "devices.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n([^`]*DispatchServer[^`]*)```", page, re.M)
    return host.start([sys.executable, "-c", program.replace("OTHER_HOST", host.address)])


def test_batches_of_another_host_are_the_same_also_when_its_service_starts_again(
    hosts, place, tmp_path
):
    alone, run = tmp_path / "alone", tmp_path / "run"
    spanbert_tf(*command_line("pretrain", place, alone))
    arguments = command_line("pretrain", place, run)
    address = ["--set", f"data.service_address=grpc://{hosts[1].address}:5000"]
    command = [sys.executable, "-m", "spanbert_tf.cli", *arguments, *address]
    service = start_service(hosts[1])
    process = hosts[0].start(command)
    await_step(run, FAULT_AT, [process])
    signal_all(service, signal.SIGKILL)
    start_service(hosts[1])
    ((status, _, errors),) = outcomes([process], ENDS_WITHIN)
    assert status == 1
    assert f"grpc://{hosts[1].address}:5000 was started again meanwhile; start the" in errors
    assert outcomes([hosts[0].start(command)])[0][0] == 0
    assert_equal_weights(weights_of("pretrain", run), weights_of("pretrain", alone))
