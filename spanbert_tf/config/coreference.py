"""The settings of the coreference resolver's head, for configurations, the layer and the model."""

from spanbert_tf.validation import BelowOne, PositiveInt, PositiveUpToOne, Section


class ResolverConfig(Section):
    """The layers over the encoder (original `experiments.conf`).

    Attributes:
        word_boundaries: whether spans begin and end where words do; otherwise at any word piece, as
            in the original code.
        depth: passes of the antecedents' scores; 2 refines the vectors of spans once, 1 never.
        max_span_width: largest number of word pieces of a span.
        top_span_ratio: number of spans that are kept for each position of the document; [CLS] and
            [SEP] count.
        max_top_spans: largest number of spans that are kept.
        max_antecedents: largest number of antecedents of a span that the network scores.
        feature_dim: width of the embeddings of widths, distances, speakers and genres.
        ffnn_dim: hidden width of the scoring networks.
        dropout: dropout rate in the task's own layers.
    """

    word_boundaries: bool = False
    depth: PositiveInt = 2
    max_span_width: PositiveInt = 30
    top_span_ratio: PositiveUpToOne = 0.4
    max_top_spans: PositiveInt = 3900
    max_antecedents: PositiveInt = 50
    feature_dim: PositiveInt = 20
    ffnn_dim: PositiveInt = 3000
    dropout: BelowOne = 0.3
