"""What a path holds that was given for a preset or for records: the same words everywhere.

Nothing here needs TensorFlow, and no file but a small `config.json` is read.
"""

import glob
import json
import os
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.checksums import refuse_special_files
from spanbert_tf.files.file_kinds import HEAD_SIZE, archive_kind

PRESET_CONFIG = "config.json"
RUN_CONFIG, PRESET_OF_RUN = "config.yaml", "preset"
PRETRAINING_RECORDS, ANY_TASK = "pretraining", "a task"
_PRETRAINING_INFO, _INFO_ENDING = "dataset_info.json", "_info.json"
# Commands that write the records of each kind.
_PREPARE = {
    PRETRAINING_RECORDS: "pretraining",
    "question_answering": "squad` or `mrqa",
    "text_classification": "classification` or `glue",
    "relation_extraction": "tacred` or `semeval2010",
    "named_entities": "named_entities",
    "coreference": "coreference",
    ANY_TASK: "squad`, for example, or `prepare classification",
}
_HUGGING_FACE_KEYS = {"model_type", "architectures", "transformers_version", "hidden_size"}
_HUGGING_FACE_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json")


class Found(NamedTuple):
    """What lies somewhere.

    Attributes:
        what: in words, with an article: `"a checkpoint of TensorFlow 1"`.
        advice: what to do to get a preset of it.
        records_of: task of the records that lie there, or `PRETRAINING_RECORDS`.
    """

    what: str
    advice: str
    records_of: str = ""

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
        refuse_special_files(path)
        if _class_of_preset(path):
            return
        found = _directory(path)
        missing = "" if os.path.exists(_in(path, PRESET_CONFIG)) else f"{PRESET_CONFIG} is missing"
        if found is None and missing:
            raise BadInputError(f"{path}: no preset: {missing}; name the directory of a preset")
    else:
        found = _file(path)
    if found:
        raise BadInputError(f"{path}: {found}, no preset; {found.advice}")


def refuse_other_records(directory: str, task: str) -> None:
    """Refuses a directory that holds something else than the records of a task.

    Args:
        directory: what was given for records.
        task: name of the task, `PRETRAINING_RECORDS`, or `ANY_TASK`.

    Raises:
        BadInputError: it does; the message says what it holds and what to do.
    """
    if not os.path.isdir(directory):
        return
    names = os.listdir(directory)
    if _info_file(task) in names and RUN_CONFIG not in names:
        return
    wanted = _records_name(task)
    advice = f"write such with `spanbert-tf prepare {_PREPARE.get(task, task)}`"
    if _class_of_preset(directory):
        raise BadInputError(f"{directory}: is a preset, not {wanted}; {advice}")
    found = _directory(directory)
    if task == ANY_TASK and (found is None or found.records_of not in ("", PRETRAINING_RECORDS)):
        return  # the caller knows the tasks
    if found is None:
        raise BadInputError(
            f"{directory}: holds no {wanted} ({_info_file(task)} is missing); {advice}"
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


def _directory(path: str) -> Found | None:
    """What a directory holds that is no preset; the first that fits, from sure to unsure."""
    names = os.listdir(path)
    for look in (_run, _hugging_face, _checkpoint, _saved_model, _data_set, _records, _above):
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
    if found := hugging_face_model(config, path):
        return found
    if config is None and PRESET_CONFIG not in names and {*names} & {*_HUGGING_FACE_WEIGHTS}:
        return Found(
            f"a model of Hugging Face without its {PRESET_CONFIG}",
            f"copy that, too, and {_convert('huggingface', path)}",
        )
    return None


def _checkpoint(path: str, names: list[str]) -> Found | None:
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


def _file(path: str) -> Found | None:
    """What a file is that was named in place of a directory, or the beginning of its name."""
    directory = os.path.dirname(path) or "."
    if not os.path.isfile(path):
        if glob.glob(f"{glob.escape(path)}.index"):
            return Found("a checkpoint of TensorFlow 1", _convert("tf1", directory))
        return None
    with open(path, "rb") as file:
        kind = archive_kind(file.read(HEAD_SIZE))
    if kind == "zip" and path.lower().endswith(".zip"):  # PyTorch's and Keras' files are such, too
        return Found("a ZIP archive", "unzip it; Google's BERT: then " + _convert("tf1", "DIR"))
    if kind == "tar":
        return Found("an archive", _convert("huggingface", path))
    if _class_of_preset(directory):
        return Found("a file of a preset", f"name its directory, {directory}")
    if found := _directory(directory):
        return Found(f"a file in {found.what}", found.advice)
    return Found("a file", "name the directory of a preset")


def _info_file(task: str) -> str:
    return _PRETRAINING_INFO if task == PRETRAINING_RECORDS else f"{task}{_INFO_ENDING}"


def _records_name(task: str) -> str:
    if task == PRETRAINING_RECORDS:
        return "pre-training records"
    return f"records of {task.replace('_', ' ')}"
