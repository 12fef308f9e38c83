"""Fine-tuning of classifiers, loss by loss beside `transformers`.

    python -m benchmarks.classification_losses --preset PRESET --data rte/train \
        --validation-data rte/dev [--steps 50] [--epochs 1] [--stop-after STEPS]

The same weights (of the head, too), rows, batches, learning rates and AdamW, without dropout. The
first losses shall be equal to 1e-4, and the predictions after the epochs but for near ties.
"""

import os
import tempfile
from typing import NamedTuple

import click
import numpy as np

_INPUTS = {
    "input_ids": "token_ids",
    "token_type_ids": "segment_ids",
    "attention_mask": "padding_mask",
}


class Comparison(NamedTuple):
    """What both did.

    Attributes:
        losses: losses of each step, [steps, 2]: here, there.
        predictions: predictions of each text, [texts, 2, classes]: probabilities, or numbers.
    """

    losses: np.ndarray
    predictions: np.ndarray


@click.command()
@click.option("--preset", required=True, help="Of an encoder.")
@click.option("--data", required=True, type=click.Path(exists=True))
@click.option("--validation-data", required=True, type=click.Path(exists=True))
@click.option("--steps", default=50, show_default=True, help="Whose losses are compared.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--learning-rate", default=5e-5, show_default=True)
@click.option("--stop-after", type=int, metavar="STEPS", help="Go no further in the schedule.")
def main(preset: str, data: str, validation_data: str, steps: int, **options: float) -> None:
    found = compare(preset, data, validation_data, **options)
    losses = found.losses[:steps]
    difference = np.abs(losses[:, 0] - losses[:, 1]).max()
    print(f"first {len(losses)} losses: from {losses[0, 0]:.4f} to {losses[-1, 0]:.4f}; differ by")
    print(f"  at most {difference:.1e} (goal: 1e-4)")
    ours, theirs = found.predictions[:, 0], found.predictions[:, 1]
    print(f"predictions of {len(ours):,} texts differ by at most {np.abs(ours - theirs).max():.1e}")
    if ours.shape[1] > 1:
        others = ours.argmax(-1) != theirs.argmax(-1)
        best = np.sort(ours, axis=-1)
        margin = (best[others, -1] - best[others, -2]).max(initial=0.0)
        print(f"  {others.sum()} have another class, whose probabilities are {margin:.1e} apart")


def compare(
    preset: str,
    data: str,
    validation_data: str,
    *,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    stop_after: int | None = None,
) -> Comparison:
    """Fine-tunes twice.

    Args:
        preset: name of the preset of an encoder.
        data: training records of text classification.
        validation_data: records to predict at the end.
        epochs: over all rows.
        batch_size: rows of a batch.
        learning_rate: peak of the schedule.
        stop_after: steps to train; all by default.
    """
    import keras
    import tensorflow as tf

    from spanbert_tf.conversion.convert import convert_checkpoint
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
    from spanbert_tf.presets.writing import write_preset
    from spanbert_tf.tasks.lookup import open_records
    from spanbert_tf.tasks.table import load_task_config
    from spanbert_tf.tasks.text_classification.task import TextClassification
    from spanbert_tf.training.configured_optimizer import finetuning_optimizer

    keras.utils.set_random_seed(0)
    config = load_task_config("classification")
    optimizer_config = config.optimizer.replace(learning_rate=learning_rate)
    task = TextClassification()
    records, validation_records = open_records(data, task), open_records(validation_data, task)
    manifest = records.manifest
    backbone = SpanBertBackbone.from_preset(preset, dropout=0.0)
    model = task.build(backbone, SpanBertTokenizer.from_preset(preset), manifest, config)
    model.is_head_trained = True  # so that it is converted
    num_steps = epochs * -(-manifest.num_training_rows // batch_size)
    optimizer = finetuning_optimizer(model, optimizer_config, num_steps=num_steps)
    model.compile(optimizer, auto_scale_loss=False, metrics=None)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step, reduce_retracing=True)
    batches = task.dataset(records, batch_size=batch_size, training=True, seed=0)
    batches = batches.take(stop_after or num_steps)
    with tempfile.TemporaryDirectory() as directory:
        write_preset(model, os.path.join(directory, "ours"))
        paths = [os.path.join(directory, name) for name in ("ours", "theirs")]
        convert_checkpoint("keras", "huggingface", *paths)
        peer = _Peer(paths[1], optimizer_config)
        losses = []
        for number, batch in enumerate(batches):
            model.reset_metrics()
            rate = float(model.optimizer.schedule(number))
            here = float(step(batch)["loss"])
            losses.append((here, peer.train(*tf.nest.map_structure(np.array, batch), rate)))
    rows = task.dataset(validation_records, batch_size=batch_size, training=False)
    ours = np.array(task.predict(model, validation_records, batch_size=batch_size))
    predictions = np.stack([ours, peer.predict(rows, len(ours))], axis=1)
    return Comparison(np.array(losses), predictions)


class _Peer:
    """The same in PyTorch.

    Args:
        path: path of the converted model.
        config: configuration of the optimizer.
    """

    def __init__(self, path: str, config: object) -> None:
        import torch
        import transformers

        self._torch = torch
        self._model = transformers.BertForSequenceClassification.from_pretrained(path)
        self._config, self._num_steps = config, 0
        named = list(self._model.named_parameters())
        plain = ("bias", "LayerNorm.weight")
        groups = [
            {"params": [p for n, p in named if not n.endswith(plain)]},
            {"params": [p for n, p in named if n.endswith(plain)], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            betas=(config.beta_1, config.beta_2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
        )

    def train(self, x: dict, y: np.ndarray, weights: np.ndarray, rate: float) -> float:
        """One update; rows of weight 0 are left out."""
        torch, is_row = self._torch, weights > 0
        self._num_steps += 1
        # PyTorch adds epsilon to the corrected moment, this project to the other, as BERT.
        correction = 1 - self._config.beta_2**self._num_steps
        epsilon = self._config.epsilon / correction**0.5
        self._model.train()
        loss = self._model(**self._inputs(x, is_row), labels=self._labels(y[is_row])).loss
        for group in self._optimizer.param_groups:
            group["lr"], group["eps"] = rate, epsilon
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.global_clipnorm)
        self._optimizer.step()
        return float(loss.detach())

    def predict(self, rows: object, count: int) -> np.ndarray:
        """Probabilities, or numbers, in the order of the file."""
        self._model.eval()
        found = np.zeros([count, self._model.num_labels], "float32")
        for x, _ in rows.as_numpy_iterator():
            with self._torch.inference_mode():
                logits = self._model(**self._inputs(x, slice(None))).logits
            is_number = self._model.num_labels == 1
            found[x["row_index"]] = (logits if is_number else logits.softmax(-1)).numpy()
        return found

    def _labels(self, y: np.ndarray) -> object:
        labels = self._torch.tensor(y)
        return labels if labels.is_floating_point() else labels.long()

    def _inputs(self, x: dict, chosen: np.ndarray | slice) -> dict:
        torch = self._torch
        return {name: torch.tensor(x[ours][chosen]).long() for name, ours in _INPUTS.items()}


if __name__ == "__main__":
    main()
