"""Makes the documents of `SpanBertCoreferenceResolver` from texts.

Shapes: B texts, M mentions of a text.
"""

from collections.abc import Sequence

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.data.documents import NO_PIECE, TextDocuments, TextReader
from spanbert_tf.models.preprocessing import (
    TokenizedRowPreprocessor,
    flat_texts,
    is_one_text,
    of_one_text,
)
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

_NO_POSITION = -1
_UNUSED_FEATURES = ("word_indices",)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertCoreferenceResolverPreprocessor(
    TokenizedRowPreprocessor, keras_hub.models.Preprocessor
):
    """Cuts texts into words, sentences and segments `[CLS] pieces [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a segment; by default of `from_preset` that of
            the preset's preprocessor, or the maximum of its encoder.

    Call arguments:
        x: texts, string [B], or a dict of `text` and optionally `speakers`, string [B]. The latter
            has the speaker of each line of the text that has words, separated by line ends. A
            single text, string [], has outputs without the dimension B.
        y: clusters for training, a ragged int tensor [B, clusters, mentions, 2] of the first
            character of a mention and the character after its last one (`clusters_tensor` makes it
            from lists); or a dict, which is returned unchanged.
        sample_weight: returned unchanged.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`. `x` is a dict of the features of
        `data.documents.pack_documents` that the model reads. `y` is a dict of `mention_starts`,
        `mention_ends` and `mention_clusters`, int32 [B, M]. Mentions without a word piece have the
        cluster 0, like padding.

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertCoreferenceResolverPreprocessor(tokenizer, 128)
    preprocessor(["Ann has a cat. She likes it."])["token_ids"]  # [1, 1, 32]
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(self, tokenizer: SpanBertTokenizer, sequence_length: int = 384, **kwargs) -> None:
        super().__init__(tokenizer, sequence_length, **kwargs)

    def build(self, input_shape: tuple) -> None:
        with tf.init_scope():  # the first call may be in a graph that the constants must outlive
            self._reader = TextReader(
                self.tokenizer.get_vocabulary(), self.tokenizer.text_rules, self.sequence_length
            )

    @staticmethod
    def clusters_tensor(clusters: Sequence) -> tf.RaggedTensor:
        """Converts lists of clusters to the tensor that `y` takes.

        Args:
            clusters: for each text a list of clusters, which are lists of mentions `(start, end)`.
        """
        return tf.ragged.constant(clusters, tf.int32, ragged_rank=2, inner_shape=(2,))

    def _rows(
        self, x: tf.Tensor | dict, y: tf.RaggedTensor | dict | None
    ) -> tuple[dict, dict | None]:
        x = x if isinstance(x, dict) else {"text": x}
        if "text" not in x:
            raise ValueError("x must be texts, or a dict of text and speakers")
        is_unbatched = is_one_text(x["text"])
        speakers = x.get("speakers")
        if speakers is not None:
            speakers = flat_texts(speakers)
        documents = self._reader(flat_texts(x["text"]), speakers)
        features = {
            name: values
            for name, values in documents.features.items()
            if name not in _UNUSED_FEATURES
        }
        if isinstance(y, tf.RaggedTensor):
            clusters = y[tf.newaxis] if is_unbatched else y
            mentions = _mention_positions(documents, clusters)
            y = of_one_text(mentions) if is_unbatched else mentions
        if is_unbatched:
            features = of_one_text(features)
        return features, y


def _mention_positions(documents: TextDocuments, clusters: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """Finds the positions of mentions that are given by their characters.

    Args:
        documents: the documents.
        clusters: `y`, ragged int [B, clusters, mentions, 2].

    Returns:
        The labels of `SpanBertCoreferenceResolver`, int32 [B, M].
    """
    mentions = clusters.merge_dims(1, 2)  # ragged [B, mentions, 2]
    spans = mentions.to_tensor(0, shape=[None, None, 2])  # [B, M, 2]
    cluster_ids = mentions.with_values(_cluster_ids(clusters)).to_tensor(0)  # [B, M]
    # Padding compares as later than all pieces.
    starts = documents.piece_starts.to_tensor(tf.int32.max)[:, tf.newaxis]  # [B, 1, pieces]
    ends = documents.piece_ends.to_tensor(tf.int32.max)[:, tf.newaxis]
    # Count the pieces that end before the mention starts, and those that start before it ends.
    first_piece = tf.reduce_sum(tf.cast(ends <= spans[:, :, :1], tf.int32), axis=-1)
    last_piece = tf.reduce_sum(tf.cast(starts < spans[:, :, 1:], tf.int32), axis=-1) - 1
    has_pieces = (first_piece <= last_piece) & (cluster_ids > 0)
    piece_positions = _piece_positions(documents)  # [B, pieces + 1]

    def position(piece: tf.Tensor) -> tf.Tensor:
        inside = tf.clip_by_value(piece, 0, tf.shape(piece_positions)[1] - 1)
        found = tf.gather(piece_positions, inside, batch_dims=1)
        return tf.where(has_pieces, found, _NO_POSITION)

    return {
        "mention_starts": _pad_column(position(first_piece), _NO_POSITION),
        "mention_ends": _pad_column(position(last_piece), _NO_POSITION),
        "mention_clusters": _pad_column(tf.where(has_pieces, cluster_ids, 0), 0),
    }


def _cluster_ids(clusters: tf.RaggedTensor) -> tf.Tensor:
    """Numbers the clusters of each text from 1, and repeats the number for each mention; int32."""
    first_clusters = tf.cumsum(clusters.row_lengths(), exclusive=True)  # [B]
    rows = clusters.value_rowids()  # [all clusters]
    numbers = tf.range(tf.size(rows, tf.int64)) - tf.gather(first_clusters, rows) + 1
    return tf.cast(tf.repeat(numbers, clusters.values.row_lengths()), tf.int32)  # [all mentions]


def _piece_positions(documents: TextDocuments) -> tf.Tensor:
    """Returns the position of each word piece in its document, int32 [B, pieces + 1]."""
    pieces = documents.segmented.pieces
    is_piece = pieces.with_flat_values(pieces.flat_values != NO_PIECE)
    positions = tf.ragged.boolean_mask(tf.ragged.range(pieces.row_lengths()), is_piece)
    return _pad_column(tf.cast(positions.to_tensor(0), tf.int32), 0)


def _pad_column(values: tf.Tensor, filler: int) -> tf.Tensor:
    """Appends a column, so that there is at least one; int32 [B, columns + 1]."""
    return tf.pad(values, [[0, 0], [0, 1]], constant_values=filler)
