"""Names and shapes of the original's coreference checkpoints, the encoder apart.

mandarjoshi90/coref, `independent.py` and `util.py`. Their layouts are ours: matrices are
[inputs, outputs], and a network's input and the features of a pair have their parts in the same
order.
"""

from collections.abc import Mapping

import numpy as np

_PREFIX = "coreference."  # of their names in a `Checkpoint`
LINEAR = ("output_weights", "output_bias")
NETWORK = ("hidden_weights_0", "hidden_bias_0", *LINEAR)
TABLES = (
    "span_width_embeddings",
    "span_width_prior_embeddings",
    "genre_embeddings",
    "antecedent_distance_emb",
    "coref_layer/same_speaker_emb",
    "coref_layer/antecedent_distance_emb",
    "coref_layer/segment_distance/segment_distance_embeddings",
)
_SEGMENTS = TABLES[-1]
_LINEAR_SCOPES = ("mention_word_attn", "src_projection", "coref_layer/f")
_NETWORK_SCOPES = ("mention_scores", "width_scores", "coref_layer/slow_antecedent_scores")
# In TensorFlow 1's checkpoints, `/` between the parts.
VARIABLES = frozenset(
    (
        *TABLES,
        *LINEAR,  # of the prior distance, which has no scope of its own
        *(f"{scope}/{name}" for scope in _LINEAR_SCOPES for name in LINEAR),
        *(f"{scope}/{name}" for scope in _NETWORK_SCOPES for name in NETWORK),
    )
)


def standard_name(variable: str) -> str:
    """The name in a `Checkpoint` of a variable of theirs."""
    return _PREFIX + variable.replace("/", ".")


def variable_name(name: str) -> str | None:
    """The variable of theirs that a name in a `Checkpoint` stands for; `None` for any other."""
    return name.removeprefix(_PREFIX).replace(".", "/") if name.startswith(_PREFIX) else None


def expected_coreference_shapes(
    hidden_dim: int, arrays: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, ...]]:
    """Name → shape of what a checkpoint holds; the tables and one bias tell the sizes.

    Args:
        hidden_dim: width of the encoder.
        arrays: arrays of the checkpoint.
    """
    head = {name: arrays.get(standard_name(name), np.empty((0, 0))) for name in VARIABLES}
    max_span_width, feature_dim = head["span_width_embeddings"].shape
    ffnn_dim = len(head["mention_scores/hidden_bias_0"])
    num_genres, max_segments = (len(head[name]) for name in ("genre_embeddings", _SEGMENTS))
    span_dim = 3 * hidden_dim + feature_dim
    rows = (max_span_width, max_span_width, num_genres, 10, 2, 10, max_segments)
    shapes = {name: (count, feature_dim) for name, count in zip(TABLES, rows, strict=True)}
    networks = {
        "mention_scores": span_dim,
        "width_scores": feature_dim,
        "coref_layer/slow_antecedent_scores": 3 * span_dim + 4 * feature_dim,
    }
    for scope, input_dim in networks.items():
        sizes = ((input_dim, ffnn_dim), (ffnn_dim,), (ffnn_dim, 1), (1,))
        shapes |= {f"{scope}/{name}": size for name, size in zip(NETWORK, sizes, strict=True)}
    linear = {
        "": (feature_dim, 1),
        "mention_word_attn/": (hidden_dim, 1),
        "src_projection/": (span_dim, span_dim),
        "coref_layer/f/": (2 * span_dim, span_dim),
    }
    for scope, size in linear.items():
        shapes |= {f"{scope}output_weights": size, f"{scope}output_bias": size[1:]}
    return {standard_name(name): shape for name, shape in shapes.items()}


def head_settings(hidden_dim: int, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Arguments of the resolver that the shapes of a checkpoint tell.

    Args:
        hidden_dim: width of the encoder.
        arrays: arrays of the checkpoint, whole.
    """
    shapes = expected_coreference_shapes(hidden_dim, arrays)
    max_span_width, feature_dim = shapes[standard_name("span_width_embeddings")]
    return {
        "max_span_width": max_span_width,
        "feature_dim": feature_dim,
        "ffnn_dim": shapes[standard_name("mention_scores/hidden_bias_0")][0],
        "max_segments": shapes[standard_name(_SEGMENTS)][0],
    }
