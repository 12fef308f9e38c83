"""Tokens a second of a pre-training step, beside the same model in PyTorch `transformers`.

    python -m benchmarks.pretraining_step [--shape small|base] [--rounds N] [--precisions]

A step is forward, backward and the AdamW update, dropout on, on rows of 512 positions with 77
masked tokens and BERT's cased vocabulary. The peer is `BertForMaskedLM` as people use it, with
vocabulary logits at every position, and the span boundary objective as the original
implementation computes it: for each padded span one projection for each of 20 slots. Beside them
what the span boundary objective and SegaBERT's position embeddings add to an MLM step, what
mixed_bfloat16 saves, on a processor that has it, and the matrix products of a step alone. Steps of
all are interleaved; the table shows medians.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable

import click
import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.matrix_products import products_step

VOCABULARY_SIZE, LENGTH, SLOTS, THREADS = 28_996, 512, 77, 2
SPANS_A_ROW, MAX_SPAN_TARGETS, POSITION_DIM = 20, 20, 200  # a row has 17 merged spans on average
SHAPES = {
    "small": {"layers": 4, "heads": 4, "width": 256, "inner": 1024, "batch": 8},
    "base": {"layers": 12, "heads": 12, "width": 768, "inner": 3072, "batch": 2},
}
_BOTH, _MLM = "spanbert_tf, MLM and SBO", "spanbert_tf, MLM only"
_HALF = "spanbert_tf, mixed_bfloat16"
_PRODUCTS, _HALF_PRODUCTS = "products alone, float32", "products alone, bfloat16"
_SEGABERT, _TORCH = "spanbert_tf, SegaBERT's MLM", "transformers, MLM and SBO"


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), default="small", show_default=True)
@click.option("--rounds", default=7, show_default=True, help="Steps of each that are timed.")
@click.option("--jit-compile", is_flag=True, help="Compile our step with XLA.")
@click.option("--precisions", is_flag=True, help="Only float32 beside mixed_bfloat16.")
def main(shape: str, rounds: int, jit_compile: bool, precisions: bool) -> None:
    import tensorflow as tf
    import torch

    torch.set_num_threads(THREADS)
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    print(describe_machine())
    dimensions = SHAPES[shape]
    makers = _makers(dimensions, synthetic_batch(dimensions["batch"]), jit_compile)
    names = (_BOTH, _HALF, _PRODUCTS, _HALF_PRODUCTS) if precisions else tuple(makers)
    medians = interleaved_medians(_made({name: makers[name] for name in names}), rounds)
    tokens = dimensions["batch"] * LENGTH
    print(f"{shape}: {dimensions}")
    for name, seconds in medians.items():
        print(f"{name:30}{1000 * seconds:9.0f} ms{tokens / seconds:10,.0f} tokens/s")
    ours, half = medians[_BOTH], medians[_HALF]
    print(f"mixed_bfloat16, MLM and SBO: {ours / half:.2f} x as fast as float32")
    print(f"products alone: {medians[_PRODUCTS] / ours:.0%} of the step's time", end=", ")
    print(f"{medians[_HALF_PRODUCTS] / half:.0%} in bfloat16")
    if not precisions:
        masked_lm = medians[_MLM]
        print(f"faster than transformers: {medians[_TORCH] / ours:.2f} x")
        print(f"SBO adds to an MLM step: {ours / masked_lm - 1:.1%}")
        print(f"SegaBERT's positions add to an MLM step: {medians[_SEGABERT] / masked_lm - 1:.1%}")


def _made(makers: dict[str, Callable[[], Callable[[], None]]]) -> dict[str, Callable[[], None]]:
    """The steps, each called once, so that it is traced and compiled; that takes the most time."""
    steps = {}
    for number, (name, make) in enumerate(makers.items(), start=1):
        _say(f"building {number} of {len(makers)}: {name}")
        steps[name] = make()
        steps[name]()
    return steps


def _say(line: str) -> None:
    """Progress goes to stderr: the table on stdout is what docs/benchmarks.md shows."""
    print(line, file=sys.stderr, flush=True)


def _makers(
    dimensions: dict[str, int], batch: dict[str, np.ndarray], jit_compile: bool
) -> dict[str, Callable[[], Callable[[], None]]]:
    """Each kind of step, by the functions that make it."""
    ours = functools.partial(keras_step, dimensions, batch, jit_compile)
    products = functools.partial(
        products_step, dimensions, LENGTH, SLOTS, VOCABULARY_SIZE, num_heads_of_objectives=2
    )
    return {
        _BOTH: functools.partial(ours, span_boundary=True),
        _HALF: functools.partial(ours, span_boundary=True, dtype="mixed_bfloat16"),
        _MLM: ours,
        _SEGABERT: functools.partial(ours, positions="segment_aware"),
        _TORCH: functools.partial(torch_step, dimensions, batch),
        _PRODUCTS: functools.partial(products, dtype="float32"),
        _HALF_PRODUCTS: functools.partial(products, dtype="bfloat16"),
    }


def synthetic_batch(size: int) -> dict[str, np.ndarray]:
    """A batch as the data set gives it, with spans of four tokens and random ids."""
    source = np.random.default_rng(0)
    offsets = np.arange(SLOTS) % 4
    starts = 5 + 25 * (np.arange(SLOTS) // 4)
    positions = np.tile(starts + offsets, (size, 1))
    ids = source.integers(1000, VOCABULARY_SIZE, (size, LENGTH))
    batch = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
        "mask_positions": positions,
        "mask_ids": source.integers(1000, VOCABULARY_SIZE, positions.shape),
        "span_left_positions": np.tile(starts - 1, (size, 1)),
        "span_right_positions": np.tile(starts + 4, (size, 1)),
        "span_offsets": np.tile(offsets, (size, 1)),
        # Sentences of 25 tokens, 4 in a paragraph.
        "paragraph_indices": np.tile(np.arange(LENGTH) // 100, (size, 1)),
        "sentence_indices": np.tile(np.arange(LENGTH) // 25 % 4, (size, 1)),
        "token_indices": np.tile(np.arange(LENGTH) % 25, (size, 1)),
    }
    batch = {name: values.astype(np.int32) for name, values in batch.items()}
    weights = np.ones(positions.shape, np.float32)
    return {**batch, "mask_weights": weights, "span_weights": weights}


def keras_step(
    dimensions: dict[str, int],
    batch: dict[str, np.ndarray],
    jit_compile: bool,
    *,
    span_boundary: bool = False,
    positions: str = "absolute",
    dtype: str = "float32",
) -> Callable[[], None]:
    """A training step of this project, as `spanbert-tf pretrain` runs it."""
    import tensorflow as tf

    from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
    from spanbert_tf.training.configured_optimizer import adamw

    backbone = SpanBertBackbone(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=dimensions["layers"],
        num_heads=dimensions["heads"],
        hidden_dim=dimensions["width"],
        intermediate_dim=dimensions["inner"],
        position_embeddings=positions,
        dtype=dtype,
    )
    model = SpanBertPretrainer(backbone, span_boundary=span_boundary)
    model.compile(optimizer=adamw(), jit_compile=jit_compile)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    model.make_train_function()
    return lambda: model.train_function(batches)


def torch_step(dimensions: dict[str, int], batch: dict[str, np.ndarray]) -> Callable[[], None]:
    """The same step with transformers' BERT and the original way to compute SBO."""
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=dimensions["width"],
        num_hidden_layers=dimensions["layers"],
        num_attention_heads=dimensions["heads"],
        intermediate_size=dimensions["inner"],
    )
    model = transformers.BertForMaskedLM(config)
    head = _torch_span_head(dimensions["width"])
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1)
    tensors = {name: torch.tensor(values).long() for name, values in batch.items()}
    labels = torch.full_like(tensors["token_ids"], -100)
    labels.scatter_(1, tensors["mask_positions"], tensors["mask_ids"])
    size = dimensions["batch"]
    lefts = tensors["span_left_positions"][:, ::4][:, :SPANS_A_ROW]
    rights = tensors["span_right_positions"][:, ::4][:, :SPANS_A_ROW]
    span_labels = torch.full((size, lefts.shape[1], MAX_SPAN_TARGETS), -100)
    span_labels[:, :, :4] = torch.randint(1000, VOCABULARY_SIZE, (size, lefts.shape[1], 4))
    slots = torch.arange(MAX_SPAN_TARGETS).expand(size, lefts.shape[1], -1)
    decoder = model.bert.embeddings.word_embeddings.weight
    model.train()

    def boundary(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        index = positions[:, :, None].expand(-1, -1, hidden.shape[-1])
        return hidden.gather(1, index)[:, :, None].expand(-1, -1, MAX_SPAN_TARGETS, -1)

    def step() -> None:
        output = model(tensors["token_ids"], output_hidden_states=True)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
        hidden = output.hidden_states[-1]
        pairs = torch.cat(
            [boundary(hidden, lefts), boundary(hidden, rights), head["positions"](slots)], dim=-1
        )  # [B, spans, 20, 2 H + P]
        logits = head["layers"](pairs) @ decoder.T  # [B, spans, 20, V]
        loss = loss + torch.nn.functional.cross_entropy(logits.flatten(0, 2), span_labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def _torch_span_head(width: int) -> "torch.nn.ModuleDict":  # noqa: F821
    import torch

    layers = []
    for inputs in (2 * width + POSITION_DIM, width):
        layers += [torch.nn.Linear(inputs, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
    return torch.nn.ModuleDict(
        {
            "positions": torch.nn.Embedding(MAX_SPAN_TARGETS, POSITION_DIM),
            "layers": torch.nn.Sequential(*layers),
        }
    )


def interleaved_medians(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each step.

    The first step after another one's is slower: caches and memory are the other's, and PyTorch's
    threads still spin. So each is called twice, and the second call counts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(1, rounds + 1):
        _say(f"timing: round {number} of {rounds}")
        for name, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
