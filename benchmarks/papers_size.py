"""Every command on a model of SpanBERT large's size, beside `transformers` and PyTorch.

    python -m benchmarks.papers_size [--only REGEX …] [--directory DIR] [--layers 24] [--width 1024]

Weights are random (`transformers` draws them), rows are full, steps have 2 of them, in float32.
Each row of the table is a process of its own, one after another: seconds of the clock and of the
processor from its start to its end, memory at its peak as the kernel counts it (`ru_maxrss`, mapped
files included), and the size of what it wrote. Below it stand what it tells of itself: seconds to
the first step, of the fastest step after that one, and the longest for which a save kept the
training waiting; then the peer's row. What another row reads is made first, and is made once; with
`--directory` it stays there, and rows that `--only` names are run again. The whole needs about 40
GB on the disk.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import click

from benchmarks.machine import describe_machine
from benchmarks.papers_size_programs import FACTS, Size, write_inputs

# ruff: noqa: E501 - a row a line

ROOT = pathlib.Path(__file__).parents[1]
_SETTINGS = """training.batch_size=2 training.precision=float32 training.strategy=one_device
    training.log_every=1 training.max_checkpoints=1 data.sequence_length={length}"""
_PRETRAIN = f"""pretrain --config spanbert_large --data @records --output {{output}} --set
    model.num_layers={{layers}} model.hidden_dim={{width}} model.num_heads={{heads}}
    model.intermediate_dim={{inner}} model.max_sequence_length={{length}} {_SETTINGS}
    training.evaluate_batches=1 training.schedule_steps=100 optimizer.warmup_steps=10"""
_TUNE = f"finetune --preset @from_huggingface --output {{output}} --set {_SETTINGS}"
_OF_RECORDS = "--vocabulary inputs/vocab.txt --sequence-length {length} --output {output}"
_SIZES = "{layers} {width} {vocabulary} {length}"
_GOES_ON = {"resume": "pretrain"}  # row → whose output it begins with
_PEER = ".peer"  # ends the name of what a peer writes
_GIGABYTE = 1e9


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: also of what it writes, `{output}`.
        command: of `spanbert-tf`, or after `!` a program of `papers_size_programs`; `@` stands
            before the names of rows whose outputs it reads.
        peer: a program.
    """

    name: str
    command: str
    peer: str | None = None

    def reads(self) -> set[str]:
        """Names of the rows whose outputs it needs."""
        return {*re.findall(r"@(\w+)", self.command)} | {*filter(None, [_GOES_ON.get(self.name)])}


class Cost(NamedTuple):
    """What a process took, and what it told of itself."""

    seconds: float
    processor: float
    peak: int  # bytes
    written: int
    facts: dict[str, float]


# fmt: off
_ROWS = (  # in the order of running
    Row("records", f"prepare pretraining --input inputs/text*.txt {_OF_RECORDS} --validation-fraction 0.2"),
    Row("squad", f"prepare squad --input inputs/squad.json {_OF_RECORDS}"),
    Row("documents", f"prepare coreference --input inputs/coreference.jsonlines --max-training-segments 3 {_OF_RECORDS}"),
    Row("from_huggingface", "convert --from huggingface --to keras huggingface {output}", "torch_convert huggingface {output}"),
    Row("from_fairseq", "convert --from fairseq --to keras --cased fairseq {output}"),
    Row("to_huggingface", "convert --from keras --to huggingface @from_fairseq {output}"),
    Row("to_tf1", "convert --from keras --to tf1 @from_fairseq {output}"),
    Row("to_keras_bert", "convert --from keras --to keras_bert @from_fairseq {output}"),
    Row("from_tf1", "convert --from tf1 --to keras --cased @to_tf1 {output}"),
    Row("from_keras_bert", "convert --from keras --to keras @to_keras_bert {output}"),
    Row("tf1_to_huggingface", "convert --from tf1 --to huggingface --cased @to_tf1 {output}"),
    Row("huggingface_to_tf1", "convert --from huggingface --to tf1 huggingface {output}"),
    Row("fairseq_to_huggingface", "convert --from fairseq --to huggingface --cased fairseq {output}"),
    Row("load", "!load @from_huggingface", "torch_load huggingface"),
    Row("fill_masks", "predict --preset @from_huggingface --input inputs/masked.jsonl --output {output}"),
    Row("export_masked", "export --preset @from_huggingface --output {output}"),
    Row("pretrain", f"{_PRETRAIN} training.steps=3", f"torch_pretrain {{output}} {_SIZES}"),
    Row("resume", f"{_PRETRAIN} training.steps=4", f"torch_resume {{output}} {_SIZES}"),
    Row("accumulate", f"{_PRETRAIN} training.steps=3 training.accumulation_steps=2"),
    Row(
        "gradient_checkpointing",
        f"{_PRETRAIN} training.steps=3 training.gradient_checkpointing=true",
    ),
    Row("tune", f"{_TUNE} training.max_steps=3 --config squad_v1 --data @squad", "torch_finetune huggingface {length} {output}"),
    Row("tune_lora", f"{_TUNE} training.max_steps=3 optimizer.lora_rank=8 --config squad_v1 --data @squad", "torch_finetune huggingface {length} {output} lora"),
    Row("predict", "predict --preset @tune/preset --data @squad --output {output}", "torch_predict huggingface {length} 4"),
    Row("evaluate", "evaluate --preset @tune/preset --data @squad"),
    Row("export", "export --preset @tune/preset --output {output}"),
    Row("tune_resolver", f"{_TUNE} training.max_steps=2 training.batch_size=1 --config coreference_spanbert_large --data @documents"),
    Row("resolve", "predict --preset @tune_resolver/preset --data @documents --output {output}"),
)
# fmt: on
ROWS = {row.name: row for row in _ROWS}


@click.command()
@click.option("--only", multiple=True, metavar="REGEX", help="Rows by their names.  [all]")
@click.option("--directory", type=click.Path(path_type=pathlib.Path), help="Kept afterwards.")
@click.option("--layers", default=24, show_default=True)
@click.option("--width", default=1024, show_default=True)
@click.option("--vocabulary", default=28_996, show_default=True)
@click.option("--length", default=512, show_default=True)
def main(only: tuple[str, ...], directory: pathlib.Path | None, **sizes: int) -> None:
    named = [name for name in ROWS if not only or any(re.fullmatch(each, name) for each in only)]
    if not named:
        raise click.BadParameter(f"no row is called so; there are {', '.join(ROWS)}")
    print(describe_machine(("tensorflow", "keras", "torch", "transformers")))
    with tempfile.TemporaryDirectory() as temporary:
        place = directory or pathlib.Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        runs = _Runs(place.absolute(), Size(**sizes))
        print(f"{'':24}{'clock':>9}{'CPU':>9}{'peak':>11}{'written':>11}")
        for name in named:
            runs.show(name)


class _Runs:
    """Runs rows, each once, and before them those whose outputs they read."""

    def __init__(self, directory: pathlib.Path, size: Size) -> None:
        self._directory = directory
        self._values = dataclasses.asdict(size) | {"heads": size.heads, "inner": 4 * size.width}
        self._shown: set[str] = set()
        if not (directory / "inputs").exists():
            write_inputs(directory / "inputs", size)
        if not (directory / "huggingface").exists():
            self._measured(f"make {_SIZES}", "huggingface")

    def show(self, name: str) -> None:
        """Prints the lines of a row."""
        if name in self._shown:
            return
        self._shown.add(name)
        row = ROWS[name]
        for needed in row.reads():
            if not (self._directory / needed).exists():
                self.show(needed)
        self._begin(name)
        is_ours = not row.command.startswith("!")
        program = f"command {row.command}" if is_ours else row.command[1:]
        _print_cost(name, self._measured(program, name))
        if row.peer:
            self._begin(name, _PEER)
            _print_cost("  transformers", self._measured(row.peer, name + _PEER))

    def _begin(self, name: str, ending: str = "") -> None:
        """Removes what an earlier run wrote; a row that goes on gets links to what it begins with."""
        output = self._directory / (name + ending)
        if output.is_file():  # predictions
            output.unlink()
        shutil.rmtree(output, ignore_errors=True)
        if name in _GOES_ON:
            begun = self._directory / (_GOES_ON[name] + ending)
            shutil.copytree(begun, output, copy_function=os.link)

    def _measured(self, program: str, output: str) -> Cost:
        """Runs a program of `papers_size_programs` in the directory."""
        words = program.replace("@", "").format(output=output, **self._values).split()
        command = [sys.executable, "-m", "benchmarks.papers_size_programs", *words]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # ours and the peers' as installed
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(
                command, cwd=self._directory, env=environment, stdout=said, stderr=said
            )
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.monotonic() - start
            said.seek(0)
            lines = said.read().splitlines()
        if status:
            raise click.ClickException("\n".join([" ".join(words), *lines[-20:]]))
        facts = [json.loads(line.removeprefix(FACTS)) for line in lines if line.startswith(FACTS)]
        return Cost(
            seconds,
            usage.ru_utime + usage.ru_stime,
            1024 * usage.ru_maxrss,
            _size(self._directory / output),
            facts[-1] if facts else {},
        )


def _size(path: pathlib.Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _print_cost(name: str, cost: Cost) -> None:
    gigabytes = (f"{number / _GIGABYTE:8.2f} GB" for number in (cost.peak, cost.written))
    told = "".join(f"  {what} {seconds:.1f} s" for what, seconds in cost.facts.items())
    times = f"{cost.seconds:7.1f} s{cost.processor:7.1f} s"
    print(f"{name:24}{times}{''.join(gigabytes)}{told}", flush=True)


if __name__ == "__main__":
    main()
