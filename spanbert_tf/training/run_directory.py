"""The directory of a training run, and whether a command may go on with it."""

import dataclasses
import os

from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.data.schema import DATASET_INFO_FILE, DatasetInfo
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.strict_yaml import flat_values

CONFIG_FILE = "config.yaml"
CHECKPOINTS, PRESET, METRICS_FILE = "checkpoints", "preset", "metrics.jsonl"
REPAIRED_RECORDS = "records-of-worker-"

# When to stop, to look and to save, and on which devices: these may change in the middle of a run.
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
        "data.on_corrupt",
        "data.service_address",
    }
)


def check_directory(directory: str) -> None:
    """Checks that a directory is new, empty, or a run; repaired records may lie there before.

    Raises:
        BadInputError: the directory holds something else.
    """
    if not os.path.exists(directory):
        return
    names = os.listdir(directory) if os.path.isdir(directory) else ["a file"]
    others = [name for name in names if not name.startswith(REPAIRED_RECORDS)]
    if others and CONFIG_FILE not in names:
        raise BadInputError(f"{directory}: exists and is no training run; name another --output")


def check_run(directory: str, config: PretrainingConfig, info: DatasetInfo) -> None:
    """Checks that a directory is new, empty, or of the same run.

    Raises:
        BadInputError: the directory holds something else.
        MismatchError: it is a run with another configuration or other records.
    """
    config_path = os.path.join(directory, CONFIG_FILE)
    if os.path.exists(config_path):
        _check_config(directory, load_config(config_path), config)
    else:
        check_directory(directory)
    info_path = os.path.join(directory, DATASET_INFO_FILE)
    if os.path.exists(info_path):
        with open(info_path, encoding="utf-8") as file:
            _check_records(directory, DatasetInfo.from_json(file.read(), info_path), info)


def write_run(directory: str, config: PretrainingConfig, info: DatasetInfo) -> None:
    """Writes `config.yaml` and a copy of the records' `dataset_info.json`."""
    os.makedirs(directory, exist_ok=True)
    # The configuration last: a directory that has one is a run.
    _write_whole(os.path.join(directory, DATASET_INFO_FILE), info.to_json())
    _write_whole(os.path.join(directory, CONFIG_FILE), config.to_yaml())


def _write_whole(path: str, text: str) -> None:
    """Writes a text file so that it is there whole or, after a kill, as it was before."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _check_config(directory: str, before: PretrainingConfig, now: PretrainingConfig) -> None:
    values_before = flat_values(before)
    for key, value in flat_values(now).items():
        if key not in _CHANGEABLE and value != values_before[key]:
            raise MismatchError(
                f"{directory}: {key} is {values_before[key]} in this run and {value} now; name "
                "another --output, or leave the value as it is"
            )


def _check_records(directory: str, before: DatasetInfo, now: DatasetInfo) -> None:
    for field in dataclasses.fields(DatasetInfo):
        if getattr(before, field.name) != getattr(now, field.name):
            raise MismatchError(
                f"{directory}: this run was trained on other records ({field.name} differs); name "
                "another --output, or the records of this run as --data"
            )
