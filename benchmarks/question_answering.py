"""Preparing, fine-tuning and predicting, beside the Model Garden and `transformers`.

    python -m benchmarks.question_answering --input train.json --preset PRESET [--rows 128]

`prepare squad` and the Model Garden's `squad_lib` read the same file with the preset's vocabulary.
Then the same rows go through the same weights here and in PyTorch: training steps with AdamW and
prediction in the same batches, padded to their longest row; and prediction of the first rows of the
file in the batches that each makes of them: the longest rows first here, in the order of the file
there. Prediction goes as far as the best spans here and the logits there. Each runs in a process of
its own, in turns. Goals: 5 times, and 1.2 times as fast.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence

import click
import numpy as np

from benchmarks.machine import describe_machine

BATCH_SIZE, ROUNDS, LENGTH = 8, 3, 384
PREDICTION_PASSES = 3  # in each round; training has one
_PARTS = {"train": "batch", "predict": "batch", "predict in own batches": ""}  # and their files
_OURS, _THEIRS = "ours", "transformers"
_ROWS = "questions"  # what `prepare` writes, below the temporary directory


@click.command()
@click.option("--input", "input_path", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--preset", required=True, help="Of an encoder.")
@click.option("--rows", default=128, show_default=True, help="For training and for prediction.")
def main(input_path: str, preset: str, rows: int) -> None:
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        _show_preparation(directory, input_path, preset)
        _write_batches(directory, rows)
        _convert(directory, preset)
        seconds: dict[str, dict[str, list[float]]] = {_OURS: {}, _THEIRS: {}}
        for _ in range(ROUNDS):
            for name in (_OURS, _THEIRS):
                for part, values in _run_child(name, directory, preset).items():
                    seconds[name].setdefault(part, []).extend(values)
    for part in _PARTS:
        ours, theirs = (statistics.median(seconds[name][part]) for name in (_OURS, _THEIRS))
        print(
            f"{part}: {rows / ours:.1f} rows/s here, {rows / theirs:.1f} in transformers: "
            f"{theirs / ours:.2f} times as fast (goal: at least 1.2)"
        )


def _show_preparation(directory: str, input_path: str, preset: str) -> None:
    from official.nlp.data import squad_lib
    from official.nlp.tools import tokenization

    from data_prep.question_answering import QuestionOptions, write_questions
    from data_prep.squad import read_squad
    from data_prep.text_file import read_text_file
    from spanbert_tf.models import SpanBertTokenizer

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
            lowercase=tokenizer.lowercase,
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

    fast, slow = _median(ours, 3), _median(theirs, 1)
    num_questions = len(read_squad(plain).questions)
    print(
        f"prepare: {num_questions / fast:,.0f} questions/s here, {num_questions / slow:,.0f} in "
        f"squad_lib: {slow / fast:.1f} times as fast (goal: at least 5)"
    )


def _median(call: Callable[[], None], count: int) -> float:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _write_batches(directory: str, rows: int) -> None:
    import tensorflow as tf

    from spanbert_tf.data import question_answering_dataset
    from spanbert_tf.data.question_answering_schema import WINDOWS_FILE

    data = os.path.join(directory, _ROWS)
    batches = question_answering_dataset(data, batch_size=BATCH_SIZE, training=True)
    _save(directory, "batch", batches.take(rows // BATCH_SIZE))
    # The first rows of the file alone, for both.
    windows = os.path.join(data, WINDOWS_FILE)
    first = list(tf.data.TFRecordDataset(windows).take(rows).as_numpy_iterator())
    with tf.io.TFRecordWriter(windows) as writer:
        for record in first:
            writer.write(record)
    for name, is_sorted in ((_OURS, True), (_THEIRS, False)):
        batches = question_answering_dataset(
            data, batch_size=BATCH_SIZE, training=False, sort_by_length=is_sorted
        )
        _save(directory, name, batches)


def _save(directory: str, kind: str, batches: Iterable) -> None:
    for number, (x, y) in enumerate(batches):
        arrays = {name: value.numpy() for name, value in {**x, **y}.items()}
        np.savez(os.path.join(directory, f"{kind}-{number:04d}.npz"), **arrays)


def _convert(directory: str, preset: str) -> None:
    from spanbert_tf.conversion.convert import convert_checkpoint

    convert_checkpoint("keras", "huggingface", preset, os.path.join(directory, "theirs"))


def _run_child(name: str, directory: str, preset: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.question_answering", "--child", name]
    child = subprocess.run(
        [*command, directory, preset], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(child.stdout.splitlines()[-1])


def _child(name: str, directory: str, preset: str) -> None:
    train, predict = _our_steps(preset) if name == _OURS else _their_steps(directory)
    seconds = {}
    for part, kind in _PARTS.items():
        files = sorted(file for file in os.listdir(directory) if file.startswith(kind or name))
        batches = [dict(np.load(os.path.join(directory, file))) for file in files]
        step, passes = (train, 1) if part == "train" else (predict, PREDICTION_PASSES)
        seconds[part] = _time_passes(step, batches, passes)
    print(json.dumps(seconds))


def _time_passes(
    step: Callable[[dict], object], batches: Sequence[dict], count: int
) -> list[float]:
    for batch in (batches[0], batches[len(batches) // 2], batches[-1]):
        step(batch)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        for batch in batches:
            step(batch)
        seconds.append(time.perf_counter() - start)
    return seconds


def _our_steps(preset: str) -> tuple[Callable, Callable]:
    import tensorflow as tf

    from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer
    from spanbert_tf.question_answering.spans import best_spans
    from spanbert_tf.training import adamw

    model = SpanBertQuestionAnswerer(SpanBertBackbone.from_preset(preset))
    model.compile(optimizer=adamw(1e-6, warmup_steps=1, total_steps=10_000), jit_compile=False)

    def tensors(batch: dict) -> dict:
        return {name: tf.constant(value) for name, value in batch.items()}

    @tf.function(reduce_retracing=True)
    def train(batch: dict) -> tf.Tensor:
        return model.train_step((batch, batch))["loss"]

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
