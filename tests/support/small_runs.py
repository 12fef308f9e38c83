"""What several hosts share: runs and records, which take a machine seconds."""

import hashlib
import random
import time

import numpy as np
from hosts import outcomes, spanbert_tf

from spanbert_tf.models import SpanBertPretrainer, SpanBertTextClassifier
from spanbert_tf.training.metrics_log import read_metrics

STEPS, FAULT_AT = 60, 20
MODELS = {"pretrain": SpanBertPretrainer, "finetune": SpanBertTextClassifier}
# With BERT's epsilon, Adam would blow rounding errors of gradients near 0 up to whole steps.
COMMON = (
    "training.log_every=2 training.precision=float32 optimizer.epsilon=1e-4 "
    "training.checkpoint_every_steps=7"
)
# A run of pre-training begins with its heads alone, and trains all in its second half.
SETTINGS = {
    "pretrain": "model.dropout=0.0 training.batch_size=16 training.steps={steps} "
    "training.schedule_steps=200 training.evaluate_every={steps} training.head_steps={half}",
    "finetune": "training.batch_size=8 training.max_steps={steps} data.sequence_length=32 "
    "training.keep_best=false training.evaluations_per_epoch=1 "
    "training.min_steps_between_evaluations=60",
}


def command_line(command, place, run, steps=STEPS):
    if command == "pretrain":
        words = ["--config", place / "config.yaml", "--data", place / "records"]
    else:
        words = ["--config", "classification", "--preset", place / "encoder"]
        words += ["--data", place / "texts", "--validation-data", place / "texts"]
    words = [command, *map(str, words), "--output", str(run)]
    settings = f"{COMMON} {SETTINGS[command].format(steps=steps, half=steps // 2)}".split()
    return [*words, *(word for setting in settings for word in ("--set", setting))]


def weights_of(command, run):
    return MODELS[command].from_preset(str(run / "preset")).get_weights()


def last_step(run):
    if not (run / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in read_metrics(str(run / "metrics.jsonl"))), default=0)


def await_step(run, step, workers, seconds=300):
    end = time.monotonic() + seconds
    while last_step(run) < step:
        assert time.monotonic() < end, f"{run}: step {last_step(run)}"
        assert all(worker.poll() is None for worker in workers), outcomes(workers)
        time.sleep(0.1)


def assert_succeed(workers, steps=STEPS):
    ended = outcomes(workers)
    assert [(status, errors) for status, _, errors in ended] == [(0, ""), (0, "")], ended
    assert f"after step {steps}" in ended[0][1], ended


def assert_equal_weights(found, expected):
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(values, others)


class Preparation:
    """A corpus that takes two processes some seconds, and its records as one machine has them."""

    num_files = 12

    def __init__(self, directory):
        self.directory = directory
        self.expected = directory / "expected"

    def make(self):
        """Writes the corpus, its vocabulary and the records."""
        (self.directory / "corpus").mkdir(parents=True)
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 8))) for _ in range(2_000)]
        for number in range(self.num_files):
            sentences = (f"{' '.join(rng.choices(words, k=12))}." for _ in range(8))
            text = f"{' '.join(sentences)}\n\n" * 6_000
            (self.directory / "corpus" / f"{number}.txt").write_text(text)
        options = ["--input", self.directory / "corpus" / "0.txt", "--lowercase"]
        options += ["--vocabulary-size", 200, "--output", self.directory / "vocab.txt"]
        spanbert_tf("prepare", "vocabulary", *options)
        spanbert_tf(*self.command_line(self.expected))

    def command_line(self, output):
        words = ["--input", self.directory / "corpus" / "*", "--output", output, "--lowercase"]
        words += ["--vocabulary", self.directory / "vocab.txt"]
        words += ["--sequence-length", 128, "--num-shards", 5]
        return ["prepare", "pretraining", *map(str, words)]


def contents(directory):
    """Digests: pytest would compare bytes for an hour."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
