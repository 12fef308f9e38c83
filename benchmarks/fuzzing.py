"""Damages each kind of file that is read, thousands of times, and counts how the readers fare.

A reader may take a damaged file or refuse it with one line that is meant for the user; it may not
end in another exception, in an error of several lines, or take longer than some seconds. Containers
(archives, YAML, arrays, weights, records) are damaged in their own form, too, and in place of each
file lies a directory, a socket, a pipe, a link to a device (the last two not where the user names
the file itself and may mean them).

    python -m benchmarks.fuzzing --mutations 1000

prints for each kind of file how many were taken, refused, badly refused and too slow.
"""

import collections
import json
import os
import pathlib
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import numpy as np

from benchmarks import fuzzed_containers
from spanbert_tf.errors import SpanBertError

_SECONDS = 10
_MEMORY = 8 << 30  # of this process; a reader that wants more ends in `MemoryError`
_NUMBERS = (0, -1, 3, 2**70, 1.5, float("nan"))
_VALUES = (None, True, *_NUMBERS, "", "x", "\ud800", [], [[]], {}, {"x": 1})
_BYTES = (b"\x00", b"\xff", b'"', b"{", b"]", b",", b"\\", b"9", b"\n")
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "A")

_NAMED = ("vocab.txt", "squad.json", "rows.jsonl", "mrqa.jsonl", "settings.yaml")
_NAMED += ("model.tar", "model.tar.gz")

Reader = Callable[[], object]
Mutator = Callable[[bytes, random.Random], bytes]


class _TooSlow(Exception):
    """A file took longer than `_SECONDS`."""


def mutated(content: bytes, source: random.Random) -> bytes:
    """A damaged copy: another value in JSON where it is that, else other bytes."""
    if source.random() < 0.7:
        try:
            return _mutated_json(content, source)
        except ValueError:
            pass
    start = source.randrange(len(content) + 1)
    kind = source.randrange(4)
    if kind == 0:
        return content[:start]
    if kind == 1:
        return content[:start] + source.choice(_BYTES) + content[start + 1 :]
    if kind == 2:
        return content[:start] + content[start + source.randrange(40) :]
    return content[:start] + content[max(start - 30, 0) :]


def _mutated_json(content: bytes, source: random.Random) -> bytes:
    """One value, of one line if each line is one, is replaced, removed or doubled."""
    lines = content.decode().splitlines()
    try:
        document, number = json.loads(content), None
    except ValueError:
        number = source.randrange(len(lines))
        document = json.loads(lines[number])
    places = list(_places(document))
    if not places:
        return json.dumps(source.choice(_VALUES)).encode()
    owner, key = source.choice(places)
    kind = source.randrange(5)
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, list):
        owner.insert(key, owner[key])
    elif kind == 1:
        owner[f"{key}x"] = owner.pop(key)
    else:
        owner[key] = source.choice(_VALUES)
    text = json.dumps(document)
    if number is not None:
        text = "\n".join([*lines[:number], text, *lines[number + 1 :]]) + "\n"
    return text.encode()


def _places(value: object) -> Iterator[tuple[dict | list, str | int]]:
    """Each place in a document, as (object or list, key or index); lists of many only in part."""
    entries = value.items() if isinstance(value, dict) else []
    entries = enumerate(value[:20]) if isinstance(value, list) else entries
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


class Kind(NamedTuple):
    """A kind of file: where one lies, what reads it, and how its bytes are damaged."""

    name: str
    path: pathlib.Path
    read: Reader
    mutate: Mutator = mutated

    @property
    def is_named(self) -> bool:
        """Whether users name this file, not a directory that holds it."""
        return self.path.name in _NAMED


def fuzz(kind: Kind, count: int, seed: int) -> collections.Counter:
    """Reads damaged copies of a file in its place, which is as before at the end.

    Args:
        kind: the kind of file.
        count: how many copies, beside what is no file (see `fuzzed_containers.special_files`).
        seed: seed of the damage.

    Returns:
        How many were `taken`, `refused`, `badly refused` and `too slow`.
    """
    name, path, read, mutate = kind
    specials = fuzzed_containers.special_files(endless=not kind.is_named)
    source, content = random.Random(f"{seed} {name}"), path.read_bytes()
    outcomes: collections.Counter = collections.Counter()

    def look(done: object) -> None:
        outcome, reason = outcome_of(read)
        outcomes[outcome] += 1
        if outcome not in ("taken", "refused"):
            print(f"{name}: {outcome}: {reason}: {done!r:.300}", flush=True)

    try:
        read()  # as it is, it must be taken
        for _ in range(count):
            damaged = mutate(content, source)
            path.write_bytes(damaged)
            look(damaged[:300])
        for special, make in specials.items():
            _remove(path)
            make(path)
            look(special)
    finally:
        _remove(path)
        path.write_bytes(content)
    return outcomes


def _remove(path: pathlib.Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def outcome_of(read: Reader, seconds: float = _SECONDS) -> tuple[str, str]:
    """How a reader fares, and why: `taken`, `refused`, `badly refused` or `too slow`.

    Needs `raise_too_slow` as the handler of SIGALRM.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return "taken", ""
    except SpanBertError as error:
        return ("badly refused", repr(error)) if "\n" in str(error) else ("refused", str(error))
    except _TooSlow:
        return "too slow", f"{seconds} s"
    except Exception as error:
        return "badly refused", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def raise_too_slow(number: int, frame: object) -> None:
    """Ends what takes too long."""
    raise _TooSlow


def kinds_of_files(directory: pathlib.Path) -> Iterator[Kind]:
    """Writes each kind of file as the commands do."""
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in _WORDS))
    plain = (_question_files, _record_files, _run_files, _preset_files, _checkpoint_files)
    for files in plain:
        yield from (Kind(*kind) for kind in files(directory, vocabulary))
    yield from _containers(directory)


def _question_files(
    directory: pathlib.Path, vocabulary: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Reader]]:
    from spanbert_tf.tasks.question_answering.files import read_mrqa, read_squad
    from spanbert_tf.tasks.question_answering.records import (
        CONTEXTS_FILE,
        QUESTIONS_FILE,
        QuestionAnsweringInfo,
    )
    from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
    from spanbert_tf.tasks.task import open_records
    from spanbert_tf.text.vocabulary import load_vocabulary

    answers = {"text": ["cat"], "answer_start": [4]}
    row = {"id": "1", "context": "the cats", "question": "A cat", "answers": answers}
    entry = {"id": "1", "question": "A cat", "answers": [{"text": "cat", "answer_start": 4}]}
    paragraphs = [{"context": "the cats", "qas": [entry, entry | {"id": "2"}]}]
    detected = [{"text": "cat", "char_spans": [[4, 6]]}]
    asked = {"qid": "1", "question": "A", "answers": ["cat"], "detected_answers": detected}
    passage = {"context": "the cats", "qas": [asked]}
    squad, flat, mrqa = (directory / name for name in ("squad.json", "rows.jsonl", "mrqa.jsonl"))
    squad.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    flat.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'id': '2'})}\n")
    mrqa.write_text(f"{json.dumps({'header': {}})}\n{json.dumps(passage)}\n")
    records = directory / "questions"
    options = QuestionOptions(sequence_length=32)
    write_questions(
        read_squad(str(squad)),
        str(records),
        vocabulary=str(vocabulary),
        lowercase=False,
        options=options,
    )
    yield "vocab.txt", vocabulary, lambda: load_vocabulary(vocabulary)
    yield "SQuAD", squad, lambda: read_squad(str(squad))
    yield "rows of SQuAD", flat, lambda: read_squad(str(flat))
    yield "MRQA", mrqa, lambda: read_mrqa(str(mrqa))
    info = records / "question_answering_info.json"
    yield info.name, info, lambda: QuestionAnsweringInfo.load(str(records))
    yield (
        "questions.jsonl",
        records / "questions.jsonl",
        lambda: open_records(str(records)).lines(QUESTIONS_FILE),
    )
    yield (
        "contexts.jsonl",
        records / "contexts.jsonl",
        lambda: open_records(str(records)).lines(CONTEXTS_FILE),
    )


def _record_files(
    directory: pathlib.Path, vocabulary: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Reader]]:
    from data_prep.beam.writing import write_pretraining_records
    from spanbert_tf.data.manifest import PretrainingManifest

    text, records = directory / "text.txt", directory / "records"
    text.write_text("the cats. A cat.\n\n" * 40)
    write_pretraining_records(
        str(text), vocabulary=str(vocabulary), output=str(records), sequence_length=32
    )

    def load() -> PretrainingManifest:
        return PretrainingManifest.load(records)

    def read_counts() -> object:
        return load().unigram_counts(records)

    yield "dataset_info.json", records / "dataset_info.json", load
    yield "unigram_counts.json", records / "unigram_counts.json", read_counts
    yield "vocab.txt of records", records / "vocab.txt", load
    (shard, *_) = sorted(records.glob("train-*"))
    yield "shard", shard, load


def _run_files(
    directory: pathlib.Path, vocabulary: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Reader]]:
    from spanbert_tf.training.metrics_log import read_metrics
    from spanbert_tf.training.run_directory import RunDirectory

    run = directory / "run"
    run.mkdir()
    (run / "config.yaml").write_text("training:\n  steps: 2\n")
    metrics = run / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss": 1.5}\n{"step": 2, "validation_loss": 1.25}\n')

    def go_on() -> object:
        RunDirectory(str(run)).check_content()
        return read_metrics(str(metrics))

    yield "metrics.jsonl", metrics, go_on


def _preset_files(
    directory: pathlib.Path, vocabulary: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Reader]]:
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
    from spanbert_tf.presets.loading import load_checked
    from spanbert_tf.presets.writing import write_preset

    backbone = SpanBertBackbone(len(_WORDS), 1, 2, 8, 8, max_sequence_length=64)
    tokenizer, preset = SpanBertTokenizer(list(_WORDS)), str(directory / "preset")
    write_preset(backbone, preset, tokenizer=tokenizer)

    def load() -> object:
        return load_checked(SpanBertBackbone, preset)

    yield "golden.json", directory / "preset" / "golden.json", load


def _checkpoint_files(
    directory: pathlib.Path, vocabulary: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Reader]]:
    from spanbert_tf.conversion.configuration import find_casing, find_vocabulary, read_sizes

    folder = directory / "huggingface"
    folder.mkdir()
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 64, "type_vocab_size": 2}
    (folder / "config.json").write_text(json.dumps(sizes | {"hidden_dropout_prob": 0.1}))
    stated = {"do_lower_case": True, "strip_accents": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    ids = {piece: number for number, piece in enumerate(_WORDS)}
    normalizer = {"lowercase": True, "strip_accents": False}
    tokenizer = {"model": {"vocab": ids}, "normalizer": normalizer}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    name = str(folder)

    def read_tokenizer() -> tuple:
        return find_vocabulary(name, name, None), find_casing(name, name, None)

    yield "config.json", folder / "config.json", lambda: read_sizes(name, name)
    yield "tokenizer_config.json", folder / "tokenizer_config.json", read_tokenizer
    yield "tokenizer.json", folder / "tokenizer.json", read_tokenizer


def _containers(directory: pathlib.Path) -> Iterator[Kind]:
    """Archives, YAML, arrays, weights and frames of records, after the other files were written."""
    from spanbert_tf.config.settings import read_settings
    from spanbert_tf.data.tfrecords import RecordFile, check_frames
    from spanbert_tf.files.preset_files import HEADS_FILE
    from spanbert_tf.models import SpanBertBackbone
    from spanbert_tf.presets.loading import load_preset
    from spanbert_tf.presets.pretraining import load_pretrainer

    settings = directory / "settings.yaml"
    settings.write_text("training:\n  steps: 10\n  batch_size: 4\nmodel: {num_layers: 2}\n")
    preset = directory / "preset"
    heads, weights = preset / HEADS_FILE, preset / "model.weights.h5"
    np.savez(heads, **{"next_sentence_head/kernel": np.zeros([8, 2], "f4")})
    (preset / "golden.json").unlink()  # checksums would refuse all but the first
    rows = next((directory / "questions").glob("*.tfrecord"))

    def read_rows() -> None:
        check_frames([str(rows)])
        file = RecordFile(str(rows))
        file.read(range(len(file)))

    for kind in (
        *_archives(directory),
        Kind("YAML", settings, lambda: read_settings(str(settings), 0)),
        Kind(HEADS_FILE, heads, lambda: load_pretrainer(str(preset))),
        Kind(weights.name, weights, lambda: load_preset(SpanBertBackbone, str(preset))),
        _classifier(directory),
        Kind("frames of a TFRecord file", rows, read_rows),
    ):
        own_form = _OWN_FORMS[kind.path.suffix]
        yield from (kind, kind._replace(name=f"{kind.name}, its form", mutate=own_form))


def _archives(directory: pathlib.Path) -> Iterator[Kind]:
    import io
    import tarfile

    from spanbert_tf.conversion.archives import opened_source

    folder = directory / "archives"
    folder.mkdir()
    for name, mode in (("model.tar", "w"), ("model.tar.gz", "w:gz")):
        path = folder / name
        with tarfile.open(path, mode) as file:
            for inside in ("config.json", "vocab.txt"):
                member = tarfile.TarInfo(f"model/{inside}")
                member.size = 2
                file.addfile(member, io.BytesIO(b"{}"))

        def unpack(path: pathlib.Path = path) -> None:
            with opened_source(str(path)) as unpacked:
                if os.path.isdir(path):  # it is what it is
                    return
                entries = list(os.scandir(unpacked))
                assert all(entry.is_file(follow_symlinks=False) for entry in entries), entries
            assert set(os.listdir(folder)) <= {"model.tar", "model.tar.gz"}, os.listdir(folder)

        yield Kind(name.removeprefix("model."), path, unpack)


def _classifier(directory: pathlib.Path) -> Kind:
    """The head of a task, in whose file it says whether it is trained."""
    from spanbert_tf.models import SpanBertBackbone, SpanBertTextClassifier, SpanBertTokenizer
    from spanbert_tf.models import SpanBertTextClassifierPreprocessor as Preprocessor
    from spanbert_tf.presets.loading import load_trained
    from spanbert_tf.presets.writing import write_preset

    backbone = SpanBertBackbone(len(_WORDS), 1, 2, 8, 8, max_sequence_length=64)
    preprocessor = Preprocessor(SpanBertTokenizer(list(_WORDS)), sequence_length=32)
    classifier = SpanBertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    classifier.is_head_trained = True
    preset = directory / "classifier"
    write_preset(classifier, str(preset))
    (preset / "golden.json").unlink()
    path = preset / "task.weights.h5"
    return Kind(path.name, path, lambda: load_trained(SpanBertTextClassifier, str(preset)))


_OWN_FORMS: dict[str, Mutator] = {
    ".tar": fuzzed_containers.mutated_archive,
    ".gz": fuzzed_containers.mutated_archive,
    ".yaml": fuzzed_containers.mutated_yaml,
    ".npz": fuzzed_containers.mutated_arrays,
    ".h5": fuzzed_containers.mutated_weights,
    ".tfrecord": fuzzed_containers.mutated_frames,
}


@click.command(help=__doc__.splitlines()[0])
@click.option("--mutations", default=1000, show_default=True, help="Copies of each kind of file.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", multiple=True, help="Kinds of files. [all]")
def main(mutations: int, seed: int, only: tuple[str, ...]) -> None:
    """Runs all kinds and prints a table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    signal.signal(signal.SIGALRM, raise_too_slow)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    total: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds_of_files(pathlib.Path(name)):
            if only and kind.name not in only:
                continue
            outcomes = fuzz(kind, mutations, seed)
            print(f"{kind.name}: {dict(sorted(outcomes.items()))}", flush=True)
            total += outcomes
    print(f"all, {total.total():,} files: {dict(sorted(total.items()))}")


if __name__ == "__main__":
    main()
