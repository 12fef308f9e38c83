"""The errors that a user can cause and mend; the command line prints them as one line."""


class SpanBertError(Exception):
    """Base of all errors whose message is meant for the user.

    The message is one line that names the place (file, line, record or key), says what is wrong,
    and says what to do. The command line prints it without a traceback and exits with status 2.
    """


class BadInputError(SpanBertError, ValueError):
    """A file, a record, a document or a directory cannot be used; what Keras raises there, too."""


class ConfigurationError(SpanBertError):
    """A configuration file, key, value or option cannot be used."""


class MismatchError(SpanBertError):
    """Two things that must agree do not: records and configuration, vocabulary and preset."""


class TrainingError(SpanBertError):
    """A run cannot go on, though nothing that the user gave it is wrong; exit status 1."""


def reason(error: BaseException) -> str:
    """What an error says in its first line, without its path; its name if it says nothing."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]
