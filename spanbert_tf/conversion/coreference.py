"""Which variable of a coreference resolver holds which array of the original's checkpoints."""

from collections.abc import Iterator

import keras

from spanbert_tf.conversion.coreference_variables import LINEAR, NETWORK, TABLES, standard_name
from spanbert_tf.conversion.parameters import Parameter
from spanbert_tf.layers import CoreferenceHead, ScoringNetwork


def coreference_parameters(head: CoreferenceHead) -> list[Parameter]:
    """Those of a resolver's head; one of depth 1 lacks the gate."""
    mentions, antecedents = head.mention_scorer, head.antecedent_scorer
    tables = (
        mentions.width_embeddings,
        mentions.width_prior_embeddings,
        antecedents.genre_embeddings,
        antecedents.prior_distance_embeddings,
        antecedents.speaker_embeddings,
        antecedents.distance_embeddings,
        antecedents.segment_embeddings,
    )
    pairs = list(zip(TABLES, tables, strict=True))
    pairs += _network("mention_scores/", mentions.mention_network)
    pairs += _network("width_scores/", mentions.width_network)
    pairs += _network("coref_layer/slow_antecedent_scores/", antecedents.pair_network)
    pairs += _linear("", antecedents.prior_distance_scores)
    pairs += _linear("mention_word_attn/", mentions.head_attention)
    pairs += _linear("src_projection/", antecedents.source_projection)
    if antecedents.depth > 1:
        pairs += _linear("coref_layer/f/", antecedents.gate)
    return [Parameter(standard_name(name), variable) for name, variable in pairs]


def _network(scope: str, network: ScoringNetwork) -> Iterator[tuple[str, keras.Variable]]:
    variables = (
        network.hidden_kernel,
        network.hidden_bias,
        network.output_kernel,
        network.output_bias,
    )
    for name, variable in zip(NETWORK, variables, strict=True):
        yield scope + name, variable


def _linear(scope: str, dense: keras.layers.Dense) -> Iterator[tuple[str, keras.Variable]]:
    for name, variable in zip(LINEAR, (dense.kernel, dense.bias), strict=True):
        yield scope + name, variable
