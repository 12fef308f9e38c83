"""`spanbert-tf export`: a SavedModel of a masked-language model, for TF Serving."""

import os
import shutil

import keras
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.loading import load_masked_lm
from spanbert_tf.serving.fill_mask import FillMask
from spanbert_tf.serving.precision import describe_change, in_precision
from spanbert_tf.serving.server_files import write_server_files
from spanbert_tf.serving.warmup import write_warmup_requests
from spanbert_tf.vocabulary import MASK_TOKEN

_EXTRA_ASSETS = "assets.extra"  # where TF Serving looks for warm-up requests, and for nothing else


def export_masked_lm(
    preset: str, output: str, *, version: int = 1, top_k: int = 5, precision: str = "float32"
) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Its signatures are methods of `FillMask`: `serving_default` is `fill_texts`, `pack` is
    `pack_texts`, `token_ids` is `fill_token_ids`. It loads with TensorFlow and TensorFlow Text
    alone. Beside the versions lie `models.config`, `batching_parameters.txt` and a README.

    Args:
        preset: a preset with a trained masked-language-model head.
        output: the model's directory for TF Serving; its name is the model's.
        version: of the model; the name of the directory.
        top_k: fillings for each mask.
        precision: `"float32"`, `"bfloat16"` or `"int8"`; prints what another one than float32
            changes in the outputs.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset has no trained head, the version exists, or it cannot be written.
    """
    path = os.path.join(output, str(version))
    if os.path.exists(path):
        raise BadInputError(f"{path}: exists already; give another --version")
    masked_lm = load_masked_lm(preset)
    _check(masked_lm, preset, top_k)
    if precision != "float32":
        exact, masked_lm = masked_lm, in_precision(preset, precision)
        print(f"{precision}: {describe_change(exact, masked_lm)}", flush=True)
    unfinished = os.path.join(output, f".{version}.incomplete")
    server_files = f"{unfinished}.files"
    for directory in (unfinished, server_files):
        shutil.rmtree(directory, ignore_errors=True)
    try:
        _write(masked_lm, top_k, unfinished)
        write_server_files(server_files, _model_name(output), masked_lm.backbone)
        os.rename(unfinished, path)
        for name in os.listdir(server_files):
            os.replace(os.path.join(server_files, name), os.path.join(output, name))
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInputError(f"{path}: cannot be written ({reason}); free some space") from error
    finally:
        for directory in (unfinished, server_files):
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{path}: texts with {MASK_TOKEN} in, the {top_k} most probable fillings out", flush=True)
    return path


def _model_name(output: str) -> str:
    return os.path.basename(os.path.abspath(output))


def _check(masked_lm: SpanBertMaskedLM, preset: str, top_k: int) -> None:
    vocabulary_size = masked_lm.preprocessor.tokenizer.vocabulary_size()
    if top_k > vocabulary_size:
        raise BadInputError(f"--top-k {top_k}: the vocabulary has {vocabulary_size} entries only")
    if masked_lm.backbone.position_embeddings != "absolute":
        raise BadInputError(
            f"{preset}: reads positions of sentences and paragraphs, which a text alone does not "
            "tell; only models with BERT's positions can be exported"
        )


def _write(masked_lm: SpanBertMaskedLM, top_k: int, path: str) -> None:
    module = FillMask(masked_lm, top_k)
    archive = keras.export.ExportArchive()
    archive.track(masked_lm)
    for name, (function, input_signature) in module.signatures().items():
        archive.add_endpoint(name, function, input_signature=input_signature)
    archive.write_out(path, verbose=False)
    extra = os.path.join(path, _EXTRA_ASSETS)
    # Casing and vocabulary travel with the export, for people and for clients.
    os.makedirs(extra, exist_ok=True)
    masked_lm.preprocessor.tokenizer.save_to_preset(extra)
    write_warmup_requests(extra, module)
