"""A page that shows each document with its clusters in colours, gold beside predicted."""

import colorsys
import itertools
import math
import os
from collections.abc import Mapping, Sequence

import markupsafe

from spanbert_tf.tasks.coreference.cluster_column import Clusters, Span
from spanbert_tf.tasks.coreference.schema import DocumentLine
from spanbert_tf.tasks.coreference.scoring import score_documents
from spanbert_tf.tasks.report.page import render_page

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {"missed": "with missed links", "wrong": "with wrong links", "right": "all right"}
_GOLDEN_ANGLE = 0.618034  # neighbouring numbers are far apart in colour
_MAX_SHOWN = 60  # links of each kind


def report_page(
    title: str,
    lines: Sequence[DocumentLine],
    predicted: Sequence[Clusters],
    scores: Mapping[str, float],
) -> str:
    """The page as HTML that needs nothing else; the documents with the lowest scores first.

    Args:
        title: title of the page.
        lines: lines of `documents.jsonl`.
        predicted: clusters of each document, in the same order.
        scores: scores of all documents, in percent.
    """
    records = [_record(*pair) for pair in zip(lines, predicted, strict=True)]
    records.sort(key=lambda record: math.inf if record["score"] is None else record["score"])
    shown = ", ".join(
        f"{name.removesuffix('_f1')} {value:.2f}"
        for name, value in scores.items()
        if name.endswith("_f1")
    )
    return render_page(_TEMPLATE, title, records, _FILTERS, scores=shown)


def links(clusters: Sequence[Sequence[Span]], others: Sequence[Sequence[Span]]) -> list[tuple]:
    """The links from each mention to the one before it in its cluster that others do not have.

    Args:
        clusters: whose links these are.
        others: clusters that would have both mentions in one.

    Returns:
        Pairs of spans.
    """
    cluster_of = {tuple(span): n for n, spans in enumerate(others) for span in spans}
    pairs = (pair for spans in clusters for pair in itertools.pairwise(sorted(map(tuple, spans))))
    return [
        (first, second)
        for first, second in pairs
        if first not in cluster_of or cluster_of[first] != cluster_of.get(second)
    ]


def _record(line: DocumentLine, predicted: Clusters) -> dict:
    gold = [[tuple(span) for span in spans] for spans in line["clusters"]]
    missed, wrong = links(gold, predicted), links(predicted, gold)
    score = None  # of a document where nothing is to be found, and nothing was
    if gold or predicted:
        score = score_documents([(gold, predicted)]).as_dict()["average_f1"]
    kinds = ["missed"] * bool(missed) + ["wrong"] * bool(wrong)
    return {
        "kinds": kinds or ["right"],
        "name": f"{line['name']}, part {line['part']}",
        "score": score,
        "gold": _marked(line, gold, gold),
        "predicted": _marked(line, predicted, gold),
        "missed": [_link(line, pair) for pair in missed[:_MAX_SHOWN]],
        "wrong": [_link(line, pair) for pair in wrong[:_MAX_SHOWN]],
        "num_missed": len(missed),
        "num_wrong": len(wrong),
    }


def _link(line: DocumentLine, pair: tuple[Span, Span]) -> str:
    first, second = (" ".join(line["words"][start : end + 1]) for start, end in pair)
    return f"{second} → {first}"


def _marked(
    line: DocumentLine, clusters: Sequence[Sequence[Span]], gold: list
) -> markupsafe.Markup:
    """The text, mentions coloured; a cluster that shares a mention with a gold one as that."""
    gold_of = {span: n for n, spans in enumerate(gold) for span in spans}
    colours = [
        next((gold_of[tuple(s)] for s in spans if tuple(s) in gold_of), len(gold) + n)
        for n, spans in enumerate(clusters)
    ]
    opened: dict[int, list[tuple[int, int]]] = {}
    closed: dict[int, int] = {}
    for number, spans in enumerate(clusters):
        for start, end in spans:
            opened.setdefault(start, []).append((-end, number))
            closed[end] = closed.get(end, 0) + 1
    starts = set(line["sentence_starts"])
    parts = []
    for place, word in enumerate(line["words"]):
        parts.append("<br>" if place in starts and place else " ")
        for _, number in sorted(opened.get(place, [])):
            style = f"background:{_colour(colours[number])}"
            parts.append(f'<span class="mention" style="{style}" title="cluster {number}">')
        parts += [str(markupsafe.escape(word)), "</span>" * closed.get(place, 0)]
    return markupsafe.Markup("".join(parts))


def _colour(number: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.82, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
