"""Takes a directory of Hugging Face where a command reads a preset: it is converted in passing.

The preset is kept in Keras' home, where KerasHub keeps the presets that it downloads. The name of
its folder is a digest of the source's files and of the language, so that each source is converted
once for a language, and a changed one again. Other code converts it anew in the same folder. A
process of its own converts on the CPU: the command may train on the devices later, or only read the
vocabulary.
"""

import hashlib
import os
import pathlib
import shutil
import tempfile

import filelock

from spanbert_tf.data.manifest import language_of_records
from spanbert_tf.errors import BadInputError, SpanBertError, reason
from spanbert_tf.files.contents import check_own_files, code_digest, sha256
from spanbert_tf.files.kinds import PRESET_CONFIG, is_hugging_face_bert
from spanbert_tf.files.output import write_text
from spanbert_tf.files.paths import without_slash
from spanbert_tf.process import command_line, run_child
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import check_language_of_preset, known_language

_PACKAGE = pathlib.Path(__file__).parents[1]
# Endings of the files that a conversion can read.
_READ_ENDINGS = (".json", ".txt", ".safetensors", ".bin")
_CODE_FILE = "code.sha256"  # beside the preset: of the code that made it
_PROGRAM = "spanbert-tf: "  # begins the line of an error
_OPTIONS = ("--cased", "--vocabulary", "--positions")  # of `convert`, which its errors ask for


def converted_preset(
    preset: str, *, language: str | None = None, records: str | os.PathLike | None = None
) -> str:
    """Returns the directory of a preset: of the same, or of one made of a model of Hugging Face.

    A conversion prints the table of `convert`. A later call for the same files finds its preset.

    Args:
        preset: a name of a preset, or a directory of a BERT of Hugging Face: `config.json`, weights
            and a vocabulary.
        language: code of the language of its texts, which such a directory does not state; `None`:
            that of the records, or English.
        records: directory of the records that the preset is used with.

    Raises:
        BadInputError: the directory cannot be converted, or its preset cannot be written.
        ConfigurationError: the language is unknown.
        MismatchError: a preset states another language than the given one.
    """
    if not is_hugging_face_bert(preset):
        if language is not None:
            check_language_of_preset(preset, language)
        return preset
    if language is None and records is not None:
        language = language_of_records(records)
    language = known_language(language)
    source = without_slash(preset)
    check_own_files(source)
    folder = os.path.join(_cache(), _digest(source, language))
    destination = os.path.join(folder, os.path.basename(os.path.abspath(source)))
    code = code_digest([_PACKAGE])
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        # Another command may be converting the same source; then this one waits.
        with filelock.FileLock(f"{folder}.lock"):
            is_there = os.path.isfile(os.path.join(destination, PRESET_CONFIG))
            if is_there and _is_made_by(code, folder):
                print_line(f"{source}: a model of Hugging Face, converted to {destination}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
                _convert(source, destination, language)
                write_text(os.path.join(folder, _CODE_FILE), code)
    except (OSError, NotImplementedError) as error:  # a file system without locks
        raise BadInputError(
            f"{folder}: the preset of {source} cannot be written ({reason(error)}); let KERAS_HOME "
            "name another directory"
        ) from error
    return destination


def _cache() -> str:
    """Returns the directory of all presets that were made in passing."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return os.path.join(home, "models", "spanbert_tf")


def _digest(directory: str, language: str) -> str:
    """Returns a digest of the files that a conversion can read, and of the language."""
    digest = hashlib.sha256(language.encode())
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.endswith(_READ_ENDINGS) and os.path.isfile(path):
            digest.update(f"\n{name}\n{sha256(path)}".encode())
    return digest.hexdigest()[:16]


def _is_made_by(code: str, folder: str) -> bool:
    """Whether the preset of a folder was made by code of this digest."""
    path = pathlib.Path(folder, _CODE_FILE)
    return path.is_file() and path.read_text() == code


def _convert(source: str, destination: str, language: str) -> None:
    """Converts in a process of its own.

    Raises:
        BadInputError: as the process says it.
    """
    arguments = ["convert", "--from", "huggingface", "--to", "keras", "--without-next-steps"]
    command = command_line([*arguments, "--language", language, source, destination])
    with tempfile.TemporaryFile() as errors:
        status = run_child(["env", "CUDA_VISIBLE_DEVICES=-1", *command], stderr=errors)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if status:
        raise _error(source, said, status)


def _error(source: str, said: str, status: int) -> SpanBertError:
    """Returns the error of a conversion that failed.

    Args:
        source: the directory.
        said: what the process wrote to standard error.
        status: its exit status.
    """
    lines = [line for line in said.splitlines() if line.startswith(_PROGRAM)]
    if not lines:
        last = (said.splitlines() or ["no message"])[-1]
        return BadInputError(f"{source}: converting it failed with status {status} ({last})")
    line = lines[-1].removeprefix(_PROGRAM)
    if any(option in line for option in _OPTIONS):
        line += (
            f" to `spanbert-tf convert --from huggingface --to keras {source} PRESET`, and name "
            "that PRESET here"
        )
    return BadInputError(line)
