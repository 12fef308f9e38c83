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
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import click
import numpy as np

from spanbert_tf.command_line import run_command
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.tasks.coreference.conll import (
    ClusterColumn,
    Header,
    document_title,
    read_header,
)
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
        """Returns the sums of both."""
        return Counts(*map(operator.add, self, other))

    def percentages(self) -> tuple[float, float, float]:
        """Returns recall, precision and F1 in percent, cut (not rounded) to two decimals."""
        recall = self.recall_part / self.recall_whole if self.recall_whole else 0.0
        precision = self.precision_part / self.precision_whole if self.precision_whole else 0.0
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        return _cut(recall), _cut(precision), _cut(f1)


def score_document(
    key: Sequence[Cluster], response: Sequence[Cluster]
) -> tuple[dict[str, Counts], int]:
    """Scores one document.

    A right mention counts only at its first occurrence; repeats of wrong mentions stay, as in the
    official scorer.

    Args:
        key: the gold clusters.
        response: the predicted clusters.

    Returns:
        The counts for each metric, and the number of repeats that were left out.
    """
    cluster_of: dict[Mention, int] = {}
    for number, cluster in enumerate(key):
        cluster_of |= dict.fromkeys(cluster, number)
    response, num_repeats = _without_repeats(response, cluster_of)
    shared = _shared_mentions(key, response, cluster_of)
    num_right = int(shared.sum())
    num_found = len(set().union(*response))
    # Vilain et al., 1995: clusters need at least one link less than they have mentions.
    right_links = num_right - int(np.count_nonzero(shared))
    key_links = _num_links(key)
    response_links = _num_links(response)
    counts = {
        "mentions": Counts(num_right, len(cluster_of), num_right, num_found),
        "muc": Counts(right_links, key_links, right_links, response_links),
        "bcub": _b_cubed(key, response, cluster_of),
        "ceafm": _ceaf(shared, sum(map(len, key)), sum(map(len, response))),
        "ceafe": _ceaf(_dice(shared, key, response), len(key), len(response)),
    }
    return counts, num_repeats


def _num_links(clusters: Sequence[Cluster]) -> int:
    """Returns how many links connect the mentions of clusters."""
    return sum(len(cluster) - 1 for cluster in clusters if cluster)


def average_f1(counts: Mapping[str, Counts]) -> float:
    """Returns CoNLL's score: the mean of the three cut F1 of MUC, B³ and CEAF-e."""
    return sum(counts[name].percentages()[2] for name in _AVERAGED) / len(_AVERAGED)


def _cut(ratio: float) -> float:
    """Returns a ratio in percent, cut to two decimals."""
    return math.floor(ratio * 10000) / 100


def _without_repeats(
    response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> tuple[list[list[Mention]], int]:
    """Removes repeats of right mentions, and counts them."""
    seen: set[Mention] = set()
    kept: list[list[Mention]] = []
    num_repeats = 0
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
    """Computes B³ (Bagga and Baldwin, 1998): how much of each mention's cluster is right."""
    recall = 0.0
    precision = 0.0
    for cluster in response:
        found = collections.Counter(
            cluster_of[mention] for mention in cluster if mention in cluster_of
        )
        for number, size in found.items():
            recall += size * size / len(key[number])
            precision += size * size / len(cluster)
    return Counts(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _shared_mentions(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> np.ndarray:
    """Counts the mentions that each two clusters share, float [key, response]."""
    shared = np.zeros([len(key), len(response)])
    for number, cluster in enumerate(response):
        for mention in cluster:
            if mention in cluster_of:
                shared[cluster_of[mention], number] += 1
    return shared


def _dice(shared: np.ndarray, key: Sequence[Cluster], response: Sequence[Cluster]) -> np.ndarray:
    """Divides twice the shared mentions by the mentions of both, float [key, response]."""
    key_sizes = np.array([len(cluster) for cluster in key], float)
    response_sizes = np.array([len(cluster) for cluster in response], float)
    both = key_sizes[:, np.newaxis] + response_sizes[np.newaxis]
    return 2 * shared / np.maximum(both, 1)


def _ceaf(similarity: np.ndarray, whole_of_key: int, whole_of_response: int) -> Counts:
    """Computes CEAF (Luo, 2005): the similarity of the best one-to-one alignment of clusters."""
    from scipy.optimize import linear_sum_assignment  # takes time to import

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    # Added in the order of the key, as in the official scorer: the last digit can depend on it.
    best = float(sum(similarity[rows, columns].tolist()))
    return Counts(best, whole_of_key, best, whole_of_response)


class Score(NamedTuple):
    """The score of some documents.

    Attributes:
        counts: metric → counts, added up over the documents.
        num_repeats: number of repeats of right mentions in the response. They are not counted.
        is_paired_by_order: whether documents have no names and were paired by their order.
    """

    counts: dict[str, Counts]
    num_repeats: int
    is_paired_by_order: bool = False

    def as_dict(self) -> dict[str, float]:
        """Returns, in percent, `average_f1`, and recall, precision and F1 of each metric."""
        values = {"average_f1": average_f1(self.counts)}
        for name in METRICS:
            recall, precision, f1 = self.counts[name].percentages()
            values[f"{name}_recall"] = recall
            values[f"{name}_precision"] = precision
            values[f"{name}_f1"] = f1
        return values


def score_documents(pairs: Iterable[tuple[Clusters, Clusters]]) -> Score:
    """Scores documents.

    Args:
        pairs: gold and predicted clusters of each document.
    """
    totals = dict.fromkeys(METRICS, Counts())
    num_repeats = 0
    for key, response in pairs:
        counts, repeats = score_document(key, response)
        totals = {name: totals[name] + counts[name] for name in METRICS}
        num_repeats += repeats
    return Score(totals, num_repeats)


class _Document(NamedTuple):
    """A document of a CoNLL file."""

    name: str | None
    line: int  # in its file, from 1
    num_words: int
    clusters: Clusters


def read_clusters(path: str) -> list[_Document]:
    """Reads the documents of a CoNLL file with their clusters, from its last column.

    All spellings of a name are the same: `(NAME); part 000`, `(NAME); part 0` and GUM's `NAME`.
    """
    documents: list[_Document] = []
    names: set[str] = set()
    begun: Callable[[int, Clusters], _Document] | None = None
    column = ClusterColumn(path)
    word = 0
    for number, line in enumerate(read_text_file(path).split("\n"), start=1):
        if line.startswith("#"):
            if begun is not None:
                documents.append(begun(word, column.clusters()))
            header = read_header(line)
            begun = None
            column = ClusterColumn(f"{path}: {line.strip()}")
            word = 0
            if header:
                name = _name(header)
                if name in names:
                    raise BadInputError(f"{path}: line {number}: document {name!r} occurs twice")
                if name:
                    names.add(name)
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


def _name(header: Header) -> str | None:
    """Returns the title of a document; `None` for GUM's `# begin document` without a name."""
    if header.part:
        return document_title(header.name or "", int(header.part))
    return document_title(header.bare_name, 0) if header.bare_name else None


def score_files(key: str, response: str) -> Score:
    """Scores a file of predictions. Documents that are not in the key do not count.

    If a document of either file has no name, as in GUM, all documents are paired by their order.

    Args:
        key: path of the gold file.
        response: path of the file of predictions.

    Raises:
        BadInputError: a file cannot be used, or their documents do not fit each other.
    """
    keys = read_clusters(key)
    responses = read_clusters(response)
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
    """Checks that documents can be those at the same places of the other file."""
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
    """Formats a score as a table, with notes on repeats and on documents without names."""
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
    """Links mentions that are written the same, ignoring case. This is the untrained baseline.

    Mentions are names, which are runs of capitalised words (the first word of a sentence only if
    the text also has it capitalised elsewhere); a determiner with the word after it; and pronouns.
    """
    return [_links(line) for line in documents]


def _links(line: DocumentLine) -> Clusters:
    """Returns the clusters of mentions of a document that are written the same."""
    words = line["words"]
    clusters = collections.defaultdict(list)
    for start, end in _mentions_alike(words, set(line["sentence_starts"])):
        clusters[" ".join(words[start : end + 1]).lower()].append((start, end))
    return [spans for spans in clusters.values() if len(spans) > 1]


def _mentions_alike(words: list[str], sentence_starts: set[int]) -> list[Span]:
    """Returns the mentions of the baseline in a document."""
    inside = {word for index, word in enumerate(words) if index not in sentence_starts}

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
    if start is not None:
        found.append((start, len(words) - 1))
    return found


@click.command()
@click.argument("key", metavar="KEY")
@click.argument("response", metavar="RESPONSE")
def main(key: str, response: str) -> None:
    """Score the clusters of a CoNLL file against those of another one."""
    for line in describe_score(score_files(key, response)).split("\n"):
        print_line(line)


def _run(arguments: Sequence[str]) -> None:
    """Runs the command with some arguments."""
    run_command(main, "python -m spanbert_tf.tasks.coreference.metrics", arguments)


if __name__ == "__main__":
    import sys

    _run(sys.argv[1:])
