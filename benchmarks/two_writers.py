"""Two of each command at once on one output, with different inputs: one writes, the other is told.

    python -m benchmarks.two_writers [--pairs 20] [--only squad --only export] [--forked]

The second begins 0 to 2 seconds after the first, before it has ended; a pair whose first had ended
is taken again with half the delay ("late"). Of each pair one ends with 0; the other earlier, with 2
and one line that names the holder; beside the output nothing is left, and
it is by bytes what the winner writes alone. SavedModels, whose variables TensorFlow numbers by
chance, are compared by what they compute, `metrics.jsonl` and `metadata.json` without what a clock
says, and event files, whose names have a clock, are counted. Then a holder is killed by SIGKILL:
the next command writes the same and leaves nothing behind (of a run that goes on: but for
checkpoints and event files). Ctrl-C prints the table of what has been done. `--forked`: processes
begin as copies of one that has loaded TensorFlow, which takes most of a small command's time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import click

from benchmarks.damaged_records import write_all_records, write_other_sources, write_presets
from benchmarks.machine import describe_machine

_SETTINGS = "training.strategy=one_device training.batch_size=2 data.sequence_length=32"
_RUN = (
    f"{_SETTINGS} training.steps=4 training.schedule_steps=4 training.log_every=1 "
    "optimizer.warmup_steps=0 "
    "training.evaluate_every=2 training.evaluate_batches=1 training.checkpoint_every_steps=2"
)
_RECORDS = "--data {records}/pretraining --output {output}"
_TUNED = f"{_SETTINGS} training.epochs=2 training.precision=float32 training.seed={{seed}}"
_TUNED += " grid.learning_rates=[0.001,0.01] grid.batch_sizes=[2]"
_FINETUNE = (
    "finetune --config classification --preset {here}/encoder-preset --output {output} "
    "--data {records}/classification --validation-data {records}/classification"
)
_CLASSIFIER = "--preset {here}/text_classification-preset"
_PREPARE = {
    "pretraining": "text.txt",
    "squad": "squad.json --stride 8",
    "mrqa": "mrqa.jsonl --stride 8",
    "glue": "train.tsv --task rte",
    "classification": "texts.jsonl --text-column text --label-column label",
    "coreference": "documents.jsonlines",
    "tacred": "tacred.json",
    "semeval2010": "semeval.txt",
    "named_entities": "entities.jsonl --format jsonlines",
}
COMMANDS = {
    "vocabulary": "prepare vocabulary --vocabulary-size 400 "
    "--input {here}/words.txt --output {output}",
    **{
        name: f"prepare {name} --vocabulary {{here}}/vocab.txt --lowercase --sequence-length 32 "
        f"--output {{output}} --input {{here}}/{rest}"
        for name, rest in _PREPARE.items()
    },
    "repair": "prepare repair {records}/pretraining {output}",
    "convert": "convert --from keras --to huggingface {here}/encoder-preset {output}",
    "predict": f"predict {_CLASSIFIER} --input {{here}}/texts.jsonl --output {{output}}",
    "evaluate": f"evaluate {_CLASSIFIER} --data {{records}}/classification --report {{output}}",
    "inspect": "inspect {records}/pretraining --png {output} data.sequence_length=32 "
    "training.seed={seed}",
    "export": f"export {_CLASSIFIER} --output {{output}}",
    "submission": "glue {here} --submission {output}",
    "pretrain": f"pretrain --config spanbert_tiny {_RECORDS} {_RUN}",
    "finetune": f"{_FINETUNE} {_TUNED}",
    "grid": f"{_FINETUNE} --grid {_TUNED}",
    "compare": f"compare --configs spanbert_tiny {_RECORDS} --steps 2 --seeds {{seed}} {_SETTINGS}",
    "quickstart": "quickstart --input {here}/words.txt --output {output}",
}
_HELD = re.compile(r"is being written by spanbert-tf [\w ]+ \(process (\d+) on \S+, since 20")
_OF_A_CLOCK = re.compile(
    r'"\w*(second|input_wait|limit_share|time|memory|hours|duration|date)\w*": [^,}]*'
)
_OF_A_STOP, _NOTHING = re.compile(r"checkpoints/|events\.out"), re.compile("$^")
_SIDES = ("a", "b")
_LONGEST_DELAY, _SHORTEST_DELAY = 2.0, 0.01


def _command(line: str, errors: pathlib.Path) -> None:
    """A command from its beginning to its end, in a process of its own."""
    for stream, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    arguments = shlex.split(line)
    sys.argv[1:] = arguments  # what a worker of several begins anew with
    if arguments[0] == "quickstart":  # it has no options; its run is as small as the others'
        import spanbert_tf.config

        load = spanbert_tf.config.load_config
        spanbert_tf.config.load_config = lambda name: load(name, _RUN.split())
    from spanbert_tf.cli import main

    main(arguments)


class Place:
    """Inputs `a` and `b`, the records of each, and the folder of an output."""

    def __init__(self, root: pathlib.Path, *, forked: bool) -> None:
        self._root, self.folder, self.output = root, root / "outputs", root / "outputs" / "output"
        self.errors = {side: root / f"{side}-errors" for side in _SIDES}
        self._context = multiprocessing.get_context("fork" if forked else "spawn")
        self.folder.mkdir()
        _apart(_write_inputs, root)
        for side in _SIDES:
            for name in ("pretraining", "classification"):
                self.run(name, side)
                os.renames(self.output, root / f"{side}-records" / name)
                self.folder.mkdir()

    def start(self, name: str, side: str) -> multiprocessing.Process:
        """Begins a command of `COMMANDS` with the inputs of a side."""
        return self.start_line(COMMANDS[name], side)

    def start_line(self, line: str, side: str) -> multiprocessing.Process:
        """Begins a command that is written as those of `COMMANDS` are."""
        places = {"here": self._root / side, "records": self._root / f"{side}-records"}
        seed = _SIDES.index(side) + 1
        line = line.format(**places, output=self.output, seed=seed)
        line = re.sub(r" (?=\w+\.\w+=)", " --set ", line)
        process = self._context.Process(target=_command, args=(line, self.errors[side]), name=side)
        process.start()
        return process

    def run(self, name: str, side: str) -> float:
        """Runs a command that nothing disturbs; returns its seconds."""
        start = time.monotonic()
        process = self.start(name, side)
        process.join()
        if process.exitcode or os.listdir(self.folder) != [self.output.name]:
            errors = self.errors[side].read_text()
            raise RuntimeError(f"{name} ended with {process.exitcode}: {errors}")
        return time.monotonic() - start

    def take(self) -> dict[str, object]:
        """What the output holds and what is left beside it, see `_contents`; it is removed."""
        found = _contents(self.folder)
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        return found


def _apart(function: Callable, argument: object) -> object:
    """Calls a function in another process: no copy is made of one in which TensorFlow computed."""
    with multiprocessing.get_context("fork").Pool(1) as process:
        return process.apply(function, (argument,))


def _write_inputs(directory: pathlib.Path) -> None:
    """Small files for all commands in `a`, the same with other words in `b`, presets in both."""
    import keras

    first = directory / "a"
    first.mkdir()
    records = write_all_records(first)
    write_other_sources(first)
    files = {path.name: path.read_text() for path in first.glob("*.*")}
    others = {"cat": "dog", "dog": "cat", "ann": "cat", "\t0\n": "\t1\n"}
    for seed, side in enumerate(_SIDES):
        here = directory / side
        here.mkdir(exist_ok=True)
        for name, content in files.items():
            swapped = re.sub("|".join(others), lambda found: others[found[0]], content)
            (here / name).write_text(swapped if seed and name != "vocab.txt" else content)
        source = random.Random(seed)
        words = ["".join(source.choices("abcdefghijklmnop", k=6)) for _ in range(300)]
        text = (" ".join(source.choices(words, k=10)) for _ in range(1500))
        (here / "words.txt").write_text("".join(f"{one.capitalize()} .\n\n" for one in text))
        keras.utils.set_random_seed(seed)
        write_presets(here, records)


def _contents(folder: pathlib.Path) -> dict[str, object]:
    """Path → what of it two runs with the same inputs have in common."""
    found = collections.Counter()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if ".tfevents." in path.name:
            found[f"{os.path.dirname(name)}/events.out"] += 1
        elif path.name == "saved_model.pb":
            found[name] = _apart(_computed, path.parent)
        elif path.name in ("metrics.jsonl", "metadata.json"):
            found[name] = _OF_A_CLOCK.sub("", path.read_text())
        elif path.name != "fingerprint.pb" and path.parent.name != "variables":  # of a SavedModel
            found[name] = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()
    return dict(found)


def _computed(model: pathlib.Path) -> dict[str, list]:
    """What a SavedModel answers to fixed inputs."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the operations in the model)

    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    texts = tf.constant(["the cat sees [MASK] .", "the dog [MASK]"])
    inputs = dict.fromkeys(signature.structured_input_signature[1], texts)
    return {key: one.numpy().tolist() for key, one in signature(**inputs).items()}


@dataclasses.dataclass
class _Row:
    """A command: what it writes alone, in how many seconds, and what was seen of it."""

    alone: dict[str, dict[str, object]]
    seconds: float
    told: list[float] = dataclasses.field(default_factory=list)
    late: int = 0
    winners: list[str] = dataclasses.field(default_factory=list)
    left: list[bool] = dataclasses.field(default_factory=list)
    wrong: int = 0


def _pair(place: Place, name: str, delay: float, row: _Row) -> list[str]:
    """Runs two at once; what is wrong."""
    first = place.start(name, "a")
    time.sleep(delay)
    begun = [time.monotonic() - delay, time.monotonic()]
    both = [first, place.start(name, "b")]
    ready = multiprocessing.connection.wait([process.sentinel for process in both])
    first_end = time.monotonic()
    for process in both:
        process.join()
    winner, loser = sorted(both, key=lambda process: process.exitcode)
    errors = place.errors[loser.name].read_text()
    if delay and winner is first and loser.sentinel not in ready and "exists already" in errors:
        row.late += 1
        place.take()
        return _pair(place, name, delay / 2 if delay > _SHORTEST_DELAY else 0, row)
    row.winners.append(winner.name)
    row.told.append(first_end - begun[both.index(loser)])
    wrong = _compared(place, row.alone[winner.name], _NOTHING)
    if (winner.exitcode, loser.exitcode) != (0, 2) or loser.sentinel not in ready:
        wrong.append(f"ended with {winner.exitcode} and, not earlier, {loser.exitcode}")
    found = _HELD.search(errors)
    if found is None or int(found[1]) != winner.pid or errors.count("\n") != 1:
        wrong.append(f"was told {errors!r}, not of {winner.pid}")
    return wrong


def _kill(place: Place, name: str, moment: float, row: _Row) -> list[str]:
    """Kills a command and runs it again; what is wrong."""
    killed = place.start(name, "a")
    killed.join(moment)
    killed.kill()
    killed.join()
    row.left.append(any(place.folder.iterdir()))
    if killed.exitcode != -signal.SIGKILL:  # it was quicker this time
        row.left.pop()
        place.take()
        return _kill(place, name, moment / 2, row)
    place.run(name, "a")
    return _compared(place, row.alone["a"], _OF_A_STOP)


def _compared(place: Place, alone: dict[str, object], apart: re.Pattern) -> list[str]:
    """What lies there otherwise than a command alone leaves it."""
    found = place.take()
    names = [name for name in sorted(found.keys() | alone.keys()) if not apart.search(name)]
    return [f"{name} differs" for name in names if found.get(name) != alone.get(name)]


def _take_turn(
    place: Place, name: str, rows: dict[str, _Row], source: random.Random, *, kills: bool
) -> None:
    if name not in rows:
        alone = {side: (place.run(name, side), place.take()) for side in _SIDES}
        contents = {side: found for side, (_, found) in alone.items()}
        assert contents["a"] != contents["b"], f"{name} writes the same from both inputs"
        rows[name] = _Row(contents, min(seconds for seconds, _ in alone.values()))
    row, share, part = rows[name], source.random(), source.uniform(0.1, 0.9)
    delay, moment = share * min(_LONGEST_DELAY, 0.8 * row.seconds), part * row.seconds
    wrong = [f"second after {delay:.2f} s: {odd}" for odd in _pair(place, name, delay, row)]
    if kills:
        wrong += [f"killed after {moment:.2f} s: {odd}" for odd in _kill(place, name, moment, row)]
    row.wrong += len(wrong)
    for odd in wrong:
        print(f"{name}: {odd}", flush=True)


def _print_table(rows: dict[str, _Row]) -> None:
    print("command          alone  pairs  late  won by 2nd  told: median, most  kills  left  wrong")
    for name, row in rows.items():
        print(
            f"{name:15}{row.seconds:5.1f} s{len(row.told):7}{row.late:6}{row.winners.count('b'):12}"
            f"{statistics.median(row.told or [0]):8.2f} s{max(row.told or [0]):7.2f} s"
            f"{len(row.left):7}{sum(row.left):6}{row.wrong:7}"
        )


@click.command()
@click.option("--pairs", default=20, show_default=True, help="Of each; every tenth time, a kill.")
@click.option("--only", multiple=True, type=click.Choice(list(COMMANDS)), help="[all]")
@click.option("--forked", is_flag=True, help="From a process that has loaded TensorFlow.")
def main(pairs: int, only: tuple[str, ...], forked: bool) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, too
    print(describe_machine(), flush=True)
    if forked:
        import keras  # noqa: F401
        import tensorflow  # noqa: F401
    rows, source = {}, random.Random(0)
    with tempfile.TemporaryDirectory() as directory, contextlib.suppress(KeyboardInterrupt):
        place = Place(pathlib.Path(directory), forked=forked)
        try:
            for number in range(pairs):
                for name in only or COMMANDS:
                    _take_turn(place, name, rows, source, kills=number % 10 == 0)
        finally:
            _print_table(rows)


if __name__ == "__main__":
    main()
