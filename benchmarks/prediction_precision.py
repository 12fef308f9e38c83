"""Prediction in bfloat16 beside float32, of models of three shapes with random weights.

    python -m benchmarks.prediction_precision [--rounds N]

A batch of rows of 384 positions goes through a question answerer, as `evaluate`, `predict` and
`predictor` let it through with `--precision`. Goal: 1.6 times as fast with the base shape, on a
processor that multiplies in bfloat16.
"""

import statistics
import time
from collections.abc import Callable

import click
import numpy as np

from benchmarks.machine import describe_machine

BATCH_SIZE, LENGTH, VOCABULARY_SIZE = 16, 384, 28_996
SHAPES = {
    "small": {"num_layers": 4, "num_heads": 4, "hidden_dim": 256},
    "minilm": {"num_layers": 6, "num_heads": 12, "hidden_dim": 384},
    "base": {"num_layers": 12, "num_heads": 12, "hidden_dim": 768},
}
PRECISIONS = ("float32", "bfloat16")


@click.command()
@click.option("--rounds", default=7, show_default=True, help="Batches of each that are timed.")
def main(rounds: int) -> None:
    print(describe_machine())
    for shape, dimensions in SHAPES.items():
        predict = {precision: prediction(dimensions, precision) for precision in PRECISIONS}
        seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for _ in range(rounds + 1):
            for precision, run in predict.items():
                start = time.perf_counter()
                run()
                seconds[precision].append(time.perf_counter() - start)
        medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        rates = [f"{BATCH_SIZE / medians[name]:.1f} rows/s in {name}" for name in PRECISIONS]
        gain = medians["float32"] / medians["bfloat16"]
        print(f"{shape}: {', '.join(rates)}: {gain:.2f} times as fast")


def prediction(dimensions: dict[str, int], precision: str) -> Callable[[], None]:
    """A batch through a model, whose function is traced."""
    from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer

    backbone = SpanBertBackbone(
        VOCABULARY_SIZE,
        **dimensions,
        intermediate_dim=4 * dimensions["hidden_dim"],
        dtype=precision,
    )
    model = SpanBertQuestionAnswerer(backbone)
    model.is_head_trained = True  # nobody reads what it predicts
    ids = np.random.default_rng(0).integers(1000, VOCABULARY_SIZE, (BATCH_SIZE, LENGTH))
    half = np.arange(LENGTH) >= LENGTH // 2
    batch = {
        "token_ids": ids.astype("int32"),
        "segment_ids": np.tile(half, (BATCH_SIZE, 1)).astype("int32"),
        "padding_mask": np.ones_like(ids, "int32"),
    }
    model.predict_on_batch(batch)
    return lambda: model.predict_on_batch(batch)


if __name__ == "__main__":
    main()
