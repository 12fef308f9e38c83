"""Fillings of raw texts by a pre-trained model, as the `fill-mask` pipeline returns them."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.serving.fill_mask import FillMask, check_fill_mask
from spanbert_tf.tasks.raw_inputs import (
    BATCH_SIZE,
    RawInputError,
    in_batches_by_length,
    string_tensor,
)
from spanbert_tf.text.vocabulary import MASK_TOKEN

_FIELD = "text"


def fill_masks(model: SpanBertMaskedLM, *, top_k: int = 5) -> Callable[..., list[list]]:
    """A function that finds the most probable fillings of each `[MASK]`, by the export's graph.

    Args:
        model: a model with a trained head and its preprocessor.
        top_k: fillings of each mask.

    Returns:
        A function of dicts with a `text`. For a text with one mask it gives a list of dicts of
        `score`, `token` (the id), `token_str` and `sequence` (the text with the filling); for a
        text with several masks a list of such lists. It raises `RawInputError` if an input has no
        `text`, or a text no mask.

    Raises:
        BadInputError: as `check_fill_mask`.
    """
    check_fill_mask(model, "the model", top_k)
    served = FillMask(model, top_k)
    fill = tf.function(served.fill_texts, input_signature=served.signatures()["serving_default"][1])
    token_to_id = model.preprocessor.tokenizer.token_to_id

    def fill_batch(batch: Sequence[dict]) -> list[list]:
        texts = [item[_FIELD] for item in batch]
        found = {
            name: values.numpy() for name, values in fill(string_tensor(batch, _FIELD)).items()
        }
        rows = zip(texts, found["fillings"], found["probabilities"], strict=True)
        return [_of_text(text, *row, token_to_id) for text, *row in rows]

    def fill_all(inputs: Sequence[dict], batch_size: int = BATCH_SIZE) -> list[list]:
        for number, item in enumerate(inputs, start=1):
            if isinstance(item, dict) and MASK_TOKEN not in str(item.get(_FIELD, MASK_TOKEN)):
                raise RawInputError(number, f"its text has no {MASK_TOKEN}")
        return in_batches_by_length(inputs, (_FIELD,), fill_batch, batch_size=batch_size)

    return fill_all


def _of_text(
    text: str,
    fillings: np.ndarray,
    probabilities: np.ndarray,
    token_to_id: Callable[[str], int],
) -> list:
    """The fillings of a text's masks; [masks, top k] each, empty where a mask was cut off."""
    parts = text.split(MASK_TOKEN)
    masks = []
    for number in range(len(parts) - 1):
        before = MASK_TOKEN.join(parts[: number + 1])
        after = MASK_TOKEN.join(parts[number + 1 :])
        words = [word.decode() for word in fillings[number]]
        masks.append(
            [
                {
                    "score": float(score),
                    "token": int(token_to_id(word)),
                    "token_str": word,
                    "sequence": before + word.removeprefix("##") + after,
                }
                for word, score in zip(words, probabilities[number], strict=True)
                if word
            ]
        )
    return masks[0] if len(masks) == 1 else masks
