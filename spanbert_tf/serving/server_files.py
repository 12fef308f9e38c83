"""Writes the files beside the versions of an export: TF Serving's configuration and the README."""

import hashlib
import json
import os

_MODELS_CONFIG = """model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
}}
"""
# The server pads batches of requests to these sizes, so that the model sees few shapes. It must not
# pad lengths: it would not use [PAD] and a padding mask of 0.
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_BATCHING = """max_batch_size {{ value: {largest} }}
batch_timeout_micros {{ value: 2000 }}
max_enqueued_batches {{ value: 100 }}
num_batch_threads {{ value: 2 }}
pad_variable_length_inputs: false
{allowed}
"""
README_FILE = "README.md"
# The last line of each file has a hash of the lines before. The next export may replace a file if
# nobody has changed it.
_SIGNATURES = {
    "models.config": "# Written by spanbert-tf export; sha256 {}",
    "batching_parameters.txt": "# Written by spanbert-tf export; sha256 {}",
    README_FILE: "<!-- Written by spanbert-tf export; sha256 {} -->",
}


def write_server_files(directory: str, name: str) -> None:
    """Writes `models.config` and `batching_parameters.txt`.

    Args:
        directory: directory of the files.
        name: name of the model.
    """
    models = _MODELS_CONFIG.format(name=_quoted(name), path=_quoted(f"/models/{name}"))
    _write_signed(directory, "models.config", models)
    allowed = "\n".join(f"allowed_batch_sizes: {size}" for size in _BATCH_SIZES)
    batching = _BATCHING.format(largest=_BATCH_SIZES[-1], allowed=allowed)
    _write_signed(directory, "batching_parameters.txt", batching)


def write_readme(directory: str, text: str) -> None:
    """Writes `README.md`, which the next export may replace."""
    _write_signed(directory, README_FILE, text)


def _write_signed(directory: str, name: str, content: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(f"{content}{_signature(name, content)}\n")


def _quoted(text: str) -> str:
    """Quotes a string for the text format of protocol buffers."""
    return json.dumps(text, ensure_ascii=False)


def replace_server_files(source: str, output: str) -> list[str]:
    """Moves new files from `source` to `output`, but keeps files there that somebody changed.

    Args:
        source: directory of the new files.
        output: directory of the model.

    Returns:
        The paths of the files that were kept.
    """
    kept = []
    for name in _SIGNATURES:
        if not os.path.exists(os.path.join(source, name)):
            continue
        path = os.path.join(output, name)
        if os.path.lexists(path) and not _is_ours(path, name):
            kept.append(path)
        else:
            os.replace(os.path.join(source, name), path)
    return kept


def _is_ours(path: str, name: str) -> bool:
    """Whether an export wrote a file and nobody has changed it."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        content, separator, last = file.read().removesuffix("\n").rpartition("\n")
    return last == _signature(name, content + separator)


def _signature(name: str, content: str) -> str:
    return _SIGNATURES[name].format(hashlib.sha256(content.encode()).hexdigest())
