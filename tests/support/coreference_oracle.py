"""The definition of the coreference model, one span and one pair at a time, in NumPy.

SpanBERT 5.1.2, Lee et al. 2017 and 2018, and the original `independent.py`; float64.
"""

import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    exponentials = np.exp(x - np.max(x))
    return exponentials / exponentials.sum()


def logsumexp(x):
    top = max(x)
    return top + math.log(sum(math.exp(value - top) for value in x))


def bucket(distance):
    if distance < 5:
        return distance
    return next((n for n, bound in enumerate((8, 16, 32, 64), 5) if distance < bound), 9)


class Oracle:
    """Computes with the weights of a `CoreferenceHead` for one document without padding."""

    def __init__(self, head):
        config = head.get_config()
        self.settings = {**config, **config["settings"]}
        self.weights = {weight.path: weight.numpy().astype(float) for weight in head.weights}

    def network(self, name, x):
        """A hidden layer of ReLU and one output."""
        w = self.weights
        hidden = np.maximum(x @ w[f"{name}/hidden_kernel"] + w[f"{name}/hidden_bias"], 0)
        return float((hidden @ w[f"{name}/output_kernel"] + w[f"{name}/output_bias"])[0])

    def dense(self, name, x):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def candidates(self, document):
        length = len(document["sentence_indices"])
        for start in range(length):
            for end in range(start, min(length, start + self.settings["max_span_width"])):
                if document["sentence_indices"][start] != document["sentence_indices"][end]:
                    continue
                at_words = document["begins_word"][start] and document["ends_word"][end]
                if at_words or not self.settings["word_boundaries"]:
                    yield start, end

    def vector(self, states, start, end):
        inside = states[start : end + 1]
        logits = [self.dense("head_attention", x)[0] for x in inside]
        head = sum(p * x for p, x in zip(softmax(np.array(logits)), inside, strict=True))
        width = self.weights["mention_scorer/width_embeddings"][end - start]
        return np.concatenate([states[start], states[end], width, head])

    def mention_score(self, states, start, end):
        prior = self.weights["mention_scorer/width_prior_embeddings"][end - start]
        vector = self.vector(states, start, end)
        return self.network("mention_scores", vector) + self.network("width_scores", prior)

    def chosen_spans(self, scores, length):
        """The best first, none crossing one before; then by (start, end)."""
        ratio, most = self.settings["top_span_ratio"], self.settings["max_top_spans"]
        limit = min(most, math.floor(ratio * length))
        chosen = []
        for start, end in sorted(scores, key=lambda span: (-scores[span], span)):
            crosses = any(
                start < other <= end < other_end or other < start <= other_end < end
                for other, other_end in chosen
            )
            if not crosses and len(chosen) < limit:
                chosen.append((start, end))
        return sorted(chosen)

    def features(self, document, spans, i, j):
        w = self.weights
        (a, _), (b, _) = spans[i], spans[j]
        same = int(document["speaker_ids"][a] == document["speaker_ids"][b])
        apart = document["segment_indices"][a] - document["segment_indices"][b]
        apart = min(max(apart, 0), self.settings["max_segments"] - 1)
        return np.concatenate(
            [
                w["antecedent_scorer/speaker_embeddings"][same],
                w["antecedent_scorer/genre_embeddings"][document["genre_id"]],
                w["antecedent_scorer/distance_embeddings"][bucket(i - j)],
                w["antecedent_scorer/segment_embeddings"][apart],
            ]
        )

    def coarse_scores(self, vectors, mention_scores, i):
        source = self.dense("source_projection", vectors[i])
        found = {}
        for j in range(i):
            prior = self.weights["antecedent_scorer/prior_distance_embeddings"][bucket(i - j)]
            distance = self.dense("prior_distance_scores", prior)[0]
            found[j] = mention_scores[i] + mention_scores[j] + source @ vectors[j] + distance
        best = sorted(found, key=lambda j: (-found[j], j))[: self.settings["max_antecedents"]]
        return {j: found[j] for j in best}

    def __call__(self, document):
        """Spans in order, their mention scores, and of each {antecedent: score}."""
        states = np.asarray(document["states"], float)
        scores = {span: self.mention_score(states, *span) for span in self.candidates(document)}
        spans = self.chosen_spans(scores, len(states))
        vectors = [self.vector(states, *span) for span in spans]
        mention_scores = [scores[span] for span in spans]
        coarse = [self.coarse_scores(vectors, mention_scores, i) for i in range(len(spans))]
        for depth in range(self.settings["depth"]):
            links = []
            for i in range(len(spans)):
                links.append({})
                for j, first in coarse[i].items():
                    a, b = vectors[i], vectors[j]
                    phi = self.features(document, spans, i, j)
                    pair = np.concatenate([a, b, a * b, phi])
                    links[i][j] = first + self.network("pair_scores", pair)
            if depth < self.settings["depth"] - 1:
                vectors = [self.refined(vectors, i, links[i]) for i in range(len(spans))]
        return spans, mention_scores, links

    def refined(self, vectors, i, links):
        shares = softmax(np.array([0.0, *links.values()]))
        mean = shares[0] * vectors[i]
        mean = mean + sum(p * vectors[j] for p, j in zip(shares[1:], links, strict=True))
        gate = sigmoid(self.dense("gate", np.concatenate([vectors[i], mean])))
        return gate * mean + (1 - gate) * vectors[i]


def loss(spans, links, clusters):
    """The sum over spans of the negative log-likelihood of all right antecedents."""
    cluster_of = {span: n for n, cluster in enumerate(clusters) for span in cluster}
    total = 0.0
    for i, span in enumerate(spans):
        own = cluster_of.get(span)
        right = [
            s for j, s in links[i].items() if own is not None and cluster_of.get(spans[j]) == own
        ]
        total += logsumexp([0.0, *links[i].values()]) - logsumexp(right or [0.0])
    return total
