"""Tokens a second of pre-training on an accelerator, beside `transformers` on the same card.

    python -m benchmarks.accelerator save --data RECORDS --output batches.npz
    python -m benchmarks.accelerator losses --batches batches.npz --size small
    python -m benchmarks.accelerator run --batches batches.npz --size large --batch-size 32

`save` writes masked rows of records, where TensorFlow is. The others need none: JAX, Keras and
KerasHub for this side, PyTorch and `transformers` for the peer.

A step is forward, backward and the AdamW update, in bfloat16 with float32 weights, with dropout of
0.1 on hidden states. Both sides run one after another, each in a process of its own, so that
neither holds the other's memory. The rows say what differs:

- `MLM and SBO`: SpanBERT's step; the peer has no SBO.
- `MLM`: logits at the masked positions alone, on both sides.
- `MLM, all logits`: the peer as it comes, with logits at every position.
- `attention dropout`: of 0.1 on attention's weights, as in the papers, or none. With it no fused
  kernel is taken here; without it the row says whether one of cuDNN is in the compiled step. The
  peer's scaled-dot-product attention chooses for itself.

Model FLOPs of a step are those that MLM (and SBO) need, whoever computes more: 6 a position for
each weight of the layers' matrices, 12 · layers · width · length a position for attention, and 6 a
prediction slot for each weight of the heads' matrices, the product with the vocabulary among them.
Padding counts. Embeddings, biases, norms and the optimizer do not. The share is that of the peak,
`--peak-tflops`: 989 is an H100 SXM's for dense bfloat16.
"""

import concurrent.futures
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from benchmarks.machine import describe_machine
from benchmarks.row_batches import median_seconds
from benchmarks.saved_rows import SavedRows, load_rows, save_rows

SIZES = {
    "small": {"num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 128},
    "base": {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072},
    "large": {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "intermediate_dim": 4096},
}
SPAN_POSITION_DIM = 200  # the paper's, and `SpanBertPretrainer`'s
DROPOUT, WARM_UP_STEPS = 0.1, 3
OURS, PEER = "spanbert_tf", "transformers"
_BATCHES = click.option(
    "--batches", "path", required=True, type=click.Path(exists=True), help="What `save` wrote."
)
_SIZE = click.option("--size", type=click.Choice(list(SIZES)), default="base", show_default=True)
_BATCH_SIZE = click.option("--batch-size", default=32, show_default=True, help="Rows of a step.")


class Settings(NamedTuple):
    """What `run` was given."""

    path: str
    size: str
    batch_size: int
    rounds: int
    steps: int
    compiles: bool
    attention_dropout: bool | None = None

    @property
    def dropouts(self) -> tuple[bool, ...]:
        """Whether attention's weights have dropout, in the order of measuring."""
        given = self.attention_dropout
        return (True, False) if given is None else (given,)


class Measured(NamedTuple):
    """One row of the table.

    Attributes:
        side: whose step.
        objectives: what it trains.
        attention: of attention's weights: dropout or none, and the kernel.
        seconds: median of a step.
    """

    side: str
    objectives: str
    attention: str
    seconds: float


@click.group()
def main() -> None:
    """Writes rows where TensorFlow is, and measures where an accelerator is."""


@main.command()
@click.option("--data", required=True, type=click.Path(exists=True), help="Records.")
@click.option("--output", required=True, type=click.Path(), help="File, .npz.")
@click.option("--batches", default=16, show_default=True)
@_BATCH_SIZE
def save(data: str, output: str, batches: int, batch_size: int) -> None:
    """Writes masked rows of records; needs TensorFlow."""
    print(describe(save_rows(data, output, batches=batches, batch_size=batch_size)))


@main.command()
@_BATCHES
@_SIZE
@_BATCH_SIZE
def losses(path: str, size: str, batch_size: int) -> None:
    """Prints the MLM loss of one batch on both sides: same weights, float32, no dropout."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory, too
    from benchmarks.accelerator_peer import assign, masked_lm
    from benchmarks.accelerator_peer import losses as peer_losses
    from benchmarks.accelerator_step import arrays_of, pretrainer, randomize, training_steps

    rows = load_rows(path)
    batch = rows.batches(batch_size)[0]
    sizes = backbone_sizes(size, rows)
    model = pretrainer(sizes, dtype="float32", dropout=0.0)
    randomize(model)
    peer = masked_lm(sizes, dropout=0.0)
    assign(peer, arrays_of(model))
    train, _ = training_steps(model, [batch])
    ours, theirs = train(1), peer_losses(peer, batch)
    print(f"{OURS}: {ours:.6f}")
    for name, value in zip(("masked positions", "all logits"), theirs, strict=True):
        print(f"{PEER}, {name}: {value:.6f}, differs by {abs(value - ours):.1e}")


@main.command()
@_BATCHES
@_SIZE
@_BATCH_SIZE
@click.option("--rounds", default=7, show_default=True, help="Times that each is measured.")
@click.option("--steps", default=10, show_default=True, help="Steps of a round.")
@click.option("--peak-tflops", default=989.0, show_default=True, help="The device's, in bfloat16.")
@click.option("--side", type=click.Choice([OURS, PEER]), help="One side alone.")
@click.option("--no-compile", is_flag=True, help="Leave `torch.compile` out.")
@click.option("--attention-dropout/--no-attention-dropout", default=None, help="One of both alone.")
def run(peak_tflops: float, side: str | None, no_compile: bool, **options: object) -> None:
    """Measures both sides and prints the table."""
    settings = Settings(**options, compiles=not no_compile)
    rows = load_rows(settings.path)
    rows.batches(settings.batch_size)  # says now if there are too few
    os.environ["KERAS_BACKEND"] = "jax"
    print(describe_machine(("numpy",)))
    print(f"{settings.size}, batches of {settings.batch_size}: {describe(rows)}")
    spawn = multiprocessing.get_context("spawn")
    measured: list[Measured] = []
    for name in (side,) if side else (OURS, PEER):
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
            device, found = process.submit(measure_side, name, settings).result()
        print(f"{name} on {device}")
        measured += found
    print_table(measured, settings, rows, peak_tflops)


def describe(rows: SavedRows) -> str:
    """The rows in words."""
    return (
        f"{rows.count:,} rows of {rows.length} positions, {rows.filled:.1%} filled, "
        f"{rows.slots} prediction slots, {rows.vocabulary_size:,} vocabulary entries"
    )


def backbone_sizes(size: str, rows: SavedRows) -> dict[str, int]:
    """Arguments of `SpanBertBackbone` for such rows."""
    return {
        **SIZES[size],
        "vocabulary_size": rows.vocabulary_size,
        "max_sequence_length": rows.length,
    }


def measure_side(side: str, settings: Settings) -> tuple[str, list[Measured]]:
    """The device and the rows of the table of one side."""
    rows = load_rows(settings.path)
    batches, sizes = rows.batches(settings.batch_size), backbone_sizes(settings.size, rows)
    if side == OURS:
        from benchmarks.accelerator_step import describe_device

        variants = our_variants(sizes, batches, settings.dropouts)
    else:
        from benchmarks.accelerator_peer import describe_device

        variants = peer_variants(sizes, batches, settings.dropouts, settings.compiles)
    found = []
    for objectives, attention, train in variants:
        loss = train(WARM_UP_STEPS)
        if not math.isfinite(loss):
            raise RuntimeError(f"{side}, {objectives}, {attention}: the loss is {loss}")
        seconds = median_seconds(lambda train=train: train(settings.steps), settings.rounds)
        found.append(Measured(side, objectives, attention, seconds / settings.steps))
        print(f"{name_of(found[-1])}: {1000 * found[-1].seconds:.1f} ms a step", flush=True)
    return describe_device(), found


_Variants = Iterator[tuple[str, str, Callable[[int], float]]]


def our_variants(
    sizes: Mapping[str, int], batches: list[dict], dropouts: Sequence[bool]
) -> _Variants:
    """Objectives, attention and training of each; made when it is asked for."""
    from benchmarks.accelerator_step import pretrainer, training_steps

    for attention_dropout in dropouts:
        for span_boundary, objectives in ((False, "MLM"), (True, "MLM and SBO")):
            model = pretrainer(
                sizes,
                dropout=DROPOUT,
                attention_dropout=attention_dropout,
                span_boundary=span_boundary,
            )
            train, is_fused = training_steps(model, batches)
            kernel = "cuDNN's kernel" if is_fused else "plain operations"
            yield objectives, f"{dropout_label(attention_dropout)}, {kernel}", train


def peer_variants(
    sizes: Mapping[str, int], batches: list[dict], dropouts: Sequence[bool], compiles: bool
) -> _Variants:
    """As `our_variants`."""
    from benchmarks.accelerator_peer import (
        loss_at_all_positions,
        loss_at_targets,
        masked_lm,
        training_steps,
    )

    kernel = "sdpa" if compiles else "sdpa, not compiled"
    ways = (("MLM", loss_at_targets), ("MLM, all logits", loss_at_all_positions))
    for attention_dropout in dropouts:
        for objectives, loss in ways:
            model = masked_lm(sizes, dropout=DROPOUT, attention_dropout=attention_dropout)
            train = training_steps(model, batches, loss, compiles=compiles)
            yield objectives, f"{dropout_label(attention_dropout)}, {kernel}", train


def dropout_label(attention_dropout: bool) -> str:
    return "attention dropout" if attention_dropout else "no attention dropout"


def name_of(row: Measured) -> str:
    return f"{row.side}: {row.objectives}; {row.attention}"


def print_table(
    measured: list[Measured], settings: Settings, rows: SavedRows, peak_tflops: float
) -> None:
    tokens = settings.batch_size * rows.length
    print(f"{'':84}ms a step  tokens/s  TFLOP/s  of {peak_tflops:g}")
    for row in measured:
        flops = model_flops(
            SIZES[settings.size],
            rows.vocabulary_size,
            row.objectives,
            num_rows=settings.batch_size,
            length=rows.length,
            slots=rows.slots,
        )
        tflops = flops / row.seconds / 1e12
        print(
            f"{name_of(row):84}{1000 * row.seconds:9.1f}{tokens / row.seconds:10,.0f}{tflops:9.1f}"
            f"{tflops / peak_tflops:8.1%}"
        )
    print_ratios(measured)


def print_ratios(measured: list[Measured]) -> None:
    """Like with like: MLM steps with the same dropout."""
    ours = [row for row in measured if (row.side, row.objectives) == (OURS, "MLM")]
    for theirs in (row for row in measured if row.side == PEER):
        dropout = theirs.attention.split(",")[0]
        for row in ours:
            if row.attention.split(",")[0] == dropout:
                ratio = theirs.seconds / row.seconds
                print(f"MLM, {dropout}: {ratio:.2f} x as fast as {PEER} ({theirs.objectives})")


def model_flops(
    sizes: Mapping[str, int],
    vocabulary_size: int,
    objectives: str,
    *,
    num_rows: int,
    length: int,
    slots: int,
) -> int:
    """Operations of a step that the objectives need; see the module's description."""
    layers, width = sizes["num_layers"], sizes["hidden_dim"]
    of_layers = layers * (4 * width**2 + 2 * width * sizes["intermediate_dim"])
    of_heads = width**2 + width * vocabulary_size
    if objectives == "MLM and SBO":
        inputs = 2 * width + SPAN_POSITION_DIM
        of_heads += inputs * width + width**2 + width * vocabulary_size
    of_position = 6 * of_layers + 12 * layers * width * length
    return num_rows * (length * of_position + slots * 6 * of_heads)


if __name__ == "__main__":
    main()
