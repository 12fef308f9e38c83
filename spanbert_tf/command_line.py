"""How a command runs: options that several commands share, quiet libraries, and the exit status."""

import functools
import importlib.util
import itertools
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import click

from spanbert_tf.doctor import describe_surroundings, prepare_surroundings, refuse_umask
from spanbert_tf.errors import ConfigurationError, SpanBertError, TrainingError
from spanbert_tf.files.paths import check_mounted, without_slash
from spanbert_tf.process import end_process, is_worker, second_signal_ends
from spanbert_tf.temporary import protected_children
from spanbert_tf.terminal import escape_controls, print_escaped_traceback

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# What a group without a command raises, from click 8.2 on; earlier ones print its help themselves.
_HELP_OF_GROUP = getattr(click.exceptions, "NoArgsIsHelpError", ())
_KEY_AND_VALUE = re.compile(r"[\w.]+=")


class _ExistingDirectory(click.Path):
    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path; one of another file system is refused by name."""
        check_mounted(value)
        return super().convert(value, param, ctx)


class _OutputPath(click.ParamType):
    """A path that a command writes; slashes at its end mean nothing.

    `inside`: a directory in which files change, see `output_lock`; `None` where the command
    itself holds it.
    """

    name = "path"

    def __init__(self, *, inside: bool | None = False) -> None:
        self.inside = inside

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path without slashes at its end."""
        if not value:
            self.fail("is empty; name a path", param, ctx)
        return without_slash(value)


EXISTING_DIRECTORY = _ExistingDirectory(exists=True, file_okay=False)
RECORDS_PATH = _ExistingDirectory(exists=True)  # of a file, its reader says how to write records
OUTPUT_PATH = _OutputPath()
WORK_PATH = _OutputPath(inside=True)
RUN_PATH = _OutputPath(inside=None)


class WritingCommand(click.Command):
    """A command that holds what it writes from its beginning to its end."""

    def __init__(
        self, name: str | None, *, context_settings: dict[str, object] | None = None, **others
    ) -> None:
        # Its own: click keeps the option of help that a command's first context makes, whoever
        # makes that, the whole program or Python for this command alone.
        settings = CONTEXT_SETTINGS | (context_settings or {})
        super().__init__(name, context_settings=settings, **others)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses an option that takes one value and has two: click would drop the first."""
        *_, given = self.make_parser(ctx).parse_args(list(args))
        for option in given:
            is_single = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if is_single and given.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]}: is given twice, and takes one value")
        return super().parse_args(ctx, args)

    def backend(self) -> str:
        """The backend of Keras that the command runs on."""
        return "tensorflow"

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command."""
        from spanbert_tf.files.lock import output_lock  # `--help` needs none of it

        refuse_umask()
        # TensorFlow imports Keras in passing, which fails with a backend that is not there.
        os.environ["KERAS_BACKEND"] = self.backend()
        for parameter in self.params:
            value, kind = ctx.params.get(parameter.name), parameter.type
            is_written = value not in (None, "-")  # `-` is standard output
            if isinstance(kind, _OutputPath) and kind.inside is not None and is_written:
                ctx.with_resource(output_lock(value, ctx.command_path, inside=kind.inside))
        return super().invoke(ctx)


class ModelCommand(WritingCommand):
    """A command that trains or evaluates, on TensorFlow or on JAX, as Keras is told to."""

    def backend(self) -> str:
        """The one that Keras' settings name."""
        backend, place = _keras_backend()
        if backend not in ("tensorflow", "jax"):
            raise ConfigurationError(
                f"{place}: {backend}: the command line runs on TensorFlow and on JAX; use "
                f"KERAS_BACKEND=tensorflow, or `spanbert_tf.models` from Python"
            )
        if importlib.util.find_spec(backend) is None:
            raise ConfigurationError(
                f"{place}: {backend}: is not installed: pip install -e '.[{backend}]'"
            )
        return backend


def _keras_backend() -> tuple[str, str]:
    """The backend that Keras will take, and what says so; Keras itself takes seconds to import."""
    if backend := os.environ.get("KERAS_BACKEND"):
        return backend, "KERAS_BACKEND"
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    path = os.path.join(home, "keras.json")
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
    except (OSError, ValueError):  # Keras passes over it, too
        settings = {}
    except RecursionError:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigurationError(f"{path}: is no object of JSON; mend or remove it")
    return settings.get("backend", "tensorflow"), path


class SeveralValues(ModelCommand):
    """A command whose repeatable options take several values after one flag: `--seeds 1 2 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats the flag before each value, as click wants it: `--seeds 1 --seeds 2 …`."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        repeatable = {flag for option in options if option.multiple for flag in option.opts}
        for flag, following in itertools.pairwise([*args, "-"]):
            # An empty `--seeds $SEEDS`: without a value to repeat it before, it would be dropped.
            if flag in repeatable and following.startswith("-"):
                raise click.UsageError(f"{flag}: needs a value")
        repeated, flag, is_first = [], None, False
        for argument in args:
            if argument.startswith("-"):
                flag, is_first = (argument, True) if argument in repeatable else (None, False)
                if flag is None:
                    repeated.append(argument)
                continue
            # After --set, an argument of the command can follow: the next value has its `=`.
            takes = flag and (is_first or flag != "--set" or _KEY_AND_VALUE.match(argument))
            repeated += [flag, argument] if takes else [argument]
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
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace an earlier output of the same kind."
)
follow_links_option = click.option(
    "--follow-links",
    is_flag=True,
    help="Read what links in the input's folders lead to outside of them, too.",
)


def options(*each: Callable) -> Callable[[Callable], Callable]:
    """Options of a command as one decorator; its help shows them in this order."""
    return lambda command: functools.reduce(lambda done, add: add(done), reversed(each), command)


def case_options_with(default: bool | None, lowercase: str, accents: str) -> Callable:
    """How text is cased; `default` as for `--lowercase`, and the help of both options."""
    kept = {"flag_value": False, "default": None, "type": bool, "help": accents}
    return options(
        click.option("--lowercase/--cased", default=default, help=lowercase),
        click.option("--keep-accents", "strip_accents", **kept),
    )


_LOWERCASE_HELP = "Lower-case the text and strip accents.  [default: cased]"
_ACCENTS_HELP = "With --lowercase: strip no accents (German uncased models)."
case_options = case_options_with(default=False, lowercase=_LOWERCASE_HELP, accents=_ACCENTS_HELP)


def check_vocabulary_options(
    preset: str | None,
    vocabulary: str | None,
    lowercase: bool | None,
    strip_accents: bool | None,
) -> None:
    """Refuses two sources of a vocabulary and its casing, and none.

    Raises:
        ConfigurationError: there are two, or none; the message says what to leave out or to give.
    """
    if preset is None and vocabulary is None:
        raise ConfigurationError(
            "give --preset (the one to train, which tells vocabulary and casing), or --vocabulary"
        )
    if preset is not None and vocabulary is not None:
        raise ConfigurationError("give either --preset or --vocabulary: a preset has its own")
    if preset is not None and (lowercase is not None or strip_accents is not None):
        raise ConfigurationError(
            "--preset tells the casing; leave out --lowercase, --cased and --keep-accents"
        )


class _PresetOption(click.Option):
    """`--preset` beside `--vocabulary`; looked at before the input is read and before imports."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, object], args: list[str]
    ) -> tuple[object, list[str]]:
        """Checks what was given of both and of the casing."""
        if not ctx.resilient_parsing:
            names = ("preset", "vocabulary", "lowercase", "strip_accents")
            check_vocabulary_options(*(opts.get(name) for name in names))
        return super().handle_parse_result(ctx, opts, args)


vocabulary_options = options(
    click.option(
        "--preset",
        cls=_PresetOption,
        metavar="PRESET",
        help="The preset to train, for its vocabulary and casing.",
    ),
    click.option("--vocabulary", metavar="FILE", help="In place of --preset."),
    case_options_with(default=None, lowercase=_LOWERCASE_HELP, accents=_ACCENTS_HELP),
)


def record_options_with(sequence_length: int) -> Callable[[Callable], Callable]:
    """The options of every command that writes records of a task.

    Args:
        sequence_length: by default, positions of a row at most.
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
    """Hides warnings, as importing the package hides TensorFlow's own log; before TensorFlow."""
    # Libraries' warnings do not concern the user; Beam's workers inherit the variable.
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line for each of a dozen tries
    warnings.simplefilter("ignore")
    for name in ("matplotlib", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


def show_library_logs() -> None:
    """Shows TensorFlow's log, which importing the package hides; before TensorFlow is imported."""
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3":  # another level is the user's
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"


def run_command(
    command: click.Command, name: str, arguments: Sequence[str], *, debug: bool = False
) -> None:
    """Runs a command and exits: 0 done, 2 bad input or configuration, 1 anything else.

    Args:
        command: to run.
        name: name of the program, as its help shows it.
        arguments: arguments of the command.
        debug: whether to show tracebacks.
    """
    sys.excepthook = print_escaped_traceback
    try:
        prepare_surroundings(arguments)
        with second_signal_ends(), protected_children():
            command.main(list(arguments), name, standalone_mode=False, **CONTEXT_SETTINGS)
    except _HELP_OF_GROUP as error:
        error.show()  # it has lines
        sys.exit(EXIT_BAD_INPUT)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), EXIT_BAD_INPUT)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # of a broken file; Click takes it for Ctrl-D
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


def _fail(line: str, status: int) -> None:
    """Prints an error, and exits; of several workers at once: JAX would wait for all the others."""
    click.echo(f"spanbert-tf: {escape_controls(line)}", err=True)
    if is_worker():
        sys.stdout.flush()
        end_process(status=status)
    sys.exit(status)
