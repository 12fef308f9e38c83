"""Where the shipped configurations lie, in a clone and in a wheel."""

import os

from spanbert_tf.errors import ConfigurationError


def shipped_directory(kind: str) -> str:
    """The directory of the shipped configurations of a kind, `"pretrain"` or `"finetune"`."""
    package = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(package, "configs", kind)  # in a wheel
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "configs", kind)  # in a clone


def shipped_names(kind: str) -> list[str]:
    """Names of the shipped configurations of a kind."""
    return sorted(
        name.removesuffix(".yaml")
        for name in os.listdir(shipped_directory(kind))
        if name.endswith(".yaml")
    )


def find_config(kind: str, name_or_path: str, directory: str, place: str) -> str:
    """The path of a shipped name, or of a file seen from a directory.

    Args:
        kind: `"pretrain"` or `"finetune"`.
        name_or_path: what the user wrote.
        directory: that a relative path begins at.
        place: where it was written, for errors.

    Raises:
        ConfigurationError: it is neither.
    """
    names = shipped_names(kind)
    if name_or_path in names:
        return os.path.join(shipped_directory(kind), f"{name_or_path}.yaml")
    path = os.path.normpath(os.path.join(directory, name_or_path))
    if not os.path.isfile(path):
        raise ConfigurationError(
            f"{place}: {name_or_path} is neither a file nor one of {', '.join(names)}"
        )
    return path
