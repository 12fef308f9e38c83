"""What an exported classifier of tokens computes: texts in, entities out.

N texts, S positions of a row, R rows of all texts.
"""

import functools

import tensorflow as tf

from spanbert_tf.models import SpanBertTokenClassifier
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.text_function import TextFunction, map_row_chunks
from spanbert_tf.tasks.named_entities.decoding import EntityDecoder, best_labels

_MANUAL = Manual(
    description="A finder of named entities: texts in, their entities out.",
    inputs={"text": ["Ann lives in New York."]},
    output="types",
    output_shape="[texts, entities]",
    signatures="""`serving_default` takes `text`, string [N], of any length, and returns the
entities of each text in their order: `types`, `words` (string, as they stand in the text), `scores`
(float32), and `starts` and `ends` (int32), characters of the text, the end exclusive; all
[N, entities of the text that has most]. The rest is empty, with score 0.""",
)


class FindEntities(tf.Module):
    """The graph function of the export.

    Args:
        model: a classifier of tokens with its preprocessor.
    """

    def __init__(self, model: SpanBertTokenClassifier) -> None:
        super().__init__()
        self._model = model
        self._decoder = EntityDecoder(model)
        model.preprocessor.build()
        self._pack = model.preprocessor.packer
        self._room = model.preprocessor.sequence_length - 2  # [CLS], [SEP]

    def find(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The entities of texts.

        Args:
            text: string [N]; bytes that are no UTF-8 are replaced.

        Returns:
            `types`, `scores`, `words`, `starts` and `ends`, [N, entities].
        """
        texts = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        pieces = self._decoder.tokenize(texts)
        entities = self._decoder.decode(texts, pieces, *self._labels(pieces[0]))
        return {name: values.to_tensor() for name, values in entities._asdict().items()}

    def _labels(self, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels and probabilities of all pieces, in rows as `prepare named_entities` cuts them."""
        sizes = ids.row_lengths()  # [N]
        counts = tf.maximum(-(-sizes // self._room), 1)  # rows of each text
        firsts = tf.ragged.range(counts).flat_values * self._room  # [R]
        lengths = tf.minimum(tf.repeat(sizes, counts) - firsts, self._room)
        rows = self._pack(tf.RaggedTensor.from_row_lengths(ids.flat_values, lengths))
        best = functools.partial(best_labels, self._model)
        features = rows.features(segment_aware=False)
        labels, scores = map_row_chunks(best, features, (tf.int32, tf.float32))  # [R, S]
        positions = tf.range(tf.shape(labels)[1])[tf.newaxis]
        is_piece = (positions > 0) & (positions < rows.lengths[:, tf.newaxis] - 1)
        return labels[is_piece], scores[is_piece]


def served(model: SpanBertTokenClassifier, top_k: int = 1) -> TextFunction:
    """What an export computes.

    Args:
        model: a classifier of tokens with its preprocessor.
        top_k: unused: all entities are returned.
    """
    return TextFunction(FindEntities(model).find, _MANUAL)
