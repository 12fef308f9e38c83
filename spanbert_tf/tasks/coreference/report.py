"""The report of coreference: each document with its clusters in colours, gold beside predicted."""

import collections
import colorsys
import itertools
import os
from collections.abc import Mapping, Sequence

import markupsafe

from spanbert_tf.tasks.coreference.files import PRONOUNS, mention_borders
from spanbert_tf.tasks.coreference.metrics import TITLES, score_documents
from spanbert_tf.tasks.coreference.records import DOCUMENTS_FILE, Clusters, DocumentLine, Span
from spanbert_tf.tasks.report import ClassScore, ClassScores, Table, class_table, render_page
from spanbert_tf.tasks.task import Outcome

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {
    "missed": "with missed links or mentions",
    "wrong": "with wrong links or mentions",
}
_OFF = "\u2260"  # marks a mention that the other side does not have in the cluster of that number
_GOLDEN_ANGLE = 0.618034  # so that neighbouring numbers have very different colours
_MAX_SHOWN = 60  # largest number of links of each kind that are shown


def report_page(title: str, outcome: Outcome, scores: Mapping[str, float]) -> str:
    """Renders the page as one file of HTML."""
    lines = outcome.records.lines(DOCUMENTS_FILE)
    records = map(_record, lines, outcome.predicted)
    shown = ", ".join(
        f"{name.removesuffix('_f1')} {value:.2f}"
        for name, value in scores.items()
        if name.endswith("_f1")
    )
    options = {"unit": "document", "by": outcome.by, "tables": tables(outcome)}
    return render_page(_TEMPLATE, title, records, _FILTERS, scores=shown, **options)


def tables(outcome: Outcome) -> list[Table]:
    """The official metrics, and the scores of links from pronouns and from other mentions."""
    score = score_documents(zip(outcome.gold, outcome.predicted, strict=True))
    rows = []
    for name, shown in TITLES.items():
        recall, precision, f1 = score.counts[name].percentages()
        rows.append((shown, f"{precision:.2f}", f"{recall:.2f}", f"{f1:.2f}"))
    average = ("average (MUC, B\u00b3, CEAF-e)", "", "", f"{score.as_dict()['average_f1']:.2f}")
    metrics = Table("clusters", ("", "precision", "recall", "F1"), rows, [average])
    return [metrics, class_table("links to the mention before", _link_scores(outcome))]


def _link_scores(outcome: Outcome) -> ClassScores:
    """The scores of links from pronouns, from other mentions, and of all links."""
    counts = {name: collections.Counter() for name in ("of pronouns", "of others", "all links")}
    lines = outcome.records.lines(DOCUMENTS_FILE)
    for line, gold, predicted in zip(lines, outcome.gold, outcome.predicted, strict=True):
        of_documents = {
            "gold": links(gold, []),
            "missed": links(gold, predicted),
            "predicted": links(predicted, []),
            "wrong": links(predicted, gold),
        }
        for what, pairs in of_documents.items():
            for _, (start, end) in pairs:
                is_pronoun = start == end and line["words"][start].lower() in PRONOUNS
                counts["of pronouns" if is_pronoun else "of others"][what] += 1
                counts["all links"][what] += 1
    *parts, whole = (_link_score(name, count) for name, count in counts.items())
    return ClassScores(parts, [whole])


def _link_score(name: str, counts: Mapping[str, int]) -> ClassScore:
    num_gold, num_predicted = counts["gold"], counts["predicted"]
    recall = 100 * (num_gold - counts["missed"]) / num_gold if num_gold else 0.0
    precision = 100 * (num_predicted - counts["wrong"]) / num_predicted if num_predicted else 0.0
    total = precision + recall
    f1 = 2 * precision * recall / total if total else 0.0
    return ClassScore(name, precision, recall, f1, num_gold)


def links(clusters: Sequence[Sequence[Span]], others: Sequence[Sequence[Span]]) -> list[tuple]:
    """The links that one set of clusters has and another has not.

    A link goes from each mention to the one before it in its cluster.

    Args:
        clusters: the clusters with the links.
        others: the other clusters; they have a link if both mentions are in one cluster.

    Returns:
        Pairs of spans.
    """
    cluster_of = {}
    for number, spans in enumerate(others):
        for span in spans:
            cluster_of[tuple(span)] = number
    found = []
    for spans in clusters:
        for first, second in itertools.pairwise(sorted(map(tuple, spans))):
            if first not in cluster_of or cluster_of[first] != cluster_of.get(second):
                found.append((first, second))
    return found


def _record(line: DocumentLine, predicted: Clusters) -> dict:
    gold = [[tuple(span) for span in spans] for spans in line["clusters"]]
    missed = links(gold, predicted)
    wrong = links(predicted, gold)
    score = None  # for a document without gold and predicted clusters
    if gold or predicted:
        score = score_documents([(gold, predicted)]).as_dict()["average_f1"]
    numbers = cluster_numbers(gold, predicted)
    of_gold = _numbers_of_spans(gold, range(len(gold)))
    of_predicted = _numbers_of_spans(predicted, numbers)
    gold_mentions = {span for _, span in of_gold}
    predicted_mentions = {span for _, span in of_predicted}
    kinds = []
    # A cluster of one mention has no links, so the mentions are compared as well.
    if missed or gold_mentions - predicted_mentions:
        kinds.append("missed")
    if wrong or predicted_mentions - gold_mentions:
        kinds.append("wrong")
    return {
        "kinds": kinds,
        "error": 101 - (score or 0) if kinds else 0,
        "name": f"{line['name']}, part {line['part']}",
        "score": score,
        "gold": _marked(line, gold, range(len(gold)), of_predicted, "gold"),
        "predicted": _marked(line, predicted, numbers, of_gold, "model"),
        "missed": [_link(line, pair) for pair in missed[:_MAX_SHOWN]],
        "wrong": [_link(line, pair) for pair in wrong[:_MAX_SHOWN]],
        "num_missed": len(missed),
        "num_wrong": len(wrong),
    }


def _link(line: DocumentLine, pair: tuple[Span, Span]) -> str:
    first, second = (" ".join(line["words"][start : end + 1]) for start, end in pair)
    return f"{second} → {first}"


def cluster_numbers(gold: Clusters, predicted: Clusters) -> list[int]:
    """Numbers the predicted clusters like the gold clusters with which they share most mentions.

    Each gold cluster gives its number to one predicted cluster, the one that shares most mentions.
    All other predicted clusters get new numbers.
    """
    shared = collections.Counter(
        (one, other)
        for one, spans in enumerate(gold)
        for other, others in enumerate(predicted)
        for _ in set(map(tuple, spans)) & set(map(tuple, others))
    )
    numbers: dict[int, int] = {}
    for (one, other), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if other not in numbers and one not in numbers.values():
            numbers[other] = one
    own = itertools.count(len(gold))
    return [numbers[n] if n in numbers else next(own) for n in range(len(predicted))]


def _numbers_of_spans(clusters: Clusters, numbers: Sequence[int]) -> set[tuple[int, Span]]:
    pairs = zip(numbers, clusters, strict=True)
    return {(number, tuple(span)) for number, spans in pairs for span in spans}


def _marked(
    line: DocumentLine,
    clusters: Clusters,
    numbers: Sequence[int],
    others: set[tuple[int, Span]],
    side: str,
) -> markupsafe.Markup:
    """Renders a text with its mentions marked and numbered.

    Args:
        line: the document.
        clusters: clusters of its mentions.
        numbers: the number of each cluster.
        others: numbers and spans of the other side; mentions that it lacks get a sign.
        side: class of these mentions in the page, `"gold"` or `"model"`.
    """
    begun, ended = mention_borders(clusters)
    starts = set(line["sentence_starts"])
    parts = []
    for place, word in enumerate(line["words"]):
        parts.append("<br>" if place in starts and place else " ")
        for end, cluster in begun[place]:
            number = numbers[cluster]
            is_off = (number, (place, end)) not in others
            kind = side if is_off else "both"
            note = f"{number + 1}{_OFF}" if is_off else str(number + 1)
            parts.append(
                f'<span class="mark {kind}" style="--cluster:{_colour(number)}" data-note="{note}">'
            )
        parts += [str(markupsafe.escape(word)), "</span>" * len(ended[place])]
    return markupsafe.Markup("".join(parts))


def _colour(number: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.82, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
