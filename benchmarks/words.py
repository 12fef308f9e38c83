"""Words of several segmenters: agreement with treebanks, and megabytes of text a second.

    python -m benchmarks.words --treebank zh=zh_gsdsimp-ud-dev.conllu.gz [--treebank ja=FILE …]

A treebank is a CoNLL-U file of Universal Dependencies, whose words are the gold ones. A word is
right if it begins and ends where a gold word does (the `Words` of the shared task of CoNLL 2018).
`none` is what `--word-segmentation none` leaves: BERT's words. `jieba` is measured for Chinese.

Rounds are interleaved; the table shows medians. All run in one process and thread, a sentence at a
time.
"""

import gzip
import statistics
import time
from collections.abc import Callable, Sequence

import click
from tokenizers.pre_tokenizers import BertPreTokenizer

from benchmarks.machine import describe_machine
from spanbert_tf.text.word_segmentation import byte_positions, word_cutter

ROUNDS = 3
_WAYS = {"zh": ("icu", "jieba"), "yue": ("icu", "jieba")}
_MULTIWORD_TOKEN, _EMPTY_NODE = "-", "."

Words = list[tuple[int, int]]  # first and last character (exclusive) of each word
Cut = Callable[[str], Sequence[str]]


@click.command()
@click.option("--treebank", "treebanks", required=True, multiple=True, metavar="CODE=FILE")
def main(treebanks: tuple[str, ...]) -> None:
    print(describe_machine(("icu4py", "rjieba")))
    print("| treebank | segmenter | precision | recall | F1 | MB/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for treebank in treebanks:
        language, _, path = treebank.partition("=")
        sentences = read_treebank(path)
        texts = [text for text, _ in sentences]
        ways = {"none": bert_words}
        ways |= {way: word_cutter(way, language) for way in _WAYS.get(language, ("icu",))}
        speeds = measure_speeds(ways, texts)
        for way, cut in ways.items():
            precision, recall = compare([words_of(cut(text)) for text in texts], sentences)
            f1 = 2 * precision * recall / (precision + recall)
            print(
                f"| {language} | {way} | {precision:.3f} | {recall:.3f} | {f1:.3f} | "
                f"{speeds[way]:.1f} |"
            )


def read_treebank(path: str) -> list[tuple[str, Words]]:
    """The sentences of a treebank with their words; words of one token count as one."""
    opener = gzip.open if path.endswith(".gz") else open
    sentences: list[tuple[str, Words]] = []
    with opener(path, "rt", encoding="utf-8") as file:
        for block in file.read().strip().split("\n\n"):
            text, words, last = "", [], 0
            for line in block.split("\n"):
                if line.startswith("#"):
                    continue
                number, form, *columns = line.split("\t")
                if _EMPTY_NODE in number or int(number.partition(_MULTIWORD_TOKEN)[0]) <= last:
                    continue
                last = int(number.rpartition(_MULTIWORD_TOKEN)[2])
                words.append((len(text), len(text) + len(form)))
                text += form + ("" if "SpaceAfter=No" in columns[-1] else " ")
            sentences.append((text.rstrip(" "), words))
    return sentences


def bert_words(text: str) -> list[str]:
    """Parts of a text: BERT's words, each ideograph for itself, and what is between them."""
    parts, end = [], 0
    for _, (start, stop) in BertPreTokenizer().pre_tokenize_str(text):
        parts += [text[end:start]] if start > end else []
        characters = text[start:stop]
        is_ideographic = all("\u4e00" <= character <= "\u9fff" for character in characters)
        parts += list(characters) if is_ideographic else [characters]
        end = stop
    return parts


def words_of(parts: Sequence[str]) -> Words:
    """The words among the parts of a text, without white space around them."""
    words, end = [], 0
    for part in parts:
        start = end
        end += len(part)
        if stripped := part.strip():
            start += part.index(stripped)
            words.append((start, start + len(stripped)))
    return words


def compare(found: list[Words], sentences: list[tuple[str, Words]]) -> tuple[float, float]:
    """Precision and recall of words."""
    right = num_found = num_gold = 0
    for words, (_, gold) in zip(found, sentences, strict=True):
        right += len(set(words) & set(gold))
        num_found += len(words)
        num_gold += len(gold)
    return right / num_found, right / num_gold


def measure_speeds(ways: dict[str, Cut], texts: Sequence[str]) -> dict[str, float]:
    """Megabytes of text a second, the median of all rounds."""
    size = sum(byte_positions(text)[-1] for text in texts) / 1e6
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, cut in ways.items():
            started = time.perf_counter()
            for text in texts:
                cut(text)
            speeds[way].append(size / (time.perf_counter() - started))
    return {way: statistics.median(values) for way, values in speeds.items()}


if __name__ == "__main__":
    main()
