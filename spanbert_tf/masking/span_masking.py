"""Masks a batch of packed rows: words → candidates → selection → targets → replacement.

B rows, S positions, K slots, G blocks a row, V vocabulary entries.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from spanbert_tf.masking.candidates import AnnotatedSpans, Blocks, find_words
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.random_bits import row_keys
from spanbert_tf.masking.replacement import TokenDistribution, replace_tokens
from spanbert_tf.masking.selection import select_tokens
from spanbert_tf.masking.targets import list_masked_spans, target_features
from spanbert_tf.text.vocabulary import MASK_TOKEN, is_continuation


@dataclasses.dataclass(frozen=True)
class SpanMasker:
    """A masking scheme for one vocabulary.

    Attributes:
        options: the scheme and its parameters.
        is_word_start: bool [V], whether an entry begins a word.
        random_tokens: where random tokens come from.
        mask_token_id: id of [MASK].
        seed: seed of the run.
    """

    options: MaskingOptions
    is_word_start: tf.Tensor
    random_tokens: TokenDistribution
    mask_token_id: int
    seed: int = 0

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Sequence[str],
        unigram_counts: Sequence[int] | None,
        options: MaskingOptions | None = None,
        seed: int = 0,
    ) -> "SpanMasker":
        """Builds a masker.

        Args:
            vocabulary: entries in order of their ids; those that begin with `##` continue a word.
            unigram_counts: occurrences of each entry in the training corpus; only
                `random_tokens="unigrams"` reads them.
            options: the scheme and its parameters; SpanBERT's by default.
            seed: masks are a function of (seed, epoch, record id).
        """
        options = options or MaskingOptions()
        if options.random_tokens == "uniform":
            unigram_counts = [1] * len(vocabulary)
        return cls(
            options,
            tf.constant([not is_continuation(piece) for piece in vocabulary]),
            TokenDistribution.from_counts(unigram_counts),
            list(vocabulary).index(MASK_TOKEN),
            seed,
        )

    def __call__(
        self,
        blocks: Blocks,
        epochs: tf.Tensor,
        record_ids: tf.Tensor,
        num_slots: int,
        annotated: AnnotatedSpans | None = None,
    ) -> dict[str, tf.Tensor]:
        """Masks each block of each row.

        Args:
            blocks: the packed rows.
            epochs: int64 [B], the pass over the data that each row belongs to.
            record_ids: int64 [B].
            num_slots: K, from `MaskingOptions.num_slots`.
            annotated: the spans that the scheme takes from the records, if it does.

        Returns:
            `token_ids` (int32 [B, S]) with replacements, and the features of `target_features`.
        """
        keys = row_keys(self.seed, epochs, record_ids)
        words = find_words(blocks, self.is_word_start)
        masked = select_tokens(
            blocks, words, self.is_word_start, keys, num_slots, self.options, annotated
        )
        spans = list_masked_spans(masked, blocks.token_ids, num_slots)
        token_ids = replace_tokens(
            spans, blocks, words, keys, self.random_tokens, self.mask_token_id, self.options
        )
        return {"token_ids": token_ids, **target_features(spans, blocks, self.options)}
