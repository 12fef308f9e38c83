"""Exports a masked-language model: strings with [MASK] in, fillings and probabilities out.

N texts, S positions of a row, M masks, K fillings a mask, V vocabulary entries.
"""

import os
import shutil

import keras
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.vocabulary import MASK_TOKEN

_EXTRA_ASSETS = "assets.extra"  # TF Serving leaves what lies here alone


class FillMask(tf.Module):
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
            vocabulary, lowercase=backbone_tokenizer.lowercase, special_tokens_in_strings=True
        )
        self._vocabulary = tf.constant(vocabulary)
        self._max_tokens = masked_lm.backbone.max_sequence_length - 2  # [CLS] and [SEP]

    def fill_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """The most probable fillings of each [MASK].

        Args:
            texts: string [N]; bytes that are no UTF-8 are replaced, and what is beyond the
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
        """The same as `fill_texts` for rows that are packed already.

        Args:
            token_ids: int32 [N, S].
            padding_mask: int32 [N, S], 1 where there is a token.
            mask_positions: int32 [N, M].

        Returns:
            `token_ids`, int32 [N, M, K], and `probabilities`, float32 [N, M, K].
        """
        choices, probabilities = self._most_probable(token_ids, padding_mask, mask_positions)
        return {"token_ids": choices, "probabilities": probabilities}

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
        probabilities, choices = tf.math.top_k(tf.nn.softmax(logits), self._top_k)
        return choices, probabilities


def export_masked_lm(preset: str, output: str, *, version: int = 1, top_k: int = 5) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Its signatures are methods of `FillMask`: `serving_default` is `fill_texts`, `pack` is
    `pack_texts`, `token_ids` is `fill_token_ids`. It loads with TensorFlow and TensorFlow Text
    alone.

    Args:
        preset: a preset with a trained masked-language-model head.
        output: the model's directory for TF Serving.
        version: of the model; the name of the directory.
        top_k: fillings for each mask.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset has no trained head, the version exists, or it cannot be written.
    """
    path = os.path.join(output, str(version))
    if os.path.exists(path):
        raise BadInputError(f"{path}: exists already; give another --version")
    masked_lm = _load(preset)
    vocabulary_size = masked_lm.backbone.vocabulary_size
    if top_k > vocabulary_size:
        raise BadInputError(f"--top-k {top_k}: the vocabulary has {vocabulary_size} entries only")
    unfinished = os.path.join(output, f".{version}.incomplete")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write(masked_lm, top_k, unfinished)
        _write_tokenizer(masked_lm, os.path.join(unfinished, _EXTRA_ASSETS))
        os.rename(unfinished, path)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInputError(f"{path}: cannot be written ({reason}); free some space") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"{path}: texts with {MASK_TOKEN} in, the {top_k} most probable fillings out", flush=True)
    return path


def _load(preset: str) -> SpanBertMaskedLM:
    try:
        masked_lm = SpanBertMaskedLM.from_preset(preset)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"{preset}: no preset of a SpanBertMaskedLM ({reason})") from error
    if not masked_lm.is_head_trained:
        raise BadInputError(
            f"{preset}: its masked-language-model head was never trained; use the preset of a "
            "pre-training run"
        )
    if masked_lm.backbone.position_embeddings != "absolute":
        raise BadInputError(
            f"{preset}: reads positions of sentences and paragraphs, which a text alone does not "
            "tell; only models with BERT's positions can be exported"
        )
    return masked_lm


def _write(masked_lm: SpanBertMaskedLM, top_k: int, path: str) -> None:
    module = FillMask(masked_lm, top_k)
    archive = keras.export.ExportArchive()
    archive.track(masked_lm)
    texts = [tf.TensorSpec([None], tf.string, name="texts")]
    archive.add_endpoint("serving_default", module.fill_texts, input_signature=texts)
    archive.add_endpoint("pack", module.pack_texts, input_signature=texts)
    archive.add_endpoint(
        "token_ids",
        module.fill_token_ids,
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name=name)
            for name in ("token_ids", "padding_mask", "mask_positions")
        ],
    )
    archive.write_out(path, verbose=False)


def _write_tokenizer(masked_lm: SpanBertMaskedLM, directory: str) -> None:
    """Casing and vocabulary travel with the export, for people and for clients."""
    os.makedirs(directory, exist_ok=True)
    masked_lm.preprocessor.tokenizer.save_to_preset(directory)
