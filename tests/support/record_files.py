"""Writes small sets of records for tests, straight from the schema, without data_prep."""

import hashlib
import json
import pathlib
import random

import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import PretrainingManifest, Shard, vocabulary_hash
from spanbert_tf.data.tfrecords import lengths_path, save_lengths

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY += [f"word{n}" for n in range(40)] + [f"##piece{n}" for n in range(15)]


def random_records(num_records, sequence_length, *, pair=False, annotations=(), seed=0):
    """Records as dicts of features, with random tokens, sentences and paragraphs."""
    source = random.Random(seed)
    longest = sequence_length - (3 if pair else 2)
    records = []
    for number in range(num_records):
        length = source.randint(4, longest)
        record = {
            "token_ids": [source.randrange(5, len(VOCABULARY)) for _ in range(length)],
            "record_id": 1000 + number,
            "sentence_starts": sorted({0, *source.sample(range(length), 2)}),
            "paragraph_starts": [0],
            "paragraph_indices": [source.randrange(7)],
            "first_token_index": source.randrange(5),
        }
        first_sentence = source.randrange(4)
        record["sentence_indices"] = [
            first_sentence + n for n in range(len(record["sentence_starts"]))
        ]
        if pair:
            record["second_segment_start"] = source.randint(1, length - 1)
            record["next_sentence_label"] = source.randrange(2)
            record["second_first_token_index"] = 0
        for name in annotations:
            singular = {"entities": "entity", "noun_phrases": "noun_phrase"}[name]
            starts = sorted(source.sample(range(length - 1), 2))
            record[f"{singular}_starts"] = starts
            record[f"{singular}_ends"] = [start + source.randint(0, 1) for start in starts]
        records.append(record)
    return records


def to_example(record):
    features = {}
    for name, value in record.items():
        if isinstance(value, list):
            raw = np.array(value, "<u2").tobytes()
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(
    directory,
    train,
    validation=(),
    *,
    sequence_length,
    sequences="single",
    annotations=(),
    num_shards=2,
    lowercase=False,
    word_segmentation="none",
):
    """Writes a directory as `spanbert-tf prepare pretraining` does."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    shards = []
    for split, records, count in (("train", train, num_shards), ("validation", validation, 1)):
        for number in range(count if records else 0):
            name = f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            part = records[number::count]
            with tf.io.TFRecordWriter(str(directory / name)) as writer:
                for record in part:
                    writer.write(to_example(record))
            content = (directory / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            lengths = [len(record["token_ids"]) for record in part]
            save_lengths(lengths_path(str(directory / name)), lengths)
            shards.append(Shard(name, split, len(part), sum(lengths), digest, len(content)))
    counts = np.bincount(
        [token for record in train for token in record["token_ids"]], minlength=len(VOCABULARY)
    )
    unigram_counts = json.dumps(counts.tolist())
    (directory / "unigram_counts.json").write_text(unigram_counts)
    manifest = PretrainingManifest(
        vocabulary_hash=vocabulary_hash(VOCABULARY),
        vocabulary_size=len(VOCABULARY),
        lowercase=lowercase,
        strip_accents=lowercase,
        language="en",
        sequence_length=sequence_length,
        sequences=sequences,
        annotations=tuple(annotations),
        word_segmentation=word_segmentation,
        unigram_counts_hash=hashlib.sha256(unigram_counts.encode()).hexdigest(),
        counts={},
        shards=tuple(shards),
    )
    (directory / "dataset_info.json").write_text(manifest.to_json())
    return directory
