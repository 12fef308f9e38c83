"""What windows lose: gold clusters are cut into the windows of long texts, and joined again.

    python -m benchmarks.coreference_windows --input FILES --vocabulary FILE

A resolver that makes no mistake in any window has the F1 that is printed. A mention that is alone
in a window is not found there, as by a resolver without singletons.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import click
import numpy as np

from spanbert_tf.serving.description import Description
from spanbert_tf.tasks.coreference.conll import Document
from spanbert_tf.tasks.coreference.files import read_documents
from spanbert_tf.tasks.coreference.graph import NO_CLUSTER
from spanbert_tf.tasks.coreference.metrics import score_documents
from spanbert_tf.tasks.coreference.records import Clusters
from spanbert_tf.tasks.coreference.windows import cut_text, join_windows
from spanbert_tf.text.vocabulary import TextRules, load_vocabulary

SEGMENT = 128
SIZES = (2, 4, 8)  # segments of a window


class Kept(NamedTuple):
    """What is left of the clusters of documents that are longer than a window."""

    num_windows: int
    gold: list[Clusters]
    found: list[Clusters]

    @property
    def share_whole(self) -> float:
        """The share of the gold clusters that are found whole."""
        wholes = [
            any(set(spans) <= set(others) for others in found)
            for gold, found in zip(self.gold, self.found, strict=True)
            for spans in gold
        ]
        return sum(wholes) / len(wholes)

    @property
    def average_f1(self) -> float:
        """The CoNLL score."""
        return score_documents(zip(self.gold, self.found, strict=True)).as_dict()["average_f1"]


@click.command(help=__doc__.splitlines()[0])
@click.option("--input", "patterns", multiple=True, required=True)
@click.option("--vocabulary", required=True, type=click.Path(exists=True, dir_okay=False))
def main(patterns: tuple[str, ...], vocabulary: str) -> None:
    """Prints a row of a table for each size of windows."""
    documents = read_documents(patterns, drops_singletons=True)
    pieces = load_vocabulary(vocabulary)
    print("| window | both windows have | longer documents | windows | whole clusters | F1 |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in SIZES:
        kept = keep(documents, pieces, size)
        print(
            f"| {size * SEGMENT:,} | {max(size // 4, 1) * SEGMENT} | {len(kept.gold)} of "
            f"{len(documents)} | {kept.num_windows} | {kept.share_whole:.1%} | "
            f"{kept.average_f1:.2f} |",
            flush=True,
        )


def keep(documents: Sequence[Document], vocabulary: list[str], size: int) -> Kept:
    """Cuts the gold clusters of documents into windows, and joins them.

    Args:
        documents: the documents; shorter ones than a window are left out.
        vocabulary: entries in order of their ids.
        size: number of segments of a window.
    """
    description = Description(
        "coreference",
        fields=("text",),
        labels=(),
        settings={},
        signature="sentences",
        top_k=1,
        sequence_length=SEGMENT,
        example={},
        text_rules=TextRules.of(lowercase=False),
        vocabulary=vocabulary,
    )
    kept = Kept(0, [], [])
    for document in documents:
        num_windows, found = _found(description, document, size * SEGMENT)
        if num_windows > 1:
            kept.gold.append(document.clusters)
            kept.found.append(found)
            kept = kept._replace(num_windows=kept.num_windows + num_windows)
    return kept


def _found(description: Description, document: Document, max_tokens: int) -> tuple[int, Clusters]:
    """Returns the number of windows, and the joined clusters of what lies whole in a window."""
    ends = list(itertools.accumulate(len(word) + 1 for word in document.words))
    starts = [0, *ends[:-1]]
    item = {
        "text": " ".join(document.words),
        "speakers": "",
        "sentence_starts": [starts[word] for word in document.sentence_starts or ()],
    }
    windows = cut_text(description, item, max_tokens)
    found = []
    for window in windows:
        begin = window.get("first_character", 0)
        rows = []
        for number, spans in enumerate(document.clusters):
            places = [(starts[first] - begin, ends[last] - 1 - begin) for first, last in spans]
            inside = [row for row in places if row[0] >= 0 and row[1] <= len(window["text"])]
            # A mention alone refers to nothing here.
            rows += [(*row, number if len(inside) > 1 else NO_CLUSTER) for row in inside]
        columns = np.array(rows, "int32").reshape(-1, 3).T
        found.append(dict(zip(("starts", "ends", "clusters"), columns, strict=True)))
    if len(windows) == 1:
        return 1, document.clusters
    joined = join_windows(windows, found)
    clusters: Clusters = [[] for _ in set(joined["clusters"].tolist())]
    for start, end, number in zip(*(column.tolist() for column in joined.values()), strict=True):
        clusters[number].append((starts.index(start), ends.index(end + 1)))
    return len(windows), clusters


if __name__ == "__main__":
    main()
