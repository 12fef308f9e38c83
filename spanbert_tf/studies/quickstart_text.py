"""The quickstart's text, which comes with every CPython: its language reference and its docstrings;
and held-out sentences of it with a word masked, to look at what a model fills in.
"""

import ast
import dataclasses
import itertools
import os
import pathlib
import re
import sysconfig
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import SENTENCE_STARTS, VOCABULARY_FILE, PretrainingManifest
from spanbert_tf.data.rows import parse_records
from spanbert_tf.text.vocabulary import MASK_TOKEN, is_continuation, load_vocabulary

_SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib"})
_LEAST_WORDS = 6
_BATCH_SIZE = 64
_SENTENCE_WORDS = range(8, 21)
_LEAST_LETTERS = 4
_COMMON_WORDS = 200  # entries that the training text has most often


def write_python_texts(directory: str) -> int:
    """Writes one plain text file for each topic of the reference and each documented module.

    Paragraphs are separated by an empty line. Code, headings and grammar are left out, and so is
    a paragraph that has been written before: topics quote one another, and a held-out text must
    not be a copy of a training text.
    """
    os.makedirs(directory)
    seen: set[str] = set()
    num_files = 0
    for name, text in (*_reference_topics(), *_module_docstrings()):
        joined = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
        prose = dict.fromkeys(filter(_is_prose, joined))  # each once, in order
        paragraphs = [paragraph for paragraph in prose if paragraph not in seen]
        if not paragraphs:
            continue
        seen.update(paragraphs)
        num_files += 1
        with open(os.path.join(directory, f"{name}.txt"), "w", encoding="utf-8") as file:
            file.write("\n\n".join(paragraphs) + "\n")
    return num_files


def _reference_topics() -> Iterator[tuple[str, str]]:
    """Chapters of the language reference, as `help()` shows them."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"reference.{name}", text


def _module_docstrings() -> Iterator[tuple[str, str]]:
    """All docstrings of each module of the standard library, from its source."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED_DIRECTORIES.intersection(parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # files that hold errors on purpose
            continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        docstrings = [ast.get_docstring(node) for node in nodes]
        yield "module." + ".".join(parts), "\n\n".join(filter(None, docstrings))


def _is_prose(paragraph: str) -> bool:
    """Whether it reads like a sentence: some words, an end mark, no interpreter's prompt."""
    ends_like_prose = paragraph.endswith((".", ":", "!", "?", ")"))
    return ends_like_prose and len(paragraph.split()) >= _LEAST_WORDS and ">>>" not in paragraph


@dataclasses.dataclass(frozen=True)
class MaskedSentence:
    """A sentence with one word masked.

    Attributes:
        text: the sentence with `[MASK]`, its words and marks separated by blanks.
        answer: the word that was there.
    """

    text: str
    answer: str


def choose_masked_sentences(directory: str, num_sentences: int) -> list[MaskedSentence]:
    """The first held-out sentences, each of another record, that have a common word to mask."""
    info = PretrainingManifest.load(directory)
    vocabulary = load_vocabulary(f"{directory}/{VOCABULARY_FILE}")
    candidates = [number for number, piece in enumerate(vocabulary) if _is_long_word(piece)]
    counts = np.array(info.unigram_counts(directory))
    common = sorted(candidates, key=lambda number: -counts[number])[:_COMMON_WORDS]
    words = {vocabulary[number] for number in common}
    chosen = []
    for sentences in _records_of_sentences(directory):
        masked = [_mask_one_word([vocabulary[i] for i in ids], words) for ids in sentences]
        chosen += [sentence for sentence in masked if sentence is not None][:1]
        if len(chosen) == num_sentences:
            break
    return chosen


def _records_of_sentences(directory: str) -> Iterator[list[np.ndarray]]:
    """For each held-out record the token ids of its whole sentences."""
    info = PretrainingManifest.load(directory)
    files = info.files(directory, "validation")
    for serialized in tf.data.TFRecordDataset(files).batch(_BATCH_SIZE):
        records = parse_records(serialized, info, (SENTENCE_STARTS,))
        values, num_starts = (part.numpy() for part in records.lists[SENTENCE_STARTS])
        for row, token_ids in enumerate(records.token_ids.numpy()):
            starts = values[row, : num_starts[row]]
            # The block's first sentence may have begun before it, and its last may go on after.
            yield [token_ids[start:end] for start, end in itertools.pairwise(starts[1:])]


def _mask_one_word(pieces: list[str], words: set[str]) -> MaskedSentence | None:
    """Masks the one of `words` that is nearest to the middle of a sentence."""
    joined: list[str] = []
    for piece in pieces:
        if is_continuation(piece) and joined:
            joined[-1] += piece.removeprefix("##")
        else:
            joined.append(piece)
    places = [place for place, word in enumerate(joined) if word in words]
    if len(joined) not in _SENTENCE_WORDS or not places:
        return None
    place = min(places, key=lambda place: abs(place - len(joined) / 2))
    text = " ".join([*joined[:place], MASK_TOKEN, *joined[place + 1 :]])
    return MaskedSentence(text, joined[place])


def _is_long_word(piece: str) -> bool:
    return piece.isalpha() and len(piece) >= _LEAST_LETTERS
