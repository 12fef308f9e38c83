"""The directory of a training run, and whether a command may go on with it."""

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

AnyConfig = TypeVar("AnyConfig", bound=FinetuningConfig | PretrainingConfig)

CHECKPOINTS, ADAPTER = "checkpoints", "adapter"
BACKEND = "KERAS_BACKEND"

# When to stop, to look and to save, on which devices, and what is done after the last step: these
# may change in the middle of a run.
_CHANGEABLE = frozenset(
    {
        "training.steps",
        "training.log_every",
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
        "training.recompute",
        "training.steps_per_execution",
        "training.deterministic",
        "training.initial_encoder_share",
        "prediction.batch_size",
    }
)
# Of these, what decides which weights are kept: of a finished run without checkpoints it is done.
_OF_RESULT = ("training.keep_best", "training.best_metric", "training.initial_encoder_share")
_FORMAT = 3
_GRID = "grid."  # section of what other runs try: a grid may get further values later
# The learning rate has followed them already; a longer run is another one that begins with its
# weights. Key: the option that names these.
_SCHEDULE = {
    "training.schedule_steps": "--initial-preset",
    "training.epochs": "--preset",
    "training.max_steps": "--preset",
}


class RunDirectory:
    """The directory of a run, or of what several runs share.

    Args:
        path: path of the directory, which need not exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self, config: AnyConfig, load: Callable[[str], AnyConfig]) -> AnyConfig | None:
        """Checks that the directory is new, empty, or of a run with the same configuration.

        A run may be somebody else's: what the command writes over is what it is called, and no
        link.

        Args:
            config: configuration of the command.
            load: path of a `config.yaml` → configuration.

        Returns:
            The configuration that the run was begun with; `None` for a new one.

        Raises:
            BadInputError: the directory holds something else.
            MismatchError: a value differs that may not change in the middle of a run; or the run
                was begun when the same values meant something else.
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
        """Checks that a run goes on with what it was begun with, wherever that is now.

        Args:
            now: option → digest of the content, `None` where the option is not given.

        Raises:
            BadInputError: the description is damaged.
            MismatchError: a content differs.
        """
        before = self._read_inputs()
        for option, digest in now.items() if before else ():
            if before.get(option) != digest:
                further = "; --backend-changed goes on all the same" if option == BACKEND else ""
                raise MismatchError(
                    f"{self._path}: this run was begun with another {option}; name another "
                    f"--output, or give what the run was begun with{further}"
                )

    def check_result(self, config: AnyConfig, before: AnyConfig | None) -> None:
        """Checks that what a finished run has kept is what a configuration asks for.

        Args:
            config: configuration of the command.
            before: that of the run.

        Raises:
            MismatchError: it would be other weights, of checkpoints that are not there any more.
        """
        old, new = flat_values(before) if before else {}, flat_values(config)
        for key in _OF_RESULT:
            if key in old and old[key] != new[key]:
                raise MismatchError(
                    f"{self._path}: was finished with {key} {old[key]} and kept no checkpoints to "
                    f"make it {new[key]}; begin another --output"
                )

    @property
    def is_finished(self) -> bool:
        """Whether there is what a run writes last."""
        return os.path.isdir(os.path.join(self._path, PRESET))

    def check_room(self, parts: Mapping[str, int]) -> str:
        """Checks that the disk has room for a whole run.

        Args:
            parts: what is written → bytes.

        Returns:
            What the run will take, in words.

        Raises:
            BadInputError: it is not there.
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
        """What a run takes already of what it will."""
        paths = (
            os.path.join(parent, name)
            for part in (CHECKPOINTS, PRESET)
            for parent, _, names in os.walk(os.path.join(self._path, part))
            for name in names
        )
        size = 0
        for path in paths:
            # The chief may be removing what a killed process has left.
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(path)
        return size

    def sync(self) -> None:
        """Returns when the disk has all files of the run, and their names."""
        for parent, _, names in os.walk(self._path):
            for path in (*(os.path.join(parent, name) for name in names), parent):
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def write_inputs(self, inputs: Mapping[str, str | int | None]) -> None:
        """Writes `inputs.json`, for `check_inputs`, with the format of runs of this version.

        Args:
            inputs: as for `check_inputs`, and what else there is to know of them; others that were
                written before stay.
        """
        os.makedirs(self._path, exist_ok=True)
        noted = {**self._read_inputs(), RUN_FORMAT: _FORMAT, **inputs}
        path = os.path.join(self._path, INPUTS_FILE)
        write_text(path, json.dumps(noted, indent=1) + "\n")

    def write(self, config: AnyConfig, inputs: Mapping[str, str | int | None]) -> None:
        """Writes `inputs.json`, and `config.yaml` last: a directory that has one is a run."""
        self.write_inputs(inputs)
        write_text(os.path.join(self._path, CONFIG_FILE), config.to_yaml())

    def check_content(self) -> None:
        """Checks that the directory is new, empty, or a run's, of regular files without links."""
        if not os.path.exists(self._path):
            return
        names = os.listdir(self._path) if os.path.isdir(self._path) else ["a file"]
        others = [name for name in names if not is_work_file(name)]
        # A run that ended while it began has its inputs alone.
        is_begun = others == [INPUTS_FILE] and self._read_inputs().get(RUN_FORMAT) == _FORMAT
        if others and CONFIG_FILE not in names and not is_begun:
            raise BadInputError(
                f"{self._path}: exists and is no training run; name another --output"
            )
        for parent, directories, files in os.walk(self._path):
            for name in (*directories, *files):
                check_no_link(path := os.path.join(parent, name))
                refuse_special_file(path)
        for name in {PRESET, ADAPTER}.intersection(names):
            Output(os.path.join(self._path, name), PRESET_KIND, overwrite=True).check()

    def _read_inputs(self) -> dict[str, Any]:
        """What `inputs.json` says; nothing where there is none."""
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
