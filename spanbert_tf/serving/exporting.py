"""Writes a SavedModel and what belongs to it, whole or not at all."""

import os
import shutil
from typing import Protocol

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.serving.server_files import Manual, write_server_files
from spanbert_tf.serving.warmup import Request, write_warmup_requests

_EXTRA_ASSETS = "assets.extra"  # where TF Serving looks for warm-up requests, and for nothing else


class ServedModule(Protocol):
    """What an export computes."""

    def signatures(self) -> dict[str, tuple]:
        """Name → function and the `tf.TensorSpec`s of its inputs."""

    def warmup_requests(self) -> list[Request]:
        """Requests of the kinds that users send."""

    def manual(self) -> Manual:
        """What the README says of this task."""


def check_new_version(output: str, version: int) -> str:
    """The path of a version's directory.

    Raises:
        BadInputError: it exists.
    """
    path = os.path.join(output, str(version))
    if os.path.exists(path):
        raise BadInputError(f"{path}: exists already; give another --version")
    return path


def export_module(
    module: ServedModule,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    path: str,
) -> None:
    """Writes a version of a model for TF Serving, and the files beside the versions.

    Args:
        module: what is computed.
        tokenizer: travels with the export, for people and for clients.
        path: `output/version`, which does not exist; the name of `output` is the model's.

    Raises:
        BadInputError: it cannot be written.
    """
    output, version = os.path.split(path)
    unfinished = os.path.join(output, f".{version}.incomplete")
    server_files = f"{unfinished}.files"
    for directory in (unfinished, server_files):
        shutil.rmtree(directory, ignore_errors=True)
    try:
        _write(module, tokenizer, unfinished)
        name = os.path.basename(os.path.abspath(output))
        write_server_files(server_files, name, module.manual())
        os.rename(unfinished, path)
        for file_name in os.listdir(server_files):
            os.replace(os.path.join(server_files, file_name), os.path.join(output, file_name))
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInputError(f"{path}: cannot be written ({reason}); free some space") from error
    finally:
        for directory in (unfinished, server_files):
            shutil.rmtree(directory, ignore_errors=True)


def _write(
    module: ServedModule,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    path: str,
) -> None:
    # The endpoints bring the variables they use; a model that Keras 3.15 `track`s is written twice.
    archive = keras.export.ExportArchive()
    for name, (function, input_signature) in module.signatures().items():
        archive.add_endpoint(name, function, input_signature=input_signature)
    archive.write_out(path, verbose=False)
    extra = os.path.join(path, _EXTRA_ASSETS)
    os.makedirs(extra, exist_ok=True)
    tokenizer.save_to_preset(extra)
    write_warmup_requests(extra, module.warmup_requests())
