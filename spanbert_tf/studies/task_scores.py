"""Scores of a task from two encoders that are fine-tuned in the same way, for `adapt`."""

import glob
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
import keras

from data_prep.cli import prepare
from spanbert_tf.config import FinetuningConfig
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.preset import golden_digest
from spanbert_tf.studies.before_and_after import Measure
from spanbert_tf.studies.stages import print_stage
from spanbert_tf.tasks.finetuning import FinetuningJob, best_evaluation, run_finetuning
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.table import commands_of_task, load_task, load_task_config
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS
from spanbert_tf.text.chosen_vocabulary import load_vocabulary_of_preset
from spanbert_tf.training.checkpoints import Best
from spanbert_tf.training.run_directory import RunDirectory

_PARTS = ("train", "dev")
_RUN = "run"


class TaskData(NamedTuple):
    """The data of a task by which both encoders are compared.

    Attributes:
        name: name of the configuration, or its file.
        config: the configuration.
        directory: holds `train.*` and `dev.*`.
        command: words of a `prepare` command, without its files.
    """

    name: str
    config: FinetuningConfig
    directory: str
    command: list[str]

    @property
    def folder(self) -> str:
        """The name of a folder for the task."""
        return os.path.splitext(os.path.basename(self.name))[0]


def read_task_data(task_data: Sequence[str], task_prepare: Sequence[str]) -> list[TaskData]:
    """Reads the values of `--task-data`, and of the `--task-prepare` that belong to them.

    Raises:
        BadInputError: a directory has not one `train.*` and one `dev.*`.
        ConfigurationError: a value is not as it must be, or there are two of a task.
    """
    commands = {}
    for given in task_prepare:
        name, is_pair, command = given.partition("=")
        if not name or not is_pair:
            raise ConfigurationError(f"--task-prepare {given}: is not TASK=COMMAND")
        commands[name] = command
    tasks: dict[str, TaskData] = {}
    for given in task_data:
        task = _read_task(given, commands)
        if task.folder in tasks:
            raise ConfigurationError(
                f"--task-data {given}: a task named {task.folder} is given already; copy its "
                "configuration to a file of another name"
            )
        tasks[task.folder] = task
    unused = set(commands).difference(task.name for task in tasks.values())
    if unused:
        raise ConfigurationError(
            f"--task-prepare {min(unused)}: belongs to no --task-data; give that, too"
        )
    return list(tasks.values())


def _read_task(given: str, commands: Mapping[str, str]) -> TaskData:
    name, _, directory = given.partition("=")
    if not name or not directory:
        raise ConfigurationError(f"--task-data {given}: is not TASK=DIR")
    if not os.path.isdir(directory):
        raise BadInputError(f"{directory}: is no directory; --task-data is TASK=DIR")
    config = load_task_config(name)
    for part in _PARTS:
        _file_of(directory, part)
    command = shlex.split(commands.get(name, ""))
    dataset = getattr(config.data, "dataset", None)
    if not command and dataset in GLUE_TASKS:
        command = ["glue", "--task", dataset]
    if not command:
        command = [commands_of_task(config.task)[0]]
    return TaskData(name, config, directory, command)


def _file_of(directory: str, part: str) -> str:
    """Returns the file `train.*` or `dev.*` of a directory."""
    found = [name for name in sorted(os.listdir(directory)) if name.startswith(f"{part}.")]
    if len(found) != 1:
        raise BadInputError(
            f"{directory}: has {len(found)} files {part}.*; --task-data needs one train.* and one "
            "dev.*"
        )
    return os.path.join(directory, found[0])


class TaskComparison:
    """Fine-tunes two encoders in the same way, and compares their scores.

    Args:
        task: the data of the task.
        directory: gets the records and the runs, in a folder for each encoder. What an earlier call
            has left there is used again if it was made of the same files.
        options: arguments of `run_finetuning`.
        encoder: preset of the encoder as it was.

    Raises:
        MismatchError: a run there was begun with other files or with another encoder, or by another
            `prepare` command.
    """

    def __init__(
        self, task: TaskData, directory: str, options: Mapping[str, Any], encoder: str
    ) -> None:
        self._task = task
        self._directory = directory
        self._options = options
        self._encoder = encoder
        self._note_inputs()

    def _note_inputs(self) -> None:
        digests = [sha256(_file_of(self._task.directory, part)) for part in _PARTS]
        _, text_rules = load_vocabulary_of_preset(self._encoder)
        inputs = {
            "--preset": f"{golden_digest(self._encoder)} {text_rules.language}",
            f"--task-data {self._task.name}": " ".join(digests),
            f"--task-prepare {self._task.name}": shlex.join(self._task.command),
        }
        noted = RunDirectory(self._directory)
        try:
            noted.check_inputs(inputs)
        except MismatchError:
            if glob.glob(os.path.join(glob.escape(self._directory), "*", _RUN)):
                raise
            shutil.rmtree(self._directory)  # records of files that have been corrected
        noted.write_inputs(inputs)

    def check(self) -> None:
        """Writes the records for the encoder as it was, and checks that a run can begin with them.

        Raises:
            BadInputError: a file cannot be used.
            ConfigurationError: the `prepare` command has no such options, or the task's
                configuration does not fit the records.
            MismatchError: as well.
        """
        train, dev = self._records_for("before", self._encoder)
        FinetuningJob(self._task.config, self._encoder, train, dev)

    def measure(self, result: str) -> Measure | None:
        """Fine-tunes both encoders and returns their scores; `None` if a signal ended a run.

        Args:
            result: preset of the new encoder.
        """
        values = []
        for name, preset in (("before", self._encoder), ("after", result)):
            print_stage(f"{self._task.name}, {name}")
            train, dev = self._records_for(name, preset)
            run = self._run_of(name, preset)
            scores = run_finetuning(
                self._task.config, preset, train, run, dev, show_next_steps=False, **self._options
            )
            if scores is None:
                return None
            best = _best_of(self._task.config, dev)
            values.append(scores[best.metric])
            keras.backend.clear_session()
        before, after = values
        return Measure(f"{self._task.name}: {best.metric}", before, after, best.mode, num_digits=2)

    def _run_of(self, name: str, preset: str) -> str:
        """Returns the directory of a run, and removes the run of an earlier result that is there.

        There is one after an adaptation whose share of the first weights was changed.
        """
        place = os.path.join(self._directory, name)
        run = os.path.join(place, _RUN)
        noted = RunDirectory(place)
        inputs = {"--preset": golden_digest(preset)}
        try:
            noted.check_inputs(inputs)
        except MismatchError:
            shutil.rmtree(run, ignore_errors=True)
        noted.write_inputs(inputs)
        return run

    def _records_for(self, name: str, preset: str) -> tuple[str, str]:
        """Returns the records of both files for an encoder; writes them unless they are there."""
        train, dev = (os.path.join(self._directory, name, part) for part in _PARTS)
        _prepare_task(self._task, "train", preset, train)
        _prepare_task(self._task, "dev", preset, dev, training_records=train)
        return train, dev


def _best_of(config: FinetuningConfig, records: str) -> Best:
    task = load_task(config.task)
    return best_evaluation(task, config, open_records(records, task))


def _prepare_task(
    task: TaskData, part: str, preset: str, output: str, *, training_records: str | None = None
) -> None:
    """Writes the records of a file of a task, unless they are there."""
    if os.path.isdir(output):
        return
    name, *words = task.command
    command = prepare.get_command(click.Context(prepare), name)
    if command is None:
        raise ConfigurationError(f"--task-prepare {task.name}: `prepare` has no command {name}")
    words += ["--input", _file_of(task.directory, part), "--preset", preset, "--output", output]
    known = {option for parameter in command.params for option in parameter.opts}
    if training_records and "--labels-of" in known and "--regression" not in words:
        words += ["--labels-of", training_records]
    if training_records and "--training-input" in known:
        words += ["--training-input", _file_of(task.directory, "train")]
    try:
        context = command.make_context(name, words)
    except click.UsageError as error:
        raise ConfigurationError(
            f"--task-prepare {task.name}={shlex.join(task.command)}: {error.format_message()}"
        ) from error
    with context:
        click.Command.invoke(command, context)
