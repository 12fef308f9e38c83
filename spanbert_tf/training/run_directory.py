"""The directory of a training run, and whether a command may go on with it."""

import dataclasses
import fnmatch
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spanbert_tf.config import FinetuningConfig, PretrainingConfig, flat_values, load_config
from spanbert_tf.config.runs import CONFIG_FILE, INPUTS_FILE, RUN_FORMAT
from spanbert_tf.data.schema import DATASET_INFO_FILE, RECORDS, DatasetInfo
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.outputs import check_no_link, check_output, is_leftover, is_lock
from spanbert_tf.files.writing import write_text
from spanbert_tf.presets.writing import PRESET_KIND

AnyConfig = TypeVar("AnyConfig", bound=FinetuningConfig | PretrainingConfig)

CHECKPOINTS, PRESET = "checkpoints", "preset"
REPAIRED_RECORDS = "records-of-worker-"

# When to stop, to look and to save, on which devices, and what is done after the last step: these
# may change in the middle of a run.
_CHANGEABLE = frozenset(
    {
        "training.steps",
        "training.log_every",
        "training.evaluate_every",
        "training.evaluate_batches",
        "training.checkpoint_every_steps",
        "training.max_checkpoints",
        "training.keep_best",
        "training.max_skipped_steps",
        "training.strategy",
        "training.accumulation_steps",
        "training.deterministic",
        "training.initial_encoder_share",
        "data.on_corrupt",
        "data.service_address",
        "prediction.batch_size",
    }
)
_FORMAT = 2
_GRID = "grid."  # section of what other runs try: a grid may get further values later
# The learning rate has followed them already; a longer run is another one that begins with its
# weights. Key: the option that names these.
_SCHEDULE = {
    "training.schedule_steps": "--initial-preset",
    "training.epochs": "--preset",
    "training.max_steps": "--preset",
}


def check_directory(directory: str) -> None:
    """Checks that a directory is new, empty, or a run; repaired records may lie there before.

    A run may be somebody else's: what the command writes over is what it is called, and no link.

    Raises:
        BadInputError: the directory holds something else.
    """
    if not os.path.exists(directory):
        return
    names = os.listdir(directory) if os.path.isdir(directory) else ["a file"]
    others = [
        name
        for name in names
        if not (name.startswith(REPAIRED_RECORDS) or is_leftover(name) or is_lock(name))
    ]
    if others and CONFIG_FILE not in names:
        raise BadInputError(f"{directory}: exists and is no training run; name another --output")
    for parent, directories, files in os.walk(directory):
        # Repaired records link to those that are whole; they are replaced together.
        if not os.path.relpath(parent, directory).startswith(REPAIRED_RECORDS):
            for name in (*directories, *files):
                check_no_link(os.path.join(parent, name))
    for kind, pattern in ((PRESET_KIND, PRESET), (RECORDS, f"{REPAIRED_RECORDS}*[0-9]")):
        for name in fnmatch.filter(names, pattern):
            check_output(os.path.join(directory, name), kind, overwrite=True)


def check_run(
    directory: str, config: PretrainingConfig, info: DatasetInfo
) -> PretrainingConfig | None:
    """Checks that a directory is new, empty, or of the same pre-training run.

    Returns:
        The configuration that the run was begun with; `None` for a new one.

    Raises:
        BadInputError: the directory holds something else.
        MismatchError: it is a run with another configuration or other records.
    """
    before = check_same_config(directory, config, load_config)
    info_path = os.path.join(directory, DATASET_INFO_FILE)
    if os.path.exists(info_path):
        with open(info_path, encoding="utf-8") as file:
            _check_records(directory, DatasetInfo.from_json(file.read(), info_path), info)
    return before


def write_run(directory: str, config: PretrainingConfig, info: DatasetInfo) -> None:
    """Writes `config.yaml` and a copy of the records' `dataset_info.json`."""
    os.makedirs(directory, exist_ok=True)
    # The configuration last: a directory that has one is a run.
    write_text(os.path.join(directory, DATASET_INFO_FILE), info.to_json())
    write_text(os.path.join(directory, CONFIG_FILE), config.to_yaml())


def check_same_config(
    directory: str, config: AnyConfig, load: Callable[[str], AnyConfig]
) -> AnyConfig | None:
    """Checks that a directory is new, empty, or of a run with the same configuration.

    Args:
        directory: directory of the run.
        config: configuration of the command.
        load: path of a `config.yaml` → configuration.

    Returns:
        The configuration that the run was begun with; `None` for a new one.

    Raises:
        BadInputError: the directory holds something else.
        MismatchError: a value differs that may not change in the middle of a run; or the run was
            begun when the same values meant something else.
    """
    check_directory(directory)
    path = os.path.join(directory, CONFIG_FILE)
    if not os.path.exists(path):
        return None
    if _read_inputs(directory).get(RUN_FORMAT) != _FORMAT:
        raise MismatchError(
            f"{directory}: this run was begun before version 0.2.0, whose masks, positions and "
            "defaults meant something else; begin a new run in another --output"
        )
    before = load(path)
    _compare_values(directory, flat_values(before), flat_values(config))
    return before


def _compare_values(directory: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        if key.startswith(_GRID) or key in _CHANGEABLE or key not in before or value == before[key]:
            continue
        if (key, value) == ("training.precision", "auto"):  # decided when the run began
            continue
        advice = "name another --output, or leave the value as it is"
        if key in _SCHEDULE:
            advice = (
                "its learning rate has followed that schedule; to train longer, begin another "
                f"--output with {_SCHEDULE[key]} {os.path.join(directory, PRESET)}"
            )
        raise MismatchError(
            f"{directory}: {key} is {before[key]} in this run and {value} now; {advice}"
        )


def check_same_inputs(directory: str, now: Mapping[str, str | None]) -> None:
    """Checks that a run goes on with the files that it was begun with, wherever they are now.

    Args:
        directory: directory of the run.
        now: option → digest of the content, `None` where the option is not given.

    Raises:
        BadInputError: the description is damaged.
        MismatchError: a content differs.
    """
    before = _read_inputs(directory)
    if not before:
        return
    for option, digest in now.items():
        if before.get(option) != digest:
            raise MismatchError(
                f"{directory}: this run was begun with another {option}; name another --output, or "
                "give what the run was begun with"
            )


def _read_inputs(directory: str) -> dict[str, Any]:
    """What `inputs.json` says; nothing where there is none."""
    path = os.path.join(directory, INPUTS_FILE)
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(f"{path}: is damaged ({error}); name another --output") from error


def write_inputs(directory: str, inputs: Mapping[str, str | int | None]) -> None:
    """Writes `inputs.json`, for `check_same_inputs`, with the format of runs of this version.

    Args:
        directory: directory of the run; made where it is missing.
        inputs: as for `check_same_inputs`; and what else there is to know of them.
    """
    os.makedirs(directory, exist_ok=True)
    noted = {RUN_FORMAT: _FORMAT, **inputs}
    write_text(os.path.join(directory, INPUTS_FILE), json.dumps(noted, indent=1) + "\n")


def write_finetuning_run(
    directory: str, config_text: str, inputs: Mapping[str, str | int | None]
) -> None:
    """Writes `inputs.json` and `config.yaml` of a fine-tuning run.

    Args:
        directory: directory of the run; made where it is missing.
        config_text: the resolved configuration.
        inputs: as for `write_inputs`.
    """
    write_inputs(directory, inputs)
    write_text(os.path.join(directory, CONFIG_FILE), config_text)


def _check_records(directory: str, before: DatasetInfo, now: DatasetInfo) -> None:
    for field in dataclasses.fields(DatasetInfo):
        if getattr(before, field.name) != getattr(now, field.name):
            raise MismatchError(
                f"{directory}: this run was trained on other records ({field.name} differs); name "
                "another --output, or the records of this run as --data"
            )
