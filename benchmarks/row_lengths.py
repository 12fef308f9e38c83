"""Tokens a second of pre-training on short texts: padded, by length, and beside `transformers`.

    python -m benchmarks.row_lengths [--batch-size N] [--steps N] [--rounds N]

Rows of 20 to 300 tokens, evenly, are padded to 512 positions, or batched by their length
(`training.batch_by_length`); beside them rows of 512 that are full. A step is forward, backward and
the AdamW update of an encoder of 3 layers of 256 with BERT's cased vocabulary, with MLM alone, from
`spanbert_tf.data.pretraining_dataset` with its masks. The peer is `BertForMaskedLM` with the
batches that `Trainer` makes with `group_by_length`: rows of similar length, padded to the longest,
as many as there are in a batch of full rows. Its masks are drawn beforehand. Tokens are counted
without padding. Rounds of all are interleaved; the table shows medians.
"""

import dataclasses
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import click
import numpy as np

from benchmarks.machine import describe_machine

VOCABULARY_SIZE, LENGTH, THREADS = 28_996, 512, 2
SHORTEST, LONGEST = 20, 300
LAYERS, HEADS, WIDTH = 3, 4, 256
_PADDED, _BY_LENGTH, _FULL = "padded to 512", "by length", "full rows of 512"
_TORCH, _TORCH_PADDED = "transformers, grouped by length", "transformers, padded to 512"

Step = Callable[[], int]  # makes a step, and returns its tokens


@click.command()
@click.option("--rows", default=4_000, show_default=True, help="Short rows.")
@click.option("--batch-size", default=16, show_default=True, help="Rows of 512 of a batch.")
@click.option("--steps", default=12, show_default=True, help="Steps of each in a round.")
@click.option("--rounds", default=5, show_default=True)
def main(rows: int, batch_size: int, steps: int, rounds: int) -> None:
    import tensorflow as tf
    import torch

    torch.set_num_threads(THREADS)
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    print(describe_machine())
    random = np.random.default_rng(0)
    short = random.integers(SHORTEST, LONGEST + 1, rows)
    full = np.full(rows * 160 // LENGTH, LENGTH)
    with tempfile.TemporaryDirectory() as directory:
        records = {
            name: write_rows(os.path.join(directory, name), lengths)
            for name, lengths in (("short", short), ("full", full))
        }
        makers: dict[str, Callable[[], Step]] = {
            _PADDED: lambda: keras_step(records["short"], batch_size, by_length=False),
            _BY_LENGTH: lambda: keras_step(records["short"], batch_size, by_length=True),
            _FULL: lambda: keras_step(records["full"], batch_size, by_length=False),
            _TORCH: lambda: torch_step(short, batch_size, is_padded=False),
            _TORCH_PADDED: lambda: torch_step(short, batch_size, is_padded=True),
        }
        made = {}
        for name, make in makers.items():
            print(f"building: {name}", file=sys.stderr, flush=True)
            made[name] = make()
            for _ in range(3):  # traces: the second of other shapes makes a graph for all
                made[name]()
        for name, speed in interleaved_speeds(made, steps, rounds).items():
            print(f"{name:34}{speed:10,.0f} tokens/s")


def interleaved_speeds(made: dict[str, Step], steps: int, rounds: int) -> dict[str, float]:
    """Median tokens a second of each; the first step of a round is not timed."""
    speeds: dict[str, list[float]] = {name: [] for name in made}
    for number in range(1, rounds + 1):
        print(f"timing: round {number} of {rounds}", file=sys.stderr, flush=True)
        for name, step in made.items():
            step()
            start = time.perf_counter()
            tokens = sum(step() for _ in range(steps))
            speeds[name].append(tokens / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in speeds.items()}


def write_rows(directory: str, lengths: Sequence[int]) -> str:
    """Records of random word pieces, one sentence each; lengths with special tokens."""
    from spanbert_tf.data import manifest as names
    from spanbert_tf.data.tfrecords import (
        lengths_path,
        record_writer,
        save_lengths,
        serialize_features,
    )
    from spanbert_tf.files.contents import sha256

    os.makedirs(directory)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary += [f"word{number}" for number in range(VOCABULARY_SIZE - len(vocabulary))]
    with open(os.path.join(directory, names.VOCABULARY_FILE), "w") as file:
        file.write("\n".join(vocabulary) + "\n")
    counts = "[" + ", ".join(["1"] * VOCABULARY_SIZE) + "]\n"
    with open(os.path.join(directory, names.UNIGRAM_COUNTS_FILE), "w") as file:
        file.write(counts)
    file_name = "train-00000-of-00001.tfrecord"
    path = os.path.join(directory, file_name)
    random = np.random.default_rng(1)
    zero = np.zeros(1, "<u2").tobytes()
    with record_writer(path) as write:
        for number, length in enumerate(lengths):
            ids = random.integers(5, VOCABULARY_SIZE, length - 2).astype("<u2").tobytes()
            lists = {names.TOKEN_IDS: ids} | dict.fromkeys(names.POSITION_LISTS, zero)
            numbers = {names.RECORD_ID: number, names.FIRST_TOKEN_INDEX: 0}
            write(serialize_features(numbers, lists))
    in_text = [int(length) - 2 for length in lengths]
    save_lengths(lengths_path(path), in_text)
    shard = names.Shard(
        file_name, "train", len(in_text), sum(in_text), sha256(path), os.path.getsize(path)
    )
    manifest = names.PretrainingManifest(
        vocabulary_hash=names.vocabulary_hash(vocabulary),
        vocabulary_size=VOCABULARY_SIZE,
        lowercase=False,
        strip_accents=False,
        language="en",
        sequence_length=LENGTH,
        sequences="single",
        annotations=(),
        counts={},
        shards=(shard,),
        unigram_counts_hash=names.hashlib.sha256(counts.encode()).hexdigest(),
    )
    with open(os.path.join(directory, names.DATASET_INFO_FILE), "w") as file:
        file.write(manifest.to_json())
    return directory


@dataclasses.dataclass
class _Counted:
    """Batches on the way to a model, and the tokens of the last one."""

    batches: Iterator
    tokens: int = 0

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> dict:
        batch = next(self.batches)
        self.tokens = int(np.sum(batch["padding_mask"]))
        return batch


def keras_step(records: str, batch_size: int, *, by_length: bool) -> Step:
    """A step of this project on the batches of a data set."""
    from spanbert_tf.data import pretraining_dataset
    from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
    from spanbert_tf.training import adamw

    backbone = SpanBertBackbone(VOCABULARY_SIZE, LAYERS, HEADS, WIDTH, 4 * WIDTH)
    model = SpanBertPretrainer(backbone, span_boundary=False)
    model.compile(optimizer=adamw(), jit_compile=False)
    dataset = pretraining_dataset(records, batch_size=batch_size, batch_by_length=by_length)
    batches = _Counted(iter(dataset))
    model.make_train_function()

    def step() -> int:
        model.train_function(itertools.islice(batches, 1))
        return batches.tokens

    return step


def torch_step(lengths: np.ndarray, batch_size: int, *, is_padded: bool) -> Step:
    """A step of `transformers`; the arguments are those of `torch_batches`."""
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )
    model = transformers.BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    batches = itertools.cycle(list(torch_batches(lengths, batch_size, is_padded=is_padded)))

    def step() -> int:
        tokens, mask, labels = next(batches)
        logits = model(tokens, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return int(mask.sum())

    return step


def torch_batches(lengths: np.ndarray, batch_size: int, *, is_padded: bool) -> Iterator[tuple]:
    """Batches of `Trainer`: ids, padding mask and labels, -100 where none is.

    Args:
        lengths: tokens of the rows.
        batch_size: rows of a batch.
        is_padded: whether rows come in any order and are padded to `LENGTH`; otherwise those of
            similar length are padded to the longest.
    """
    import torch
    from transformers.trainer_pt_utils import get_length_grouped_indices

    random = np.random.default_rng(2)
    order = get_length_grouped_indices(lengths.tolist(), batch_size)
    if is_padded:
        order = random.permutation(len(lengths)).tolist()
    for first in range(0, len(order) - batch_size + 1, batch_size):
        chosen = lengths[order[first : first + batch_size]]
        width = LENGTH if is_padded else int(chosen.max())
        is_token = np.arange(width) < chosen[:, np.newaxis]
        ids = random.integers(1000, VOCABULARY_SIZE, is_token.shape) * is_token
        is_masked = is_token & (random.random(ids.shape) < 0.15)
        labels = np.where(is_masked, ids, -100)
        yield tuple(map(torch.tensor, (ids, is_token.astype("int64"), labels)))


if __name__ == "__main__":
    main()
