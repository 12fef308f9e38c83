"""MUC, B³, CEAF and mention detection, by the rules of the official scorer 8.01.

Pradhan et al., 2014, "Scoring coreference partitions of predicted mentions: a reference
implementation". Clusters are lists of spans; singletons count where they are given.

`python -m spanbert_tf.tasks.coreference.metrics KEY RESPONSE` scores any two CoNLL files: it prints
what `scorer.pl all KEY RESPONSE none` does, without Perl and without BLANC. Nothing here needs
TensorFlow.
"""

import collections
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import click
import numpy as np

from spanbert_tf.command_line import run_command
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.tasks.coreference.conll import ClusterColumn, document_title, read_header
from spanbert_tf.tasks.coreference.files import PRONOUNS
from spanbert_tf.tasks.coreference.records import Clusters, DocumentLine, Span
from spanbert_tf.terminal import print_line

METRICS = ("mentions", "muc", "bcub", "ceafm", "ceafe")
_AVERAGED = ("muc", "bcub", "ceafe")  # CoNLL's score
_DETERMINERS = frozenset(("the", "this", "that", "these", "those"))
REPEATS_PERL_REFUSES = 10
TITLES = {
    "mentions": "Identification of Mentions",
    "muc": "MUC",
    "bcub": "B-cubed",
    "ceafm": "CEAF-m",
    "ceafe": "CEAF-e",
}

Mention = Hashable
Cluster = Sequence[Mention]


class Counts(NamedTuple):
    """The numerators and denominators of recall and precision; those of documents are added up."""

    recall_part: float = 0.0
    recall_whole: float = 0.0
    precision_part: float = 0.0
    precision_whole: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":  # type: ignore[override]
        """Those of both."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def percentages(self) -> tuple[float, float, float]:
        """Recall, precision and F1 in percent, cut (not rounded) to two decimals."""
        recall = self.recall_part / self.recall_whole if self.recall_whole else 0.0
        precision = self.precision_part / self.precision_whole if self.precision_whole else 0.0
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        return _cut(recall), _cut(precision), _cut(f1)


def score_document(
    key: Sequence[Cluster], response: Sequence[Cluster]
) -> tuple[dict[str, Counts], int]:
    """The counts of one document for each metric, and how many repeats were left out.

    A right mention counts at its first occurrence alone; repeats of wrong ones stay, as in the
    official scorer.
    """
    cluster_of = {mention: n for n, cluster in enumerate(key) for mention in cluster}
    response, num_repeats = _without_repeats(response, cluster_of)
    shared = _shared_mentions(key, response, cluster_of)
    num_right, found = int(shared.sum()), {mention for cluster in response for mention in cluster}
    # Vilain et al., 1995: the links that clusters need at least.
    right_links = num_right - int(np.count_nonzero(shared))
    links = [sum(len(cluster) - 1 for cluster in some if cluster) for some in (key, response)]
    counts = {
        "mentions": Counts(num_right, len(cluster_of), num_right, len(found)),
        "muc": Counts(right_links, links[0], right_links, links[1]),
        "bcub": _b_cubed(key, response, cluster_of),
        "ceafm": _ceaf(shared, sum(map(len, key)), sum(map(len, response))),
        "ceafe": _ceaf(_dice(shared, key, response), len(key), len(response)),
    }
    return counts, num_repeats


def average_f1(counts: Mapping[str, Counts]) -> float:
    """CoNLL's score: the mean of the three cut F1 of MUC, B³ and CEAF-e."""
    return sum(counts[name].percentages()[2] for name in _AVERAGED) / len(_AVERAGED)


def _cut(ratio: float) -> float:
    return math.floor(ratio * 10000) / 100


def _without_repeats(
    response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> tuple[list[list[Mention]], int]:
    seen: set[Mention] = set()
    kept, num_repeats = [], 0
    for cluster in response:
        mentions = []
        for mention in cluster:
            if mention in seen:
                num_repeats += 1
                continue
            if mention in cluster_of:
                seen.add(mention)
            mentions.append(mention)
        if mentions:
            kept.append(mentions)
    return kept, num_repeats


def _b_cubed(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> Counts:
    """Bagga and Baldwin, 1998: of each mention's cluster, how much is right."""
    recall = precision = 0.0
    for cluster in response:
        found = collections.Counter(cluster_of[m] for m in cluster if m in cluster_of)
        for number, size in found.items():
            recall += size * size / len(key[number])
            precision += size * size / len(cluster)
    return Counts(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _shared_mentions(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> np.ndarray:
    """How many mentions each two clusters share, float [key, response]."""
    shared = np.zeros([len(key), len(response)])
    for number, cluster in enumerate(response):
        for mention in cluster:
            if mention in cluster_of:
                shared[cluster_of[mention], number] += 1
    return shared


def _dice(shared: np.ndarray, key: Sequence[Cluster], response: Sequence[Cluster]) -> np.ndarray:
    """Twice the shared mentions by the mentions of both, float [key, response]."""
    sizes = [np.array(list(map(len, clusters)), float) for clusters in (key, response)]
    both = sizes[0][:, np.newaxis] + sizes[1][np.newaxis]
    return 2 * shared / np.maximum(both, 1)


def _ceaf(similarity: np.ndarray, whole_of_key: int, whole_of_response: int) -> Counts:
    """Luo, 2005: the best one-to-one alignment of the clusters."""
    from scipy.optimize import linear_sum_assignment  # takes a while, and one metric needs it

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    # Added in the order of the key, as the official scorer does: the last digit can depend on it.
    best = float(sum(similarity[rows, columns].tolist()))
    return Counts(best, whole_of_key, best, whole_of_response)


class Score(NamedTuple):
    """The score of some documents."""

    counts: dict[str, Counts]  # of each metric, added up over the documents
    num_repeats: int  # right mentions that a response has again and again, and which count once
    is_paired_by_order: bool = False  # for documents without names

    def as_dict(self) -> dict[str, float]:
        """In percent: `average_f1`, and recall, precision and F1 of each metric."""
        values = {"average_f1": average_f1(self.counts)}
        for name in METRICS:
            measures = zip(
                ("recall", "precision", "f1"), self.counts[name].percentages(), strict=True
            )
            values |= {f"{name}_{measure}": percent for measure, percent in measures}
        return values


def score_documents(pairs: Iterable[tuple[Clusters, Clusters]]) -> Score:
    """The score of documents."""
    totals = dict.fromkeys(METRICS, Counts())
    num_repeats = 0
    for key, response in pairs:
        counts, repeats = score_document(key, response)
        totals = {name: totals[name] + counts[name] for name in METRICS}
        num_repeats += repeats
    return Score(totals, num_repeats)


class _Document(NamedTuple):
    name: str | None
    line: int  # in its file, from 1
    num_words: int
    clusters: Clusters


def read_clusters(path: str) -> list[_Document]:
    """The documents of a CoNLL file with their clusters, which its last column tells.

    However a file spells a name: `(NAME); part 000` is `(NAME); part 0`, and GUM's bare `NAME`.
    """
    documents: list[_Document] = []
    names: set[str] = set()
    begun: Callable[[int, Clusters], _Document] | None = None
    column, word = ClusterColumn(path), 0
    for number, line in enumerate(read_text_file(path).split("\n"), start=1):
        if line.startswith("#"):
            if begun is not None:
                documents.append(begun(word, column.clusters()))
            begin, begun = read_header(line), None
            column, word = ClusterColumn(f"{path}: {line.strip()}"), 0
            if begin:
                name = _name(begin)
                if name in names:
                    raise BadInputError(f"{path}: line {number}: document {name!r} is there twice")
                names |= {name} if name else set()
                begun = functools.partial(_Document, name, number)
        elif line.strip():
            if begun is None:
                raise BadInputError(f"{path}: line {number}: stands before any `#begin document`")
            column.read(line.split()[-1], word, number)
            word += 1
    if begun is not None:
        documents.append(begun(word, column.clusters()))
    if not documents:
        raise BadInputError(f"{path}: holds no document; one begins with `#begin document (NAME)`")
    return documents


def _name(begin: tuple[str | None, ...]) -> str | None:
    """`None` for GUM's `# begin document`, which names nothing."""
    name, part, bare = begin
    if not part and not bare:
        return None
    return document_title(name if part else bare, int(part or 0))


def score_files(key: str, response: str) -> Score:
    """The score of a file of predictions; documents that are not in the key do not count.

    Where documents of a file have no names, as GUM's, both files' are paired by their order.
    """
    keys, responses = read_clusters(key), read_clusters(response)
    if any(document.name is None for document in (*keys, *responses)):
        _check_order(key, keys, response, responses)
        pairs = zip(keys, responses, strict=True)
        score = score_documents((gold.clusters, predicted.clusters) for gold, predicted in pairs)
        return score._replace(is_paired_by_order=True)
    predicted = {document.name: document.clusters for document in responses}
    if not any(document.name in predicted for document in keys):
        raise BadInputError(f"{response}: holds no document of {key}, such as {keys[0].name!r}")
    return score_documents((gold.clusters, predicted.get(gold.name, [])) for gold in keys)


def _check_order(
    key: str, keys: Sequence[_Document], response: str, responses: Sequence[_Document]
) -> None:
    """Refuses documents that cannot be those at the same places of the other file."""
    if len(keys) != len(responses):
        raise BadInputError(
            f"{response}: holds {len(responses)} documents, and {key} {len(keys)}; some have no "
            "name, so that they are paired by their order: give as many, or name them "
            "(`#begin document (NAME); part 000`)"
        )
    for gold, predicted in zip(keys, responses, strict=True):
        place = f"{response}: line {predicted.line}"
        if gold.num_words != predicted.num_words:
            raise BadInputError(
                f"{place}: the document has {predicted.num_words} words, and that of {key}, line "
                f"{gold.line}, {gold.num_words}; documents without names are paired by their order"
            )
        if None not in (gold.name, predicted.name) and gold.name != predicted.name:
            raise BadInputError(
                f"{place}: is document {predicted.name!r}, and at its place in {key} is "
                f"{gold.name!r}; others have no name, so that all are paired by their order"
            )


def describe_score(score: Score) -> str:
    """A table for people, and what they should know of it."""
    lines = [f"{'':28}{'recall':>9}{'precision':>11}{'F1':>9}"]
    for name, title in TITLES.items():
        recall, precision, f1 = score.counts[name].percentages()
        lines.append(f"{title:28}{recall:9.2f}{precision:11.2f}{f1:9.2f}")
    lines.append(f"{'average F1 (MUC, B³, CEAF-e)':48}{average_f1(score.counts):9.2f}")
    if score.num_repeats > REPEATS_PERL_REFUSES:
        lines.append(
            f"{score.num_repeats} mentions of the response are repeats, and count once; the "
            f"official scorer refuses more than {REPEATS_PERL_REFUSES}"
        )
    if score.is_paired_by_order:
        lines.append("documents have no names: they were paired by their order in the two files")
    return "\n".join(lines)


def link_equal_strings(documents: Iterable[DocumentLine]) -> list[Clusters]:
    """Links what is written alike, whatever its case: the baseline, without any training.

    Mentions are names, that is runs of capitalised words as long as can be (the first word of a
    sentence only where the text has it capitalised elsewhere, too); a determiner with the word
    after it; and pronouns.
    """
    return [_links(line) for line in documents]


def _links(line: DocumentLine) -> Clusters:
    words = line["words"]
    clusters = collections.defaultdict(list)
    for start, end in _mentions_alike(words, set(line["sentence_starts"])):
        clusters[" ".join(words[start : end + 1]).lower()].append((start, end))
    return [spans for spans in clusters.values() if len(spans) > 1]


def _mentions_alike(words: list[str], sentence_starts: set[int]) -> list[Span]:
    inside = {word for n, word in enumerate(words) if n not in sentence_starts}

    def is_name(number: int) -> bool:
        word = words[number]
        is_capitalised = word[:1].isupper() and word.lower() not in PRONOUNS | _DETERMINERS
        return is_capitalised and (number not in sentence_starts or word in inside)

    found: list[Span] = []
    start = None
    for number, word in enumerate(words):
        begins = number in sentence_starts
        if start is not None and (begins or not is_name(number)):
            found.append((start, number - 1))
            start = None
        if is_name(number):
            start = number if start is None else start
        elif word.lower() in PRONOUNS:
            found.append((number, number))
        elif word.lower() in _DETERMINERS and number + 1 < len(words):
            found.append((number, number + 1))
    return found if start is None else [*found, (start, len(words) - 1)]


@click.command()
@click.argument("key", metavar="KEY")
@click.argument("response", metavar="RESPONSE")
def main(key: str, response: str) -> None:
    """Score the clusters of a CoNLL file against those of another one."""
    for line in describe_score(score_files(key, response)).split("\n"):
        print_line(line)


def _run(arguments: Sequence[str]) -> None:
    run_command(main, "python -m spanbert_tf.tasks.coreference.metrics", arguments)


if __name__ == "__main__":
    import sys

    _run(sys.argv[1:])
