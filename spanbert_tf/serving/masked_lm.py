"""`spanbert-tf export` of a masked-language model."""

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.loading import load_masked_lm
from spanbert_tf.serving.exporting import check_new_version, export_module
from spanbert_tf.serving.fill_mask import FillMask
from spanbert_tf.serving.precision import describe_fillings, in_precision
from spanbert_tf.vocabulary import MASK_TOKEN


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
    path = check_new_version(output, version)
    masked_lm = load_masked_lm(preset)
    _check(masked_lm, preset, top_k)
    if precision != "float32":
        exact, masked_lm = masked_lm, in_precision(SpanBertMaskedLM, preset, precision)
        print(f"{precision}: {describe_fillings(exact, masked_lm)}", flush=True)
    export_module(FillMask(masked_lm, top_k), masked_lm.preprocessor.tokenizer, path)
    print(f"{path}: texts with {MASK_TOKEN} in, the {top_k} most probable fillings out", flush=True)
    return path


def _check(masked_lm: SpanBertMaskedLM, preset: str, top_k: int) -> None:
    vocabulary_size = masked_lm.preprocessor.tokenizer.vocabulary_size()
    if top_k > vocabulary_size:
        raise BadInputError(f"--top-k {top_k}: the vocabulary has {vocabulary_size} entries only")
    if masked_lm.backbone.position_embeddings != "absolute":
        raise BadInputError(
            f"{preset}: reads positions of sentences and paragraphs, which a text alone does not "
            "tell; only models with BERT's positions can be exported"
        )
