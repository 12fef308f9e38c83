"""A page that shows each document with its clusters in colours, gold beside predicted."""

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
_OFF = "\u2260"  # of a mention that is not in the cluster of that number beside it
_GOLDEN_ANGLE = 0.618034  # neighbouring numbers are far apart in colour
_MAX_SHOWN = 60  # links of each kind


def report_page(title: str, outcome: Outcome, scores: Mapping[str, float]) -> str:
    """The page as HTML that needs nothing else."""
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
    """The official metrics, and the links by what is linked."""
    score = score_documents(zip(outcome.gold, outcome.predicted, strict=True))
    rows = []
    for name, shown in TITLES.items():
        recall, precision, f1 = score.counts[name].percentages()
        rows.append((shown, f"{precision:.2f}", f"{recall:.2f}", f"{f1:.2f}"))
    average = ("average (MUC, B\u00b3, CEAF-e)", "", "", f"{score.as_dict()['average_f1']:.2f}")
    metrics = Table("clusters", ("", "precision", "recall", "F1"), rows, [average])
    return [metrics, class_table("links to the mention before", _link_scores(outcome))]


def _link_scores(outcome: Outcome) -> ClassScores:
    """How many links from pronouns and from other mentions are found."""
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
    numbers = cluster_numbers(gold, predicted)
    of_gold = _numbers_of_spans(gold, range(len(gold)))
    of_predicted = _numbers_of_spans(predicted, numbers)
    mentions, found = ({span for _, span in of_clusters} for of_clusters in (of_gold, of_predicted))
    # Clusters of one mention have no links.
    kinds = ["missed"] * bool(missed or mentions - found)
    kinds += ["wrong"] * bool(wrong or found - mentions)
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
    """The number of each predicted cluster: of the gold one with which it shares most mentions.

    Each gold cluster lends its number once, to the cluster that shares most with it; of a cluster
    that was parted, the smaller parts have numbers of their own, and so have all others.
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
    """The text with its mentions, marked and numbered; those that others lack have a sign."""
    begun, ended = mention_borders(clusters)
    starts = set(line["sentence_starts"])
    parts = []
    for place, word in enumerate(line["words"]):
        parts.append("<br>" if place in starts and place else " ")
        for end, cluster in begun[place]:
            number = numbers[cluster]
            is_off = (number, (place, end)) not in others
            parts.append(
                f'<span class="mark {side if is_off else "both"}" '
                f'style="--cluster:{_colour(number)}" data-note="{number + 1}{_OFF * is_off}">'
            )
        parts += [str(markupsafe.escape(word)), "</span>" * len(ended[place])]
    return markupsafe.Markup("".join(parts))


def _colour(number: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.82, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
