"""Featurising, training and predicting with classifiers, beside their peers.

    python -m benchmarks.classification --data mrpc/train --preset PRESET [--batches 16]

The records are of text classification, relation extraction or named entities. Featurising, where
they are labelled texts: texts to rows here, by `encode_batch_fast` of HuggingFace with two threads,
and by the Model Garden's `convert_single_example`. Then the same rows go through the same encoder
here and in PyTorch, each with a new head: training steps and prediction, there with dynamic padding
and padded to the limit. So many batches of all widths are timed. Goals: 20 times the Model Garden
and as fast as HuggingFace; 1.3 times the dynamic padding.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence

os.environ.setdefault("RAYON_NUM_THREADS", "2")

import click
import numpy as np

from benchmarks.fine_tuning_step import fine_tuning_step
from benchmarks.machine import describe_machine
from benchmarks.row_batches import median_seconds, padded, rows_of, spread_batches, time_pass

BATCH_SIZE = 32
_CONFIGS = {  # of a task
    "text_classification": "classification",
    "relation_extraction": "tacred",
    "named_entities": "named_entities",
}
_BAR, _BIN = 50, 16  # characters of the longest bar, tokens of a bin
_GARDEN_TEXTS = 200  # it is slow
_DYNAMIC, _TO_LIMIT = "with dynamic padding", "padded to the limit"


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True), help="Records with labels.")
@click.option("--preset", required=True, help="Of an encoder.")
@click.option("--batches", default=16, show_default=True, help="To train on and to predict.")
@click.option("--rounds", default=3, show_default=True)
def main(data: str, preset: str, batches: int, rounds: int) -> None:
    from spanbert_tf.tasks.lookup import task_of_records

    print(describe_machine())
    if task_of_records(data).name == "text_classification":
        show_featurising(data, rounds)
    show_steps(data, preset, batches, rounds)


def show_featurising(data: str, rounds: int) -> None:
    """Texts a second, in three ways."""
    from official.nlp.data import classifier_data_lib
    from official.nlp.tools.tokenization import FullTokenizer
    from tokenizers.implementations import BertWordPieceTokenizer

    from spanbert_tf.data.records import Records
    from spanbert_tf.tasks.text_classification.records import (
        EXAMPLES_FILE,
        TextClassificationManifest,
    )
    from spanbert_tf.tasks.text_classification.rows import Featurizer
    from spanbert_tf.text.vocabulary import load_vocabulary

    records, path = Records.of(data, TextClassificationManifest), os.path.join(data, "vocab.txt")
    manifest = records.manifest
    lines = records.lines(EXAMPLES_FILE)
    texts = [tuple(line[name] for name in manifest.text_names) for line in lines]
    featurizer = Featurizer(
        load_vocabulary(path), manifest.text_rules, manifest.sequence_length, segment_aware=False
    )
    peer = BertWordPieceTokenizer(path, lowercase=manifest.lowercase)
    peer.enable_truncation(manifest.sequence_length)
    garden = FullTokenizer(path, do_lower_case=manifest.lowercase)
    examples = [
        classifier_data_lib.InputExample(str(number), *pair, label=manifest.labels[0])
        for number, pair in enumerate(texts[:_GARDEN_TEXTS])
    ]
    pairs = texts if manifest.is_pair else [text for (text,) in texts]

    def ours() -> None:
        rows = featurizer.rows(texts)
        rows.token_ids.numpy()

    def theirs() -> None:
        peer._tokenizer.encode_batch_fast(pairs)

    def of_garden() -> None:
        for number, example in enumerate(examples):
            classifier_data_lib.convert_single_example(
                number, example, manifest.labels, manifest.sequence_length, garden
            )

    ours()  # traces
    rates = [
        count / median_seconds(call, rounds)
        for call, count in ((ours, len(texts)), (theirs, len(texts)), (of_garden, len(examples)))
    ]
    print(
        f"featurising: {rates[0]:,.0f} texts/s here, {rates[1]:,.0f} by encode_batch_fast "
        f"({rates[0] / rates[1]:.2f} times as fast, goal: 1), {rates[2]:,.0f} in the Model Garden "
        f"({rates[0] / rates[2]:.0f} times as fast, goal: 20)"
    )


def show_steps(data: str, preset: str, count: int, rounds: int) -> None:
    """Rows a second in training and prediction, here and there."""
    parts, rows = _batches(data, count)
    _print_histogram([len(row["token_ids"]) for row in rows])
    with tempfile.TemporaryDirectory() as directory:
        train, predict, num_outputs = _our_steps(data, preset, directory)
        has_row_labels = np.ndim(rows[0]["label"]) == 0
        peer_train, peer_predict = _their_steps(directory, num_outputs, has_row_labels)
    rates = {}
    for what, ours, theirs in (("train", train, peer_train), ("predict", predict, peer_predict)):
        for way, step in (("here", ours), (_DYNAMIC, theirs), (_TO_LIMIT, theirs)):
            chosen = parts[f"{what} {way}"]
            seconds = statistics.median(time_pass(step, chosen) for _ in range(rounds))
            num_rows = sum(
                batch["sample_weight"].sum() if "sample_weight" in batch else len(batch["label"])
                for batch in chosen
            )
            rates[what, way] = num_rows / seconds
            print(f"{what} {way}: {rates[what, way]:.1f} rows/s")
        for way in (_DYNAMIC, _TO_LIMIT):
            faster = rates[what, "here"] / rates[what, way]
            goal = " (goal: at least 1.3)" if way == _DYNAMIC else ""
            print(f"{what} here beside {way}: {faster:.2f} times as fast{goal}")


def _batches(data: str, count: int) -> tuple[dict[str, list[dict]], list[dict]]:
    """The chosen batches of each part, and all rows in the order of the file."""
    from spanbert_tf.tasks.lookup import open_records, task_of_records

    task = task_of_records(data)
    records = open_records(data)
    predicted = task.dataset(records, batch_size=BATCH_SIZE, training=False)
    predicted = [(x, {"label": y}) for x, y in predicted.as_numpy_iterator()]
    rows = rows_of(predicted)
    num_batches = -(-len(rows) // BATCH_SIZE)
    trained = task.dataset(records, batch_size=BATCH_SIZE, training=True)
    random = np.random.default_rng(0).permutation(len(rows))
    limit = records.manifest.sequence_length
    parts = {
        "train here": [
            {**x, "label": y, "sample_weight": weight}
            for x, y, weight in trained.take(num_batches).as_numpy_iterator()
        ],
        f"train {_DYNAMIC}": padded(rows, random, BATCH_SIZE),
        f"train {_TO_LIMIT}": padded(rows, random, BATCH_SIZE, limit),
        "predict here": [{**x, **y} for x, y in predicted],
        f"predict {_DYNAMIC}": padded(rows, range(len(rows)), BATCH_SIZE),
        f"predict {_TO_LIMIT}": padded(rows, range(len(rows)), BATCH_SIZE, limit),
    }
    chosen = {part: spread_batches(batches, count) for part, batches in parts.items()}
    return chosen, rows


def _print_histogram(lengths: Sequence[int]) -> None:
    counts = np.bincount(np.array(lengths) // _BIN)
    for number, size in enumerate(counts.tolist()):
        bar = "#" * round(_BAR * size / counts.max())
        print(f"{number * _BIN:>5} to {(number + 1) * _BIN - 1:<4}{size:>7,} {bar}")


def _our_steps(data: str, preset: str, directory: str) -> tuple[Callable, Callable, int]:
    """Training, prediction and the head's outputs; converts the encoder for the peer."""
    import tensorflow as tf

    from spanbert_tf.conversion.convert import convert_checkpoint
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
    from spanbert_tf.tasks.lookup import open_records, task_of_records
    from spanbert_tf.tasks.table import load_task_config

    convert_checkpoint("keras", "huggingface", preset, os.path.join(directory, "theirs"))
    task = task_of_records(data)
    records = open_records(data)
    config = load_task_config(_CONFIGS[task.name])
    backbone = SpanBertBackbone.from_preset(preset)
    tokenizer = SpanBertTokenizer.from_preset(preset)
    model = task.build(backbone, tokenizer, records.manifest, config)
    step = fine_tuning_step(model, _CONFIGS[task.name])

    def tensors(batch: dict) -> dict:
        return {name: tf.constant(value) for name, value in batch.items()}

    def train(batch: dict) -> float:
        return step((batch, batch["label"], batch["sample_weight"]))

    predict = tf.function(
        lambda batch: tf.nn.softmax(model(batch, training=False)), reduce_retracing=True
    )
    return train, lambda batch: predict(tensors(batch)).numpy(), model.output_shape[-1]


def _their_steps(
    directory: str, num_outputs: int, has_row_labels: bool
) -> tuple[Callable, Callable]:
    import torch
    import transformers

    kind = (
        transformers.BertForSequenceClassification
        if has_row_labels
        else transformers.BertForTokenClassification
    )
    path = os.path.join(directory, "theirs")
    model = kind.from_pretrained(path, num_labels=num_outputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)

    def features(batch: dict) -> dict:
        names = ("token_ids", "segment_ids", "padding_mask")
        theirs = ("input_ids", "token_type_ids", "attention_mask")
        return {
            name: torch.tensor(batch[ours]).long() for name, ours in zip(theirs, names, strict=True)
        }

    def train(batch: dict) -> float:
        model.train()
        labels = torch.tensor(batch["label"])
        labels = labels if labels.is_floating_point() else labels.long()
        if not has_row_labels:  # -100 has no loss
            labels = labels.masked_fill(
                (labels < 0) | ~torch.tensor(batch["padding_mask"]).bool(), -100
            )
        loss = model(**features(batch), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    def predict(batch: dict) -> np.ndarray:
        model.eval()
        with torch.inference_mode():
            return model(**features(batch)).logits.softmax(-1).numpy()

    return train, predict


if __name__ == "__main__":
    main()
