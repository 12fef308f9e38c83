"""Each kind of file that is read, written as the commands write it, and what reads it."""

import contextlib
import json
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks import fuzzed_containers
from benchmarks.fuzzed_containers import mutated

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "A")

_NAMED = ("vocab.txt", "squad.json", "rows.jsonl", "mrqa.jsonl", "settings.yaml")
_NAMED += ("model.tar", "model.tar.gz")

Reader = Callable[[], object]
Mutator = Callable[[bytes, random.Random], bytes]


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
    from spanbert_tf.tasks.lookup import open_records
    from spanbert_tf.tasks.question_answering.files import read_mrqa, read_squad
    from spanbert_tf.tasks.question_answering.records import (
        CONTEXTS_FILE,
        QUESTIONS_FILE,
        QuestionAnsweringManifest,
    )
    from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
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
    manifest = records / "question_answering_info.json"
    yield manifest.name, manifest, lambda: QuestionAnsweringManifest.load(str(records))
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
    from spanbert_tf.presets.preset import Preset
    from spanbert_tf.presets.writing import write_preset

    backbone = SpanBertBackbone(len(_WORDS), 1, 2, 8, 8, max_sequence_length=64)
    tokenizer, preset = SpanBertTokenizer(list(_WORDS)), str(directory / "preset")
    write_preset(backbone, preset, tokenizer=tokenizer)

    def load() -> object:
        return Preset(preset).encoder()

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
    from spanbert_tf.files.contents import check_files
    from spanbert_tf.files.preset import HEADS_FILE
    from spanbert_tf.models import SpanBertPretrainer
    from spanbert_tf.presets.preset import Preset
    from spanbert_tf.tasks.question_answering.records import QuestionAnsweringManifest

    settings = directory / "settings.yaml"
    settings.write_text("training:\n  steps: 10\n  batch_size: 4\nmodel: {num_layers: 2}\n")
    preset = directory / "preset"
    heads, weights = preset / HEADS_FILE, preset / "model.weights.h5"
    np.savez(heads, **{"next_sentence_head/kernel": np.zeros([8, 2], "f4")})
    (preset / "golden.json").unlink()  # checksums would refuse all but the first
    rows = next((directory / "questions").glob("*.tfrecord"))

    def read_rows() -> None:
        with contextlib.suppress(OSError):  # then it is refused for that
            if rows.is_file():
                _state_checksum(rows)
        check_files(str(rows.parent), QuestionAnsweringManifest.load(str(rows.parent)).files)
        check_frames([str(rows)])
        file = RecordFile(str(rows))
        file.read(range(len(file)))

    for kind in (
        *_archives(directory),
        Kind("YAML", settings, lambda: read_settings(str(settings), 0)),
        Kind(HEADS_FILE, heads, lambda: SpanBertPretrainer.from_preset(str(preset))),
        Kind(weights.name, weights, lambda: Preset(str(preset)).encoder()),
        _classifier(directory),
        Kind("frames of a TFRecord file", rows, read_rows),
    ):
        own_form = _OWN_FORMS[kind.path.suffix]
        yield from (kind, kind._replace(name=f"{kind.name}, its form", mutate=own_form))


def _state_checksum(path: pathlib.Path) -> None:
    """Has the description of records say of a file what is there."""
    from spanbert_tf.files.contents import checksums

    description = next(path.parent.glob("*_info.json"))
    content = json.loads(description.read_text())
    content["files"] |= checksums(str(path.parent), [path.name])
    description.write_text(json.dumps(content))


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
    from spanbert_tf.presets.preset import Preset
    from spanbert_tf.presets.writing import write_preset

    backbone = SpanBertBackbone(len(_WORDS), 1, 2, 8, 8, max_sequence_length=64)
    preprocessor = Preprocessor(SpanBertTokenizer(list(_WORDS)), sequence_length=32)
    classifier = SpanBertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    classifier.is_head_trained = True
    preset = directory / "classifier"
    write_preset(classifier, str(preset))
    (preset / "golden.json").unlink()
    path = preset / "task.weights.h5"
    return Kind(path.name, path, lambda: Preset(str(preset)).trained_task(SpanBertTextClassifier))


_OWN_FORMS: dict[str, Mutator] = {
    ".tar": fuzzed_containers.mutated_archive,
    ".gz": fuzzed_containers.mutated_archive,
    ".yaml": fuzzed_containers.mutated_yaml,
    ".npz": fuzzed_containers.mutated_arrays,
    ".h5": fuzzed_containers.mutated_weights,
    ".tfrecord": fuzzed_containers.mutated_frames,
}
