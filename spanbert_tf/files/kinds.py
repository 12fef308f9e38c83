"""What a path holds that was given for something else: the same words everywhere.

Of files the first bytes tell, of directories the names, and a small `config.json`; nothing else is
read. Nothing here needs TensorFlow.
"""

import codecs
import json
import os
import re
import shlex
import zlib
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import check_own_files
from spanbert_tf.lazy import load

HEAD_SIZE = 2**16  # bytes that tell every kind; of TFRecords, features of the first ones
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257
_ZIP_MAGIC, _GZIP_MAGIC, _XZ_MAGIC = b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ\0"
_COMPRESSED = (_GZIP_MAGIC, _XZ_MAGIC)  # as tar archives are
_LONGEST_RECORD = 2**32  # bytes; the length of a TFRecord's first record stands in 8
# What BERT's `create_pretraining_data.py` writes, and the Model Garden's, with masks drawn before.
_MASKED_FEATURES = (
    *("input_ids", "input_word_ids", "input_mask", "segment_ids", "input_type_ids"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
)


class _Kind(NamedTuple):
    magic: bytes
    name: str
    advice: str


def _as_json_lines(function: str) -> str:
    return (
        "write its rows as JSON lines, for example with "
        f"`pandas.{function}('FILE').to_json('rows.jsonl', orient='records', lines=True)`"
    )


_AS_TEXT = "write its text as plain UTF-8"
_UNPACK = "unpack it first"
_ARROW = (
    "write its rows as JSON lines, for example with "
    "`datasets.Dataset.from_file('FILE').to_json('rows.jsonl')`"
)
# From the formats' own specifications. What could begin a text (ORC's magic is "ORC") is left out.
_KINDS = (
    _Kind(b"PAR1", "Parquet", _as_json_lines("read_parquet")),
    _Kind(b"ARROW1\0\0", "Arrow (Feather)", _as_json_lines("read_feather")),
    _Kind(b"\xff\xff\xff\xff", "Arrow, as `datasets` stores it", _ARROW),
    _Kind(b"Obj\x01", "Avro", "write its rows as JSON lines"),
    _Kind(b"SQLite format 3\0", "an SQLite database", "write its rows as JSON lines"),
    _Kind(b"\x89HDF\r\n\x1a\n", "HDF5", "name a file of text"),
    _Kind(b"\x93NUMPY", "a NumPy array", "name a file of text"),
    _Kind(b"\x28\xb5\x2f\xfd", "compressed by zstd", f"{_UNPACK}: `zstd -d FILE`, or use gzip"),
    _Kind(_XZ_MAGIC, "compressed by xz", f"{_UNPACK}: `xz -dk FILE`, or use gzip"),
    _Kind(b"BZh", "compressed by bzip2", f"{_UNPACK}: `bunzip2 -k FILE`, or use gzip"),
    _Kind(b"\x04\x22\x4d\x18", "compressed by lz4", f"{_UNPACK}: `lz4 -d FILE`, or use gzip"),
    _Kind(_GZIP_MAGIC, "compressed by gzip twice", f"{_UNPACK} once: `gunzip -k FILE`"),
    _Kind(b"\x1f\x9d", "compressed by compress", f"{_UNPACK}: `uncompress FILE`, or use gzip"),
    _Kind(
        _ZIP_MAGIC,
        "a ZIP archive (as docx, xlsx and epub are)",
        f"unzip it and name the files of text; of a document, {_AS_TEXT}",
    ),
    _Kind(b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and name the files of text"),
    _Kind(b"Rar!\x1a\x07", "a RAR archive", "unpack it and name the files of text"),
    _Kind(b"%PDF-", "PDF", f"{_AS_TEXT}, for example with pdftotext"),
    _Kind(b"{\\rtf", "RTF", _AS_TEXT),
    _Kind(b"%!PS-Adobe", "PostScript", _AS_TEXT),
    _Kind(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Word or Excel 97", _AS_TEXT),
    _Kind(b"\x89PNG\r\n\x1a\n", "a PNG picture", "name a file of text"),
    _Kind(b"\xff\xd8\xff", "a JPEG picture", "name a file of text"),
    _Kind(b"\x7fELF", "a program", "name a file of text"),
)
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # after its level: a first block, or none at all


def refuse_known_binary(path: str, head: bytes, *, unpacked: bool = False) -> None:
    """Refuses content whose format is known and is no text.

    Args:
        path: path of the file, for the error.
        head: the first `HEAD_SIZE` bytes, or all there are.
        unpacked: whether they were taken out of gzip, which is then named.

    Raises:
        BadInputError: it is such content; the message names the format and says what to do.
    """
    found = _known_binary(head)
    if found is None or (found.magic == _GZIP_MAGIC and not unpacked):
        return
    inside = ", inside gzip," if unpacked and found.magic != _GZIP_MAGIC else ""
    raise BadInputError(
        f"{path}: is {found.name}{inside} and not read here; "
        f"{found.advice.replace('FILE', os.path.basename(path))}"
    )


def archive_kind(head: bytes) -> str | None:
    """`"zip"`, or `"tar"`, which may be compressed; `None` for what is no archive."""
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    is_tar = head.startswith(_COMPRESSED) or head[_TAR_PLACE:].startswith(_TAR_MAGIC)
    return "tar" if is_tar or _is_bzip2(head) else None


def _known_binary(head: bytes) -> _Kind | None:
    for kind in _KINDS:
        if head.startswith(kind.magic) and (kind.magic != b"BZh" or _is_bzip2(head)):
            return kind
    if head[_TAR_PLACE:].startswith(_TAR_MAGIC):
        return _Kind(b"", "a tar archive", "unpack it (`tar -xf FILE`) and name the files of text")
    if masked := _masked_records(head):
        return _Kind(b"", masked, "masks are drawn while training here: name the text they were of")
    if _begins_with_record(head):
        return _Kind(b"", "TFRecord (or other binary data)", "name a file of text")
    return _utf_16(head[:512])


def _begins_with_record(head: bytes) -> bool:
    return len(head) >= 16 and 0 < int.from_bytes(head[:8], "little") < _LONGEST_RECORD


def _masked_records(head: bytes) -> str | None:
    """What masked records are, by names of features that stand in them as text."""
    if not _begins_with_record(head) or b"masked_lm_positions" not in head:
        return None
    names = [name for name in _MASKED_FEATURES if name.encode() in head]
    return f"a TFRecord of BERT's or the Model Garden's masked examples ({', '.join(names)})"


def _is_bzip2(head: bytes) -> bool:
    return head.startswith(b"BZh") and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS


def _utf_16(head: bytes) -> _Kind | None:
    """UTF-16 and UTF-32, with their byte order mark or by the NULs beside Latin letters."""
    has_mark = head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
    if has_mark or 3 * head.count(0) > len(head):
        name = "UTF-16 or UTF-32"
        return _Kind(b"", name, "convert it: `iconv -f UTF-16 -t UTF-8 FILE`")
    return None


# What directories hold, and what to do with it.
PRESET_CONFIG = "config.json"
RUN_CONFIG, PRESET_OF_RUN = "config.yaml", "preset"
PRETRAINING_RECORDS, ANY_TASK = "pretraining", "a task"
_PRETRAINING_INFO, _INFO_ENDING = "dataset_info.json", "_info.json"
_COMMANDS_OF_TASK = "spanbert_tf.tasks.table:commands_of_task"
_HUGGING_FACE_KEYS = {"model_type", "architectures", "transformers_version", "hidden_size"}
_OBJECT_BASED = re.compile(r"ckpt-\d+\.index")  # as `tf.train.CheckpointManager` names files
_HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")  # MODEL or OWNER/MODEL
_GZIP_BITS = 31  # zlib's largest window, in a file of gzip
# With one of these among them, files of text are those of a preset or another model.
_MODEL_FILES = {
    *("metadata.json", "task.json", "tokenizer.json", "preprocessor.json", "golden.json"),
    *(PRESET_CONFIG, RUN_CONFIG, "vocab.txt"),
}
_MODEL_ENDINGS = (".h5", ".npz", ".safetensors", ".bin", ".pt")
_HUGGING_FACE_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json")


class Found(NamedTuple):
    """What lies somewhere."""

    what: str  # in words, with an article: `"a checkpoint of TensorFlow 1"`
    advice: str  # what to do to get a preset of it
    records_of: str = ""  # task of the records that lie there, or `PRETRAINING_RECORDS`
    is_text: bool = False  # of which records can be written

    def __str__(self) -> str:
        """What it is, as a predicate."""
        return f"{'holds' if self.records_of else 'is'} {self.what}"


def refuse_no_preset(path: str) -> None:
    """Refuses what is known to be no preset; names of other places are left to KerasHub.

    Args:
        path: directory, or another name that `from_preset` takes.

    Raises:
        BadInputError: it is a file or a directory without a preset; the message says what it holds
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
    """The name of the file that describes the records of a task, or those for pre-training."""
    return _PRETRAINING_INFO if task == PRETRAINING_RECORDS else f"{task}{_INFO_ENDING}"


def prepare_command(task: str) -> str:
    """The command that writes the records of a task, `PRETRAINING_RECORDS` or `ANY_TASK`."""
    if task == ANY_TASK:
        return "`spanbert-tf prepare squad`, for example, or `prepare classification`"
    return f"`spanbert-tf prepare {'` or `'.join(_commands(task))}`"


def _commands(task: str) -> tuple[str, ...]:
    """The names of the `prepare` commands that write the records of a task."""
    if task == PRETRAINING_RECORDS:
        return ("pretraining",)
    return load(_COMMANDS_OF_TASK)(task)


def _prepare_of(source: str, task: str) -> str:
    """How records are written of a file of text, or of a pattern of such."""
    command = "TASK" if task == ANY_TASK else _commands(task)[0]
    read_by = "--vocabulary FILE" if task == PRETRAINING_RECORDS else "--preset PRESET"
    return (
        f"write such with `spanbert-tf prepare {command} {read_by} --input {shlex.quote(source)} "
        "--output RECORDS` (--help shows its other options)"
    )


def refuse_other_records(directory: str, task: str) -> None:
    """Refuses a directory that holds something else than the records of a task.

    Args:
        directory: what was given for records.
        task: name of the task, `PRETRAINING_RECORDS`, or `ANY_TASK`.

    Raises:
        BadInputError: it does; the message says what it holds and what to do.
    """
    if not os.path.exists(directory):
        return
    wanted = _records_name(task)
    if not os.path.isdir(directory):
        raise BadInputError(f"{directory}: is a file, not {wanted}; {_prepare_of(directory, task)}")
    names = os.listdir(directory)
    if info_file(task) in names and RUN_CONFIG not in names:
        return
    advice = f"write such with {prepare_command(task)}"
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
    """What a model of Hugging Face is, by its `config.json`; `None` for another file.

    Args:
        config: the content of the file.
        path: where the model lies, for the advice.
    """
    if not isinstance(config, dict) or "class_name" in config:
        return None
    if not config.keys() & _HUGGING_FACE_KEYS:
        return None
    kind = config.get("model_type", "bert")
    if kind != "bert":
        return Found(f"a {kind} model of Hugging Face", "BERT's alone can be converted: name one")
    return Found("a BERT model of Hugging Face", _convert("huggingface", path))


def _convert(source_format: str, path: str) -> str:
    return f"`spanbert-tf convert --from {source_format} --to keras {path} PRESET` makes one of it"


def convert_keras_command(preset: str) -> str:
    """What to do with a preset of KerasHub's own classes."""
    return _convert("keras", preset)


def download_commands(name: str) -> str | None:
    """How a model of the Hugging Face Hub becomes a preset; `None`: no model has such a name.

    Args:
        name: `MODEL` or `OWNER/MODEL`, also after `hf://`.
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
    """A `config.json`; `None` where there is none, or a damaged one, which its reader names."""
    try:
        with open(_in(directory, PRESET_CONFIG), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def _class_of_preset(directory: str) -> str | None:
    """The class of a preset's encoder, or of another model of Keras."""
    config = _read_config(directory)
    name = config.get("class_name") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def look_into(path: str) -> Found | None:
    """What a directory holds that is no preset; the first that fits, from sure to unsure."""
    names = os.listdir(path)
    looks = (
        *(_run, _hugging_face, _checkpoint, _saved_model, _data_set, _records, _above, _masked),
        _texts,
    )
    for look in looks:
        if found := look(path, names):
            return found
    return None if names else Found("an empty directory", "name the directory of a preset")


def _run(path: str, names: list[str]) -> Found | None:
    inner = _in(path, PRESET_OF_RUN)
    if _class_of_preset(inner):
        return Found("the directory of a run", f"name {inner}")
    if RUN_CONFIG not in names:
        return None
    return Found(
        "the directory of a run that has not ended", "go on with it: its preset is written last"
    )


def _hugging_face(path: str, names: list[str]) -> Found | None:
    config = _read_config(path)
    if "adapter_config.json" in names:
        return Found(
            "an adapter of peft without the files of a preset",
            "merge it into its model there (`merge_and_unload`) and convert that",
        )
    if found := hugging_face_model(config, path):
        return found
    if config is None and PRESET_CONFIG not in names and {*names} & {*_HUGGING_FACE_WEIGHTS}:
        return Found(
            f"a model of Hugging Face without its {PRESET_CONFIG}",
            f"copy that, too, and {_convert('huggingface', path)}",
        )
    return None


def _checkpoint(path: str, names: list[str]) -> Found | None:
    if any(_OBJECT_BASED.fullmatch(name) for name in names):
        return Found("a checkpoint of the Model Garden", _convert("model_garden", path))
    is_checkpoint = any(".ckpt" in name and name.endswith(".index") for name in names)
    if is_checkpoint or "bert_config.json" in names:
        return Found("a checkpoint of TensorFlow 1", _convert("tf1", path))
    if any(name.endswith(".pt") for name in names):
        return Found("a checkpoint of fairseq", _convert("fairseq", path))
    return None


def _saved_model(path: str, names: list[str]) -> Found | None:
    versions = [_in(path, name) for name in names if name.isdigit()]
    if any(os.path.exists(_in(place, "saved_model.pb")) for place in (path, *versions)):
        return Found(
            "a SavedModel, as `export` writes it",
            "name the preset that it was made of; one cannot be made of it",
        )
    return None


def _data_set(path: str, names: list[str]) -> Found | None:
    if "dataset_dict.json" in names or {"state.json", _PRETRAINING_INFO} <= {*names}:
        return Found("a data set of Hugging Face's `datasets`", "name the directory of a preset")
    return None


def _records(path: str, names: list[str]) -> Found | None:
    infos = sorted(name for name in names if name.endswith(_INFO_ENDING))
    if not infos:
        return None
    name = infos[0].removesuffix(_INFO_ENDING)
    task = PRETRAINING_RECORDS if infos[0] == _PRETRAINING_INFO else name
    return Found(_records_name(task), "records are what --data takes", task)


def _above(path: str, names: list[str]) -> Found | None:
    presets = [name for name in sorted(names) if _class_of_preset(_in(path, name))]
    if not presets:
        return None
    return Found("a directory of presets", f"name one of them, such as {_in(path, presets[0])}")


def _masked(path: str, names: list[str]) -> Found | None:
    places = [_in(path, name) for name in sorted(names)]
    for place in [place for place in places if os.path.isfile(place)][:3]:
        with open(place, "rb") as file:
            if masked := _masked_records(file.read(HEAD_SIZE)):
                return Found(f"a directory with {masked}", "name the directory of a preset")
    return None


def _texts(path: str, names: list[str]) -> Found | None:
    """A folder of text, by its first files; hidden ones are not looked at."""
    files = visible_files(path, names)
    is_of_model = any(name in _MODEL_FILES or name.endswith(_MODEL_ENDINGS) for name in files)
    if not files or is_of_model or not all(_is_text(_in(path, name)) for name in files[:3]):
        return None
    advice = (
        "name the directory of a preset; to train one on this text, begin with `spanbert-tf "
        f"prepare vocabulary --input '{_in(path, '*')}' --vocabulary-size 30000`"
    )
    return Found("a folder of text", advice, is_text=True)


def visible_files(path: str, names: list[str]) -> list[str]:
    """The names of the files in a directory, but for hidden ones."""
    return [
        name
        for name in sorted(names)
        if not name.startswith(".") and os.path.isfile(_in(path, name))
    ]


def _is_text(path: str) -> bool:
    """Whether a file begins with text, in UTF-8 and perhaps inside gzip."""
    with open(path, "rb") as file:
        head = file.read(HEAD_SIZE)
    try:
        if head.startswith(_GZIP_MAGIC):
            head = zlib.decompressobj(wbits=_GZIP_BITS).decompress(head, HEAD_SIZE)
        if not head or _known_binary(head):
            return False
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except (zlib.error, UnicodeDecodeError):
        return False
    return True


def _file(path: str) -> Found | None:
    """What a file is that was named in place of a directory, or the beginning of its name."""
    directory = os.path.dirname(path) or "."
    if not os.path.isfile(path):
        index = f"{path}.index"
        return _checkpoint(directory, [os.path.basename(index)]) if os.path.exists(index) else None
    with open(path, "rb") as file:
        kind = archive_kind(file.read(HEAD_SIZE))
    if kind == "zip" and path.lower().endswith(".zip"):  # PyTorch's and Keras' files are such, too
        return Found("a ZIP archive", "unzip it; Google's BERT: then " + _convert("tf1", "DIR"))
    if kind == "tar":
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
