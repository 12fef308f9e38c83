"""Preparing, fine-tuning and predicting, beside the Model Garden and `transformers`.

    python -m benchmarks.question_answering --input train.json --preset PRESET [--batches 16]

`prepare squad` and the Model Garden's `squad_lib` read the same file with the preset's vocabulary.
Then the same rows go through the same weights here and in PyTorch, in the batches that each makes
of them: an epoch of training with AdamW, here in batches of one length, there in random batches
padded to their longest row and in those of `group_by_length`; and prediction, the longest rows
first here, in the order of the file there. Prediction goes as far as the best spans here and the
logits there. All batches of an epoch are made before; so many of them are timed, of all widths as
they are in the epoch. Each runs in a process of its own, in turns. Goals: 5 times as fast, 1.6,
1.25 and 1.3 times.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import click
import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.row_batches import median_seconds, padded, rows_of, spread_batches, time_pass

BATCH_SIZE, ROUNDS, LENGTH = 32, 3, 384
_OURS, _THEIRS = "ours", "transformers"
# The files of a part begin with its name.
_PARTS = {
    _OURS: ("train here", "predict here"),
    _THEIRS: ("train with dynamic padding", "train with group_by_length", "predict there"),
}
_GOALS = (
    ("train here", "train with dynamic padding", 1.6),
    ("train here", "train with group_by_length", 1.25),
    ("predict here", "predict there", 1.3),
)
_ROWS = "questions"  # what `prepare` writes, below the temporary directory


@click.command()
@click.option("--input", "input_path", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--preset", required=True, help="Of an encoder.")
@click.option("--batches", default=16, show_default=True, help="To train on and to predict.")
def main(input_path: str, preset: str, batches: int) -> None:
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        _show_preparation(directory, input_path, preset)
        num_rows = _write_batches(directory, batches)
        _convert(directory, preset)
        seconds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name in (_OURS, _THEIRS):
                for part, value in _run_child(name, directory, preset).items():
                    seconds.setdefault(part, []).append(value)
    rates = {part: num_rows[part] / statistics.median(values) for part, values in seconds.items()}
    for part, rate in rates.items():
        print(f"{part}: {rate:.1f} rows/s")
    for ours, theirs, goal in _GOALS:
        faster = rates[ours] / rates[theirs]
        print(f"{ours} beside {theirs}: {faster:.2f} times as fast (goal: at least {goal})")


def _show_preparation(directory: str, input_path: str, preset: str) -> None:
    from official.nlp.data import squad_lib
    from official.nlp.tools import tokenization

    from spanbert_tf.files.text_files import read_text_file
    from spanbert_tf.models import SpanBertTokenizer
    from spanbert_tf.tasks.question_answering.files import read_squad
    from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

    tokenizer = SpanBertTokenizer.from_preset(preset)
    vocabulary = os.path.join(directory, "vocab.txt")
    with open(vocabulary, "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in tokenizer.get_vocabulary())
    plain = os.path.join(directory, "questions.json")
    with open(plain, "w", encoding="utf-8") as file:
        file.write(read_text_file(input_path))

    def ours() -> None:
        shutil.rmtree(os.path.join(directory, _ROWS), ignore_errors=True)
        write_questions(
            read_squad(plain),
            os.path.join(directory, _ROWS),
            vocabulary=vocabulary,
            **tokenizer.text_rules._asdict(),
            options=QuestionOptions(sequence_length=LENGTH),
        )

    def theirs() -> None:
        peer = tokenization.FullTokenizer(vocabulary, do_lower_case=tokenizer.lowercase)
        examples = squad_lib.read_squad_examples(
            plain, is_training=False, version_2_with_negative=False
        )
        squad_lib.convert_examples_to_features(
            examples,
            peer,
            LENGTH,
            128,
            64,
            is_training=False,
            output_fn=lambda feature, is_padding: None,
            batch_size=BATCH_SIZE,
        )

    fast, slow = median_seconds(ours, 3), median_seconds(theirs, 1)
    num_questions = len(read_squad(plain).questions)
    print(
        f"prepare: {num_questions / fast:,.0f} questions/s here, {num_questions / slow:,.0f} in "
        f"squad_lib: {slow / fast:.1f} times as fast (goal: at least 5)"
    )


def _write_batches(directory: str, count: int) -> dict[str, int]:
    """Writes some batches of each part, and returns how many rows are in them."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    from spanbert_tf.tasks.lookup import task_dataset

    data = os.path.join(directory, _ROWS)
    predicted = list(task_dataset(data, batch_size=BATCH_SIZE, training=False).as_numpy_iterator())
    rows = rows_of(predicted)
    lengths = [len(row["token_ids"]) for row in rows]
    num_batches = -(-len(rows) // BATCH_SIZE)
    trained = task_dataset(data, batch_size=BATCH_SIZE, training=True)
    random = np.random.default_rng(0).permutation(len(rows))
    generator = torch.Generator().manual_seed(0)
    grouped = list(LengthGroupedSampler(BATCH_SIZE, lengths=lengths, generator=generator))
    batches_of_parts = {
        "train here": [
            {**x, **y, "sample_weight": weight}
            for x, y, weight in trained.take(num_batches).as_numpy_iterator()
        ],
        "predict here": [{**x, **y} for x, y in predicted],
        "train with dynamic padding": padded(rows, random, BATCH_SIZE),
        "train with group_by_length": padded(rows, grouped, BATCH_SIZE),
        "predict there": padded(rows, range(len(rows)), BATCH_SIZE),
    }
    num_rows = {}
    for part, batches in batches_of_parts.items():
        padding = 1 - sum(lengths) / sum(batch["token_ids"].size for batch in batches)
        print(f"{part}: {padding:.1%} of {len(batches)} batches is padding")
        chosen = spread_batches(batches, count)
        for number, batch in enumerate(chosen):
            np.savez(os.path.join(directory, f"{part}-{number:04d}.npz"), **batch)
        weights = [batch.get("sample_weight", np.ones(len(batch["token_ids"]))) for batch in chosen]
        num_rows[part] = int(sum(map(np.sum, weights)))
    return num_rows


def _convert(directory: str, preset: str) -> None:
    from spanbert_tf.conversion.convert import convert_checkpoint

    convert_checkpoint("keras", "huggingface", preset, os.path.join(directory, "theirs"))


def _run_child(name: str, directory: str, preset: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.question_answering", "--child", name]
    child = subprocess.run(
        [*command, directory, preset], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(child.stdout.splitlines()[-1])


def _child(name: str, directory: str, preset: str) -> None:
    train, predict = _our_steps(preset) if name == _OURS else _their_steps(directory)
    seconds = {}
    for part in _PARTS[name]:
        files = sorted(file for file in os.listdir(directory) if file.startswith(f"{part}-"))
        batches = [dict(np.load(os.path.join(directory, file))) for file in files]
        seconds[part] = time_pass(train if part.startswith("train") else predict, batches)
    print(json.dumps(seconds))


def _our_steps(preset: str) -> tuple[Callable, Callable]:
    import tensorflow as tf

    from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer
    from spanbert_tf.tasks.question_answering.graph import best_spans
    from spanbert_tf.training import adamw

    model = SpanBertQuestionAnswerer(SpanBertBackbone.from_preset(preset))
    model.compile(optimizer=adamw(1e-6, warmup_steps=1, total_steps=10_000), jit_compile=False)

    def tensors(batch: dict) -> dict:
        return {name: tf.constant(value) for name, value in batch.items()}

    @tf.function(reduce_retracing=True)
    def train(batch: dict) -> object:
        return model.train_step((batch, batch, batch["sample_weight"]))["loss"]

    @tf.function(reduce_retracing=True)
    def predict(batch: dict) -> tuple:
        logits = model(batch, training=False)
        return best_spans(
            logits["start_logits"],
            logits["end_logits"],
            batch["offset_ends"] > 0,
            batch["has_most_context"] > 0,
            max_answer_tokens=30,
            num_spans=20,
        )

    return lambda batch: float(train(tensors(batch))), lambda batch: predict(tensors(batch))


def _their_steps(directory: str) -> tuple[Callable, Callable]:
    import torch
    import transformers

    path = os.path.join(directory, "theirs")
    model = transformers.BertForQuestionAnswering.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)

    def features(batch: dict, *names: str) -> dict:
        inputs = {
            "input_ids": batch["token_ids"],
            "token_type_ids": batch["segment_ids"],
            "attention_mask": batch["padding_mask"],
            **{name: batch[name] for name in names},
        }
        return {name: torch.tensor(value).long() for name, value in inputs.items()}

    def train(batch: dict) -> float:
        model.train()
        loss = model(**features(batch, "start_positions", "end_positions")).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    def predict(batch: dict) -> object:
        model.eval()
        with torch.inference_mode():
            return model(**features(batch))

    return train, predict


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
    else:
        main()
