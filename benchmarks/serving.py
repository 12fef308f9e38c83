"""Latency of the exported fill-mask model, beside the `transformers` pipeline in PyTorch.

    python -m benchmarks.serving --vocabulary vocab.txt [--requests 40] [--bfloat16]

A BERT of base shape with random weights is saved for `transformers`, converted, and exported. Each
request is one text with one [MASK], as a string; the answer is the five most probable fillings.
Each runs in a process of its own, in turns; the export as TF Serving runs it, in a Session. Goal:
at least 1.3 times as fast at p50 in float32.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import click

from benchmarks.machine import describe_machine

LENGTHS, ROUNDS, WARM_UP = (128, 384), 3, 5
_PRECISIONS = ("float32", "bfloat16")  # versions 1 and 2 of the export
_THEIRS = "transformers"


@click.command()
@click.option("--vocabulary", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--requests", default=40, show_default=True, help="For each length, in each round.")
@click.option("--bfloat16", is_flag=True, help="Export that, too.")
def main(vocabulary: str, requests: int, bfloat16: bool) -> None:
    precisions = _PRECISIONS if bfloat16 else _PRECISIONS[:1]
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        with open(vocabulary, encoding="utf-8") as file:
            pieces = file.read().splitlines()
        write_models(directory, pieces, precisions)
        texts = {length: write_texts(pieces, length, requests) for length in LENGTHS}
        with open(os.path.join(directory, "texts.json"), "w", encoding="utf-8") as file:
            json.dump(texts, file)
        seconds = _measure_in_turns(directory, [*precisions, _THEIRS])
    for length in LENGTHS:
        _show(length, {name: sorted(times[str(length)]) for name, times in seconds.items()})


def _show(length: int, seconds: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        slow = times[int(0.99 * (len(times) - 1))]
        print(
            f"{length} tokens, {name}: p50 {medians[name] * 1e3:.0f} ms, p99 {slow * 1e3:.0f} ms, "
            f"{len(times) / sum(times):.1f} requests/s, "
            f"{medians[_THEIRS] / medians[name]:.2f} times as fast as transformers at p50"
        )


def write_models(
    directory: str, pieces: list[str], precisions: Sequence[str], **shape: int
) -> None:
    """Writes `theirs` for `transformers` and `ours`, an export in each precision.

    Args:
        directory: where they are written.
        pieces: the vocabulary.
        precisions: of the versions of the export.
        shape: options of `BertConfig`; by default, base shape.
    """
    import torch
    import transformers

    from spanbert_tf.conversion.convert import convert_checkpoint
    from spanbert_tf.tasks.prediction import export_preset

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(pieces), **shape)
    model = transformers.BertForMaskedLM(config)
    torch.nn.init.normal_(model.cls.predictions.bias, std=0.02)  # as in a trained head
    source, preset = os.path.join(directory, "theirs"), os.path.join(directory, "preset")
    model.save_pretrained(source)
    with open(os.path.join(source, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in pieces)
    with open(os.path.join(source, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, file)
    convert_checkpoint("huggingface", "keras", source, preset)
    for version, precision in enumerate(precisions, start=1):
        ours = os.path.join(directory, "ours")
        export_preset(preset, ours, version=version, precision=precision)


def write_texts(pieces: list[str], length: int, count: int) -> list[str]:
    """Texts of so many tokens with [CLS] and [SEP], made of whole words of the vocabulary."""
    words = [piece for piece in pieces if piece.isascii() and piece.isalpha()]
    texts = []
    for number in range(count):
        chosen = [
            words[(number * 7919 + place * 104729) % len(words)] for place in range(length - 2)
        ]
        chosen[length // 2] = "[MASK]"
        texts.append(" ".join(chosen))
    return texts


def _measure_in_turns(directory: str, names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    seconds: dict[str, dict[str, list[float]]] = {}
    for _ in range(ROUNDS):
        for name in names:
            command = [sys.executable, "-m", "benchmarks.serving", "--child", name, directory]
            child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for length, values in json.loads(child.stdout.splitlines()[-1]).items():
                seconds.setdefault(name, {}).setdefault(length, []).extend(values)
    return seconds


def _measure(name: str, directory: str) -> None:
    answer = _pipeline(directory) if name == _THEIRS else _session(directory, name)
    with open(os.path.join(directory, "texts.json"), encoding="utf-8") as file:
        texts = json.load(file)
    seconds = {}
    for length, requests in texts.items():
        for text in requests[:WARM_UP]:
            answer(text)
        times = []
        for text in requests:
            start = time.perf_counter()
            answer(text)
            times.append(time.perf_counter() - start)
        seconds[length] = times
    print(json.dumps(seconds))


def _session(directory: str, precision: str) -> Callable[[str], object]:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its operations

    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        path = os.path.join(directory, "ours", str(1 + _PRECISIONS.index(precision)))
        graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
    signature = graph.signature_def["serving_default"]
    fetches = {name: manifest.name for name, manifest in signature.outputs.items()}
    return lambda text: session.run(fetches, {signature.inputs["texts"].name: [text]})


def _pipeline(directory: str) -> Callable[[str], object]:
    import transformers

    path = os.path.join(directory, "theirs")
    fill_mask = transformers.pipeline("fill-mask", model=path, tokenizer=path, top_k=5)
    return lambda text: fill_mask(text, tokenizer_kwargs={"truncation": True})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _measure(*sys.argv[2:])
    else:
        main()
