"""Serializes records as `tf.train.Example`s."""

from data_prep.beam.spill import SpilledRecord
from data_prep.blocks.pairs import join_blocks
from data_prep.blocks.sequences import Block
from spanbert_tf.data import schema
from spanbert_tf.data.features import serialize_features

_SPAN_NAMES = {
    "entities": (schema.ENTITY_STARTS, schema.ENTITY_ENDS),
    "noun_phrases": (schema.NOUN_PHRASE_STARTS, schema.NOUN_PHRASE_ENDS),
}


def serialize_record(record: SpilledRecord, annotations: tuple[str, ...] = ()) -> bytes:
    """The bytes of a record, with the features of `spanbert_tf.data.schema`.

    Args:
        record: a single sequence, or a pair that has its second segment.
        annotations: what the block's `spans` are, in order.
    """
    block, second = record.block, record.second
    numbers = {
        schema.RECORD_ID: record.record_id,
        schema.FIRST_TOKEN_INDEX: block.first_token_index,
    }
    if second is not None:
        numbers |= {
            schema.SECOND_SEGMENT_START: block.num_tokens,
            schema.NEXT_SENTENCE_LABEL: record.label,
            schema.SECOND_FIRST_TOKEN_INDEX: second.first_token_index,
        }
        block = join_blocks(block, second)
    lists = _lists(block)
    for annotation, spans in zip(annotations, block.spans, strict=True):
        lists |= zip(_SPAN_NAMES[annotation], spans, strict=True)
    return serialize_features(numbers, lists)


def _lists(block: Block) -> dict[str, bytes]:
    return {
        schema.TOKEN_IDS: block.token_ids,
        schema.SENTENCE_STARTS: block.sentence_starts,
        schema.SENTENCE_INDICES: block.sentence_indices,
        schema.PARAGRAPH_STARTS: block.paragraph_starts,
        schema.PARAGRAPH_INDICES: block.paragraph_indices,
    }
