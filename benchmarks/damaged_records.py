"""Damages records of each kind in every way of a list, and counts how the commands fare.

    python -m benchmarks.damaged_records

Each value of each description is left out or replaced by others; each file is removed, emptied,
cut, loses, doubles or swaps lines, or becomes a directory, a pipe or a link to `/dev/zero`; and of
one record each feature is damaged inside of right checksums. A command may refuse with one line
that is meant for the user, or end well. It may not end in another exception, or take longer than a
minute.
"""

import collections
import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping

import click
import numpy as np

from benchmarks.fuzzed_files import Reader
from benchmarks.fuzzing import outcome_of, raise_too_slow
from spanbert_tf.data.examples import Stored, named_damage
from spanbert_tf.data.manifest import DATASET_INFO_FILE, PretrainingManifest
from spanbert_tf.data.tfrecords import read_records, record_writer
from spanbert_tf.files.contents import sha256

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "[unused2]", "[unused3]")
_WORDS += tuple(f"[unused{number}]" for number in range(4, 11))
_WORDS += ("the", "cat", "dog", "sees", "##s", ".", "ann")
_LENGTH = 32
_MISSING = object()
_VALUES = (_MISSING, None, "x", "../x", "/dev/zero", 0, 3, -1, 2**70, float("nan"), [1], {"x": 1})
CONFIGURATIONS = {  # records → the configuration that trains on them, and what is set beside
    "question_answering": ("squad_v1", "data.stride=8"),
    "text_classification": ("classification",),
    "regression": ("classification",),
    "named_entities": ("named_entities",),
    "relation_extraction": ("tacred",),
    "coreference": ("coreference_small", "data.max_training_segments=44"),
}

Damage = Callable[[pathlib.Path], None]


def write_all_records(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Writes tiny records of each kind with `prepare`; their names and directories.

    Args:
        directory: an empty directory.
    """
    from data_prep.cli import prepare

    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in _WORDS))
    written = {}
    for name, (command, source, *options) in _sources(directory).items():
        written[name] = directory / name
        arguments = [command, "--input", str(source), "--output", str(written[name])]
        arguments += ["--vocabulary", str(vocabulary), "--sequence-length", str(_LENGTH)]
        arguments += ["--lowercase", *options]
        with contextlib.redirect_stdout(io.StringIO()):
            prepare.main(arguments, standalone_mode=False)
    return written


def _sources(directory: pathlib.Path) -> dict[str, tuple]:
    """For each kind of records the command of `prepare`, its input and options."""
    text = directory / "text.txt"
    text.write_text("the cats see. ann sees the dog.\n\nthe dog sees ann. the cat.\n\n" * 40)
    context = "the cat sees the dog . ann sees cats . " * 3
    answer = {"text": "dog", "answer_start": context.index("dog")}
    entries = [{"id": str(n), "question": "the dog", "answers": [answer]} for n in range(4)]
    passages = [{"context": context, "qas": entries[:2]}]
    passages += [{"context": f"{context}ann .", "qas": entries[2:]}]
    squad = directory / "squad.json"
    squad.write_text(json.dumps({"data": [{"title": "t", "paragraphs": passages}]}))
    texts = [{"text": f"the cat {'sees ' * n}.", "label": f"l{n % 2}", "n": n} for n in range(4)]
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    entities = [
        {"id": str(n), "text": f"ann sees {'the ' * n}", "entities": spans} for n in range(4)
    ]
    places = {"subj_start": 0, "subj_end": 0, "obj_start": 2, "obj_end": 2}
    types = {"subj_type": "PERSON", "obj_type": "ANIMAL"}
    relations = [
        {"id": str(n), "token": ["ann", "sees", "cats", *["."] * n], **places, **types}
        | {"relation": ("no_relation", "sees")[n % 2]}
        for n in range(4)
    ]
    tacred = directory / "tacred.json"
    tacred.write_text(json.dumps(relations))
    words = ["ann", "sees", "the", "cat", ".", "the", "cat", "sees", "ann", "."]
    clusters = [[[0, 0], [8, 8]], [[2, 3], [5, 6]]]
    documents = [
        {"doc_key": f"nw/{n}_0", "sentences": [words[:5], words[5:]], "clusters": clusters}
        | {"speakers": [["-"] * 5, ["-"] * 5]}
        for n in range(4)
    ]
    columns = ("--text-column", "text", "--label-column")
    return {
        "pretraining": ("pretraining", text),
        "question_answering": ("squad", squad, "--stride", "8"),
        "text_classification": ("classification", _lines(directory, texts), *columns, "label"),
        "regression": ("classification", directory / "texts.jsonl", *columns, "n", "--regression"),
        "named_entities": (
            "named_entities",
            _lines(directory, entities, "entities"),
            "--format",
            "jsonlines",
        ),
        "relation_extraction": ("tacred", tacred),
        "coreference": ("coreference", _lines(directory, documents, "documents", "jsonlines")),
    }


def write_other_sources(directory: pathlib.Path) -> None:
    """Writes tiny inputs of the commands that `write_all_records` does not call.

    Args:
        directory: gets `mrqa.jsonl`, `semeval.txt`, GLUE's `train.tsv` of RTE, and `WNLI.tsv`, as
            predicted for its test set.
    """
    text, place = "the cat sees the dog", {"text": "cat", "char_spans": [[4, 6]]}
    question = {"qid": "1", "question": "the dog", "answers": ["cat"], "detected_answers": [place]}
    _lines(directory, [{"header": {}}, {"context": text, "qas": [question]}], "mrqa")
    marked = '\t"The <e1>cat</e1> sees <e2>dog</e2>."\nEntity-Destination(e1,e2)\nComment:\n\n'
    (directory / "semeval.txt").write_text("".join(f"{n}{marked}" for n in range(1, 5)))
    rows = "".join(f"{n}\t{text}\t{'the cat ' * n}\tentailment\n" for n in range(1, 5))
    (directory / "train.tsv").write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
    predicted = "".join(f"{n}\t{n % 2}\n" for n in range(146))  # as many texts as the set has
    (directory / "WNLI.tsv").write_text(f"index\tprediction\n{predicted}")


def _lines(
    directory: pathlib.Path, values: list, name: str = "texts", ending: str = "jsonl"
) -> pathlib.Path:
    path = directory / f"{name}.{ending}"
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def write_presets(directory: pathlib.Path, records: dict[str, pathlib.Path]) -> dict[str, str]:
    """A tiny untrained model that says it is trained for each task, and the `encoder` of all.

    Args:
        directory: where the presets are written.
        records: what `write_all_records` returned.
    """
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
    from spanbert_tf.presets.writing import write_preset
    from spanbert_tf.tasks.lookup import open_records, task_of_records
    from spanbert_tf.tasks.table import load_task_config

    backbone = SpanBertBackbone(len(_WORDS), 1, 2, 8, 8, max_sequence_length=_LENGTH)
    tokenizer = SpanBertTokenizer(list(_WORDS), lowercase=True)
    presets = {"encoder": str(directory / "encoder-preset")}
    write_preset(backbone, presets["encoder"], tokenizer=tokenizer)
    for name, (config, *_) in CONFIGURATIONS.items():
        task = task_of_records(str(records[name]))
        manifest = open_records(str(records[name])).manifest
        model = task.build(backbone, tokenizer, manifest, load_task_config(config))
        model.is_head_trained = True
        presets[name] = str(directory / f"{name}-preset")
        write_preset(model, presets[name])
    return presets


def commands(
    name: str, directory: pathlib.Path, presets: dict[str, str], output: pathlib.Path
) -> dict[str, Reader]:
    """What reads records of a kind, each as its command does.

    Args:
        name: kind of the records.
        directory: where they lie.
        presets: what `write_presets` returned.
        output: directory for runs, which may be there.
    """
    from spanbert_tf.data import pretraining_dataset
    from spanbert_tf.tasks.evaluation import run_evaluation
    from spanbert_tf.tasks.finetuning import run_finetuning
    from spanbert_tf.tasks.inspection import inspect_records
    from spanbert_tf.tasks.lookup import task_of_records
    from spanbert_tf.tasks.prediction import run_prediction
    from spanbert_tf.tasks.table import load_task_config

    data, run = str(directory), str(output / "run")

    def train() -> None:  # all that `pretrain` reads of records, without a model
        with named_damage(lambda: PretrainingManifest.load(data).damage(data)):
            next(iter(pretraining_dataset(data, batch_size=2)))
            next(iter(pretraining_dataset(data, batch_size=2, split="validation")))

    def inspect() -> None:
        inspect_records(data, "spanbert_base", num_examples=2)

    if name == "pretraining":
        return {"dataset": train, "inspect": inspect}
    found = {"inspect": inspect}
    preset = presets[name]
    small = ["training.batch_size=2", "training.precision=float32", "training.epochs=1"]
    shipped, *settings = CONFIGURATIONS[name]
    config = load_task_config(shipped, [*small, f"data.sequence_length={_LENGTH}", *settings])

    def finetune() -> None:
        shutil.rmtree(run, ignore_errors=True)
        run_finetuning(config, presets["encoder"], data, run, data)

    if task_of_records(data).baseline is not None:
        found["baseline"] = lambda: run_evaluation(None, [data])
    report = str(output / "report.html")
    has_report = task_of_records(data).report is not None
    found["evaluate"] = lambda: run_evaluation(
        preset, [data], report=report if has_report else None, overwrite=True
    )
    predictions = str(output / f"{name}-predictions")
    found["predict"] = lambda: run_prediction(preset, data, predictions, overwrite=True)
    found["finetune"] = finetune
    return found


def leaves(value: object) -> Iterator[tuple[dict | list, str | int]]:
    """Each place of a JSON value, as (object or list, key or index)."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(entries):
        yield value, key
        if isinstance(inner, dict | list):
            yield from leaves(inner)


def damaged_descriptions(text: str) -> Iterator[tuple[str, str]]:
    """A description with each value in turn left out or replaced: what was done, its text."""
    count = len(list(leaves(json.loads(text))))
    for place in range(count):
        for value in _VALUES:
            document = json.loads(text)
            owner, key = list(leaves(document))[place]
            if value is _MISSING:
                del owner[key]
            elif owner[key] == value:
                continue
            else:
                owner[key] = value
            done = "is left out" if value is _MISSING else f"is {json.dumps(value)}"
            yield f"{key} {done}", json.dumps(document)


def _with_lines(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    def damage(path: pathlib.Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return damage


def _replaced(make: Callable[[pathlib.Path], object]) -> Damage:
    def damage(path: pathlib.Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGES: dict[str, Damage] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a line lost": _with_lines(lambda lines: [*lines[:1], *lines[2:]] if lines[1:] else [b""]),
    "a line doubled": _with_lines(lambda lines: [*lines, lines[-1]]),
    "lines swapped": _with_lines(lambda lines: [*lines[1:], lines[0]] if lines[1:] else [b" "]),
    "a directory": _replaced(pathlib.Path.mkdir),
    "a pipe": _replaced(os.mkfifo),
    "a link to /dev/zero": _replaced(lambda path: path.symlink_to("/dev/zero")),
}


def damaged_files(directory: pathlib.Path) -> Iterator[tuple[str, Damage]]:
    """Each file of a directory with each damage: what is done, and what does it."""
    for name in sorted(os.listdir(directory)):
        for kind, damage in DAMAGES.items():
            yield f"{name}: {kind}", lambda copy, name=name, damage=damage: damage(copy / name)


def change_record(
    directory: pathlib.Path, change: Callable[[bytes], bytes], number: int = 1
) -> pathlib.Path:
    """Changes a record, and has all checksums and the description say what is there then.

    Args:
        directory: records of any kind.
        change: makes another record of one.
        number: which record of the first file.

    Returns:
        The file.
    """
    path = min(directory.glob("*.tfrecord"))
    records = [record for record, _ in read_records(str(path))]
    records[number] = change(records[number])
    with record_writer(str(path)) as write:
        for record in records:
            write(record)
    (description,) = directory.glob("*_info.json")
    manifest = json.loads(description.read_text())
    written = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    if "files" in manifest:
        manifest["files"][path.name] = written
    for shard in manifest.get("shards", []):
        if shard["file"] == path.name:
            shard |= {"num_bytes": written["bytes"], "sha256": written["sha256"]}
    description.write_text(json.dumps(manifest))
    return path


def damaged_examples(
    serialized: bytes, features: Mapping[str, Stored]
) -> Iterator[tuple[str, bytes]]:
    """A record with each feature in turn damaged in each way: what was done, the record.

    Args:
        serialized: a whole record.
        features: what it holds.
    """
    import tensorflow as tf

    yield "no Example", b"\xff\xfe no Example"
    yield "cut off", serialized[: len(serialized) // 2]
    yield "empty", b""

    def changed(name: str, **lists: list) -> bytes:
        example = tf.train.Example.FromString(serialized)
        feature = example.features.feature[name]
        feature.Clear()
        for kind, values in lists.items():
            getattr(feature, kind).value.extend(values)
        return example.SerializeToString()

    for name, stored in features.items():
        example = tf.train.Example.FromString(serialized)
        del example.features.feature[name]
        yield f"{name} missing", example.SerializeToString()
        feature = tf.train.Example.FromString(serialized).features.feature[name]
        kind = feature.WhichOneof("kind")
        (value,) = getattr(feature, kind).value
        yield f"{name} without a value", changed(name)
        yield f"{name} twice", changed(name, **{kind: [value, value]})
        for other, odd in {"int64_list": 1, "float_list": 1.0, "bytes_list": b"1"}.items():
            if other != kind:
                yield f"{name} as {other}", changed(name, **{other: [odd]})
        if stored.is_list:
            size = np.dtype(stored.dtype).itemsize
            yield f"{name} longer", changed(name, bytes_list=[value * 99 + b"\1" * size * 99])
            yield f"{name} shorter", changed(name, bytes_list=[value[:-size]])
            yield f"{name} of large numbers", changed(name, bytes_list=[b"\xff" * len(value)])
        elif stored.dtype == "int64":
            for odd in (-1, 2**15, 2**62):
                yield f"{name} is {odd}", changed(name, int64_list=[odd])
        else:
            for odd in (float("nan"), float("inf")):
                yield f"{name} is {odd}", changed(name, float_list=[odd])


def damages_inside(directory: pathlib.Path) -> Iterator[tuple[str, Damage]]:
    """Each damage of one record, inside of right checksums."""
    path = min(directory.glob("*.tfrecord"))
    record = list(read_records(str(path)))[1][0]
    for done, damaged in damaged_examples(record, stored_features(directory)):
        yield (
            f"record: {done}",
            lambda copy, damaged=damaged: change_record(copy, lambda _: damaged) and None,
        )


def stored_features(directory: pathlib.Path) -> Mapping[str, Stored]:
    """What the records of a directory hold."""
    from spanbert_tf.tasks.lookup import open_records

    if (directory / DATASET_INFO_FILE).exists():
        return PretrainingManifest.load(str(directory)).stored()
    return open_records(str(directory)).manifest.stored()


def all_damages(directory: pathlib.Path) -> Iterator[tuple[str, Damage]]:
    """Every damage of a directory of records."""
    yield from damages_inside(directory)
    yield from damaged_files(directory)
    (manifest,) = [name for name in os.listdir(directory) if name.endswith("_info.json")]
    for done, text in damaged_descriptions((directory / manifest).read_text()):
        yield (
            f"{manifest}: {done}",
            lambda copy, text=text: (copy / manifest).write_text(text) and None,
        )


@click.command(help=__doc__.splitlines()[0])
@click.option("--only", multiple=True, help="Kinds of records. [all]")
@click.option("--share", default=1.0, show_default=True, help="Share of the damages, at random.")
@click.option("--seed", default=0, show_default=True)
@click.option("--without", multiple=True, help="Commands to leave out, such as finetune.")
@click.option("--inside", is_flag=True, help="Damage records inside of right checksums alone.")
@click.option("--show-taken", is_flag=True, help="Print what was done and taken, too.")
def main(
    only: tuple[str, ...],
    share: float,
    seed: int,
    without: tuple[str, ...],
    inside: bool,
    show_taken: bool,
) -> None:
    """Runs all kinds and prints a table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    signal.signal(signal.SIGALRM, raise_too_slow)
    source, damages = random.Random(seed), damages_inside if inside else all_damages
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        records = write_all_records(directory)
        with contextlib.redirect_stdout(io.StringIO()):
            presets = write_presets(directory, records)
        for kind in only or records:
            readers = commands(kind, records[kind], presets, directory)
            _fuzz(kind, records[kind], readers, share, source, set(without), damages, show_taken)


def _fuzz(
    kind: str,
    directory: pathlib.Path,
    readers: dict[str, Reader],
    share: float,
    source: random.Random,
    without: set[str],
    damages: Callable[[pathlib.Path], Iterator[tuple[str, Damage]]],
    show_taken: bool,
) -> None:
    whole = directory.with_name(f"{directory.name}-whole")
    shutil.copytree(directory, whole)
    outcomes = {name: collections.Counter() for name in readers if name not in without}
    for done, damage in [("nothing", lambda copy: None), *damages(whole)]:
        if done != "nothing" and source.random() > share:
            continue
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        damage(directory)
        for name in outcomes:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                outcome, reason = outcome_of(readers[name], seconds=60)
            outcomes[name][outcome] += 1
            is_odd = outcome not in (("taken",) if done == "nothing" else ("taken", "refused"))
            if is_odd or (show_taken and outcome == "taken"):
                print(f"{kind}: {name}: {outcome}: {done}: {reason}", flush=True)
    for name, counted in outcomes.items():
        print(f"{kind}: {name}: {dict(sorted(counted.items()))}", flush=True)


if __name__ == "__main__":
    main()
