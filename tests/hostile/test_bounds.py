"""Small inputs that ask for much memory or time are refused in one line, and cost little."""

import numpy as np
import tensorflow as tf

from benchmarks.process_memory import peak_above
from spanbert_tf.data.passage_windows import WindowPacker
from spanbert_tf.tasks.question_answering.candidates import WindowSpans, best_candidates


def test_a_long_passage_takes_memory_in_proportion_to_its_length():
    # Each token once a window would be 0.75 GiB.
    packer = WindowPacker(1, 2, 0, sequence_length=64, stride=8)
    passage = tf.RaggedTensor.from_row_lengths(tf.range(40_000) % 90 + 5, [40_000])
    packed = []
    packer(tf.ragged.constant([[3]]), passage[:, :9])
    used = peak_above(lambda: packed.append(packer(tf.ragged.constant([[3]]), passage)))
    assert len(packed[0].token_ids) == 1 + -(-(40_000 - 60) // 8)
    assert used < 0.2


def test_answers_of_a_long_passage_are_cut_a_few_at_a_time():
    num_spans, length = 150, 4_000_000  # 0.6 GB, were the passage copied for each
    starts = np.arange(num_spans, dtype="int32") * 26_000
    text = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", "uint8").repeat(1_000)
    passage = np.resize(text, length)
    for place, start in enumerate(starts):
        passage[start : start + 3] = list(f"{place:03}".encode())
    spans = WindowSpans(
        tf.zeros([1], tf.int32),
        tf.range(num_spans, 0, -1, tf.float32)[tf.newaxis],
        starts[np.newaxis],
        starts[np.newaxis] + 3,
        tf.zeros([1]),
    )
    contexts, found = tf.constant([passage.tobytes()]), []
    used = peak_above(
        lambda: found.append(best_candidates(contexts, spans, num_candidates=150, unit="BYTE"))
    )
    assert found[0].texts[0].numpy().tolist() == [f"{n:03}".encode() for n in range(num_spans)]
    assert used < 0.25
