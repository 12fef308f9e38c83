"""What named entities reach, beside `transformers`, from the same encoder.

    python -m benchmarks.named_entities --format crossre --train FILE --dev FILE --preset PRESET

Both read the words and labels of the same records, and train as long with the same batch size,
rate, schedule, weight decay and clipping, in float32, on one thread: here by `spanbert-tf
finetune`, there by a loop of PyTorch over `BertForTokenClassification`, whose labels stand on the
first piece of each word. Batches here have rows of similar length, there any rows, padded to the
longest. Each run is a process of its own and prints a line of JSON; then come the means and
deviations over the seeds. Scores are `seqeval`'s, strict, over the words. Goal: no worse than
`transformers`.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import click

from benchmarks.machine import describe_machine

BATCH_SIZE, RATE, WEIGHT_DECAY, WARMUP = 16, 2e-4, 0.01, 0.1
_HERE, _THEIRS = "here", "transformers"
_CHILD = "--child"
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


@click.command()
@click.option("--format", "file_format", default="crossre", show_default=True)
@click.option("--train", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--dev", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--preset", required=True, help="Of an encoder.")
@click.option("--epochs", default=7, show_default=True)
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--systems", default=f"{_HERE},{_THEIRS}", show_default=True)
@click.option("--set", "settings", multiple=True, help="Further settings of the runs here.")
def main(
    file_format: str,
    train: str,
    dev: str,
    preset: str,
    epochs: int,
    seeds: str,
    systems: str,
    settings: tuple[str, ...],
) -> None:
    print(describe_machine(("tensorflow", "torch", "transformers")), flush=True)
    numbers = [int(seed) for seed in seeds.split(",")]
    names = systems.split(",")
    with tempfile.TemporaryDirectory() as directory:
        _prepare(directory, preset, file_format, {"train": train, "dev": dev})
        if _THEIRS in names:
            _convert(directory, preset)
        scores: dict[str, list[float]] = {name: [] for name in names}
        for seed in numbers:
            for name in names:
                if name == _HERE:
                    found = _run_here(directory, preset, epochs, seed, settings)
                else:
                    found = _run_there(directory, epochs, seed)
                scores[name].append(found["f1"])
                print(json.dumps({"system": name, "seed": seed, **found}), flush=True)
    for name, values in scores.items():
        deviation = statistics.stdev(values) if len(values) > 1 else math.nan
        print(f"{name}: F1 {statistics.mean(values):.2f}, deviation {deviation:.2f}, {values}")
    if len(scores) == 2:
        difference = statistics.mean(scores[_HERE]) - statistics.mean(scores[_THEIRS])
        print(f"here beside {_THEIRS}: {difference:+.2f} (goal: at least 0)")


def _prepare(directory: str, preset: str, file_format: str, files: dict[str, str]) -> None:
    from spanbert_tf.models import SpanBertTokenizer
    from spanbert_tf.tasks.named_entities.rows import READERS, write_entities

    tokenizer = SpanBertTokenizer.from_preset(preset)
    vocabulary = os.path.join(directory, "vocab.txt")
    with open(vocabulary, "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in tokenizer.get_vocabulary())
    for name, path in files.items():
        write_entities(
            READERS[file_format](path),
            os.path.join(directory, name),
            vocabulary=vocabulary,
            lowercase=tokenizer.lowercase,
        )


def _convert(directory: str, preset: str) -> None:
    from spanbert_tf.conversion.convert import convert_checkpoint

    convert_checkpoint("keras", "huggingface", preset, os.path.join(directory, "theirs"))


def _run_here(
    directory: str, preset: str, epochs: int, seed: int, settings: tuple[str, ...]
) -> dict[str, float]:
    output = os.path.join(directory, f"run{seed}")
    command = [sys.executable, "-m", "spanbert_tf.cli", "finetune", "--config", "named_entities"]
    command += ["--preset", preset, "--output", output]
    command += ["--data", os.path.join(directory, "train")]
    command += ["--validation-data", os.path.join(directory, "dev"), "--set"]
    command += [f"training.seed={seed}", f"training.epochs={epochs}"]
    command += [f"training.batch_size={BATCH_SIZE}", f"optimizer.learning_rate={RATE}"]
    command += [f"optimizer.weight_decay={WEIGHT_DECAY}", f"optimizer.warmup_fraction={WARMUP}"]
    command += ["training.precision=float32", "training.keep_best=false"]
    command += ["training.evaluations_per_epoch=0", "training.keep_checkpoints=false", *settings]
    environment = {**os.environ, **_ENVIRONMENT}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    with open(os.path.join(output, "scores.json"), encoding="utf-8") as file:
        return json.load(file)


def _run_there(directory: str, epochs: int, seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.named_entities", _CHILD]
    command += [directory, str(epochs), str(seed)]
    environment = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _train_there(directory: str, epochs: int, seed: int) -> None:
    """Trains and scores the peer; prints its scores."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    path = os.path.join(directory, "theirs")
    rows, labels = _peer_rows(directory, path, "train")
    model = transformers.BertForTokenClassification.from_pretrained(path, num_labels=len(labels))
    no_decay = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-8)
    num_steps = epochs * -(-len(rows) // BATCH_SIZE)
    warmup = int(WARMUP * num_steps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, num_steps)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(rows)).tolist()
        for first in range(0, len(rows), BATCH_SIZE):
            batch = _peer_batch([rows[number] for number in order[first : first + BATCH_SIZE]])
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    print(json.dumps(_peer_scores(model, directory, path, labels)))


def _peer_rows(
    directory: str, path: str, split: str, labels: list[str] | None = None
) -> tuple[list[dict], list[str]]:
    """Rows of `transformers`' tokenizer with the labels of words, and the names of the labels."""
    import transformers

    with open(os.path.join(directory, split, "sentences.jsonl"), encoding="utf-8") as file:
        sentences = [json.loads(line) for line in file]
    if labels is None:
        labels = sorted({label for sentence in sentences for label in sentence["labels"]})
    tokenizer = transformers.BertTokenizerFast.from_pretrained(path)
    rows = []
    for sentence in sentences:
        words = [sentence["text"][start:end] for start, end in sentence["words"]]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=512)
        word_of_piece = encoded.word_ids()
        first_pieces = {}
        for piece, word in enumerate(word_of_piece):
            if word is not None:
                first_pieces.setdefault(word, piece)
        targets = [-100] * len(word_of_piece)
        for word, piece in first_pieces.items():
            label = sentence["labels"][word]
            targets[piece] = labels.index(label) if label in labels else -100
        rows.append(
            {
                "input_ids": encoded["input_ids"],
                "targets": targets,
                "gold": sentence["labels"],
                "first_pieces": [first_pieces.get(word) for word in range(len(words))],
            }
        )
    return rows, labels


def _peer_batch(rows: list[dict]) -> dict:
    import torch

    width = max(len(row["input_ids"]) for row in rows)

    def padded(name: str, filler: int) -> "torch.Tensor":
        return torch.tensor([row[name] + [filler] * (width - len(row[name])) for row in rows])

    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return {
        "input_ids": padded("input_ids", 0),
        "attention_mask": mask,
        "labels": padded("targets", -100),
    }


def _peer_scores(model: object, directory: str, path: str, labels: list[str]) -> dict[str, float]:
    import torch

    from spanbert_tf.tasks.named_entities.metrics import score_labels

    rows, _ = _peer_rows(directory, path, "dev", labels)
    by_length = sorted(range(len(rows)), key=lambda number: len(rows[number]["input_ids"]))
    predicted: dict[int, list[str]] = {}
    for first in range(0, len(rows), 32):
        numbers = by_length[first : first + 32]
        batch = _peer_batch([rows[number] for number in numbers])
        with torch.inference_mode():
            found = model(**batch).logits.argmax(-1).tolist()
        for number, of_pieces in zip(numbers, found, strict=True):
            pieces = rows[number]["first_pieces"]
            predicted[number] = ["O" if p is None else labels[of_pieces[p]] for p in pieces]
    gold = [row["gold"] for row in rows]
    return score_labels(gold, [predicted[number] for number in range(len(rows))])[0]


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        _train_there(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
