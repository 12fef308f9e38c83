"""The errors that users can cause and fix. The command line prints each as one line."""


class SpanBertError(Exception):
    """Base class of all errors whose message is meant for the user.

    The message is one line that names the place (file, line, record or key), the problem, and what
    to do. The command line prints it without a traceback and exits with status 2.
    """


class BadInputError(SpanBertError, ValueError):
    """A file, record, document or directory cannot be used. A `ValueError`, as Keras raises it."""


class ConfigurationError(SpanBertError):
    """A configuration file, key, value or option cannot be used."""


class MismatchError(SpanBertError):
    """Two inputs do not fit together, such as records and configuration."""


class TrainingError(SpanBertError):
    """A run cannot continue, although its inputs are correct. The exit status is 1."""


def reason(error: BaseException) -> str:
    """Returns the first line of an error's message without its path; its name if that is empty."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]
