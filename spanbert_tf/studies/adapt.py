"""`spanbert-tf adapt`: from an encoder and a folder of text to an encoder that knows the text.

Each stage calls the function of the command of its name: `vocabulary extend`, `prepare
pretraining`, `pretrain --config continue`, `prepare TASK` and `finetune`. A stage whose output is
there is left out, and a run that was killed goes on, so the same command finishes what it began.
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from data_prep.beam.writing import write_pretraining_records
from data_prep.text.added_words import extend_vocabulary
from data_prep.text.storage import InputFile, find_files
from spanbert_tf.config import PretrainingConfig, load_config, load_run_config, shape_values
from spanbert_tf.config.positions import reads_indices
from spanbert_tf.config.run import INPUTS_FILE, PRESET
from spanbert_tf.config.settings import parse_override
from spanbert_tf.console import table_console
from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import Output, write_text
from spanbert_tf.files.paths import check_resumable, is_remote, without_slash
from spanbert_tf.files.preset import PRESET_KIND, golden_digest
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.files.written import print_written
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.extension import tokenizer_to_extend
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import published_name
from spanbert_tf.pretraining.datasets import tokens_per_step
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.studies.before_and_after import Measure, as_markdown, as_table, describe_help
from spanbert_tf.studies.held_out_text import (
    HeldOutText,
    loss_per_character,
    pieces_per_word,
    read_held_out_text,
)
from spanbert_tf.studies.other_vocabulary import write_with_vocabulary
from spanbert_tf.studies.stages import check_enough_records, print_stage
from spanbert_tf.studies.task_scores import TaskComparison, read_task_data
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import load_vocabulary_of_preset
from spanbert_tf.text.languages import DEFAULT_LANGUAGE
from spanbert_tf.text.vocabulary import UNKNOWN_TOKEN
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics
from spanbert_tf.training.run_directory import RunDirectory

CONFIG = "continue"
SUMMARY_FILE = "README.md"
_SPEED_FILE = "speed.json"
_EXTENDED = "extended"
_RECORDS = "records"
_RUN = "run"
_BEFORE = "before"
_TASKS = "tasks"
_SPEED = "speed"
_CONTENTS = (
    *(SUMMARY_FILE, _SPEED_FILE, INPUTS_FILE),
    *(_EXTENDED, _RECORDS, _RUN, PRESET, _BEFORE, _TASKS, _SPEED),
)
_HELD_OUT_SHARE = 0.03
_FEWEST_STEPS = 10
# Steps that measure the speed: the first half compiles, the second half is timed.
_STEPS_OF_MEASUREMENT = 8
# Settings that `--set` cannot change in that run. Batches by length have about as many positions as
# the full width, of which alone a step is compiled here.
_MEASUREMENT = {
    "training.steps": _STEPS_OF_MEASUREMENT,
    "training.schedule_steps": _STEPS_OF_MEASUREMENT,
    "training.steps_per_execution": 1,
    "training.head_steps": 0,
    "training.log_every": _STEPS_OF_MEASUREMENT // 2,
    "training.evaluate_batches": 1,
    "training.initial_encoder_share": 0,
    "training.batch_by_length": "false",
    "training.callbacks": [],
}
_SHARE_OF_HOURS = 0.9  # the rest is for checkpoints and evaluations


class TextSource(NamedTuple):
    """The text to learn from; the fields are arguments of `write_pretraining_records`."""

    input_pattern: Sequence[str]
    text_columns: Sequence[str] = ()
    document_separator: str | None = None
    follow_links: bool = False

    def __str__(self) -> str:
        return ", ".join(self.input_pattern)


@locks_output(inside=True)
def run_adapt(
    preset: str,
    text: TextSource,
    output: str,
    *,
    language: str | None = None,
    words: int | None = None,
    steps: int | None = None,
    hours: float | None = None,
    task_data: Sequence[str] = (),
    task_prepare: Sequence[str] = (),
    overrides: Sequence[str] = (),
    num_devices: int | None = None,
    backend_changed: bool = False,
) -> list[Measure] | None:
    """Pre-trains an encoder further on text, and compares it with what it was.

    Args:
        preset: a preset, or a directory of a BERT of Hugging Face.
        text: the text.
        output: directory that is new, or of an earlier call with the same arguments. It gets
            `preset/`, the result; `README.md`; and a folder for each stage.
        language: code of the language of the text, which a directory of Hugging Face does not
            state; `None`: that of the preset, or English.
        words: how many words of the text to add to the vocabulary; `None`: none.
        steps: steps of training; `None`: as many as `hours` allow, or as the configuration has.
        hours: how long to train on these devices, whose speed is measured first.
        task_data: texts `TASK=DIR`: the name of a configuration of `finetune`, or its file, and a
            directory with `train.*` and `dev.*`.
        task_prepare: texts `TASK=COMMAND`: the words of the `prepare` command for such files, where
            the task's first command needs options or is another one.
        overrides: texts `section.key=value` for the run of pre-training.
        num_devices: number of devices of this machine to use; all by default.
        backend_changed: whether to go on with runs of another backend of Keras.

    Returns:
        What was measured; `None` if a signal ended a run.

    Raises:
        SpanBertError: an argument, a file or a directory cannot be used.
    """
    if steps is not None and hours is not None:
        raise ConfigurationError("give either --steps or --hours")
    set_steps = [text for text in overrides if parse_override(text)[0] == "training.steps"]
    if set_steps and hours is not None:
        raise ConfigurationError(f"--set {set_steps[0]}: --hours has other steps; give one of them")
    output = without_slash(output)
    check_resumable(output, "an adaptation", _CONTENTS)
    tasks = read_task_data(task_data, task_prepare)
    files = find_files(text.input_pattern, follow_links=text.follow_links)
    encoder = converted_preset(preset, language=language)
    tokenizer_to_extend(Preset(encoder))  # refuses presets of other projects, and adapters
    shape_of_run = _settings(encoder, load_config(CONFIG).training.steps) + list(overrides)
    place = os.path.join(output, _RUN)
    load_run_config(CONFIG, shape_of_run, preset=encoder, run=place)
    _note_arguments(output, encoder, text, files, words=words, steps=steps, hours=hours)
    options = {"num_devices": num_devices, "backend_changed": backend_changed}
    comparisons = [
        TaskComparison(task, os.path.join(output, _TASKS, task.folder), options, encoder)
        for task in tasks
    ]
    for comparison in comparisons:
        comparison.check()  # a mistake in the files is not told hours later

    begin_with = encoder
    if words is not None:
        print_stage("Words")
        begin_with = _extended(encoder, text, words, os.path.join(output, _EXTENDED))

    print_stage("Records")
    records = os.path.join(output, _RECORDS)
    config = load_run_config(CONFIG, shape_of_run, preset=begin_with, run=place)
    _write_records(begin_with, text, records, config)
    tokenizers = [Preset(name).tokenizer for name in (encoder, begin_with)]
    held_out = read_held_out_text(records, tokenizers)
    if not held_out.rows:
        raise BadInputError(
            f"{records}: the held-out text has no word without {UNKNOWN_TOKEN}; give more text, or "
            "an encoder of its language"
        )

    print_stage("Training")
    if hours is not None:
        steps = _steps_in(hours, begin_with, records, output, overrides, num_devices)
        if steps is None:
            return None
    settings = [*_settings(begin_with, steps or load_config(CONFIG).training.steps), *overrides]
    config = load_run_config(CONFIG, settings, preset=begin_with, run=place)
    model = run_pretraining(config, records, place, begin_with, show_next_steps=False, **options)
    if model is None:
        return None
    del model
    keras.backend.clear_session()
    result = _copy_preset(os.path.join(place, PRESET), os.path.join(output, PRESET))

    print_stage("Before and after")

    train_head = functools.partial(
        _train_head_alone, encoder, records, os.path.join(output, _BEFORE), settings, options
    )
    before, after = [pieces_per_word(held_out, tokenizer) for tokenizer in tokenizers]
    measures = [Measure("pieces per word", before, after, None)]
    if not reads_indices(Preset(result).encoder(load_weights=False).position_embeddings):
        # (SegaBERT's positions need sentences, of which words alone are known.)
        losses = _losses(held_out, encoder, result, train_head)
        if losses is None:
            return None
        measures.append(losses)
    for comparison in comparisons:
        measure = comparison.measure(result)
        if measure is None:
            return None
        measures.append(measure)
    _print_summary(output, preset, files, measures, config.training.steps)
    return measures


def _settings(preset: str, steps: int) -> list[str]:
    """Returns the settings of a run of so many steps that begins with a preset.

    Heads are trained alone for the same share of the steps as in the configuration, and learning
    rates warm up for the same share.
    """
    config = load_config(CONFIG)
    share = steps / config.training.schedule_steps
    longest = shape_values(preset)["model.max_sequence_length"]
    values = {
        "training.steps": steps,
        "training.schedule_steps": steps,
        "training.head_steps": round(config.training.head_steps * share),
        "optimizer.warmup_steps": round(config.optimizer.warmup_steps * share),
        "data.sequence_length": min(config.data.sequence_length, longest),
    }
    return [f"{key}={value}" for key, value in values.items()]


def _note_arguments(
    output: str,
    encoder: str,
    text: TextSource,
    files: Sequence[InputFile],
    **numbers: float | None,
) -> None:
    """Refuses a directory that was begun with other arguments, and notes those of a new one."""
    _, text_rules = load_vocabulary_of_preset(encoder)
    is_english = text_rules.language == DEFAULT_LANGUAGE
    inputs: dict[str, str | None] = {
        "--preset": golden_digest(encoder),
        "--language": None if is_english else text_rules.language,
        "--input": json.dumps(list(text.input_pattern)),
        "state of the files of --input": _state(files),
        "--text-column": json.dumps(list(text.text_columns)),
        "--document-separator": text.document_separator,
    }
    for name, value in numbers.items():
        inputs[f"--{name}"] = None if value is None else str(value)
    directory = RunDirectory(output)
    if any(os.path.isdir(os.path.join(output, part)) for part in (_EXTENDED, _RECORDS)):
        directory.check_inputs(inputs)  # a call that failed before these can be corrected
    directory.write_inputs(inputs)


def _state(files: Sequence[InputFile]) -> str:
    """Returns a digest of the names, sizes and times of change of files."""
    states = [
        (file.name, file.size, None if is_remote(file.path) else os.stat(file.path).st_mtime_ns)
        for file in files
    ]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _extended(encoder: str, text: TextSource, words: int, output: str) -> str:
    """Returns the preset with further words, which is written unless it is there."""
    if os.path.isdir(output):
        print_line(f"{output}: was written before")
        return output
    extend_vocabulary(encoder, output, size=words, **text._asdict())
    keras.backend.clear_session()
    return output


def _write_records(preset: str, text: TextSource, output: str, config: PretrainingConfig) -> None:
    """Writes records unless they are there, and refuses too few."""
    if os.path.isdir(output):
        print_line(f"{output}: was written before")
    else:
        write_pretraining_records(
            preset=preset,
            output=output,
            sequence_length=config.data.sequence_length,
            validation_fraction=_HELD_OUT_SHARE,
            **text._asdict(),
        )
    check_enough_records(str(text), output, config.training.batch_size, "this configuration")


def _steps_in(
    hours: float,
    preset: str,
    records: str,
    output: str,
    overrides: Sequence[str],
    num_devices: int | None,
) -> int | None:
    """Returns how many steps these devices make in so many hours, as a few steps show.

    `None`: a signal ended the run that shows it.

    The number is kept, so that a call that goes on has the same.
    """
    path = os.path.join(output, _SPEED_FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return parse_json(file.read(), dict[str, int], path, "remove it")["steps"]
    run = os.path.join(output, _SPEED)
    shutil.rmtree(run, ignore_errors=True)
    fixed = [f"{key}={value}" for key, value in _MEASUREMENT.items()]
    settings = [*_settings(preset, _STEPS_OF_MEASUREMENT), *overrides, *fixed]
    config = load_run_config(CONFIG, settings, preset=preset, run=run)
    model = run_pretraining(
        config, records, run, preset, num_devices=num_devices, show_next_steps=False
    )
    if model is None:
        return None
    del model
    keras.backend.clear_session()
    lines = read_metrics(os.path.join(run, METRICS_FILE))
    speed = [line for line in lines if "tokens_per_second" in line][-1]["tokens_per_second"]
    tokens = tokens_per_step(config, PretrainingManifest.load(records), records)
    steps = int(_SHARE_OF_HOURS * hours * 3600 * speed / tokens)
    shutil.rmtree(run)
    print_line(f"a step takes {tokens / speed:.2f} s here: {steps:,} steps in {hours:g} hours")
    if steps < _FEWEST_STEPS:
        raise ConfigurationError(
            f"--hours {hours:g}: are {steps} steps here, and fewer than {_FEWEST_STEPS} change "
            "nothing; give more hours, or smaller batches (--set training.batch_size=8)"
        )
    write_text(path, json.dumps({"steps": steps}) + "\n")
    return steps


def _copy_preset(preset: str, output: str) -> str:
    """Copies a preset unless the same was copied before, and returns its directory."""
    if not os.path.isdir(output) or golden_digest(output) != golden_digest(preset):
        with Output(output, PRESET_KIND, overwrite=True).written() as unfinished:
            shutil.copytree(preset, unfinished, dirs_exist_ok=True)
    return output


def _train_head_alone(
    encoder: str,
    records: str,
    output: str,
    settings: Sequence[str],
    options: dict[str, Any],
) -> str | None:
    """Trains a head on an encoder that stays as it is, so that its loss can be measured.

    Args:
        encoder: preset of the encoder.
        records: the records of the run that trained the encoder further. If their vocabulary is
            another one, they are written here with that of the encoder.
        output: directory for the run.
        settings: of the run that trained the encoder further.
        options: arguments of `run_pretraining`.

    Returns:
        The preset; `None` if a signal ended the run.
    """
    print_line(f"{encoder}: has no trained head, so one is trained alone, to compare with")
    run = os.path.join(output, _RUN)
    steps = load_config(CONFIG, settings).training.steps
    alone = [
        *settings,
        f"training.head_steps={steps}",
        "training.initial_encoder_share=0",
        "training.callbacks=[]",
    ]
    config = load_run_config(CONFIG, alone, preset=encoder, run=run)
    tokenizer = Preset(encoder).tokenizer
    manifest = PretrainingManifest.load(records)
    if manifest.vocabulary(records) != tokenizer.get_vocabulary():
        own_records = os.path.join(output, _RECORDS)
        if not os.path.isdir(own_records):
            num_records = steps * config.training.batch_size
            write_with_vocabulary(records, tokenizer, own_records, num_records)
        records = own_records
    model = run_pretraining(config, records, run, encoder, show_next_steps=False, **options)
    if model is None:
        return None
    del model
    keras.backend.clear_session()
    return os.path.join(run, PRESET)


def _losses(
    held_out: HeldOutText, encoder: str, result: str, train_head: Callable[[], str | None]
) -> Measure | None:
    """Measures the losses of both encoders on the held-out text.

    Args:
        held_out: the text.
        encoder: preset of the encoder as it was.
        result: preset of the new encoder.
        train_head: returns the preset of the first encoder with a trained head, if it has none.

    Returns:
        The losses; `None` if `train_head` returned `None`.
    """
    before = _loss(held_out, encoder)
    if before is None:
        with_head = train_head()
        if with_head is None:
            return None
        before = _loss(held_out, with_head)
    after = _loss(held_out, result)
    assert after is not None  # the run has trained its head
    return Measure("masked-LM loss per character (nats)", before, after, "min")


def _loss(held_out: HeldOutText, preset: str) -> float | None:
    """Returns the loss per character of a preset; `None` if its head was never trained."""
    opened = Preset(preset)
    if not opened.holds(SpanBertMaskedLM):
        return None
    model = opened.task(SpanBertMaskedLM)
    loss = None
    if model.is_head_trained:
        loss = loss_per_character(held_out, model, opened.tokenizer)
    del model
    keras.backend.clear_session()
    return loss


def _print_summary(
    output: str, preset: str, files: Sequence[InputFile], measures: Sequence[Measure], steps: int
) -> None:
    """Prints the table and the verdict, and writes both to `README.md`."""
    print_stage("Summary")
    table_console().print(as_table(measures))
    verdict = describe_help(measures)
    text = f"{len(files):,} files" if len(files) > 1 else published_name(files[0].path)
    page = [
        f"# {published_name(preset)}, adapted",
        f"`spanbert-tf adapt` trained it further on {text}, in {steps:,} steps.",
        as_markdown(measures),
        verdict,
        f"`{PRESET}/` is the new encoder. The other folders are those of the stages; nothing needs "
        "them any more.",
    ]
    write_text(os.path.join(output, SUMMARY_FILE), "\n\n".join(page) + "\n")
    result = os.path.join(output, PRESET)
    files_of_task = ["--input", "FILE", "--output", "RECORDS"]
    print_written(
        result,
        ["spanbert-tf", "prepare", "TASK", "--preset", result, *files_of_task],
        ["spanbert-tf", "export", "--preset", result, "--output", "served"],
    )
    print_line(verdict)
