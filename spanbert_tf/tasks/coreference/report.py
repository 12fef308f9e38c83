"""The report of coreference: each document with its clusters in colours, gold beside predicted."""

import collections
import colorsys
import itertools
import os
from collections.abc import Mapping, Sequence

import markupsafe

from spanbert_tf.tasks.coreference.conll import mention_borders
from spanbert_tf.tasks.coreference.files import PRONOUNS
from spanbert_tf.tasks.coreference.metrics import TITLES, score_documents
from spanbert_tf.tasks.coreference.records import (
    DOCUMENTS_FILE,
    Clusters,
    DocumentLine,
    Span,
    gold_clusters,
)
from spanbert_tf.tasks.report import ClassScore, ClassScores, Report, Table, class_table
from spanbert_tf.tasks.task import Outcome

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {
    "missed": "with missed links or mentions",
    "wrong": "with wrong links or mentions",
}
_OFF = "\u2260"  # marks a mention that is not in the cluster of that number on the other side
_GOLDEN_ANGLE = 0.618034  # gives neighbouring numbers very different colours
_MAX_SHOWN = 60  # largest number of links of each kind that are shown


def coreference_report(outcome: Outcome, scores: Mapping[str, float]) -> Report:
    """Returns a report that shows each document."""
    lines = outcome.records.lines(DOCUMENTS_FILE)
    records = map(_record, lines, outcome.predicted)
    shown = ", ".join(
        f"{name.removesuffix('_f1')} {value:.2f}"
        for name, value in scores.items()
        if name.endswith("_f1")
    )
    return Report(_TEMPLATE, "document", records, _FILTERS, {"scores": shown})


def tables(outcome: Outcome) -> list[Table]:
    """Returns tables of the official metrics, and of links from pronouns and other mentions."""
    score = score_documents(zip(outcome.gold, outcome.predicted, strict=True))
    rows = []
    for name, shown in TITLES.items():
        recall, precision, f1 = score.counts[name].percentages()
        rows.append((shown, f"{precision:.2f}", f"{recall:.2f}", f"{f1:.2f}"))
    average = ("average (MUC, B\u00b3, CEAF-e)", "", "", f"{score.as_dict()['average_f1']:.2f}")
    metrics = Table("clusters", ("", "precision", "recall", "F1"), rows, [average])
    return [metrics, class_table("links to the mention before", _link_scores(outcome))]


def _link_scores(outcome: Outcome) -> ClassScores:
    """Computes the scores of links from pronouns, from other mentions, and of all links."""
    counts: dict[str, collections.Counter[str]] = {
        "of pronouns": collections.Counter(),
        "of others": collections.Counter(),
        "all links": collections.Counter(),
    }
    lines = outcome.records.lines(DOCUMENTS_FILE)
    for line, gold, predicted in zip(lines, outcome.gold, outcome.predicted, strict=True):
        kinds = {
            "gold": links(gold, []),
            "missed": links(gold, predicted),
            "predicted": links(predicted, []),
            "wrong": links(predicted, gold),
        }
        for kind, pairs in kinds.items():
            for _, (start, end) in pairs:
                is_pronoun = start == end and line["words"][start].lower() in PRONOUNS
                counts["of pronouns" if is_pronoun else "of others"][kind] += 1
                counts["all links"][kind] += 1
    *parts, whole = [_link_score(name, count) for name, count in counts.items()]
    return ClassScores(parts, [whole])


def _link_score(name: str, counts: Mapping[str, int]) -> ClassScore:
    """Computes the scores of links from the numbers of gold, missed, predicted and wrong ones."""
    num_gold = counts["gold"]
    num_predicted = counts["predicted"]
    recall = 100 * (num_gold - counts["missed"]) / num_gold if num_gold else 0.0
    precision = 100 * (num_predicted - counts["wrong"]) / num_predicted if num_predicted else 0.0
    total = precision + recall
    f1 = 2 * precision * recall / total if total else 0.0
    return ClassScore(name, precision, recall, f1, num_gold)


def links(
    clusters: Sequence[Sequence[Span]], others: Sequence[Sequence[Span]]
) -> list[tuple[Span, Span]]:
    """Returns the links that one set of clusters has and another does not have.

    A link goes from each mention to the one before it in its cluster.

    Args:
        clusters: the clusters with the links.
        others: the other clusters; they have a link if both mentions are in one cluster.

    Returns:
        Pairs of spans.
    """
    cluster_of: dict[Span, int] = {}
    for number, spans in enumerate(others):
        cluster_of |= dict.fromkeys(spans, number)
    found = []
    for spans in clusters:
        for first, second in itertools.pairwise(sorted(spans)):
            if first not in cluster_of or cluster_of[first] != cluster_of.get(second):
                found.append((first, second))
    return found


def _record(line: DocumentLine, predicted: Clusters) -> dict:
    """Returns what the report shows of a document with its gold and its predicted clusters."""
    gold = gold_clusters(line)
    missed = links(gold, predicted)
    wrong = links(predicted, gold)
    score = None  # for a document without gold and predicted clusters
    if gold or predicted:
        score = score_documents([(gold, predicted)]).as_dict()["average_f1"]
    numbers = cluster_numbers(gold, predicted)
    numbered_gold = _numbered_spans(gold, range(len(gold)))
    numbered_predicted = _numbered_spans(predicted, numbers)
    gold_mentions = {span for _, span in numbered_gold}
    predicted_mentions = {span for _, span in numbered_predicted}
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
        "gold": _marked(line, gold, range(len(gold)), numbered_predicted, "gold"),
        "predicted": _marked(line, predicted, numbers, numbered_gold, "model"),
        "missed": [_link(line, pair) for pair in missed[:_MAX_SHOWN]],
        "wrong": [_link(line, pair) for pair in wrong[:_MAX_SHOWN]],
        "num_missed": len(missed),
        "num_wrong": len(wrong),
    }


def _link(line: DocumentLine, pair: tuple[Span, Span]) -> str:
    """Formats a link as the texts of its mentions."""
    first, second = [" ".join(line["words"][start : end + 1]) for start, end in pair]
    return f"{second} → {first}"


def cluster_numbers(gold: Clusters, predicted: Clusters) -> list[int]:
    """Numbers the predicted clusters like the gold clusters with which they share most mentions.

    Each gold cluster gives its number to one predicted cluster, the one that shares most mentions.
    All other predicted clusters get new numbers.
    """
    num_shared: dict[tuple[int, int], int] = {}  # (gold, predicted) → shared mentions
    for gold_index, spans in enumerate(gold):
        for predicted_index, others in enumerate(predicted):
            shared = set(spans) & set(others)
            if shared:
                num_shared[gold_index, predicted_index] = len(shared)
    numbers: dict[int, int] = {}  # predicted → gold
    most_first = sorted(num_shared.items(), key=lambda item: (-item[1], item[0]))
    for (gold_index, predicted_index), _ in most_first:
        if predicted_index not in numbers and gold_index not in numbers.values():
            numbers[predicted_index] = gold_index
    new_numbers = itertools.count(len(gold))
    found = []
    for index in range(len(predicted)):
        found.append(numbers[index] if index in numbers else next(new_numbers))
    return found


def _numbered_spans(clusters: Clusters, numbers: Sequence[int]) -> set[tuple[int, Span]]:
    """Returns the spans of clusters, each with the number of its cluster."""
    found: set[tuple[int, Span]] = set()
    for number, spans in zip(numbers, clusters, strict=True):
        found.update((number, span) for span in spans)
    return found


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
        others: numbers and spans of the other side. Mentions that are not there get a sign.
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


def marked_clusters(text: str, clusters: Sequence[Sequence[Sequence[int]]]) -> markupsafe.Markup:
    """Renders a text with its mentions marked and numbered; mentions may be inside of others.

    Args:
        text: the text.
        clusters: first character and the character after the last of each mention.
    """
    spans = [(*place, number) for number, places in enumerate(clusters) for place in places]
    spans.sort(key=lambda span: (span[0], -span[1]))
    parts = []
    place = 0
    ends: list[int] = []  # of the mentions that are open; of two that cross, the second ends early

    def go_on(until: int) -> None:
        nonlocal place
        while ends and ends[-1] <= until:
            end = ends.pop()
            parts.extend([markupsafe.escape(text[place:end]), markupsafe.Markup("</mark>")])
            place = end
        parts.append(markupsafe.escape(text[place:until]))
        place = until

    for start, end, number in spans:
        go_on(start)
        style = f"background: {_colour(number)}; color: #1b1d20"
        parts.append(
            markupsafe.Markup('<mark class="both" style="{}" data-note="{}">').format(
                style, number + 1
            )
        )
        ends.append(min(end, ends[-1]) if ends else end)
    go_on(len(text))
    return markupsafe.Markup("").join(parts)


def _colour(number: int) -> str:
    """Returns the colour of a cluster in CSS."""
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.82, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
