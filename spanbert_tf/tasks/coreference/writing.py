"""Predicted clusters as files: CoNLL, JSON lines, and text to read. No TensorFlow is needed."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence

from spanbert_tf.files.writing import write_text
from spanbert_tf.process.lines import escape_controls
from spanbert_tf.tasks.coreference.cluster_column import Clusters, Span, cluster_cells
from spanbert_tf.tasks.coreference.conll import document_title
from spanbert_tf.tasks.coreference.pronouns import POSSESSIVE, PRONOUNS
from spanbert_tf.tasks.coreference.records import DocumentLine

WRITTEN_FILES = (
    "predictions.conll",
    "predictions.jsonlines",
    "predictions.txt",
    "resolved.txt",
)
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def write_predictions(
    lines: Sequence[DocumentLine], predicted: Sequence[Clusters], output: str
) -> None:
    """Writes `predictions.conll`, `.jsonlines`, `.txt` and `resolved.txt` into a directory.

    Args:
        lines: lines of `documents.jsonl`.
        predicted: clusters of each document, in the same order.
        output: the directory.
    """
    for name, show in zip(WRITTEN_FILES, (as_conll, as_json, as_text, as_resolved), strict=True):
        text = "".join(show(*pair) for pair in zip(lines, predicted, strict=True))
        write_text(os.path.join(output, name), text)


def as_conll(line: DocumentLine, clusters: Clusters) -> str:
    """A document in CoNLL-2012's columns, those that are not known empty."""
    starts = set(line["sentence_starts"][1:])
    cells = cluster_cells(len(line["words"]), clusters)
    name = escape_controls(_cell(line["name"], "_"))
    name = f"_{name[1:]}" if name.startswith("#") else name  # no row begins as a comment does
    rows = [f"#begin document {document_title(line['name'], line['part'])}"]
    in_sentence = 0
    for number, (word, speaker) in enumerate(zip(line["words"], line["speakers"], strict=True)):
        if number in starts:
            rows.append("")
            in_sentence = 0
        # A word may be white space, which would be no column.
        columns = [name, line["part"], in_sentence, "".join(word.split()) or "_"]
        columns += ["-", "*", "-", "-", "-", _cell(speaker, "-"), "*", cells[number]]
        rows.append("\t".join(map(str, columns)))
        in_sentence += 1
    return "\n".join([*rows, "", "#end document", ""])


def _cell(text: str, nothing: str) -> str:
    """A text as one column, whether they are split at tabs or at any white space."""
    return "_".join(text.split()) or nothing


def as_json(line: DocumentLine, clusters: Clusters) -> str:
    """A line in the layout of e2e-coref, with `predicted_clusters` beside the gold ones."""
    borders = [*line["sentence_starts"], len(line["words"])]

    def by_sentence(values: list[str]) -> list[list[str]]:
        return [values[start:end] for start, end in itertools.pairwise(borders)]

    content = {
        "doc_key": f"{line['name']}_{line['part']}",
        "sentences": by_sentence(line["words"]),
        "speakers": by_sentence(line["speakers"]),
        "clusters": line["clusters"],
        "predicted_clusters": clusters,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def as_text(line: DocumentLine, clusters: Clusters) -> str:
    """Sentences with their mentions in brackets: `[Alice]₁ said that [she]₁ …`."""
    before: dict[int, str] = {}
    after: dict[int, str] = {}
    mentions = [(span, n) for n, spans in enumerate(clusters, start=1) for span in spans]
    for (start, _), _ in mentions:
        before[start] = before.get(start, "") + "["
    for (_, end), number in sorted(mentions, key=lambda mention: -mention[0][0]):
        after[end] = after.get(end, "") + "]" + str(number).translate(_SUBSCRIPTS)
    marked = [
        before.get(number, "") + word + after.get(number, "")
        for number, word in enumerate(line["words"])
    ]
    return _titled(line, marked)


def as_resolved(line: DocumentLine, clusters: Clusters) -> str:
    """Sentences in which pronouns are replaced: `she` by `Alice`, `her` before a noun by `Alice's`.

    A pronoun that is a mention is replaced by the first mention of its cluster that is not one, as
    it stands in the text: pronouns inside of what is put in stay. So do those of a cluster of
    pronouns alone, and one inside the mention that it would be replaced by. `her` is taken as
    possessive where it does not end its sentence's clause.
    """
    words = list(line["words"])
    for spans in clusters:
        name = next((span for span in spans if not _is_pronoun(line, span)), None)
        if name is None:
            continue
        text = " ".join(line["words"][name[0] : name[1] + 1])
        for start, end in spans:
            if _is_pronoun(line, (start, end)) and not name[0] <= start <= name[1]:
                is_possessive = _is_possessive(line, start)
                words[start] = f"{text}'s" if is_possessive else text
    return _titled(line, words)


def _is_pronoun(line: DocumentLine, span: Span) -> bool:
    return span[0] == span[1] and line["words"][span[0]].lower() in PRONOUNS


def _is_possessive(line: DocumentLine, number: int) -> bool:
    """Whether a noun can follow: `his` and `her` are also no determiners."""
    word = line["words"][number].lower()
    following = line["words"][number + 1 : number + 2]
    return word in POSSESSIVE and bool(following) and following[0][:1].isalnum()


def _titled(line: DocumentLine, words: list[str]) -> str:
    """A document's name, and a sentence a line."""
    title = f"# {escape_controls(line['name'])}, part {line['part']}"
    return "\n".join([title, *_sentences(line, words), "", ""])


def _sentences(line: DocumentLine, words: list[str]) -> Iterator[str]:
    for start, end in itertools.pairwise([*line["sentence_starts"], len(words)]):
        yield " ".join(map(escape_controls, words[start:end]))
