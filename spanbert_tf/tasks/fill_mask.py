"""Masked language modelling of raw texts: the export, and what the `fill-mask` pipeline returns.

N texts, S positions of a row, M masks, K fillings a mask, V vocabulary entries.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.serving.exporting import ServedModule
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.tasks.raw_inputs import (
    BATCH_SIZE,
    RawInputError,
    in_batches_by_length,
    string_tensor,
)
from spanbert_tf.text.vocabulary import MASK_TOKEN

_FIELD = "text"
_SIGNATURES = """| signature | inputs |
| --- | --- |
| `serving_default` | `texts`, string [N] |
| `pack` | `texts`, string [N] |
| `token_ids` | `token_ids`, `padding_mask`, int32 [N, S]; `mask_positions`, int32 [N, masks] |

`serving_default` returns `fillings` and `probabilities` [N, masks, top k], `token_ids` the same
with ids in place of strings, and `pack` the rows that `token_ids` takes.

Where requests are put together, a text has as many slots as the text with the most masks; those
that it does not need are empty, with probability 0. Requests for `token_ids` are put together only
where their shapes agree: send rows of a few fixed lengths."""


def check_fill_mask(masked_lm: SpanBertMaskedLM, name: str, top_k: int) -> None:
    """Checks that a model can fill masks of texts.

    Args:
        masked_lm: the model.
        name: what to call it in an error.
        top_k: fillings for each mask.

    Raises:
        BadInputError: it reads other positions than a text has, or has fewer fillings.
    """
    vocabulary_size = masked_lm.preprocessor.tokenizer.vocabulary_size()
    if top_k > vocabulary_size:
        raise BadInputError(f"--top-k {top_k}: the vocabulary has {vocabulary_size} entries only")
    if masked_lm.backbone.position_embeddings != "absolute":
        raise BadInputError(
            f"{name}: reads positions of sentences and paragraphs, which a text alone does not "
            "tell; only models with BERT's positions fill masks of texts"
        )


class FillMask(tf.Module, ServedModule):
    """The graph functions of the export.

    Args:
        masked_lm: a model with a trained head.
        top_k: fillings for each mask, K.
    """

    def __init__(self, masked_lm: SpanBertMaskedLM, top_k: int) -> None:
        super().__init__()
        self._model = masked_lm
        self._top_k = top_k
        backbone_tokenizer = masked_lm.preprocessor.tokenizer
        vocabulary = backbone_tokenizer.get_vocabulary()
        self._tokenizer = SpanBertTokenizer(
            vocabulary, **backbone_tokenizer.casing._asdict(), special_tokens_in_strings=True
        )
        self._vocabulary = tf.constant(vocabulary)
        self._max_tokens = masked_lm.backbone.max_sequence_length - 2  # [CLS] and [SEP]

    def fill_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """The most probable fillings of each [MASK].

        Args:
            texts: string [N]; bytes that are not UTF-8 are replaced, and what exceeds the
                model's longest sequence is cut off.

        Returns:
            `fillings`, string [N, M, K], and `probabilities`, float32 [N, M, K]; M is the largest
            number of masks in a text. Masks that a text does not have, and those that were cut
            off, have empty fillings with probability 0.
        """
        tokens = self._tokenize(texts)  # ragged [N, tokens]
        num_masks = tf.reduce_sum(
            tf.cast(tokens == self._tokenizer.mask_token_id, tf.int32), axis=1
        )
        most_masks = tf.reduce_max(tf.concat([num_masks, [0]], axis=0))  # M
        packed = self._pack(tokens)
        token_ids = packed["token_ids"]  # [N, S]
        is_mask = tf.cast(token_ids == self._tokenizer.mask_token_id, tf.int32)
        # The m-th mask stands where the running count reaches m.
        ordinals = tf.tile(tf.range(1, most_masks + 1)[tf.newaxis], [tf.shape(texts)[0], 1])
        positions = tf.searchsorted(tf.cumsum(is_mask, axis=1), ordinals, side="left")
        is_there = positions < tf.shape(token_ids)[1]
        token_choices, probabilities = self._most_probable(
            token_ids, packed["padding_mask"], tf.where(is_there, positions, 0)
        )
        is_there = is_there[:, :, tf.newaxis]
        return {
            "fillings": tf.where(is_there, tf.gather(self._vocabulary, token_choices), ""),
            "probabilities": tf.where(is_there, probabilities, 0.0),
        }

    def pack_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """The rows that `fill_texts` reads: [CLS] text [SEP] and padding.

        Args:
            texts: string [N], as for `fill_texts`.

        Returns:
            `token_ids` and `padding_mask`, int32 [N, S]; S is the longest row's length.
        """
        return self._pack(self._tokenize(texts))

    def fill_token_ids(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, mask_positions: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Does the same as `fill_texts` for rows that are packed already.

        Args:
            token_ids: int32 [N, S].
            padding_mask: int32 [N, S], 1 where there is a token.
            mask_positions: int32 [N, M].

        Returns:
            `token_ids`, int32 [N, M, K], and `probabilities`, float32 [N, M, K].
        """
        choices, probabilities = self._most_probable(token_ids, padding_mask, mask_positions)
        return {"token_ids": choices, "probabilities": probabilities}

    def signatures(self) -> dict[str, tuple[Callable, list[tf.TensorSpec]]]:
        """The export's signatures: name → function and its inputs."""
        texts = [tf.TensorSpec([None], tf.string, name="texts")]
        packed = [
            tf.TensorSpec([None, None], tf.int32, name=name)
            for name in ("token_ids", "padding_mask", "mask_positions")
        ]
        return {
            "serving_default": (self.fill_texts, texts),
            "pack": (self.pack_texts, texts),
            "token_ids": (self.fill_token_ids, packed),
        }

    def manual(self) -> Manual:
        """What the export's README says."""
        return Manual(
            description="A masked-language model: texts with `[MASK]` in, the most probable "
            "fillings and their\nprobabilities out; what is beyond "
            f"{self._max_tokens} word pieces is cut off.",
            inputs={"texts": ["The [MASK] of the function."]},
            output="fillings",
            output_shape="[texts, masks, top k]",
            signatures=_SIGNATURES,
        )

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return self._tokenizer.tokenize(texts)

    def _pack(self, tokens: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        def column(token_id: int) -> tf.Tensor:
            return tf.fill([tokens.nrows(), 1], token_id)

        start, end = self._tokenizer.start_token_id, self._tokenizer.end_token_id
        rows = tf.concat([column(start), tokens[:, : self._max_tokens], column(end)], axis=1)
        token_ids = rows.to_tensor(self._tokenizer.pad_token_id)  # [N, S]
        lengths, width = rows.row_lengths(), tf.shape(token_ids)[1]
        return {
            "token_ids": token_ids,
            "padding_mask": tf.sequence_mask(lengths, width, tf.int32),
        }

    def _most_probable(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, mask_positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        features = {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": padding_mask,
            "mask_positions": mask_positions,
        }
        logits = tf.cast(self._model(features, training=False), tf.float32)  # [N, M, V]
        logits = logits[..., : self._vocabulary.shape[0]]  # rows beyond it have no entry
        probabilities, choices = tf.math.top_k(tf.nn.softmax(logits), self._top_k)
        return choices, probabilities


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
