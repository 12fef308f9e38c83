"""Reads what `prepare pretraining` wrote, and says in plain Python what it should have written."""

import pathlib

import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import TOKEN_IDS, token_id_dtype

LISTS = ("sentence_starts", "sentence_indices", "paragraph_starts", "paragraph_indices")


def read_records(directory, manifest, split=None):
    """Records as dicts of numbers and lists, in the order of the files."""
    records = []
    dtype = token_id_dtype(manifest.vocabulary_size)
    for shard in manifest.shards:
        if split in (None, shard.split):
            for raw in tf.data.TFRecordDataset(str(pathlib.Path(directory) / shard.file)):
                features = tf.train.Example.FromString(raw.numpy()).features.feature
                record = {}
                for name, feature in features.items():
                    if feature.int64_list.value:
                        (record[name],) = feature.int64_list.value
                    else:
                        (content,) = feature.bytes_list.value
                        kind = dtype if name == TOKEN_IDS else "<u2"
                        record[name] = np.frombuffer(content, kind).tolist()
                records.append(record)
    return records


def expected_blocks(documents, limit):
    """Blocks of documents, which are lists of paragraphs of sentences of tokens.

    Returns:
        For each document a list of dicts of features, without `record_id`.
    """
    return [_fill(sentence_pieces(document, limit), limit) for document in documents]


def block_features(pieces):
    """The features of one block of `sentence_pieces`."""
    (block,) = _fill(pieces, float("inf"))
    return block


def sentence_pieces(document, limit):
    """(tokens, paragraph index, sentence index, index of the first token) of sentence parts."""
    paragraph_index = 0
    for paragraph in document:
        sentences = [sentence for sentence in paragraph if sentence]
        for sentence_index, sentence in enumerate(sentences):
            for start in range(0, len(sentence), limit):
                part = sentence[start : start + limit]
                yield part, paragraph_index, sentence_index, start
        paragraph_index += bool(sentences)


def _fill(pieces, limit):
    blocks = []
    for tokens, paragraph, sentence, first_token in pieces:
        if not blocks or len(blocks[-1]["token_ids"]) + len(tokens) > limit:
            blocks.append({"token_ids": [], "first_token_index": first_token})
            blocks[-1].update((name, []) for name in LISTS)
        block = blocks[-1]
        position = len(block["token_ids"])
        if block["paragraph_indices"][-1:] != [paragraph]:
            block["paragraph_starts"].append(position)
            block["paragraph_indices"].append(paragraph)
        block["sentence_starts"].append(position)
        block["sentence_indices"].append(sentence)
        block["token_ids"] += tokens
    return blocks
