"""Tells what a path holds if it is not the text, preset or records that a command expected.

A file is recognized by its first bytes, a directory by the names of its files and a `config.json`.
Each format is one record: how it is recognized, its name, and what to do. Importing this module
does not import TensorFlow.
"""

import codecs
import glob
import json
import os
import re
import shlex
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.compression import UnpackedFile, compression_of
from spanbert_tf.files.contents import check_own_files, regular_size
from spanbert_tf.lazy import load

HEAD_SIZE = 2**16  # bytes of a file that are looked at


class _FileKind(NamedTuple):
    """A format of files that users name in place of text.

    Attributes:
        beginning: a regular expression for the first bytes of such a file.
        name: the format, as the predicate of a sentence.
        advice: what to do; `FILE` stands for the file's name.
        advice_if_packed: what to do if the file is compressed as a whole, where that is something
            else.
    """

    beginning: bytes
    name: str
    advice: str
    advice_if_packed: str = ""


# A TFRecord begins with the length of its first record, a little-endian integer of 8 bytes.
_TFRECORD = rb"(?!\0{4}).{4}\0{4}"
_MASKED = _FileKind(
    _TFRECORD + rb".*masked_lm_positions",
    "a TFRecord of BERT's or the Model Garden's masked examples",
    "masks are drawn while training here: name the text they were of",
)
_UNPACK = "unpack FILE and name the unpacked file"
# The first that fits counts.
_FILE_KINDS = (
    _FileKind(
        rb"PAR1",
        "Parquet",
        "write its rows as JSON lines, for example with "
        "`pandas.read_parquet('FILE').to_json('rows.jsonl', orient='records', lines=True)`",
        _UNPACK,
    ),
    _FileKind(
        rb"ARROW1\0\0|\xff{4}",
        "Arrow (Feather, or a data set of `datasets`)",
        "write its rows as JSON lines, for example with "
        "`datasets.Dataset.from_file('FILE').to_json('rows.jsonl')`, or `pandas.read_feather`",
        _UNPACK,
    ),
    _FileKind(
        rb"PK\x03\x04|.{257}ustar",
        "an archive (ZIP, as docx, xlsx and epub are, or tar)",
        "unpack it and name the files of text; of a document, write its text as plain UTF-8",
    ),
    _FileKind(
        rb"%PDF-|{\\rtf",
        "a document (PDF or RTF)",
        "write its text as plain UTF-8, for example with pdftotext",
    ),
    _MASKED,
    _FileKind(_TFRECORD + rb".{8}", "TFRecord (or other binary data)", "name a file of text"),
    _FileKind(  # a byte order mark, or the NULs beside the first Latin letters
        rb"\xff\xfe|\xfe\xff|(?:[^\0]{0,3}\0){4}",
        "UTF-16 or UTF-32",
        "convert it: `iconv -f UTF-16 -t UTF-8 FILE`",
    ),
)


def refuse_known_binary(path: str, head: bytes, *, unpacked: bool = False) -> None:
    """Refuses content whose format is known and is not text.

    Args:
        path: path of the file, for the error.
        head: the first `HEAD_SIZE` bytes, or the whole content.
        unpacked: whether they were unpacked from a compressed file.

    Raises:
        BadInputError: the content is of such a format. The message names the format and says what
            to do.
    """
    compression = compression_of(head)
    if compression is not None and unpacked:
        raise BadInputError(f"{path}: is compressed twice ({compression}); unpack it once")
    kind = _file_kind(head)
    if kind is not None:
        inside = ", inside a compressed file," if unpacked else ""
        advice = (unpacked and kind.advice_if_packed) or kind.advice
        advice = advice.replace("FILE", os.path.basename(path))
        raise BadInputError(f"{path}: is {kind.name}{inside} and not read here; {advice}")


def _file_kind(head: bytes) -> _FileKind | None:
    for kind in _FILE_KINDS:
        if re.match(kind.beginning, head, re.DOTALL):
            return kind
    return None


PRESET_CONFIG = "config.json"
RUN_CONFIG = "config.yaml"
PRESET_OF_RUN = "preset"
PRETRAINING_RECORDS = "pretraining"
ANY_TASK = "a task"
_PRETRAINING_INFO = "dataset_info.json"
_INFO_ENDING = "_info.json"
_COMMANDS_OF_TASK = "spanbert_tf.tasks.table:commands_of_task"
_HUGGING_FACE_KEYS = {"model_type", "architectures", "transformers_version", "hidden_size"}
_HUGGING_FACE_BERTS = ("bert", "segabert")  # types of models that can be converted
_HUGGING_FACE_WEIGHTS = {"model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json"}
_HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")  # MODEL or OWNER/MODEL
# With one of these among them, files of text are those of a preset or another model.
_MODEL_FILES = {
    "metadata.json",
    "task.json",
    "tokenizer.json",
    "preprocessor.json",
    "golden.json",
    PRESET_CONFIG,
    RUN_CONFIG,
    "vocab.txt",
}
_MODEL_ENDINGS = (".h5", ".npz", ".safetensors", ".bin", ".pt")


def _convert(source_format: str, path: str) -> str:
    return f"convert it with `spanbert-tf convert --from {source_format} --to keras {path} PRESET`"


class _DirectoryKind(NamedTuple):
    """A kind of directory that users name in place of a preset or of records.

    Attributes:
        files: patterns of paths in it, of which at least one exists.
        name: what the directory is, with an article.
        advice: how to get a preset. `{path}` is the directory, `{inside}` the directory of the
            file that was found.
    """

    files: tuple[str, ...]
    name: str
    advice: str


# The first that fits counts: from the surest to the least sure.
_DIRECTORY_KINDS = (
    _DirectoryKind(
        (f"{PRESET_OF_RUN}/{PRESET_CONFIG}",), "the directory of a run", "name {inside}"
    ),
    _DirectoryKind(
        (RUN_CONFIG,),
        "the directory of a run that has not ended",
        "go on with it: its preset is written last",
    ),
    _DirectoryKind(
        ("adapter_config.json",),
        "an adapter of peft without the files of a preset",
        "merge it into its model there (`merge_and_unload`) and convert that",
    ),
    _DirectoryKind(
        ("ckpt-[0-9]*.index",),
        "a checkpoint of the Model Garden",
        _convert("model_garden", "{path}"),
    ),
    _DirectoryKind(
        ("*.ckpt*.index", "bert_config.json"),
        "a checkpoint of TensorFlow 1",
        _convert("tf1", "{path}"),
    ),
    _DirectoryKind(("*.pt",), "a checkpoint of fairseq", _convert("fairseq", "{path}")),
    _DirectoryKind(
        ("saved_model.pb", "[0-9]*/saved_model.pb"),
        "a SavedModel, as `export` writes it",
        "name the preset that it was made of; one cannot be made of it",
    ),
    _DirectoryKind(
        ("dataset_dict.json", "state.json"),
        "a data set of Hugging Face's `datasets`",
        "name the directory of a preset",
    ),
)


class Found(NamedTuple):
    """The content of a path.

    Attributes:
        what: the content in words, with an article: `"a checkpoint of TensorFlow 1"`.
        advice: how to get a preset.
        records_of: the task of the records in it, or `PRETRAINING_RECORDS`; empty without records.
        is_text: whether `prepare` can make records from it.
    """

    what: str
    advice: str
    records_of: str = ""
    is_text: bool = False

    def __str__(self) -> str:
        """Returns the predicate of a sentence about the path."""
        return f"{'holds' if self.records_of else 'is'} {self.what}"


def refuse_no_preset(path: str) -> None:
    """Refuses a path that is known to hold no preset. KerasHub checks names of other places.

    Args:
        path: directory, or another name that `from_preset` takes.

    Raises:
        BadInputError: it is a file or a directory without a preset. The message says what it holds
            and what to do.
    """
    if os.path.isdir(path):
        check_own_files(path)
        if _class_of_preset(path):
            return
        found = look_into(path)
        missing = "" if os.path.exists(_in(path, PRESET_CONFIG)) else f"{PRESET_CONFIG} is missing"
        if found is None and missing:
            raise BadInputError(f"{path}: no preset: {missing}; name the directory of a preset")
    else:
        found = _file(path)
    if found:
        raise BadInputError(f"{path}: {found}, no preset; {found.advice}")


def info_file(task: str) -> str:
    """Returns the name of the file that describes the records of a task, or of pre-training."""
    return _PRETRAINING_INFO if task == PRETRAINING_RECORDS else f"{task}{_INFO_ENDING}"


def prepare_command(task: str) -> str:
    """Returns the command that writes records of a task, `PRETRAINING_RECORDS` or `ANY_TASK`."""
    if task == ANY_TASK:
        return "`spanbert-tf prepare squad`, for example, or `prepare classification`"
    return f"`spanbert-tf prepare {'` or `'.join(_commands(task))}`"


def _commands(task: str) -> tuple[str, ...]:
    """Returns the names of the `prepare` commands that write the records of a task."""
    if task == PRETRAINING_RECORDS:
        return ("pretraining",)
    return load(_COMMANDS_OF_TASK)(task)


def _prepare_of(source: str, task: str) -> str:
    """Returns advice how to write records from a file of text, or from a pattern of such files."""
    command = "TASK" if task == ANY_TASK else _commands(task)[0]
    read_by = "--vocabulary FILE" if task == PRETRAINING_RECORDS else "--preset PRESET"
    return (
        f"write them with `spanbert-tf prepare {command} {read_by} --input {shlex.quote(source)} "
        "--output RECORDS` (--help shows its other options)"
    )


def refuse_other_records(directory: str, task: str) -> None:
    """Refuses a directory that holds something else than the records of a task.

    Args:
        directory: the path that the user named.
        task: name of the task, `PRETRAINING_RECORDS`, or `ANY_TASK`.

    Raises:
        BadInputError: it holds something else. The message says what it holds and what to do.
    """
    if not os.path.exists(directory):
        return
    wanted = _records_name(task)
    if not os.path.isdir(directory):
        raise BadInputError(f"{directory}: is a file, not {wanted}; {_prepare_of(directory, task)}")
    names = os.listdir(directory)
    if info_file(task) in names and RUN_CONFIG not in names:
        return
    advice = f"write them with {prepare_command(task)}"
    if _class_of_preset(directory):
        raise BadInputError(f"{directory}: is a preset, not {wanted}; {advice}")
    found = look_into(directory)
    if task == ANY_TASK and (found is None or found.records_of not in ("", PRETRAINING_RECORDS)):
        return  # the caller knows the tasks
    if found is not None and found.is_text:
        is_read_whole = task == PRETRAINING_RECORDS
        source = _in(directory, "*" if is_read_whole else visible_files(directory, names)[0])
        advice = _prepare_of(source, task)
    if found is None:
        raise BadInputError(
            f"{directory}: holds no {wanted} ({info_file(task)} is missing); {advice}"
        )
    if found.records_of:
        command = "pretrain" if found.records_of == PRETRAINING_RECORDS else "finetune"
        reader = f"`spanbert-tf {command}` reads them"
        if command == "finetune":
            reader += f" with a configuration of {found.records_of}"
        advice = f"{reader}, or {advice}"
    raise BadInputError(f"{directory}: {found}, not {wanted}; {advice}")


def hugging_face_model(config: object, path: str) -> Found | None:
    """Finds out what a model of Hugging Face is, by its `config.json`; `None` for another file.

    Args:
        config: the content of the file.
        path: where the model lies, for the advice.
    """
    if not isinstance(config, dict) or "class_name" in config:
        return None
    if not config.keys() & _HUGGING_FACE_KEYS:
        return None
    kind = config.get("model_type", "bert")
    if kind not in _HUGGING_FACE_BERTS:
        return Found(f"a {kind} model of Hugging Face", "only BERT models can be converted")
    return Found("a BERT model of Hugging Face", _convert("huggingface", path))


def is_hugging_face_bert(path: str) -> bool:
    """Whether a path is the directory of a model of Hugging Face that can be converted."""
    config = _read_config(path)
    if not isinstance(config, dict) or hugging_face_model(config, path) is None:
        return False
    return config.get("model_type", "bert") in _HUGGING_FACE_BERTS


def convert_keras_command(preset: str) -> str:
    """Returns advice for a preset of KerasHub's own classes."""
    return _convert("keras", preset)


def download_commands(name: str) -> str | None:
    """Returns commands that make a preset of a model of the Hugging Face Hub.

    Args:
        name: `MODEL` or `OWNER/MODEL`, also after `hf://`.

    Returns:
        The commands; `None` if no model can have such a name.
    """
    name = name.removeprefix("hf://")
    if not _HUB_NAME.fullmatch(name):
        return None
    directory = name.rpartition("/")[2]
    return (
        f"`hf download {name} --local-dir {directory}`, then {_convert('huggingface', directory)}"
    )


def _in(path: str, *names: str) -> str:
    return os.path.join(path, *names)


def _read_config(directory: str) -> object:
    """Reads a `config.json`; `None` if there is none, or a damaged one, which its reader names."""
    path = _in(directory, PRESET_CONFIG)
    try:
        regular_size(path)  # of somebody else's directory it may be a pipe
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def _class_of_preset(directory: str) -> str | None:
    """Returns the class of a preset's encoder, or of another model of Keras."""
    config = _read_config(directory)
    name = config.get("class_name") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def look_into(path: str) -> Found | None:
    """Finds out what a directory without a preset is; `None` if that is not known."""
    names = sorted(os.listdir(path))
    if not names:
        return Found("an empty directory", "name the directory of a preset")
    found = hugging_face_model(_read_config(path), path)
    if found is None:
        found = _directory_kind(path)
    if found is None and PRESET_CONFIG not in names and _HUGGING_FACE_WEIGHTS.intersection(names):
        advice = f"copy that, too, and {_convert('huggingface', path)}"
        found = Found(f"a model of Hugging Face without its {PRESET_CONFIG}", advice)
    for look in (_records, _presets, _texts):
        if found is None:
            found = look(path, names)
    return found


def _directory_kind(path: str) -> Found | None:
    """Returns the first kind of directory of which one of the files exists."""
    for kind in _DIRECTORY_KINDS:
        for pattern in kind.files:
            if found := sorted(glob.glob(_in(glob.escape(path), pattern))):
                inside = os.path.dirname(found[0])
                return Found(kind.name, kind.advice.format(path=path, inside=inside))
    return None


def _records(path: str, names: list[str]) -> Found | None:
    for name in names:
        if name == _PRETRAINING_INFO:
            task = PRETRAINING_RECORDS
        elif name.endswith(_INFO_ENDING):
            task = name.removesuffix(_INFO_ENDING)
        else:
            continue
        return Found(_records_name(task), "records are what --data takes", task)
    return None


def _presets(path: str, names: list[str]) -> Found | None:
    for name in names:
        inner = _in(path, name)
        if _class_of_preset(inner):
            return Found("a directory of presets", f"name one of them, such as {inner}")
    return None


def _texts(path: str, names: list[str]) -> Found | None:
    """Recognizes a folder of text, or of masked examples, by its first files."""
    files = visible_files(path, names)
    if not files or any(name in _MODEL_FILES or name.endswith(_MODEL_ENDINGS) for name in files):
        return None
    heads = [_read_head(_in(path, name)) for name in files[:3]]
    if any(_file_kind(head) is _MASKED for head in heads):
        return Found(f"a directory with {_MASKED.name}", "name the directory of a preset")
    if not all(map(_is_text, heads)):
        return None
    advice = (
        "name the directory of a preset; to train one on this text, begin with `spanbert-tf "
        f"prepare vocabulary --input '{_in(path, '*')}' --vocabulary-size 30000`"
    )
    return Found("a folder of text", advice, is_text=True)


def visible_files(path: str, names: list[str]) -> list[str]:
    """Lists the names of the files in a directory, without hidden files."""
    return [
        name
        for name in sorted(names)
        if not name.startswith(".") and os.path.isfile(_in(path, name))
    ]


def _read_head(path: str) -> bytes:
    """Reads the first bytes of a file, unpacked; empty if they cannot be unpacked."""
    with open(path, "rb") as file:
        try:
            return UnpackedFile(path, file).peek(1)[:HEAD_SIZE]
        except BadInputError:
            return b""


def _is_text(head: bytes) -> bool:
    if not head or _file_kind(head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def _file(path: str) -> Found | None:
    """Finds out what a file is that was named in place of a directory, or its beginning."""
    directory = os.path.dirname(path) or "."
    if os.path.exists(f"{path}.index"):  # of a checkpoint, whose files share the path
        return _directory_kind(directory)
    if not os.path.isfile(path):
        return None
    if path.lower().endswith(".zip"):
        return Found("a ZIP archive", f"unzip it; if it is Google's BERT, {_convert('tf1', 'DIR')}")
    if path.lower().endswith((".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")):
        return Found("an archive", _convert("huggingface", path))
    if _class_of_preset(directory):
        return Found("a file of a preset", f"name its directory, {directory}")
    if found := look_into(directory):
        return Found(f"a file in {found.what}", found.advice)
    return Found("a file", "name the directory of a preset")


def _records_name(task: str) -> str:
    if task == PRETRAINING_RECORDS:
        return "pre-training records"
    return f"records of {task.replace('_', ' ')}"
