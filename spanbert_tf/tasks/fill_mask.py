"""Masked language modelling, the pipeline of pre-trained presets.

Dimensions: N texts, S positions of a row, M masks, K fillings of a mask, V vocabulary entries.
"""

import itertools
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import keras_hub
import tensorflow as tf

from spanbert_tf.config.positions import reads_indices
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.serving.readme import row_length
from spanbert_tf.tasks.graphs import text_specs
from spanbert_tf.tasks.pipeline import Pipeline
from spanbert_tf.tasks.report import marked_places
from spanbert_tf.tasks.shown_answers import View
from spanbert_tf.text.tokenization import clean_texts
from spanbert_tf.text.vocabulary import MASK_TOKEN


class FillMask(Pipeline):
    """Fills in each `[MASK]` of a text with its most probable words."""

    name = "fill_mask"
    cuts_texts = True
    model_class = SpanBertMaskedLM
    readme = os.path.join(os.path.dirname(__file__), "fill_mask_readme.md")
    example: ClassVar[Mapping[str, Any]] = {"texts": "The [MASK] of the function."}
    top_k = 5
    row_names = ("token_ids", "padding_mask", "mask_positions")

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature that fills the masks of texts, and one that packs texts as rows.

        Raises:
            BadInputError: the model reads SegaBERT's positions, which a text does not have, or the
                vocabulary has fewer than `top_k` entries.
        """
        vocabulary_size = model.preprocessor.tokenizer.vocabulary_size()
        if top_k > vocabulary_size:
            raise BadInputError(
                f"--top-k {top_k}: the vocabulary has {vocabulary_size} entries only"
            )
        if reads_indices(model.backbone.position_embeddings):
            raise BadInputError(
                f"{model.loaded_from or 'the model'}: reads positions of sentences and paragraphs, "
                "which a text alone does not show; only models with BERT's positions fill masks of "
                "texts"
            )
        graph = FillMaskGraph(model, top_k)
        return {
            "serving_default": (graph.fill_texts, text_specs("texts")),
            "pack": (graph.pack_texts, text_specs("texts")),
        }

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes the ids of the most probable fillings and their probabilities, [N, M, K]."""
        choices, probabilities = most_probable(model, x, top_k)
        return {"filling_ids": choices, "probabilities": probabilities}

    def readme_values(self, model: keras_hub.models.Task) -> dict[str, Any]:
        """Adds the largest number of word pieces that the model reads of a text."""
        return {"texts": self.example["texts"], "max_tokens": _max_tokens(model)}

    def raw_example(self, model: keras_hub.models.Task) -> Mapping[str, Any]:
        """Returns the example under the name that raw inputs have for a text."""
        return {"text": self.example["texts"]}

    def example_rows(self, model: keras_hub.models.Task) -> dict[str, tf.Tensor]:
        """Packs the example by its own masks; the preprocessor would draw others."""
        graph = FillMaskGraph(model, 1)
        packed = tf.function(graph.pack_texts)(tf.constant([self.example["texts"]]))
        is_mask = packed["token_ids"] == model.preprocessor.tokenizer.mask_token_id
        places = tf.where(is_mask)[:, 1]
        if not len(places):
            raise BadInputError(
                f"rows of {row_length(model)} positions: the README's example has its {MASK_TOKEN} "
                "beyond them; give a longer sequence length"
            )
        row = {name: values[0] for name, values in packed.items()}
        return {**row, "mask_positions": places}

    def check(self, description: Description, item: dict) -> dict:
        """Checks a raw input as `Pipeline.check`, and that its text has a mask."""
        item = super().check(description, item)
        if MASK_TOKEN not in item["text"]:
            raise BadInputError(f"its text has no {MASK_TOKEN}")
        return {"texts": item["text"]}

    def answer(self, description: Description, item: dict, found: dict, top_k: int) -> list:
        """Returns what the pipeline `fill-mask` does.

        A filling is a dict with `score`, `token`, `token_str` and `sequence`.

        A text with one mask has a list of dicts, a text with several masks a list of such lists.
        The list of a mask that was cut off is empty.
        """
        parts = item["texts"].split(MASK_TOKEN)
        masks = []
        for index in range(len(parts) - 1):
            before = MASK_TOKEN.join(parts[: index + 1])
            after = MASK_TOKEN.join(parts[index + 1 :])
            answers = []
            fillings = zip(found["fillings"][index], found["probabilities"][index], strict=True)
            for filling, score in itertools.islice(fillings, top_k):
                word = filling.decode()
                if not word:
                    continue
                answers.append(
                    {
                        "score": float(score),
                        "token": description.token_ids[word],
                        "token_str": word,
                        "sequence": before + word.removeprefix("##") + after,
                    }
                )
            masks.append(answers)
        return masks[0] if len(masks) == 1 else masks

    def view(self, description: Description, item: dict, answer: list) -> View:
        """Shows the text with the best fillings, and the probabilities of all."""
        masks = answer if answer and isinstance(answer[0], list) else [answer]
        text, *others = without_surrogates(item["texts"]).split(MASK_TOKEN)
        places = []
        shares = []
        for number, (fillings, other) in enumerate(zip(masks, others, strict=True), start=1):
            name = str(number) if len(masks) > 1 else ""
            best = fillings[0]["token_str"].removeprefix("##") if fillings else MASK_TOKEN
            places.append((len(text), len(text) + len(best), name))
            text += best + other
            shares += [(f"{name} {one['token_str']}".strip(), one["score"]) for one in fillings]
        return View([marked_places(text, places)], shares)


class FillMaskGraph(tf.Module):
    """The graph functions of the signatures.

    Args:
        masked_lm: a `SpanBertMaskedLM` with a trained head and a preprocessor.
        top_k: K.
    """

    def __init__(self, masked_lm: keras_hub.models.Task, top_k: int) -> None:
        super().__init__()
        self._model = masked_lm
        self._top_k = top_k
        backbone_tokenizer = masked_lm.preprocessor.tokenizer
        vocabulary = backbone_tokenizer.get_vocabulary()
        self._tokenizer = SpanBertTokenizer(
            vocabulary, **backbone_tokenizer.text_rules._asdict(), special_tokens_in_strings=True
        )
        self._vocabulary = tf.constant(vocabulary)
        self._max_tokens = _max_tokens(masked_lm)

    def fill_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes the most probable fillings of each [MASK].

        Args:
            texts: string [N]. Bytes that are not UTF-8 are replaced, and texts are cut to the
                length of the preset's rows.

        Returns:
            `fillings`, string [N, M, K], and `probabilities`, float32 [N, M, K]; M is the largest
            number of masks in a text. Masks that a text does not have or that were cut off have
            empty fillings with probability 0.
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
        rows = {**packed, "mask_positions": tf.where(is_there, positions, 0)}
        token_choices, probabilities = most_probable(self._model, rows, self._top_k)
        is_there = is_there[:, :, tf.newaxis]
        return {
            "fillings": tf.where(is_there, tf.gather(self._vocabulary, token_choices), ""),
            "probabilities": tf.where(is_there, probabilities, 0.0),
        }

    def pack_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Packs texts as `fill_texts` does: [CLS] text [SEP] and padding.

        Args:
            texts: string [N], as for `fill_texts`.

        Returns:
            `token_ids` and `padding_mask`, int32 [N, S]; S is the longest row's length.
        """
        return self._pack(self._tokenize(texts))

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts, ragged [N, tokens]."""
        return self._tokenizer.tokenize(clean_texts(texts))

    def _pack(self, tokens: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Packs token ids as `pack_texts`."""

        def column(token_id: int) -> tf.Tensor:
            return tf.fill([tokens.nrows(), 1], token_id)

        start = column(self._tokenizer.start_token_id)
        end = column(self._tokenizer.end_token_id)
        rows = tf.concat([start, tokens[:, : self._max_tokens], end], axis=1)
        token_ids = rows.to_tensor(self._tokenizer.pad_token_id)  # [N, S]
        width = tf.shape(token_ids)[1]
        return {
            "token_ids": token_ids,
            "padding_mask": tf.sequence_mask(rows.row_lengths(), width, tf.int32),
        }


def most_probable(
    masked_lm: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the most probable fillings of masks.

    Args:
        masked_lm: a `SpanBertMaskedLM` with a preprocessor.
        x: `token_ids` and `padding_mask`, int32 [N, S], and `mask_positions`, int32 [N, M].
        top_k: K.

    Returns:
        Ids of the fillings, int32 [N, M, K], and their probabilities, float32 [N, M, K].
    """
    features = {**x, "segment_ids": tf.zeros_like(x["token_ids"])}
    logits = tf.cast(masked_lm(features, training=False), tf.float32)  # [N, M, V]
    vocabulary_size = masked_lm.preprocessor.tokenizer.vocabulary_size()
    logits = logits[..., :vocabulary_size]  # the embedding may have more rows
    probabilities, choices = tf.math.top_k(tf.nn.softmax(logits), top_k)
    return choices, probabilities


def _max_tokens(masked_lm: keras_hub.models.Task) -> int:
    """Returns the largest number of word pieces of a text in a row, without [CLS] and [SEP]."""
    return row_length(masked_lm) - 2
