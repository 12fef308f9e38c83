"""The figures of other languages: the tables of docs/other_languages.md, and sentences of ICU.

    python -m benchmarks.other_languages --questions DIR --treebanks DIR

`questions` has `xquad.CODE.json.gz` and `cmrc2018_trial.json.gz`, `treebanks` CoNLL-U files of
Universal Dependencies. Sentences are compared with those of ICU, and the loss of an encoder that
masks words with that of one that masks what BERT takes for words. With `--steps 0` nothing is
trained.
"""

import collections
import gzip
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence

import click
import keras
import numpy as np
from icu4py.breakers import SentenceBreaker
from tokenizers.pre_tokenizers import BertPreTokenizer

from benchmarks.machine import describe_machine
from data_prep.beam.writing import write_pretraining_records
from data_prep.text.unknown_words import find_unknown_words
from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.config import load_config
from spanbert_tf.data.pretraining import pretraining_dataset
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.preset import Preset
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.studies.held_out_text import loss_per_character, read_held_out_text
from spanbert_tf.tasks.question_answering.files import read_squad
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.text.sentences import find_sentence_starts
from spanbert_tf.text.tokenization import longest_word
from spanbert_tf.text.vocabulary import TextRules, has_accents, load_vocabulary

VOCABULARY_SIZE = 8000
SEQUENCE_LENGTH = 128
_SENTENCES_AT_ONCE = 10
_XQUAD = {"de": "German", "ar": "Arabic", "hi": "Hindi", "zh": "Chinese", "th": "Thai"}
_CMRC = "cmrc2018_trial.json.gz"
# What stands between two sentences of a treebank.
_TREEBANKS = {"de_gsd": " ", "en_ewt": " ", "ru_gsd": " ", "zh_gsdsimp": "", "ja_gsd": ""}
_CASED = TextRules.of(False)


@click.command()
@click.option("--questions", required=True, metavar="DIR")
@click.option("--treebanks", required=True, metavar="DIR")
@click.option("--steps", default=300, show_default=True, help="Steps of each pre-training run.")
@click.option("--seeds", default=3, show_default=True, help="Runs with words, and without.")
def main(questions: str, treebanks: str, steps: int, seeds: int) -> None:
    print(describe_machine(("tensorflow", "tokenizers", "icu4py")))
    contexts = {
        name: read_squad(os.path.join(questions, f"xquad.{name}.json.gz")).contexts
        for name in _XQUAD
    }
    sentences = {name: read_sentences(treebanks, name) for name in _TREEBANKS}
    print_casing(contexts, sentences)
    print_sentences(sentences)
    print_phrases(contexts["th"])
    with tempfile.TemporaryDirectory() as directory:
        print_questions(questions, contexts, directory)
        cmrc = read_squad(os.path.join(questions, _CMRC)).contexts
        records = {}
        for name, texts in (("zh", cmrc), ("th", contexts["th"])):
            records[name] = write_both(name, texts, os.path.join(directory, f"records.{name}"))
        print_spans(records)
        if steps:
            print_losses(records["zh"], os.path.join(directory, "runs"), steps, seeds)


def read_sentences(treebanks: str, name: str) -> list[str]:
    """Reads the sentences of a treebank's development set."""
    path = os.path.join(treebanks, f"{name}-ud-dev.conllu.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line[9:].strip() for line in file if line.startswith("# text = ")]


def print_casing(contexts: dict[str, list[str]], sentences: dict[str, list[str]]) -> None:
    """Prints which share of the characters loses a mark by `--lowercase`."""
    print("\n| text | characters that lose a mark |\n| --- | ---: |")
    texts = {f"XQuAD, {language}": contexts[name] for name, language in _XQUAD.items()}
    texts |= {f"UD {name}": found for name, found in sentences.items()}
    for name, found in texts.items():
        letters = [letter for text in found for letter in text if not letter.isspace()]
        share = statistics.fmean(map(has_accents, letters))
        print(f"| {name} | {share:.2%} |", flush=True)


def print_sentences(sentences: dict[str, list[str]]) -> None:
    """Prints the F1 of the places where sentences begin, ten sentences joined at a time."""
    print("\n| sentences | this package | ICU |\n| --- | --- | --- |")
    for name, found in sentences.items():
        language = name[:2]
        joined = [
            [f"{sentence}{_TREEBANKS[name]}" for sentence in found[first : first + 10]]
            for first in range(0, len(found), _SENTENCES_AT_ONCE)
        ]
        texts = ["".join(parts) for parts in joined]
        gold = [starts_of(parts) for parts in joined]
        ours = f1([find_sentence_starts(text, language)[1:] for text in texts], gold)
        icus = f1([starts_of(SentenceBreaker(text, language)) for text in texts], gold)
        print(f"| {name} | {ours:.3f} | {icus:.3f} |", flush=True)


def starts_of(parts: Sequence[str]) -> list[int]:
    """Finds where the parts of a text begin, but for the first."""
    return [*itertools.accumulate(map(len, parts))][:-1]


def f1(found: list[list[int]], gold: list[list[int]]) -> float:
    """Returns the F1 of places in texts."""
    num_right = sum(len(set(a) & set(b)) for a, b in zip(found, gold, strict=True))
    return 2 * num_right / (sum(map(len, found)) + sum(map(len, gold)))


def print_phrases(contexts: Sequence[str]) -> None:
    """Prints how many words of BERT are longer than a word may be without a language."""
    splitter = BertPreTokenizer()
    words = [word for text in contexts for word, _ in splitter.pre_tokenize_str(text)]
    long = [word for word in words if len(word.encode()) > longest_word(_CASED)]
    share = sum(map(len, long)) / sum(map(len, words))
    print(f"\nThai: {len(long):,} of {len(words):,} phrases, {share:.1%} of their characters")


def print_questions(questions: str, contexts: dict[str, list[str]], directory: str) -> None:
    """Prints what of the contexts is [UNK], and what becomes of the answers."""
    lines = []
    for name, language in _XQUAD.items():
        vocabulary = os.path.join(directory, f"vocab.{name}.txt")
        text = write_texts(contexts[name], os.path.join(directory, f"{name}.jsonl"))
        size = write_vocabulary(text, vocabulary, vocabulary_size=VOCABULARY_SIZE)
        pieces = load_vocabulary(vocabulary)
        shares = [
            find_unknown_words(contexts[name], pieces, _CASED._replace(language=code)).share
            for code in (name, "en")
        ]
        counts = write_questions(
            read_squad(os.path.join(questions, f"xquad.{name}.json.gz")),
            os.path.join(directory, f"questions.{name}"),
            vocabulary=vocabulary,
            language=name,
            options=QuestionOptions(),
        ).counts
        round_trips = counts["round_trips"] / counts["answers"]
        lines.append(
            f"| {language} | {size:,} | {shares[0]:.2%} | {shares[1]:.2%} | {counts['lost']} | "
            f"{round_trips:.2%} |"
        )
    print("\n| XQuAD | entries | [UNK] | with en | answers lost | answers that come back |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(lines), flush=True)


def write_texts(texts: Sequence[str], path: str) -> str:
    """Writes a document for each text, and returns the path."""
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    return path


def write_both(language: str, texts: Sequence[str], directory: str) -> dict[str, str]:
    """Writes records with ICU's words and without; returns their directories."""
    os.mkdir(directory)
    source = write_texts(texts, os.path.join(directory, "texts.jsonl"))
    vocabulary = os.path.join(directory, "vocab.txt")
    write_vocabulary(source, vocabulary, vocabulary_size=VOCABULARY_SIZE)
    outputs = {way: os.path.join(directory, way) for way in ("none", "icu")}
    for way, output in outputs.items():
        write_pretraining_records(
            source,
            vocabulary=vocabulary,
            output=output,
            language=language,
            word_segmentation=way,
            sequence_length=SEQUENCE_LENGTH,
            validation_fraction=0.1,
        )
    return outputs


def print_spans(records: dict[str, dict[str, str]]) -> None:
    """Prints how many of ICU's words spans have, and whether they begin and end where words do."""
    print("\n| spans | words a span, without and with | at words, without and with |")
    print("| --- | ---: | ---: |")
    for name, outputs in records.items():
        found = {
            way: [
                span for spans in spans_of_batches(outputs[way], outputs["icu"]) for span in spans
            ]
            for way in outputs
        }
        lengths = [statistics.fmean(length for length, _ in found[way]) for way in outputs]
        shares = [statistics.fmean(is_whole for _, is_whole in found[way]) for way in outputs]
        print(
            f"| {name} | {lengths[0]:.2f}, {lengths[1]:.2f} | {shares[0]:.1%}, {shares[1]:.1%} |",
            flush=True,
        )


def spans_of_batches(masked: str, with_words: str) -> Iterator[list[tuple[int, bool]]]:
    """Yields the spans of each batch: their words, and whether they are whole words.

    Args:
        masked: directory of the records that are masked.
        with_words: directory of the same records with words, which count the words.
    """
    batches = [
        pretraining_dataset(path, batch_size=64, with_words=True).take(32).as_numpy_iterator()
        for path in (masked, with_words)
    ]
    for batch, other in zip(*batches, strict=True):
        spans = []
        for positions, weights, begins in zip(
            batch["mask_positions"], batch["mask_weights"], other["starts_word"], strict=True
        ):
            used = positions[weights == 1]
            for span in np.split(used, np.flatnonzero(np.diff(used) != 1) + 1):
                is_whole = begins[span[0]] and begins[span[-1] + 1]
                spans.append((1 + int(begins[span[1:]].sum()), bool(is_whole)))
        yield spans


def print_losses(records: dict[str, str], directory: str, steps: int, seeds: int) -> None:
    """Prints the loss of ICU's words after pre-training with these words, and without."""
    losses = collections.defaultdict(list)
    for seed in range(seeds):
        for way, data in records.items():
            output = os.path.join(directory, f"{way}.{seed}")
            settings = [
                f"training.seed={seed}",
                f"data.sequence_length={SEQUENCE_LENGTH}",
                f"model.max_sequence_length={SEQUENCE_LENGTH}",
                f"training.steps={steps}",
                f"training.schedule_steps={steps}",
                f"training.evaluate_every={steps}",
            ]
            run_pretraining(load_config("spanbert_tiny", settings), data, output)
            preset = Preset(os.path.join(output, "preset"))
            text = read_held_out_text(records["icu"], [preset.tokenizer])
            model = preset.trained_task(SpanBertMaskedLM)
            losses[way].append(loss_per_character(text, model, preset.tokenizer))
            print(f"{way}, seed {seed}: {losses[way][-1]:.4f} nats a character", flush=True)
            del model
            keras.backend.clear_session()
    for way, values in losses.items():
        print(f"{way}: mean of {seeds}: {statistics.fmean(values):.4f}")


if __name__ == "__main__":
    main()
