"""From the outputs of a model, made by hand, to clusters."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.tasks.coreference.graph import clusters_of, link_spans


class HandMade:
    """Stands for a model that gave these spans.

    Args:
        spans: `(start, end, mention score, antecedent)`, positions; `None`: it links to none.
        singletons: as of the resolver.
    """

    def __init__(self, spans, *, singletons=False):
        self.singletons = singletons
        starts, ends, mention_scores, links = zip(*spans, strict=True)
        antecedents = [[*range(n), *[0] * (len(spans) - n)] for n in range(len(spans))]
        scores = np.full([len(spans), len(spans) + 1], -1.0)
        scores[:, 0] = 0.0  # of none
        for number, link in enumerate(links):
            if link is not None:
                scores[number, 1 + link] = 1.0
        self.outputs = {
            "span_starts": tf.constant([starts]),
            "span_ends": tf.constant([ends]),
            "is_span": tf.ones([1, len(spans)], tf.int32),
            "mention_scores": tf.constant([mention_scores], tf.float32),
            "antecedents": tf.constant([antecedents]),
            "scores": tf.constant([scores], tf.float32),
        }


class Batch:
    """Several of them side by side, of as many spans each; those beyond `sizes` are padding."""

    singletons = False

    def __init__(self, documents, sizes):
        parts = [HandMade(spans).outputs for spans in documents]
        self.outputs = {
            name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]
        }
        most = len(documents[0])
        self.outputs["is_span"] = tf.sequence_mask(sizes, most, dtype=tf.int32)


def linked_spans(model, words):
    return link_spans(model, {"word_indices": tf.constant(words)}, model.outputs)


def clusters(spans, words, **options):
    linked = linked_spans(HandMade(spans, **options), [words])
    return clusters_of(*(values[0].numpy() for values in linked))


@pytest.mark.parametrize("singletons", [False, True])
def test_a_mention_alone_counts_where_singletons_do_and_its_score_is_positive(singletons):
    spans = [(0, 0, 1.0, None), (1, 1, -1.0, None), (2, 2, -1.0, None), (3, 3, -1.0, 2)]
    linked = [(2, 2), (3, 3)]  # whatever their scores
    expected = [[(0, 0)], linked] if singletons else [linked]
    assert clusters(spans, [0, 1, 2, 3], singletons=singletons) == expected


def test_the_same_words_are_one_mention_of_the_first_cluster():
    """Positions 0 and 1 are pieces of word 0: as words, three spans of them are one."""
    words = [0, 0, 1, 2]
    same = [(0, 0, 1.0, None), (0, 1, 1.0, None), (1, 1, 1.0, 0)]
    assert clusters([*same, (2, 2, 1.0, 0)], words) == [[(0, 0), (1, 1)]]
    # Of a cluster that has no other words nothing is left, with singletons one mention.
    assert clusters(same, words) == []
    assert clusters(same, words, singletons=True) == [[(0, 0)]]
    # In two clusters: the first keeps the words, the other one has too few then.
    twice = [(0, 0, 1.0, None), (1, 1, 1.0, None), (2, 2, 1.0, 0), (3, 3, 1.0, 1)]
    assert clusters(twice, words) == [[(0, 0), (1, 1)]]
    assert clusters(twice, words, singletons=True) == [[(0, 0), (1, 1)], [(2, 2)]]


def test_documents_of_a_batch_have_clusters_of_their_own():
    """The same numbers of spans are others in each; padding is no mention, whatever it links to."""
    first = [(0, 0, 1.0, None), (1, 1, 1.0, 0), (2, 2, 1.0, None)]
    second = [(0, 0, 1.0, None), (1, 1, 1.0, None), (2, 2, 1.0, 1)]
    padded = [(0, 0, 1.0, None), (1, 1, 1.0, None), (2, 2, 1.0, 0)]
    words = [[0, 1, 2], [5, 6, 7], [0, 1, 2]]
    linked = linked_spans(Batch([first, second, padded], [3, 3, 2]), words)
    found = [clusters_of(*(values[n].numpy() for values in linked)) for n in range(3)]
    assert found == [[[(0, 0), (1, 1)]], [[(6, 6), (7, 7)]], []]
