"""What small hostile inputs cost a command: its exit status, lines, seconds and memory.

    python -m benchmarks.hostile_inputs [--only "aliases of aliases"]

Each input is made here, and the real command reads it in a process of its own. What the same
command needs to refuse a harmless bad input is taken off its time and memory; of long passages,
which are answered, what a short one needs. Expected: status 2 and one line (status 0 for passages,
quotation marks, the lock and `string.py`), less than 1 GiB and 20 seconds of processor time more.
A command that waits for ten minutes is killed.
"""

import functools
import gzip
import io
import json
import math
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from benchmarks.damaged_records import write_all_records, write_presets
from benchmarks.machine import describe_machine
from benchmarks.process_memory import GIBIBYTE

if TYPE_CHECKING:
    import h5py

Maker = Callable[[pathlib.Path, pathlib.Path], object]  # input's path, folder of whole files

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the")
_SIZES = {"vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2}
_SHOWN = 90
_DEEP = "[" * 100_000


class _Cost(NamedTuple):
    status: int
    num_lines: int
    seconds: float  # of the processor: the clock tells of other work on the machine, too
    gibibytes: float  # of the largest process
    said: str  # the end of its last line: whether it was the input that it refused


class _Reader(NamedTuple):
    """A command, with `{input}` and `{whole}`, and what makes a harmless input that it refuses."""

    command: str
    harmless: Maker


def _text(text: str) -> Maker:
    return lambda path, whole: path.write_text(text)


def _nested_aliases(path: pathlib.Path, whole: pathlib.Path, *, last: str = "j: *i") -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    path.write_text("\n".join([*lines, last]))


def _bomb(path: pathlib.Path, whole: pathlib.Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(700):
            file.write(bytes(1 << 22))


def _checkpoint(path: pathlib.Path, whole: pathlib.Path, **files: str | dict) -> None:
    """A checkpoint of Hugging Face's without weights of BERT's, some JSON of which is another's."""
    from safetensors.numpy import save_file

    path.mkdir()
    (path / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    save_file({"bert.x": np.zeros(2, "f4")}, path / "model.safetensors")
    for name, content in {"config": _SIZES, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / f"{name}.json").write_text(text)


def _expanded_tensor(path: pathlib.Path, whole: pathlib.Path) -> None:
    import torch

    _checkpoint(path, whole)
    (path / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1).expand(1 << 16, 1 << 16)}, path / "pytorch_model.bin")


def _changed(name: str, change: Callable[[pathlib.Path], object]) -> Maker:
    """A copy of something whole that is changed."""

    def make(path: pathlib.Path, whole: pathlib.Path) -> None:
        shutil.copytree(whole / name, path)
        change(path)

    return make


def _preset(
    file: str = "config.json", text: str = "x", *, of: str = "encoder-preset", **sizes: int
) -> Maker:
    """A preset of other sizes, or with another text in one of its files."""

    def change(path: pathlib.Path) -> None:
        description = json.loads((path / "config.json").read_text())
        description["config"] |= sizes
        (path / file).write_text(json.dumps(description) if sizes else text)

    return _changed(of, change)


def _golden_name(path: pathlib.Path) -> None:
    golden = json.loads((path / "golden.json").read_text())
    golden["weights"]["x" * 60_000 + "/"] = "0" * 64
    (path / "golden.json").write_text(json.dumps(golden))


def _array_of_a_tebibyte(path: pathlib.Path) -> None:
    (path / "golden.json").unlink()  # it would be noticed by its checksum
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (2**19, 2**19)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(path / "pretraining_heads.npz", "w") as archive:
        archive.writestr("next_sentence_head/kernel.npy", header.getvalue())


def _array_that_unpacks(path: pathlib.Path) -> None:
    (path / "golden.json").unlink()
    packed = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with (
        zipfile.ZipFile(path / "pretraining_heads.npz", "w", **packed) as archive,
        archive.open("next_sentence_head/kernel.npy", "w", force_zip64=True) as file,
    ):
        fields = {"descr": "<f4", "fortran_order": False, "shape": (700 << 20,)}
        np.lib.format.write_array_header_1_0(file, fields)
        for _ in range(700):
            file.write(bytes(1 << 22))


def _hdf5(name: str, change: Callable[["h5py.File"], object]) -> Callable[[pathlib.Path], None]:
    """Changes a file of weights, whose checksum nothing states."""

    def changed(path: pathlib.Path) -> None:
        import h5py

        (path / "golden.json").unlink()
        with h5py.File(path / name, "a") as file:
            change(file)

    return changed


def _state_of_two_gigabytes(file: "h5py.File") -> None:
    file.create_dataset("vars/is_head_trained", (2 * 10**9,), "uint8", chunks=(2**20,))


def _chunk_of_four_gigabytes(file: "h5py.File") -> None:
    file.create_dataset("x", (8, 8), "f4", maxshape=(None, None), chunks=(32_768, 32_768))


def _nested_groups(file: "h5py.File") -> None:
    group: h5py.Group = file
    for _ in range(6_000):
        group = group.create_group("g")


def _replaced(name: str, make: Callable[[pathlib.Path], object]) -> Callable[[pathlib.Path], None]:
    """Has a pipe or a link in the place of a file."""

    def change(path: pathlib.Path) -> None:
        (path / name).unlink(missing_ok=True)
        make(path / name)

    return change


def _link(target: str) -> Callable[[pathlib.Path], None]:
    return lambda path: path.symlink_to(target)


_PARSEQ = {  # a tokenizer of KerasHub's, which opens its vocabulary
    "module": "keras_hub.src.models.parseq.parseq_tokenizer",
    "class_name": "PARSeqTokenizer",
    "config": {"vocabulary": "/dev/zero"},
    "registered_name": "keras_hub>PARSeqTokenizer",
}


def _adapter(encoder: str, alpha: float) -> Callable[[pathlib.Path], None]:
    """Makes a preset an adapter, with an encoder beside it whose configuration is a pipe."""

    def change(path: pathlib.Path) -> None:
        beside = path.with_name("encoder")
        beside.mkdir()
        os.mkfifo(beside / "config.json")
        settings = {"base_model_name_or_path": encoder, "r": 1, "lora_alpha": alpha}
        (path / "adapter_config.json").write_text(
            json.dumps({**settings, "peft_type": "LORA", "target_modules": ["query"]})
        )

    return change


def _beside(text: str, name: str, content: str) -> Maker:
    """A text, and another file in its folder, which is the command's working directory."""

    def make(path: pathlib.Path, whole: pathlib.Path) -> None:
        path.write_text(text)
        (path.parent / name).write_text(content)
        os.utime(path.parent / name, (4_102_444_800,) * 2)  # of the year 2100

    return make


def _frame(num_bytes: int) -> Callable[[pathlib.Path], None]:
    """Records whose first shard ends with a frame of so many bytes; all checksums are right."""

    def change(path: pathlib.Path) -> None:
        from spanbert_tf.data.tfrecords import masked_checksum
        from spanbert_tf.files.contents import sha256

        manifest = json.loads((path / "dataset_info.json").read_text())
        shard, length = manifest["shards"][0], struct.pack("<Q", num_bytes)
        with open(path / shard["file"], "ab") as file:
            file.write(length + masked_checksum(length) + b"xxxx")
        shard["num_records"] += 1
        shard["sha256"] = sha256(path / shard["file"])
        shard["num_bytes"] = (path / shard["file"]).stat().st_size
        (path / "dataset_info.json").write_text(json.dumps(manifest))

    return change


def _passage(kilobytes: int) -> Maker:
    sentence = "the cat sees the dog . ann sees cats . "
    passage = sentence * (kilobytes * 1_000 // len(sentence) + 1)
    return _text(json.dumps({"id": "1", "question": "the dog", "context": passage}) + "\n")


_PREPARE = "prepare {} --input {{input}} --vocabulary {{whole}}/vocab.txt --output out"
_PRETRAIN = _Reader("pretrain --config {input} --data . --output run", _text("x"))
_CONVERT = _Reader("convert --from huggingface --to keras --lowercase {input} out", _checkpoint)
_SQUAD = _Reader(_PREPARE.format("squad"), _text("x"))
_SEMEVAL = _Reader(_PREPARE.format("semeval2010"), _text("x"))
_COREFERENCE = _Reader(_PREPARE.format("coreference"), _text("x"))
_SENTENCE = "the cat sees the dog ."
_TEXT = _Reader(  # of marks alone no records come
    _PREPARE.format("pretraining") + " --lowercase", _text(_SENTENCE)
)
_PROCESSES = _Reader(f"{_TEXT.command} --num-processes 2", _TEXT.harmless)
_PRESET = _Reader("convert --from keras --to huggingface {input} out", _preset())
_HEADS = _Reader(
    "pretrain --config spanbert_tiny --data {whole}/pretraining --initial-preset {input} "
    "--output run --set data.sequence_length=32 --set training.steps=2 "
    "--set training.batch_size=2 --set model.num_layers=1 --set model.num_heads=2 "
    "--set model.hidden_dim=8 --set model.intermediate_dim=8 --set model.max_sequence_length=32",
    _preset("pretraining_heads.npz", of="pretrained-preset"),
)
_TASK = _Reader(
    "predict --preset {input} --input {whole}/texts.jsonl --output out",
    _changed("text_classification-preset", lambda path: (path / "task.json").write_text("x")),
)
_RECORDS = _Reader(
    "inspect {input}",
    _changed("pretraining", lambda path: (path / "dataset_info.json").write_text("x")),
)
_ANSWER = _Reader(
    "predict --preset {whole}/question_answering-preset --input {input} --output out", _passage(0)
)
_INPUTS: dict[str, tuple[_Reader, Maker]] = {
    "aliases of aliases": (_PRETRAIN, _nested_aliases),
    "a list of aliases": (
        _PRETRAIN,
        functools.partial(_nested_aliases, last="data: [*i, *i, *i, *i]"),
    ),
    "nested YAML": (_PRETRAIN, _text("a: " + _DEEP)),
    "60,000 digits": (_PRETRAIN, _text("training:\n  steps: " + "9" * 60_000)),
    "a number to the base 60": (_PRETRAIN, _text("training:\n  steps: 1" + ":10" * 27_000)),
    "a TPU at grpc://": (
        _PRETRAIN,
        _text("training:\n  strategy: tpu\n  tpu: grpc://127.0.0.1:8470\n"),
    ),
    "2^31 layers": (
        _CONVERT,
        functools.partial(_checkpoint, config=_SIZES | {"num_hidden_layers": 2**31}),
    ),
    "nested config.json": (_CONVERT, functools.partial(_checkpoint, config=_DEEP)),
    "nested tokenizer.json": (_CONVERT, functools.partial(_checkpoint, tokenizer=_DEEP)),
    "expanded tensor": (_CONVERT, _expanded_tensor),
    "preset of 10^8 layers": (_PRESET, _preset(num_layers=10**8)),
    "preset of 200 layers": (_PRESET, _preset(num_layers=200)),
    "preset of width 10^6": (_PRESET, _preset(hidden_dim=10**6)),
    "preset of inner width 10^8": (_PRESET, _preset(intermediate_dim=10**8)),
    "preset of 10^9 word pieces": (_PRESET, _preset(vocabulary_size=10**9)),
    "preset of 10^9 positions": (_PRESET, _preset(max_sequence_length=10**9)),
    "preset's nested config.json": (_PRESET, _preset(text=_DEEP)),
    "preset's nested tokenizer.json": (_PRESET, _preset("tokenizer.json", _DEEP)),
    "name of 60 kB in golden.json": (_PRESET, _changed("encoder-preset", _golden_name)),
    "pipe as config.json": (
        _PRESET,
        _changed("encoder-preset", _replaced("config.json", os.mkfifo)),
    ),
    "/dev/zero as config.json": (
        _PRESET,
        _changed("encoder-preset", _replaced("config.json", _link("/dev/zero"))),
    ),
    "vocabulary that leads out": (
        _PRESET,
        _changed(
            "encoder-preset", _replaced("assets/tokenizer/vocabulary.txt", _link("/etc/passwd"))
        ),
    ),
    "PARSeqTokenizer of /dev/zero": (_PRESET, _preset("tokenizer.json", json.dumps(_PARSEQ))),
    "adapter of NaN": (_PRESET, _changed("encoder-preset", _adapter("../encoder", math.nan))),
    "adapter over a pipe": (_PRESET, _changed("encoder-preset", _adapter("../encoder", 1))),
    "adapter over /etc": (_PRESET, _changed("encoder-preset", _adapter("/etc", 1))),
    "npz of 400 bytes": (_HEADS, _changed("pretrained-preset", _array_of_a_tebibyte)),
    "npz that unpacks to 2.8 GiB": (_HEADS, _changed("pretrained-preset", _array_that_unpacks)),
    "h5 with a state of 2 GB": (
        _TASK,
        _changed("text_classification-preset", _hdf5("task.weights.h5", _state_of_two_gigabytes)),
    ),
    "h5 with a chunk of 4 GiB": (
        _PRESET,
        _changed("encoder-preset", _hdf5("model.weights.h5", _chunk_of_four_gigabytes)),
    ),
    "h5 of 6,000 nested groups": (
        _PRESET,
        _changed("encoder-preset", _hdf5("model.weights.h5", _nested_groups)),
    ),
    "frame of 2^40 bytes": (_RECORDS, _changed("pretraining", _frame(2**40))),
    "frame of 2^64 - 1 bytes": (_RECORDS, _changed("pretraining", _frame(2**64 - 1))),
    "gzip of 2.8 GiB": (_SQUAD, _bomb),
    "nested SQuAD": (_SQUAD, _text(_DEEP)),
    "SemEval's entities": (_SEMEVAL, _text('1\t"' + "<e1>a</e1>" * 1_500 + '"\nOther\n\n')),
    "CoNLL header of spaces": (_COREFERENCE, _text("#begin document (" + " " * 60_000 + "\n")),
    "1 MB of quotation marks": (_TEXT, _text("\N{LEFT DOUBLE QUOTATION MARK}" * 350_000)),
    "lock of the year 2100": (_TEXT, _beside(_SENTENCE, ".out.lock", '{"process": 1}')),
    "string.py beside the text": (
        _PROCESSES,
        _beside(_SENTENCE, "string.py", "raise SystemExit('string.py ran')\n"),
    ),
    **{f"passage of {size:,} kB": (_ANSWER, _passage(size)) for size in (50, 200, 400, 2_000)},
}


@click.command(help=__doc__.splitlines()[0])
@click.option("--only", multiple=True, help="Names of inputs. [all]")
def main(only: tuple[str, ...]) -> None:
    """Prints a row of a table for each input."""
    print(describe_machine())
    print("| input | command | status | lines | seconds more | memory more | said |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    start_ups: dict[str, _Cost] = {}
    with tempfile.TemporaryDirectory() as name:
        whole = pathlib.Path(name)
        _apart(_write_whole, whole)
        for name, (reader, make) in _INPUTS.items():
            if only and name not in only:
                continue
            if reader.command not in start_ups:
                start_ups[reader.command] = _cost(reader, reader.harmless, whole)
            cost, before = _cost(reader, make, whole), start_ups[reader.command]
            print(
                f"| {name} | {' '.join(reader.command.split()[:2])} | {cost.status} | "
                f"{cost.num_lines} | {max(cost.seconds - before.seconds, 0):.1f} | "
                f"{max(cost.gibibytes - before.gibibytes, 0):.2f} GiB | {cost.said} |",
                flush=True,
            )


def _apart(function: Callable, *arguments: object) -> None:
    """Calls a function in another process: a command's peak begins with that of this one."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, function


def _write_whole(directory: pathlib.Path) -> None:
    """Records and presets of each kind, and one with the heads of pre-training."""
    from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer, SpanBertTokenizer
    from spanbert_tf.presets.pretraining import save_pretraining_preset

    write_presets(directory, write_all_records(directory))
    pieces = (directory / "vocab.txt").read_text().split()
    pretrainer = SpanBertPretrainer(
        SpanBertBackbone(len(pieces), 1, 2, 8, 8, max_sequence_length=32)
    )
    pretrainer.is_head_trained = True
    tokenizer = SpanBertTokenizer(pieces, lowercase=True)
    preset = str(directory / "pretrained-preset")
    save_pretraining_preset(pretrainer, tokenizer, preset, sequence_length=32)


def _limit_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
    signal.alarm(600)  # of one that waits


def _cost(reader: _Reader, make: Maker, whole: pathlib.Path) -> _Cost:
    """Runs a command on an input in a folder of its own, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        ending = {_ANSWER: "jsonl", _SQUAD: "json.gz" if make is _bomb else "json"}
        path = place / f"input.{ending.get(reader, 'json')}"
        _apart(make, path, whole)
        arguments = reader.command.format(input=path, whole=whole).split()
        with open(place / "stderr", "w+b") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "spanbert_tf.cli", *arguments],
                cwd=place,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                preexec_fn=_limit_time,
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = usage.ru_utime + usage.ru_stime
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines()
        code = os.waitstatus_to_exitcode(status)
        said = "".join(lines[-1:])[-_SHOWN:]
        return _Cost(code, len(lines), seconds, usage.ru_maxrss / GIBIBYTE, said)


if __name__ == "__main__":
    main()
