"""Writes a SavedModel with the files that belong to it, whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from typing import Protocol

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.outputs import OutputKind, check_output, without_slash
from spanbert_tf.files.writing import write_directory
from spanbert_tf.presets.loading import load_preset, load_trained
from spanbert_tf.process.lines import print_line
from spanbert_tf.serving.precision import describe_difference
from spanbert_tf.serving.server_files import Manual, replace_server_files, write_server_files
from spanbert_tf.serving.warmup import Request, write_warmup_requests

_EXTRA_ASSETS = "assets.extra"  # where TF Serving looks for warm-up requests, and for nothing else
EXPORT = OutputKind(
    "an exported model",
    f"{_EXTRA_ASSETS}/tokenizer.json",
    (
        "saved_model.pb",
        "fingerprint.pb",
        "variables/variables.*",
        "assets/*",
        f"{_EXTRA_ASSETS}/tf_serving_warmup_requests",
        f"{_EXTRA_ASSETS}/assets/tokenizer/vocabulary.txt",
    ),
)


class ServedModule(Protocol):
    """What an export computes."""

    def signatures(self) -> dict[str, tuple]:
        """Name → function and the `tf.TensorSpec`s of its inputs."""

    def warmup_requests(self) -> list[Request]:
        """Requests of the kinds that users send."""

    def manual(self) -> Manual:
        """What the README says about this task."""


def export_model(
    model_class: type[keras_hub.models.Task],
    preset: str,
    output: str,
    served: Callable[[keras_hub.models.Task], ServedModule],
    sample_logits: Callable[[keras_hub.models.Task], list],
    *,
    version: int = 1,
    precision: str = "float32",
    overwrite: bool = False,
) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Args:
        model_class: class of the preset's model.
        preset: preset with a trained model of that class.
        output: the model's directory for TF Serving; its name is the model's.
        served: what the export computes, from the model.
        sample_logits: logits [N, classes] of a model for some sentences, to see what another
            precision changes.
        version: version of the model; the name of the directory.
        precision: `"float32"`, or `"bfloat16"` for weights and computations; how the latter changes
            the outputs is printed.
        overwrite: whether an earlier export of that version may be replaced.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset cannot be used, the version exists, or it cannot be written.
    """
    path = check_new_version(output, version, overwrite=overwrite)
    model = load_trained(model_class, preset)
    module = served(model)
    if precision != "float32":
        exact, model = model, load_preset(model_class, preset, dtype=precision)
        module = served(model)
        print_line(f"{precision}: {describe_difference(*map(sample_logits, (exact, model)))}")
    export_module(module, model.preprocessor.tokenizer, path, overwrite=overwrite)
    print_line(f"{path}: {' '.join(module.manual().description.split())}")
    return path


def check_new_version(output: str, version: int, *, overwrite: bool = False) -> str:
    """The path of a version's directory; other versions may lie beside it.

    Raises:
        BadInputError: it exists, and is not an earlier export that may be replaced.
    """
    path = os.path.join(without_slash(output), str(version))
    if os.path.isdir(path) and not os.listdir(path):
        raise BadInputError(f"{path}: exists already; give another --version, or remove it")
    return check_output(path, EXPORT, overwrite=overwrite)


def export_module(
    module: ServedModule,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    path: str,
    *,
    overwrite: bool = False,
) -> None:
    """Writes a version of a model for TF Serving, and the files beside the versions.

    Args:
        module: what is computed.
        tokenizer: travels with the export, for people and for clients.
        path: `output/version`; the name of `output` is the model's.
        overwrite: whether an earlier export of that version may be replaced.

    Raises:
        BadInputError: it exists or cannot be written.
    """
    output = os.path.dirname(path)
    name = os.path.basename(os.path.abspath(output))
    try:
        os.makedirs(output, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".server-files-", dir=output) as server_files:
            write_server_files(server_files, name, module.manual())
            write_directory(
                path,
                lambda unfinished: _write(module, tokenizer, unfinished),
                EXPORT,
                overwrite=overwrite,
            )
            for kept in replace_server_files(server_files, output):
                print_line(f"{kept}: is not as `export` wrote it, and stays as it is")
    except OSError as error:
        raise BadInputError(
            f"{path}: cannot be written ({reason(error)}); free some space"
        ) from error


def _write(
    module: ServedModule,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    path: str,
) -> None:
    # The endpoints bring the variables they use; a model that Keras 3.15 `track`s is written twice.
    archive = keras.export.ExportArchive()
    for name, (function, input_signature) in module.signatures().items():
        archive.add_endpoint(name, function, input_signature=input_signature)
    extra = os.path.join(path, _EXTRA_ASSETS)
    try:
        archive.write_out(path, verbose=False)
        os.makedirs(extra, exist_ok=True)
        tokenizer.save_to_preset(extra)
        write_warmup_requests(extra, module.warmup_requests())
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(reason(error)) from error
