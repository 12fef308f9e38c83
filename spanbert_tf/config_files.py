"""Reads a configuration file, laid over its bases: what all kinds of configuration share."""

import os
from collections.abc import Sequence

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.shipped_configs import find_config
from spanbert_tf.strict_yaml import Setting, parse_override, read_settings


def load_settings(kind: str, name_or_path: str, overrides: Sequence[str]) -> dict[str, Setting]:
    """The settings of a file over its bases', and overrides over both.

    Args:
        kind: `"pretrain"` or `"finetune"`.
        name_or_path: a shipped name, or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.

    Raises:
        ConfigurationError: a file cannot be found or read, or an override is none.
    """
    path = find_config(kind, name_or_path, os.getcwd(), "--config")
    return _with_bases(kind, path, ()) | dict(parse_override(text) for text in overrides)


def _with_bases(kind: str, path: str, descendants: tuple[str, ...]) -> dict[str, Setting]:
    if path in descendants:
        raise ConfigurationError(f"{path}: is its own base; change `base`")
    settings = read_settings(path)
    base = settings.pop("base", None)
    if base is None:
        return settings
    if not isinstance(base.value, str):
        raise ConfigurationError(f"{base.place}: base must be a name or a path")
    base_path = find_config(kind, base.value, os.path.dirname(path), base.place)
    return _with_bases(kind, base_path, (*descendants, path)) | settings
