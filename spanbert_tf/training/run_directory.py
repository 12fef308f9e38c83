"""Checks and writes the directory of a training run."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rich.filesize import decimal

from spanbert_tf.config import FinetuningConfig, PretrainingConfig, flat_values
from spanbert_tf.config.run import CONFIG_FILE, INPUTS_FILE, PRESET, RUN_FORMAT
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.contents import refuse_special_file
from spanbert_tf.files.output import Output, write_text
from spanbert_tf.files.paths import check_no_link, is_work_file
from spanbert_tf.files.preset import PRESET_KIND

AnyConfig = FinetuningConfig | PretrainingConfig
Config = TypeVar("Config", FinetuningConfig, PretrainingConfig)

# Names in the directory of a run.
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
BACKEND = "KERAS_BACKEND"

# Settings that may change while a run is not finished. For each of them, "Equal bits" in
# docs/devices.md states what stays equal.
CHANGEABLE = frozenset(
    {
        "training.steps",
        "training.log_every",
        "training.callbacks",
        "training.profile_steps",
        "training.evaluate_every",
        "training.evaluate_batches",
        "training.checkpoint_every_steps",
        "training.checkpoint_every_minutes",
        "training.keep_checkpoints",
        "training.max_checkpoints",
        "training.keep_best",
        "training.best_metric",
        "training.max_skipped_steps",
        "training.strategy",
        "training.tpu",
        "training.accumulation_steps",
        "training.gradient_checkpointing",
        "training.steps_per_execution",
        "training.deterministic",
        "training.initial_encoder_share",
        "prediction.batch_size",
    }
)
# Settings among them that decide which weights are kept. They cannot change once the run is
# finished and its checkpoints are deleted.
_RESULT_SETTINGS = ("training.keep_best", "training.best_metric", "training.initial_encoder_share")
_FORMAT = 3
_GRID = "grid."  # the values of a grid, which may be extended later
# Settings of the learning-rate schedule, which past steps have followed. A longer training is
# another run that starts with the weights of this one, by this option.
_SCHEDULE = {
    "training.schedule_steps": "--initial-preset",
    "training.epochs": "--preset",
    "training.max_steps": "--preset",
}


class RunDirectory:
    """The directory of a run, or the directory that several runs share.

    Args:
        path: path of the directory; it may not exist yet.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self, config: Config, load: Callable[[str], Config]) -> Config | None:
        """Checks that the directory is new, empty, or that of a run with the same configuration.

        The run may come from someone else, so links and special files are refused: the command
        would overwrite files elsewhere.

        Args:
            config: configuration of the command.
            load: a function that reads the `config.yaml` at a path.

        Returns:
            The configuration with which the run was started; `None` for a new run.

        Raises:
            BadInputError: the directory holds something other than a run.
            MismatchError: a setting differs that must not change during a run; or the run was
                started by a version in which the settings had another meaning.
        """
        self.check_content()
        path = os.path.join(self._path, CONFIG_FILE)
        if not os.path.exists(path):
            return None
        if self._read_inputs().get(RUN_FORMAT) != _FORMAT:
            raise MismatchError(
                f"{self._path}: this run was begun before version 0.2.0, whose masks, positions "
                "and defaults meant something else; begin a new run in another --output"
            )
        before = load(path)
        _compare_values(self._path, flat_values(before), flat_values(config))
        return before

    def check_inputs(self, now: Mapping[str, str | None]) -> None:
        """Checks that a resumed run gets the inputs with which it was started, at any path.

        Args:
            now: maps an option to the digest of its content, or to `None` if it is not given.

        Raises:
            BadInputError: `inputs.json` is damaged.
            MismatchError: the content of an input differs.
        """
        before = self._read_inputs()
        if not before:
            return
        for option, digest in now.items():
            if before.get(option) != digest:
                further = ""
                if option == BACKEND:
                    further = "; --backend-changed resumes it nevertheless"
                raise MismatchError(
                    f"{self._path}: this run was begun with another {option}; name another "
                    f"--output, or give what the run was begun with{further}"
                )

    def check_result(self, config: AnyConfig, before: AnyConfig | None) -> None:
        """Checks that a finished run has kept the weights that a configuration asks for.

        Args:
            config: configuration of the command.
            before: configuration of the run.

        Raises:
            MismatchError: the configuration asks for other weights, and the checkpoints from which
                they would come are deleted.
        """
        if before is None:
            return
        old = flat_values(before)
        new = flat_values(config)
        for key in _RESULT_SETTINGS:
            if key in old and old[key] != new[key]:
                raise MismatchError(
                    f"{self._path}: was finished with {key} {old[key]} and kept no checkpoints to "
                    f"make it {new[key]}; begin another --output"
                )

    @property
    def is_finished(self) -> bool:
        """Whether the run has written its preset, its last output."""
        return os.path.isdir(os.path.join(self._path, PRESET))

    def check_room(self, parts: Mapping[str, int]) -> str:
        """Checks that the disk has room for a whole run.

        Args:
            parts: maps the name of an output to its number of bytes.

        Returns:
            A clause that says how much space the run will take.

        Raises:
            BadInputError: there is too little space.
        """
        sizes = ", ".join(f"{name} {decimal(size)}" for name, size in parts.items() if size)
        needed = f"up to {decimal(sum(parts.values()))} on disk ({sizes})"
        path = pathlib.Path(self._path).absolute()
        existing = next(place for place in (path, *path.parents) if place.is_dir())
        free = shutil.disk_usage(existing).free
        if sum(parts.values()) > free + self._num_bytes():
            raise BadInputError(
                f"{self._path}: the run takes {needed}, and {decimal(free)} are free; free "
                "some space, lower training.max_checkpoints, or name another --output"
            )
        return needed

    def _num_bytes(self) -> int:
        """Returns the number of bytes of the checkpoints and the preset that exist already."""
        size = 0
        for part in (CHECKPOINTS, PRESET):
            for parent, _, names in os.walk(os.path.join(self._path, part)):
                for name in names:
                    # The chief may be deleting what a killed process has left.
                    with contextlib.suppress(FileNotFoundError):
                        size += os.path.getsize(os.path.join(parent, name))
        return size

    def sync(self) -> None:
        """Returns when all files of the run and their names are on the disk."""
        for parent, _, names in os.walk(self._path):
            paths = [os.path.join(parent, name) for name in names]
            for path in [*paths, parent]:
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def write_inputs(self, inputs: Mapping[str, str | int | None]) -> None:
        """Writes `inputs.json`, which `check_inputs` reads, with the format of this version.

        Args:
            inputs: digests, as for `check_inputs`, and further facts. Facts that were written
                before under other names are kept.
        """
        os.makedirs(self._path, exist_ok=True)
        noted = {**self._read_inputs(), RUN_FORMAT: _FORMAT, **inputs}
        path = os.path.join(self._path, INPUTS_FILE)
        write_text(path, json.dumps(noted, indent=1) + "\n")

    def write(self, config: AnyConfig, inputs: Mapping[str, str | int | None]) -> None:
        """Writes `inputs.json`, then `config.yaml`, by which a directory is recognized as a run."""
        self.write_inputs(inputs)
        write_text(os.path.join(self._path, CONFIG_FILE), config.to_yaml())

    def check_content(self) -> None:
        """Checks that the directory is new, empty or a run, without links and special files."""
        if not os.path.exists(self._path):
            return
        names = os.listdir(self._path) if os.path.isdir(self._path) else ["a file"]
        others = [name for name in names if not is_work_file(name)]
        # A run that ended while it was being started has only its inputs.
        is_begun = others == [INPUTS_FILE] and self._read_inputs().get(RUN_FORMAT) == _FORMAT
        if others and CONFIG_FILE not in names and not is_begun:
            raise BadInputError(
                f"{self._path}: exists and is no training run; name another --output"
            )
        for parent, directories, files in os.walk(self._path):
            for name in (*directories, *files):
                path = os.path.join(parent, name)
                check_no_link(path)
                refuse_special_file(path)
        for name in {PRESET, ADAPTER}.intersection(names):
            Output(os.path.join(self._path, name), PRESET_KIND, overwrite=True).check()

    def _read_inputs(self) -> dict[str, Any]:
        """Reads `inputs.json`; an empty dict if the file does not exist."""
        path = os.path.join(self._path, INPUTS_FILE)
        if not os.path.exists(path):
            return {}
        try:
            with open(path, encoding="utf-8") as file:
                return dict(json.load(file))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise BadInputError(f"{path}: is damaged ({error}); name another --output") from error


def _compare_values(directory: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        if key.startswith(_GRID) or key in CHANGEABLE or key not in before or value == before[key]:
            continue
        if key == "training.precision" and value == "auto":  # was decided when the run was started
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
