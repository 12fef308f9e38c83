"""Coreference as the PyTorch code of the field computes it (e2e-coref, coref-hoi), as a peer.

Written here from the definition: a vector for every candidate, a softmax over the document for
its head, spans chosen by a Python loop, a vector for every pair. T pieces of a document, N
candidates, K chosen spans, C antecedents, D width of a span's vector.
"""

import bisect

import numpy as np
import torch
import transformers
from torch.nn import functional

_BOUNDS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # where the buckets of distances 1 to 9 begin


class Peer(torch.nn.Module):
    """The resolver, with the weights of a `CoreferenceHead`.

    Args:
        encoder: directory of a converted encoder.
        weights: arrays of the head by their paths.
        settings: what `CoreferenceHead.get_config` returns.
    """

    def __init__(self, encoder: str, weights: dict[str, np.ndarray], settings: dict) -> None:
        super().__init__()
        self.encoder = transformers.BertModel.from_pretrained(encoder, add_pooling_layer=False)
        self.head = torch.nn.ParameterDict(
            {path.replace("/", "-"): torch.tensor(array) for path, array in weights.items()}
        )
        self.settings = settings

    def forward(self, document: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Spans and their antecedents' scores, of the features of one document."""
        return self.score(self.encode(document), document)

    def encode(self, document: dict[str, torch.Tensor]) -> torch.Tensor:
        """The encoder's outputs, [T, H]."""
        mask = document["padding_mask"][0]  # [G, L]
        states = self.encoder(document["token_ids"][0], attention_mask=mask).last_hidden_state
        return states[mask > 0]

    def score(self, states: torch.Tensor, document: dict) -> dict[str, torch.Tensor]:
        """What `forward` returns, from the encoder's outputs."""
        starts, ends = self._candidates(document["sentence_indices"][0])  # [N]
        vectors = self._vectors(states, starts, ends)  # [N, D]
        widths = self.head["mention_scorer-width_prior_embeddings"]
        of_widths = self._network("width_scores", widths)[ends - starts]
        all_scores = self._network("mention_scores", vectors) + of_widths
        chosen = self._chosen(all_scores, starts, ends, len(states))  # [K]
        starts, ends, vectors = starts[chosen], ends[chosen], functional.embedding(chosen, vectors)
        mention_scores = all_scores[chosen]
        coarse, antecedents = self._coarse(vectors, mention_scores)  # [K, C]
        features = self._features(document, starts, antecedents)
        for number in range(self.settings["depth"]):
            scores = coarse + self._slow(vectors, antecedents, features)
            scores = torch.cat([torch.zeros_like(scores[:, :1]), scores], dim=1)  # [K, 1 + C]
            if number < self.settings["depth"] - 1:
                vectors = self._refined(vectors, antecedents, scores)
        return {"starts": starts, "ends": ends, "antecedents": antecedents, "scores": scores}

    def loss(self, outputs: dict[str, torch.Tensor], gold: dict) -> torch.Tensor:
        """The sum over spans.

        Args:
            outputs: what `forward` returned.
            gold: span → number of its cluster, from 1.
        """
        spans = zip(outputs["starts"].tolist(), outputs["ends"].tolist(), strict=True)
        clusters = torch.tensor([gold.get(span, 0) for span in spans])  # [K]
        is_right = (clusters[outputs["antecedents"]] == clusters[:, None]) & (clusters > 0)[:, None]
        is_right &= outputs["scores"][:, 1:] > -torch.inf
        is_right = torch.cat([~is_right.any(dim=1, keepdim=True), is_right], dim=1)
        scores = outputs["scores"]
        right = scores.masked_fill(~is_right, -torch.inf)
        return (scores.logsumexp(dim=1) - right.logsumexp(dim=1)).sum()

    def _candidates(self, sentences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length, width = len(sentences), self.settings["max_span_width"]
        starts = torch.arange(length)[:, None].expand(-1, width)
        ends = starts + torch.arange(width)
        same = sentences[starts] == sentences[ends.clamp(max=length - 1)]
        is_candidate = same & (ends < length)
        return starts[is_candidate], ends[is_candidate]

    def _vectors(
        self, states: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        widths = self.head["mention_scorer-width_embeddings"]
        widths = self._drop(functional.embedding(ends - starts, widths))
        places = torch.arange(len(states))
        inside = (places >= starts[:, None]) & (places <= ends[:, None])  # [N, T]
        logits = self._dense("head_attention", states)[:, 0]
        attention = functional.softmax(inside.float().log() + logits, dim=1)
        first, last = (functional.embedding(places, states) for places in (starts, ends))
        return torch.cat([first, last, widths, attention @ states], dim=1)

    def _chosen(
        self, scores: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, length: int
    ) -> torch.Tensor:
        """The best candidates none of which crosses a better one, by (start, end)."""
        limit = min(
            self.settings["max_top_spans"],
            int(np.float32(length) * np.float32(self.settings["top_span_ratio"])),
        )
        first, last = starts.tolist(), ends.tolist()
        longest_from: dict[int, int] = {}  # start → last end of a chosen span
        earliest_to: dict[int, int] = {}  # end → first start
        chosen: list[int] = []
        for number in torch.argsort(scores, descending=True, stable=True).tolist():
            start, end = first[number], last[number]
            inner = range(start, end + 1)
            if any(longest_from.get(place, -1) > end for place in inner[1:]) or any(
                earliest_to.get(place, length) < start for place in inner[:-1]
            ):
                continue
            chosen.append(number)
            longest_from[start] = max(longest_from.get(start, -1), end)
            earliest_to[end] = min(earliest_to.get(end, length), start)
            if len(chosen) == limit:
                break
        return torch.tensor(sorted(chosen, key=lambda number: (first[number], last[number])))

    def _coarse(
        self, vectors: torch.Tensor, mention_scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source = self._drop(self._dense("source_projection", vectors))
        ranks = torch.arange(len(vectors))
        distances = ranks[:, None] - ranks
        priors = self._drop(self.head["antecedent_scorer-prior_distance_embeddings"])
        priors = self._dense("prior_distance_scores", priors)[:, 0]
        scores = source @ self._drop(vectors).T + priors[_buckets(distances)]
        scores = scores + mention_scores[:, None] + mention_scores
        scores = scores.masked_fill(distances < 1, -torch.inf)
        return torch.topk(scores, min(len(vectors), self.settings["max_antecedents"]), dim=1)

    def _features(
        self, document: dict, starts: torch.Tensor, antecedents: torch.Tensor
    ) -> list[torch.Tensor]:
        """Numbers of the four embeddings of pairs, [K, C] each."""
        speakers = document["speaker_ids"][0][starts]
        segments = document["segment_indices"][0][starts]
        apart = (segments[:, None] - segments[antecedents]).clamp(
            0, self.settings["max_segments"] - 1
        )
        ranks = torch.arange(len(starts))
        return [
            (speakers[:, None] == speakers[antecedents]).long(),
            document["genre_ids"].expand_as(antecedents),
            _buckets((ranks[:, None] - antecedents).clamp(min=0)),
            apart,
        ]

    def _slow(
        self, vectors: torch.Tensor, antecedents: torch.Tensor, numbers: list[torch.Tensor]
    ) -> torch.Tensor:
        names = ("speaker", "genre", "distance", "segment")
        tables = (self.head[f"antecedent_scorer-{name}_embeddings"] for name in names)
        features = [functional.embedding(*pair) for pair in zip(numbers, tables, strict=True)]
        others = functional.embedding(antecedents, vectors)  # [K, C, D]
        own = vectors[:, None].expand_as(others)
        features = self._drop(torch.cat(features, dim=-1))
        return self._network("pair_scores", torch.cat([own, others, own * others, features], -1))

    def _refined(
        self, vectors: torch.Tensor, antecedents: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        shares = functional.softmax(scores, dim=1)
        others = functional.embedding(antecedents, vectors)
        others = torch.cat([vectors[:, None], others], dim=1)  # [K, 1 + C, D]
        mean = (shares[:, :, None] * others).sum(dim=1)
        gate = torch.sigmoid(self._dense("gate", torch.cat([vectors, mean], dim=1)))
        return gate * mean + (1 - gate) * vectors

    def _dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.head[f"{name}-kernel"] + self.head[f"{name}-bias"]

    def _network(self, name: str, x: torch.Tensor) -> torch.Tensor:
        part = {key: self.head[f"{name}-{key}"] for key in ("hidden_kernel", "hidden_bias")}
        hidden = self._drop(torch.relu(x @ part["hidden_kernel"] + part["hidden_bias"]))
        return (hidden @ self.head[f"{name}-output_kernel"] + self.head[f"{name}-output_bias"])[
            ..., 0
        ]

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.settings["dropout"], self.training)


def _buckets(distances: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([bisect.bisect_right(_BOUNDS, distance) for distance in range(65)])
    return table[distances.clamp(0, 64)]


def peer_document(x: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """A document's features without the padding of its positions.

    Args:
        x: features of a batch of one document.
    """
    length = int((x["sentence_indices"][0] >= 0).sum())
    return {
        name: torch.tensor(values if values.ndim != 2 else values[:, :length]).long()
        for name, values in x.items()
    }
