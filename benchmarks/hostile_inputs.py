"""What small hostile inputs cost a command: its exit status, lines, seconds and memory.

    python -m benchmarks.hostile_inputs [--only "aliases of aliases"]

Each input is made here, and the real command reads it in a process of its own. What the same
command needs to refuse a harmless bad input is taken off its time and memory. Expected: status 2,
one line, less than 1 GiB and 20 seconds more.
"""

import functools
import gzip
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import click
import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.process_memory import GIBIBYTE

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the")
_SIZES = {"vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2}
_PRETRAIN = ("pretrain", "--config", "{input}", "--data", ".", "--output", "run")
_CONVERT = ("convert", "--from", "huggingface", "--to", "keras", "--lowercase", "{input}", "out")
_SQUAD = ("prepare", "squad", "--input", "{input}", "--vocabulary", "vocab.txt", "--output", "out")
_SEMEVAL = ("prepare", "semeval2010", *_SQUAD[2:])
_COREFERENCE = ("prepare", "coreference", *_SQUAD[2:])


class _Cost(NamedTuple):
    status: int
    num_lines: int
    seconds: float
    gibibytes: float  # of the largest process
    said: str  # the end of its last line: whether it was the input that it refused


def _aliases(path: pathlib.Path) -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    path.write_text("\n".join(lines))


def _bomb(path: pathlib.Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(700):
            file.write(bytes(1 << 22))


def _text(text: str) -> Callable[[pathlib.Path], object]:
    return lambda path: path.write_text(text)


def _checkpoint(path: pathlib.Path, *, content: dict | None = None, **files: str) -> None:
    """A checkpoint of Hugging Face's whose configuration and other files may be another's."""
    from safetensors.numpy import save_file

    path.mkdir()
    (path / "config.json").write_text(json.dumps(_SIZES | (content or {})))
    (path / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    save_file({"bert.x": np.zeros(2, "f4")}, path / "model.safetensors")
    for name, text in files.items():
        (path / f"{name}.json").write_text(text)


def _expanded_tensor(path: pathlib.Path) -> None:
    import torch

    _checkpoint(path)
    (path / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1).expand(1 << 16, 1 << 16)}, path / "pytorch_model.bin")


_SHOWN = 90
_DEEP = "[" * 100_000
_INPUTS = {  # name → command, what makes its input
    "aliases of aliases": (_PRETRAIN, _aliases),
    "60,000 digits": (_PRETRAIN, _text("training:\n  steps: " + "9" * 60_000)),
    "nested YAML": (_PRETRAIN, _text("a: " + _DEEP)),
    "2^31 layers": (
        _CONVERT,
        functools.partial(_checkpoint, content={"num_hidden_layers": 2**31}),
    ),
    "nested config.json": (_CONVERT, functools.partial(_checkpoint, config=_DEEP)),
    "nested tokenizer.json": (_CONVERT, functools.partial(_checkpoint, tokenizer=_DEEP)),
    "expanded tensor": (_CONVERT, _expanded_tensor),
    "gzip of 2.8 GiB": (_SQUAD, _bomb),
    "nested SQuAD": (_SQUAD, _text(_DEEP)),
    "SemEval's entities": (_SEMEVAL, _text('1\t"' + "<e1>a</e1>" * 1_500 + '"\nOther\n\n')),
    "CoNLL header of spaces": (_COREFERENCE, _text("#begin document (" + " " * 60_000 + "\n")),
}


@click.command(help=__doc__.splitlines()[0])
@click.option("--only", multiple=True, help="Names of inputs. [all]")
def main(only: tuple[str, ...]) -> None:
    """Prints a row of a table for each input."""
    print(describe_machine())
    print("| input | command | status | lines | seconds more | memory more | said |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    start_ups: dict[tuple[str, ...], _Cost] = {}
    for name, (command, make) in _INPUTS.items():
        if only and name not in only:
            continue
        if command not in start_ups:
            start_ups[command] = _cost(command, _harmless(command))
        cost, before = _cost(command, make), start_ups[command]
        print(
            f"| {name} | {' '.join(command[:2])} | {cost.status} | {cost.num_lines} | "
            f"{max(cost.seconds - before.seconds, 0):.1f} | "
            f"{max(cost.gibibytes - before.gibibytes, 0):.2f} GiB | {cost.said} |",
            flush=True,
        )


def _harmless(command: tuple[str, ...]) -> Callable[[pathlib.Path], object]:
    """What makes a harmless bad input of a command: a checkpoint without weights' names, or `x`."""
    return _checkpoint if command is _CONVERT else _text("x")


def _cost(command: tuple[str, ...], make: Callable[[pathlib.Path], object]) -> _Cost:
    """Runs a command on an input in a folder of its own, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
        path = place / ("input.json.gz" if make is _bomb else "input.json")
        make(path)
        arguments = [argument.format(input=path) for argument in command]
        with open(place / "stderr", "w+b") as errors:
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "spanbert_tf.cli", *arguments],
                cwd=place,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (300, 300)),
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines()
        code = os.waitstatus_to_exitcode(status)
        return _Cost(
            code, len(lines), seconds, usage.ru_maxrss / GIBIBYTE, "".join(lines[-1:])[-_SHOWN:]
        )


if __name__ == "__main__":
    main()
