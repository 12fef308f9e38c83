"""What an exported resolver computes: texts in, clusters with character offsets out.

N texts, K mentions of the text with the most.
"""

from collections.abc import Callable

import tensorflow as tf

from spanbert_tf.data.documents import TextReader
from spanbert_tf.models import SpanBertCoreferenceResolver
from spanbert_tf.serving.exporting import ServedModule
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.tasks.coreference.decoding import NO_CLUSTER, link_spans

_TEXT = "Ann has a cat. She likes it."
_NO_PLACE = -1
_SIGNATURES = """| signature | inputs |
| --- | --- |
| `serving_default` | `text`, string [N] |
| `dialogue` | `text` and `speakers`, string [N] |

Both return the mentions of each text in order: `starts` and `ends` (characters, the end
exclusive), `clusters` (numbers from 0 in the order of first mentions) and `mentions` (texts), all
[N, mentions of the text with the most]; after a text's own, numbers are -1 and texts empty.
`speakers` has a name for each line of the text that has words, with line ends between them.
Texts are read in segments of {sequence_length} word pieces, so they may have any length; memory
grows with it, and from {max_pieces:,} pieces on no more than {max_top_spans:,} spans are kept."""


class ResolveTexts(tf.Module, ServedModule):
    """The graph functions of the export.

    Args:
        resolver: a model with its preprocessor.
    """

    def __init__(self, resolver: SpanBertCoreferenceResolver) -> None:
        super().__init__()
        self._model = resolver
        preprocessor = resolver.preprocessor
        tokenizer = preprocessor.tokenizer
        self._reader = TextReader(
            tokenizer.get_vocabulary(), tokenizer.casing, preprocessor.sequence_length
        )

    def resolve(self, text: tf.Tensor, speakers: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The mentions of texts and their clusters.

        Args:
            text: string [N], of any length; bytes that are no UTF-8 are replaced.
            speakers: string [N], see `TextReader`.

        Returns:
            `starts`, `ends`, `clusters`, int32 [N, K], and `mentions`, string [N, K].
        """
        num_texts = tf.shape(text)[0]
        # The model needs a document: of no texts it gets an empty one, whose row is cut off below.
        lacking = tf.fill([tf.cast(num_texts == 0, tf.int32)], "")
        text = tf.strings.unicode_transcode(
            tf.concat([text, lacking], axis=0), "UTF-8", "UTF-8", errors="replace"
        )
        if speakers is not None:
            speakers = tf.concat([speakers, lacking], axis=0)
        documents = self._reader(text, speakers)
        linked = link_spans(self._model, documents.features)
        is_mention = linked.clusters != NO_CLUSTER  # [N, spans]

        def of_words(values: tf.RaggedTensor, words: tf.Tensor) -> tf.RaggedTensor:
            dense = tf.pad(values.to_tensor(_NO_PLACE), [[0, 0], [0, 1]])  # never empty
            inside = tf.minimum(words, tf.shape(dense)[1] - 1)
            return tf.ragged.boolean_mask(tf.gather(dense, inside, batch_dims=1), is_mention)

        starts = of_words(documents.word_starts, linked.first_words).to_tensor(_NO_PLACE)
        ends = of_words(documents.word_ends, linked.last_words).to_tensor(_NO_PLACE)
        clusters = tf.ragged.boolean_mask(linked.clusters, is_mention).to_tensor(NO_CLUSTER)
        repeated = tf.repeat(text[:, tf.newaxis], tf.shape(starts)[1], axis=1)
        mentions = tf.strings.substr(
            repeated, tf.maximum(starts, 0), tf.maximum(ends - starts, 0), unit="UTF8_CHAR"
        )
        found = {"starts": starts, "ends": ends, "clusters": clusters, "mentions": mentions}
        return {name: values[:num_texts] for name, values in found.items()}

    def signatures(self) -> dict[str, tuple[Callable, list[tf.TensorSpec]]]:
        """The export's signatures: name → function and its inputs."""
        text, speakers = (
            tf.TensorSpec([None], tf.string, name=name) for name in ("text", "speakers")
        )
        return {
            "serving_default": (lambda text: self.resolve(text), [text]),
            "dialogue": (self.resolve, [text, speakers]),
        }

    def manual(self) -> Manual:
        """What the export's README says."""
        model = self._model
        return Manual(
            description="A coreference resolver: texts in, the mentions of them that mean the "
            "same out.",
            inputs={"text": [_TEXT]},
            output="clusters",
            output_shape="[texts, mentions]",
            signatures=_SIGNATURES.format(
                sequence_length=model.preprocessor.sequence_length,
                max_pieces=int(model.max_top_spans / model.top_span_ratio),
                max_top_spans=model.max_top_spans,
            ),
        )
