"""The configuration of coreference resolution."""

from typing import Annotated, Literal

from pydantic import Field

from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig, RowsConfig
from spanbert_tf.validation import BelowOne, PositiveInt, Section


class DocumentDataConfig(RowsConfig):
    """What the records of documents must be.

    Attributes:
        sequence_length: positions of a segment at most.
        segment_aware: false; documents in segments have no SegaBERT positions.
        max_training_segments: segments of a document that are trained at once; null: any.
    """

    sequence_length: PositiveInt = 384
    max_training_segments: PositiveInt | None = None


class ResolverConfig(Section):
    """The resolver over the encoder (original `experiments.conf`).

    Attributes:
        word_boundaries: whether spans begin and end where words do; false: at any word piece.
        depth: passes of the antecedents' scores; 2 refines the vectors of spans once.
        max_span_width: pieces of a span at most.
        top_span_ratio: spans that are kept, for each position of the document; [CLS] and [SEP]
            count.
        max_top_spans: spans that are kept at most.
        max_antecedents: antecedents of a span that the network scores.
        feature_dim: width of the embeddings of widths, distances, speakers and genres.
        ffnn_dim: hidden width of the scoring networks.
        dropout: rate in the task's own layers.
    """

    word_boundaries: bool = False
    depth: PositiveInt = 2
    max_span_width: PositiveInt = 30
    top_span_ratio: Annotated[float, Field(gt=0, le=1)] = 0.4
    max_top_spans: PositiveInt = 3900
    max_antecedents: PositiveInt = 50
    feature_dim: PositiveInt = 20
    ffnn_dim: PositiveInt = 3000
    dropout: BelowOne = 0.3


class ClusterConfig(PredictionConfig):
    """How clusters are predicted.

    Attributes:
        batch_size: documents of a batch at most; long ones are fewer.
        singletons: whether mentions without another one are predicted, too.
    """

    singletons: bool = False


class CoreferenceConfig(FinetuningConfig):
    """A fine-tuning run for coreference resolution.

    Attributes:
        task: `coreference`.
        data: what the records must be.
        resolver: the layers over the encoder.
        prediction: how clusters are predicted.
    """

    task: Literal["coreference"] = "coreference"
    data: DocumentDataConfig = DocumentDataConfig()
    resolver: ResolverConfig = ResolverConfig()
    prediction: ClusterConfig = ClusterConfig()
