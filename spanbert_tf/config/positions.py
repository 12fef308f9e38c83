"""The kinds of position embeddings of an encoder: the one table that says what each of them reads.

Rows and records that hold SegaBERT's three indices are called `segment_aware`, whichever of them an
encoder embeds. `segment_ids` are something else: BERT's two segments.

A new kind is a row here, a layer that `SpanBertBackbone` adds to its embeddings, and its arrays in
`spanbert_tf.conversion.names`.
"""

from typing import Literal, NamedTuple

PositionEmbeddings = Literal[
    "absolute",
    "segment_aware",
    "segment_aware_with_segments",
    "absolute_with_paragraph_and_sentence",
]


class Positions(NamedTuple):
    """What an encoder embeds beside the tokens.

    Attributes:
        indices: SegaBERT's indices that it embeds. Rows must have them.
        in_row: whether BERT's table of places in the row is there, which limits a row's length.
        segments: whether BERT's segments are embedded.
    """

    indices: tuple[str, ...]
    in_row: bool
    segments: bool


# SegaBERT's indices, and the arguments of `SpanBertBackbone` that count the rows of their tables.
TABLE_SIZES = {
    "paragraph_indices": "num_paragraphs",
    "sentence_indices": "num_sentences",
    "token_indices": "max_sentence_length",
}
_SEGABERT = tuple(TABLE_SIZES)
POSITION_EMBEDDINGS: dict[str, Positions] = {
    "absolute": Positions((), in_row=True, segments=True),
    "segment_aware": Positions(_SEGABERT, in_row=False, segments=False),
    "segment_aware_with_segments": Positions(_SEGABERT, in_row=False, segments=True),
    "absolute_with_paragraph_and_sentence": Positions(_SEGABERT[:2], in_row=True, segments=True),
}
# Kinds without BERT's segments, and what they are with them. The arrays of a checkpoint decide.
_WITH_SEGMENTS = {"segment_aware": "segment_aware_with_segments"}
# The values of `convert --positions`.
NAMED_POSITIONS = tuple(kind for kind in POSITION_EMBEDDINGS if kind not in _WITH_SEGMENTS.values())


def with_segments(position_embeddings: str) -> str:
    """Returns the kind that is this one with BERT's segments; itself if there is no such kind."""
    return _WITH_SEGMENTS.get(position_embeddings, position_embeddings)


def has_positions(position_embeddings: str, max_sequence_length: int, length: int) -> bool:
    """Whether an encoder has a position for each place of a row of `length` positions.

    Only a table of places in the row limits rows; SegaBERT's indices are lowered where they exceed
    their tables.
    """
    return not POSITION_EMBEDDINGS[position_embeddings].in_row or length <= max_sequence_length


def reads_indices(position_embeddings: object) -> bool:
    """Whether an encoder reads SegaBERT's indices, so that its rows must have them.

    An unknown kind does not; whoever makes the encoder refuses it.
    """
    positions = POSITION_EMBEDDINGS.get(str(position_embeddings))
    return positions is not None and bool(positions.indices)
