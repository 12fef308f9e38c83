"""`spanbert-tf export` of a masked-language model."""

import numpy as np

from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.golden import golden_rows
from spanbert_tf.serving.exporting import export_model
from spanbert_tf.serving.fill_mask import FillMask, check_fill_mask


def export_masked_lm(preset: str, output: str, *, top_k: int = 5, **options: object) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Its signatures are methods of `FillMask`: `serving_default` is `fill_texts`, `pack` is
    `pack_texts`, `token_ids` is `fill_token_ids`. It loads with TensorFlow and TensorFlow Text
    alone. Beside the versions lie `models.config`, `batching_parameters.txt` and a README.

    Args:
        preset: a preset with a trained masked-language-model head.
        output: the model's directory for TF Serving; its name is the model's.
        top_k: fillings for each mask.
        **options: `version`, `precision`, `overwrite`; as for `export_model`.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset has no trained head, the version exists, or it cannot be written.
    """

    def served(masked_lm: SpanBertMaskedLM) -> FillMask:
        check_fill_mask(masked_lm, preset, top_k)
        return FillMask(masked_lm, top_k)

    return export_model(SpanBertMaskedLM, preset, output, served, _sample_logits, **options)


def _sample_logits(masked_lm: SpanBertMaskedLM) -> list:
    """Logits [masks, V] of three sentences, each token of which is masked in turn."""
    tokenizer, logits = masked_lm.preprocessor.tokenizer, []
    for row in golden_rows(tokenizer):
        row = row[: masked_lm.backbone.max_sequence_length]
        features = _masked_one_by_one(row, tokenizer.mask_token_id)
        logits.append(masked_lm(features, training=False)[:, 0])
    return logits


def _masked_one_by_one(row: list[int], mask_id: int) -> dict[str, np.ndarray]:
    positions = np.arange(1, len(row) - 1)[:, np.newaxis]  # [masks, 1]: all but [CLS] and [SEP]
    token_ids = np.tile(np.array(row, "int32"), (len(positions), 1))  # [masks, S]
    np.put_along_axis(token_ids, positions, mask_id, axis=1)
    return {
        "token_ids": token_ids,
        "segment_ids": np.zeros_like(token_ids),
        "padding_mask": np.ones_like(token_ids),
        "mask_positions": positions.astype("int32"),
    }
