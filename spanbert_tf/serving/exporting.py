"""Writes an export: a SavedModel, or a file for another runtime, with its README and assets."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.lock import output_lock
from spanbert_tf.files.output import Output, OutputKind, os_errors
from spanbert_tf.files.paths import without_slash
from spanbert_tf.files.written import print_written
from spanbert_tf.presets.preset import Preset
from spanbert_tf.serving.description import (
    EXTRA_ASSETS,
    PIPELINE_FILE,
    VOCABULARY_FILE,
    Description,
    write_description,
)
from spanbert_tf.serving.readme import description_of, render_readme
from spanbert_tf.serving.runtimes import RUNTIMES, RowExport, largest_difference
from spanbert_tf.serving.server_files import (
    README_FILE,
    replace_server_files,
    write_readme,
    write_server_files,
)
from spanbert_tf.terminal import print_line

Signatures = dict[str, tuple[Callable, list[tf.TensorSpec]]]
Request = tuple[str, Mapping[str, np.ndarray]]  # signature, inputs

ROWS = "token_ids"  # the signature that takes packed rows
_WARMUP_FILE = "tf_serving_warmup_requests"
_BATCH_SIZES = (1, 8)  # of warm-up requests
_LONG = 200  # repetitions of the example in a long text
EXPORT = OutputKind(
    "an exported model",
    f"{EXTRA_ASSETS}/tokenizer.json",
    (
        "saved_model.pb",
        "fingerprint.pb",
        "variables/variables.*",
        "assets/*",
        f"{EXTRA_ASSETS}/{PIPELINE_FILE}",
        f"{EXTRA_ASSETS}/{_WARMUP_FILE}",
        f"{EXTRA_ASSETS}/{VOCABULARY_FILE}",
        *(runtime.file_name for runtime in RUNTIMES.values()),
    ),
)


class Served(NamedTuple):
    """What an export computes, and the content of its README.

    Attributes:
        signatures: name → graph function and specs of its inputs. One is `serving_default`.
        example: inputs of an example request: name → text or numbers. Missing texts are empty.
        template: path of the template of the README.
        values: values for the template, besides those that `readme` adds.
        description: what answers need beside the graph.
    """

    signatures: Signatures
    example: Mapping[str, Any]
    template: str
    values: Mapping[str, Any]
    description: Description

    def warmup_requests(self) -> list[Request]:
        """Makes requests of the example for each signature.

        There is one for each batch size, and for signatures with texts also with long texts.
        """
        requests: list[Request] = []
        for name, (_, specs) in self.signatures.items():
            has_texts = any(spec.dtype == tf.string for spec in specs)
            for times in (1, _LONG) if has_texts else (1,):
                for size in _BATCH_SIZES:
                    inputs = {}
                    for spec in specs:
                        inputs[spec.name] = _filled(spec, self.example, size, times)
                    requests.append((name, inputs))
        return requests

    def readme(self, name: str, program: str | None = None) -> str:
        """Renders the README.

        Args:
            name: name of the model.
            program: Python code that runs packed rows in another runtime than TF Serving, if the
                export is for one.
        """
        requests = {}
        for signature, (_, specs) in self.signatures.items():
            requests[signature] = {spec.name: [self.example.get(spec.name, "")] for spec in specs}
        return render_readme(
            self.template,
            name,
            requests=requests,
            first_output=self._first_output,
            program=program,
            **self.values,
        )

    def _first_output(self) -> tuple[str, list[int]]:
        """Returns the name of the first output, and its shape for the example."""
        name, values = next(iter(self.answer_example().items()))
        return name, values.shape.as_list()

    def answer_example(self) -> dict[str, tf.Tensor]:
        """Computes the outputs of `serving_default` for the example."""
        function, specs = self.signatures["serving_default"]
        inputs = [_filled(spec, self.example, 1, 1) for spec in specs]
        return tf.function(function, input_signature=specs)(*map(tf.constant, inputs))


def _filled(spec: tf.TensorSpec, example: Mapping[str, Any], size: int, times: int) -> np.ndarray:
    """Makes a batch of copies of the example's value for an input; repeats a text `times` times."""
    value = example.get(spec.name, "")
    if isinstance(value, str):
        return np.full([size], " ".join([value] * times))
    return np.tile(np.array(value, "int32"), (size, *[1] * np.ndim(value)))


def export_model(
    model_class: type[keras_hub.models.Task],
    preset: Preset,
    output: str,
    served: Callable[[keras_hub.models.Task], Served],
    *,
    version: int = 1,
    precision: str = "float32",
    overwrite: bool = False,
    runtime: RowExport | None = None,
) -> str:
    """Writes `output/version/`: a SavedModel for TF Serving, or a file for another runtime.

    Args:
        model_class: class of the preset's model.
        preset: preset with a trained model of that class.
        output: directory of the model for TF Serving. Its name is the name of the model.
        served: takes the model; returns what the export computes.
        version: version of the model; the name of the directory.
        precision: dtype of weights and computations, `"float32"` or `"bfloat16"`. With the latter,
            the change of the outputs for the README's example is printed.
        overwrite: whether an earlier export of that version may be replaced.
        runtime: another runtime, which takes packed rows. `None`: TF Serving.

    Returns:
        The path of the version's directory.

    Raises:
        BadInputError: the preset cannot be used, the version exists, or it cannot be written.
    """
    path = check_new_version(output, version, overwrite=overwrite)
    _check_formats(output, is_for_server=runtime is None)
    model = preset.trained_task(model_class)
    computed = served(model)
    if precision != "float32":
        exact = computed.answer_example()
        model = preset.trained_task(model_class, precision)
        computed = served(model)
        print_line(f"{precision}: {describe_difference(exact, computed.answer_example())}")

    def write(directory: str) -> None:
        extra = os.path.join(directory, EXTRA_ASSETS)
        os.mkdir(extra)
        model.preprocessor.tokenizer.save_to_preset(extra)
        write_description(extra, computed.description)
        if runtime is None:
            with os_errors():
                _write_saved_model(computed, directory)
                _write_warmup_requests(extra, computed.warmup_requests())
        else:
            function, specs = computed.signatures[ROWS]
            found = runtime.write(function, specs, computed.example, directory)
            print_line(f"{path}: {found}")

    name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    program = runtime.program() if runtime else None
    readme = computed.readme(name, program)

    def write_beside(directory: str) -> None:
        if runtime is None:
            write_server_files(directory, name)
        write_readme(directory, readme)

    _write_version(write, write_beside, path, overwrite=overwrite)
    print_line(f"{path}: {description_of(readme)}")
    export = os.path.dirname(path)
    commands = [["cat", os.path.join(export, README_FILE)]]
    if runtime is None:
        commands.append(["spanbert-tf", "serve", export])
    print_written(path, *commands)
    return path


def describe_difference(exact: Mapping[str, tf.Tensor], other: Mapping[str, tf.Tensor]) -> str:
    """Describes the difference between the outputs of a model in float32 and in another precision.

    Args:
        exact: outputs in float32 for an example.
        other: outputs in the other precision for the same example.
    """
    is_same = True
    differences = []
    for name, expected in exact.items():
        if expected.shape != other[name].shape:
            is_same = False
        elif not expected.dtype.is_floating:
            is_same = is_same and bool(tf.reduce_all(expected == other[name]))
        elif tf.size(expected):
            differences.append(largest_difference(expected.numpy(), other[name].numpy()))
    answer = "the same answer" if is_same else "another answer"
    text = f"the README's example has {answer}"
    if not differences:
        return text
    if not np.all(np.isfinite(differences)):
        return f"{text}, but not all of its numbers are finite: do not use it"
    return f"{text}, whose numbers differ by up to {max(differences):.1e}"


def check_new_version(output: str, version: int, *, overwrite: bool = False) -> str:
    """Checks that a version can be written, beside other versions, and returns its path.

    Args:
        output: directory of the model.
        version: version of the model.
        overwrite: whether an earlier export of that version may be replaced.

    Raises:
        BadInputError: the version exists, and is not an earlier export that may be replaced.
    """
    path = os.path.join(without_slash(output), str(version))
    if os.path.isdir(path) and not os.listdir(path):
        raise BadInputError(f"{path}: exists already; give another --version, or remove it")
    return Output(path, EXPORT, overwrite=overwrite).check()


def _check_formats(output: str, *, is_for_server: bool) -> None:
    """Refuses a version of another format beside existing versions: a server loads the highest.

    Raises:
        BadInputError: there are versions of the other kind.
    """
    if not os.path.isdir(output):
        return
    for name in sorted(os.listdir(output)):
        path = os.path.join(output, name)
        is_saved_model = os.path.exists(os.path.join(path, "saved_model.pb"))
        is_version = name.isdecimal() and os.path.isdir(path) and os.listdir(path)
        if is_version and is_saved_model != is_for_server:
            kind = "a SavedModel" if is_saved_model else "for another runtime"
            raise BadInputError(f"{path}: is {kind}; name another --output for this format")


def _write_version(
    write: Callable[[str], None],
    write_beside: Callable[[str], None],
    path: str,
    *,
    overwrite: bool,
) -> None:
    """Writes `output/version`, and the files beside the versions."""
    output = os.path.dirname(path)
    version = Output(path, EXPORT, overwrite=overwrite)
    with output_lock(path, "a program"), version.named_errors(), version.unfinished() as aside:
        server_files = os.path.join(aside, "server_files")
        os.mkdir(server_files)
        write_beside(server_files)
        os.mkdir(version.new)
        write(version.new)
        version.publish()
        for kept in replace_server_files(server_files, output):
            print_line(f"{kept}: is not as `export` wrote it, and stays as it is")


def _write_saved_model(served: Served, path: str) -> None:
    # The endpoints include their variables. With `archive.track(model)`, Keras 3.15 would write the
    # model twice.
    archive = keras.export.ExportArchive()
    for name, (function, specs) in served.signatures.items():
        # Keras traces an endpoint once, TensorFlow a second time; neither traces this one again.
        graph = tf.function(function, input_signature=specs, autograph=False)
        traced = graph.get_concrete_function()
        archive.add_endpoint(name, functools.partial(_call, traced), input_signature=specs)
    archive.write_out(path, verbose=False)


def _call(function: Callable, *inputs: tf.Tensor) -> Any:
    return function(*inputs)


def _write_warmup_requests(directory: str, requests: Sequence[Request]) -> None:
    """Writes the requests that TF Serving runs when it loads the model: a TFRecord of up to 1,000.

    Without `tensorflow-serving-api` it only prints how to install it.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ModuleNotFoundError:
        print_line("no warm-up requests: pip install 'spanbert_tf[serving]'")
        return
    with tf.io.TFRecordWriter(os.path.join(directory, _WARMUP_FILE)) as writer:
        for signature_name, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature_name
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
