"""Makes documents of texts for `SpanBertCoreferenceResolver`.

B texts, N mentions of one.
"""

from collections.abc import Sequence

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.data.documents import NO_PIECE, TextDocuments, TextReader
from spanbert_tf.models.preprocessing import RowPreprocessor, flat_texts, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

_NO_POSITION = -1
_NOT_READ = ("word_indices",)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertCoreferenceResolverPreprocessor(RowPreprocessor, keras_hub.models.Preprocessor):
    """Cuts texts into words, sentences and segments `[CLS] pieces [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a segment; a new preprocessor of a preset has the length
            of the preset's own, or of its encoder.

    Call arguments:
        x: texts, string [B]; or a dict of `text` and, if there are some, `speakers`, string [B]
            each, the latter one name for each line of the text that has words, with line ends
            between them. Of one text, string [], the outputs have no dimension B.
        y: clusters, to train: a ragged int tensor [B, clusters, mentions, 2] of first characters
            and characters after the last (`clusters_tensor` makes it of lists), or a dict, which
            is handed through.
        sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of the features of
        `data.documents.pack_documents` that the model reads, and `y` of `mention_starts`,
        `mention_ends` and `mention_clusters`, int32 [B, N], padded with clusters of 0. Mentions
        without a word piece are left out.

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
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    def build(self, input_shape: tuple) -> None:
        with tf.init_scope():  # the first call may be in a graph, which the constants outlive
            self._reader = TextReader(
                self.tokenizer.get_vocabulary(), self.tokenizer.casing, self.sequence_length
            )

    @staticmethod
    def clusters_tensor(clusters: Sequence) -> tf.RaggedTensor:
        """Clusters as `y` takes them.

        Args:
            clusters: for each text lists of mentions `(start, end)`.
        """
        return tf.ragged.constant(clusters, tf.int32, ragged_rank=2, inner_shape=(2,))

    def _rows(
        self, x: tf.Tensor | dict, y: tf.RaggedTensor | dict | None
    ) -> tuple[dict, dict | None]:
        x = x if isinstance(x, dict) else {"text": x}
        if "text" not in x:
            raise ValueError("x must be texts, or a dict of text and speakers")
        is_unbatched = is_one_text(x["text"])
        texts, speakers = flat_texts(x["text"]), x.get("speakers")
        speakers = None if speakers is None else flat_texts(speakers)
        documents = self._reader(texts, speakers)
        found = documents.features.items()
        features = {name: values for name, values in found if name not in _NOT_READ}
        if isinstance(y, tf.RaggedTensor):
            clusters = y[tf.newaxis] if is_unbatched else y
            mentions = _mention_positions(documents, clusters)
            y = of_one_text(mentions) if is_unbatched else mentions
        if is_unbatched:
            features = of_one_text(features)
        return features, y

    def get_config(self) -> dict:
        return {**super().get_config(), "sequence_length": self.sequence_length}


def _mention_positions(documents: TextDocuments, clusters: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """Positions of mentions that are given by characters; see the class."""
    counts = clusters.row_lengths()  # [B]
    first = tf.cumsum(counts, exclusive=True)
    rows = clusters.value_rowids()  # of clusters
    number = tf.range(tf.size(rows, tf.int64)) - tf.gather(first, rows) + 1
    mentions = clusters.merge_dims(1, 2)  # ragged [B, mentions, 2]
    of_mentions = tf.repeat(number, clusters.values.row_lengths())
    spans = mentions.to_tensor(0, shape=[None, None, 2])  # [B, N, 2]
    numbers = mentions.with_values(tf.cast(of_mentions, tf.int32)).to_tensor(0)  # [B, N]
    largest = tf.int32.max
    starts, ends = (
        values.to_tensor(largest)[:, tf.newaxis]
        for values in (documents.piece_starts, documents.piece_ends)
    )  # [B, 1, P]
    # Pieces that end in front of the mention, and pieces that begin in front of its end.
    first_piece = tf.reduce_sum(tf.cast(ends <= spans[:, :, :1], tf.int32), axis=-1)
    last_piece = tf.reduce_sum(tf.cast(starts < spans[:, :, 1:], tf.int32), axis=-1) - 1
    is_there = (first_piece <= last_piece) & (numbers > 0)
    pieces = documents.segmented.pieces
    is_piece = pieces.with_flat_values(pieces.flat_values != NO_PIECE)
    places = tf.ragged.boolean_mask(tf.ragged.range(pieces.row_lengths()), is_piece)
    places = tf.pad(tf.cast(places.to_tensor(0), tf.int32), [[0, 0], [0, 1]])  # [B, P + 1]

    def position(piece: tf.Tensor) -> tf.Tensor:
        inside = tf.clip_by_value(piece, 0, tf.shape(places)[1] - 1)
        return tf.where(is_there, tf.gather(places, inside, batch_dims=1), _NO_POSITION)

    y = {
        "mention_starts": position(first_piece),
        "mention_ends": position(last_piece),
        "mention_clusters": tf.where(is_there, numbers, 0),
    }
    padding = {"mention_clusters": 0}
    return {  # at least one column
        name: tf.pad(values, [[0, 0], [0, 1]], constant_values=padding.get(name, _NO_POSITION))
        for name, values in y.items()
    }
