"""What commands share: options, kinds of commands, quiet libraries, and the exit status."""

import importlib.util
import itertools
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from spanbert_tf.doctor import describe_surroundings, prepare_surroundings, refuse_umask
from spanbert_tf.errors import ConfigurationError, SpanBertError, TrainingError
from spanbert_tf.files.paths import check_mounted, without_slash
from spanbert_tf.process import end_process, is_worker, second_signal_ends
from spanbert_tf.temporary import protected_children
from spanbert_tf.terminal import escape_controls, print_escaped_traceback

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# Raised for a group without a command by click 8.2 and later; earlier versions print its help.
_HELP_OF_GROUP = getattr(click.exceptions, "NoArgsIsHelpError", ())
_Decorator = Callable[[Callable], Callable]
_KEY_AND_VALUE = re.compile(r"[\w.]+=")


class _ExistingDirectory(click.Path):
    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Returns the path. Raises `BadInputError` for a path on another file system (`gs://…`)."""
        check_mounted(value)
        return os.fsdecode(super().convert(value, param, ctx))


class _OutputPath(click.ParamType):
    """A path that a command writes. Slashes at its end are ignored.

    Args:
        inside: whether the path is a directory in which files change, see `output_lock`. `None`:
            the command itself locks it.
    """

    name = "path"

    def __init__(self, *, inside: bool | None = False) -> None:
        self.inside = inside

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the path without slashes at its end."""
        if not value:
            self.fail("is empty; name a path", param, ctx)
        return without_slash(value)


EXISTING_DIRECTORY = _ExistingDirectory(exists=True, file_okay=False)
RECORDS_PATH = _ExistingDirectory(exists=True)  # for a file, the reader's error is more helpful
OUTPUT_PATH = _OutputPath()
WORK_PATH = _OutputPath(inside=True)
RUN_PATH = _OutputPath(inside=None)


class WritingCommand(click.Command):
    """A command that locks its outputs from its beginning to its end."""

    def __init__(
        self, name: str | None, *, context_settings: dict[str, Any] | None = None, **others: Any
    ) -> None:
        # Each command needs these settings: click caches the help option of a command's first
        # context, which may have no parent context with the settings.
        settings = CONTEXT_SETTINGS | (context_settings or {})
        super().__init__(name, context_settings=settings, **others)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses a repeated option that takes one value: click would ignore all but the last."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for option in given:
            if not isinstance(option, click.Option) or option.multiple or option.is_flag:
                continue
            if given.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]}: is given twice, and takes one value")
        return super().parse_args(ctx, args)

    def backend(self) -> str:
        """Returns the Keras backend that the command runs on."""
        return "tensorflow"

    def invoke(self, ctx: click.Context) -> object:
        """Locks the outputs and runs the command."""
        from spanbert_tf.files.lock import output_lock  # `--help` does not need it

        refuse_umask()
        # TensorFlow imports Keras, which fails if its settings name a backend that is missing.
        os.environ["KERAS_BACKEND"] = self.backend()
        for parameter in self.params:
            kind = parameter.type
            if not isinstance(kind, _OutputPath) or kind.inside is None:
                continue
            path = ctx.params.get(parameter.name)
            if path is None or path == "-":  # `-` is standard output
                continue
            ctx.with_resource(output_lock(path, ctx.command_path, inside=kind.inside))
        return super().invoke(ctx)


class ModelCommand(WritingCommand):
    """A command that trains or evaluates, on TensorFlow or on JAX."""

    def backend(self) -> str:
        """Returns the backend that Keras' settings name.

        Raises:
            ConfigurationError: it is neither TensorFlow nor JAX, or is not installed.
        """
        backend, place = _keras_backend()
        if backend not in ("tensorflow", "jax"):
            raise ConfigurationError(
                f"{place}: {backend}: the command line runs on TensorFlow and on JAX; use "
                f"KERAS_BACKEND=tensorflow, or `spanbert_tf.models` from Python"
            )
        if importlib.util.find_spec(backend) is None:
            raise ConfigurationError(
                f"{place}: {backend}: is not installed: pip install 'spanbert_tf[{backend}]'"
            )
        return backend


def _keras_backend() -> tuple[str, str]:
    """Returns the backend that Keras will use, and the setting that names it.

    This repeats Keras' own rule, because importing Keras takes seconds.
    """
    if backend := os.environ.get("KERAS_BACKEND"):
        return backend, "KERAS_BACKEND"
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    path = os.path.join(home, "keras.json")
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
    except (OSError, ValueError):  # Keras also ignores such a file
        settings = {}
    except RecursionError:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigurationError(f"{path}: is no object of JSON; mend or remove it")
    return settings.get("backend", "tensorflow"), path


class SeveralValues(ModelCommand):
    """A command whose repeatable options take several values after one flag: `--seeds 1 2 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats the flag before each value, as click expects it: `--seeds 1 --seeds 2 …`."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        repeatable = {flag for option in options if option.multiple for flag in option.opts}
        for argument, following in itertools.pairwise([*args, "-"]):
            # For example `--seeds $SEEDS` with an empty variable; the flag would be dropped.
            if argument in repeatable and following.startswith("-"):
                raise click.UsageError(f"{argument}: needs a value")
        repeated: list[str] = []
        flag: str | None = None  # the repeatable option whose values are being read
        is_first = False
        for argument in args:
            if argument in repeatable:
                flag = argument
                is_first = True
                continue
            if argument.startswith("-"):
                flag = None
            # The values of --set have `=`; without one, a later word is an argument of the command.
            elif flag and (is_first or flag != "--set" or _KEY_AND_VALUE.match(argument)):
                repeated.append(flag)
            repeated.append(argument)
            is_first = False
        return super().parse_args(ctx, repeated)


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the configuration, for example training.steps=1000.",
)
backend_changed_option = click.option(
    "--backend-changed", is_flag=True, help="Go on with a run of another backend of Keras."
)
devices_option = click.option(
    "--devices", "num_devices", type=click.IntRange(min=1), help="Devices of this machine. [all]"
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace an earlier output of the same kind."
)
follow_links_option = click.option(
    "--follow-links",
    is_flag=True,
    help="Also read files outside the input's folders to which links in them lead.",
)


def options(*each: _Decorator) -> _Decorator:
    """Combines options of a command into one decorator. Help shows them in this order."""

    def decorate(command: Callable) -> Callable:
        for add_option in reversed(each):
            command = add_option(command)
        return command

    return decorate


def case_options_with(default: bool | None, lowercase: str, accents: str) -> _Decorator:
    """Returns the options for the casing of text.

    Args:
        default: default of `--lowercase`.
        lowercase: help of `--lowercase`.
        accents: help of `--keep-accents`.
    """
    return options(
        click.option("--lowercase/--cased", default=default, help=lowercase),
        click.option(
            "--keep-accents",
            "strip_accents",
            flag_value=False,
            default=None,
            type=bool,
            help=accents,
        ),
    )


_LOWERCASE_HELP = "Lower-case the text and strip accents.  [default: cased]"
_ACCENTS_HELP = "With --lowercase: strip no accents and vowel signs (German, Hindi, Thai)."
case_options = case_options_with(default=False, lowercase=_LOWERCASE_HELP, accents=_ACCENTS_HELP)


def check_vocabulary_options(
    preset: str | None,
    vocabulary: str | None,
    lowercase: bool | None,
    strip_accents: bool | None,
) -> None:
    """Checks that exactly one option names the vocabulary and what is done to text.

    Args:
        preset: value of `--preset`.
        vocabulary: value of `--vocabulary`.
        lowercase: value of `--lowercase`.
        strip_accents: value of `--keep-accents`.

    Raises:
        ConfigurationError: two options name it, or none does.
    """
    if preset is None and vocabulary is None:
        raise ConfigurationError(
            "give --preset (the one to train, which tells vocabulary and casing), or --vocabulary"
        )
    if preset is not None and vocabulary is not None:
        raise ConfigurationError("give either --preset or --vocabulary: a preset has its own")
    if preset is None:
        return
    if lowercase is not None or strip_accents is not None:
        raise ConfigurationError(
            "--preset tells the casing; leave out --lowercase, --cased and --keep-accents"
        )


class _PresetOption(click.Option):
    """`--preset` beside `--vocabulary`. It is checked before the input is read."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Checks the options that name the vocabulary and its casing."""
        if not ctx.resilient_parsing:
            check_vocabulary_options(
                opts.get("preset"),
                opts.get("vocabulary"),
                opts.get("lowercase"),
                opts.get("strip_accents"),
            )
        return super().handle_parse_result(ctx, opts, args)


def language_option(default: str) -> _Decorator:
    """Returns the option `--language`.

    Args:
        default: what is said of its default.
    """
    return click.option(
        "--language",
        metavar="CODE",
        help="Language of the text, whose rule splits it into sentences: de, zh, …  "
        f"[default: {default}]",
    )


language_of_preset_option = language_option("the preset's, or en")

vocabulary_options = options(
    click.option(
        "--preset",
        cls=_PresetOption,
        metavar="PRESET",
        help="The preset to train, for its vocabulary and casing.",
    ),
    click.option("--vocabulary", metavar="FILE", help="In place of --preset."),
    case_options_with(default=None, lowercase=_LOWERCASE_HELP, accents=_ACCENTS_HELP),
    language_of_preset_option,
)


def record_options_with(sequence_length: int) -> _Decorator:
    """Returns the options of every command that writes records of a task.

    Args:
        sequence_length: default of `--sequence-length`.
    """
    return options(
        click.option("--input", "input_path", required=True, metavar="FILE"),
        vocabulary_options,
        click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR"),
        overwrite_option,
        click.option(
            "--sequence-length",
            type=click.IntRange(32, 65535),
            default=sequence_length,
            show_default=True,
        ),
    )


record_options = record_options_with(sequence_length=512)
segment_aware_option = click.option(
    "--segment-aware", is_flag=True, help="With SegaBERT's positions."
)


def quiet_libraries() -> None:
    """Hides the warnings of libraries. Call it before TensorFlow is imported.

    TensorFlow's own log is hidden when the package is imported.
    """
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # child processes inherit it
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it would log each of a dozen retries
    warnings.simplefilter("ignore")
    for name in ("matplotlib", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


def show_library_logs() -> None:
    """Shows TensorFlow's log, which importing the package hides. Call it before TensorFlow."""
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3":  # the user may have set another level
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"


def run_command(
    command: click.Command, name: str, arguments: Sequence[str], *, debug: bool = False
) -> None:
    """Runs a command and exits. Status 0: done; 2: bad input or configuration; 1: other errors.

    Args:
        command: the command.
        name: name of the program in its help.
        arguments: arguments of the command.
        debug: whether to show tracebacks.
    """
    sys.excepthook = print_escaped_traceback
    try:
        prepare_surroundings(arguments)
        with second_signal_ends(), protected_children():
            command.main(list(arguments), name, standalone_mode=False, **CONTEXT_SETTINGS)
    except _HELP_OF_GROUP as error:
        error.show()  # a help text of several lines
        sys.exit(EXIT_BAD_INPUT)
    except click.ClickException as error:
        _fail(_described(error), EXIT_BAD_INPUT)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # a broken file; click takes it for Ctrl-D
            raise error.__cause__ from None
        _fail("interrupted", EXIT_FAILED)
    except Exception as error:
        line = str(error) if isinstance(error, SpanBertError) else describe_surroundings(error)
        if line is None and not is_worker():
            raise
        if debug or line is None:
            print_escaped_traceback(type(error), error, error.__traceback__)
        is_failure = line is None or isinstance(error, TrainingError)
        _fail(line or "ended by this error", EXIT_FAILED if is_failure else EXIT_BAD_INPUT)
    sys.exit(EXIT_DONE)


def _described(error: click.ClickException) -> str:
    """Describes an error of the command line in one line; for unknown commands, names the help."""
    line = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context and isinstance(context.command, click.Group):
        line += f" `{context.command_path} --help` lists them."
    return line


def _fail(line: str, status: int) -> None:
    """Prints an error and exits.

    One of several workers exits without cleanup: JAX would wait for all other workers.
    """
    click.echo(f"spanbert-tf: {escape_controls(line)}", err=True)
    if is_worker():
        sys.stdout.flush()
        end_process(status=status)
    sys.exit(status)
