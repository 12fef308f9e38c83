"""`spanbert-tf quickstart`: the whole way from text to a served model, at a small size.

Each stage calls the same function as the command of its name. The text is included in CPython: its
language reference and its docstrings. Held-out sentences with a masked word show what the model has
learned.
"""

import ast
import glob
import os
import pathlib
import re
import shlex
import sysconfig
import time
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from data_prep.beam.writing import write_pretraining_records
from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.config.run import PRESET
from spanbert_tf.data.manifest import VOCABULARY_FILE, PretrainingManifest
from spanbert_tf.errors import BadInputError, TrainingError
from spanbert_tf.files.figures import save_figure
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.paths import is_work_file, without_slash
from spanbert_tf.lazy import import_figure
from spanbert_tf.models import SpanBertMaskedLM, SpanBertMaskedLMPreprocessor, SpanBertTokenizer
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.pretraining.model import build_pretrainer
from spanbert_tf.pretraining.span_lengths import count_span_lengths, plot_span_lengths
from spanbert_tf.process import run_child
from spanbert_tf.studies.fillings import (
    TOP_K,
    MaskedSentence,
    choose_masked_sentences,
    fill,
    print_fillings,
    texts_of,
)
from spanbert_tf.studies.stages import check_enough_records, print_stage
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import load_vocabulary
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics

CONFIG = "spanbert_tiny"
VOCABULARY_SIZE = 2000  # small, so that each entry is frequent in a short run
VALIDATION_FRACTION = 0.07  # the text has only some hundred documents
_SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib"})
_LEAST_WORDS = 6


@locks_output(inside=True)
def run_quickstart(
    output: str,
    input_pattern: str | None = None,
    *,
    text_columns: Sequence[str] = (),
    trained_by: Sequence[str] = (),
) -> None:
    """Trains a vocabulary and a small model, exports it, and checks what it wrote.

    Args:
        output: a new or empty directory. It gets `vocab.txt`, `records/`, `run/`, `served/`,
            `losses.png`, `span_lengths.png`, and `text/` if there is no input.
        input_pattern: glob pattern of text files; by default the text that is included in CPython.
        text_columns: columns of text, if the files are tables.
        trained_by: words of a command that pre-trains, for another backend of Keras. If empty, this
            process pre-trains.

    Raises:
        BadInputError: the output exists, or the text cannot be used.
        TrainingError: the command that pre-trains failed.
        RuntimeError: preset and SavedModel disagree.
    """
    start = time.monotonic()
    output = without_slash(output)
    if os.path.lexists(output):
        is_empty = os.path.isdir(output) and all(map(is_work_file, os.listdir(output)))
        if not is_empty:
            raise BadInputError(f"{output}: exists already; remove it or name another --output")
    text = os.path.join(output, "text")
    vocabulary = os.path.join(output, "vocab.txt")
    records = os.path.join(output, "records")
    run = os.path.join(output, "run")
    served = os.path.join(output, "served")
    print_stage("Text and vocabulary")
    if input_pattern is None:
        num_files = write_python_texts(text)
        print_line(f"{text}: {num_files} texts, Python's language reference and docstrings")
        input_pattern = os.path.join(glob.escape(text), "*.txt")
    os.makedirs(output, exist_ok=True)
    write_vocabulary(
        input_pattern, vocabulary, vocabulary_size=VOCABULARY_SIZE, text_columns=text_columns
    )

    print_stage("Records")
    config = load_config(CONFIG)
    write_pretraining_records(
        input_pattern,
        vocabulary=vocabulary,
        output=records,
        text_columns=text_columns,
        sequence_length=config.data.sequence_length,
        validation_fraction=VALIDATION_FRACTION,
    )
    check_enough_records(input_pattern, records, config.training.batch_size, "the quickstart")

    print_stage("Pre-training")
    sentences = choose_masked_sentences(records)
    before = fill(_untrained_model(config, records), sentences)
    if trained_by:
        options = ["--config", CONFIG, "--data", records, "--output", run]
        if status := run_child([*trained_by, *options]):
            raise TrainingError(f"{run}: pre-training ended with status {status}")
    else:
        run_pretraining(config, records, run)
    preset = os.path.join(run, PRESET)
    if not os.path.isdir(preset):  # SIGTERM stopped the run
        return

    print_stage("Preset and SavedModel")
    saved_model = export_preset(preset, served, top_k=TOP_K)
    after = fill(SpanBertMaskedLM.from_preset(preset), sentences)
    _check_saved_model(saved_model, sentences, after)
    print_line("preset and SavedModel, both loaded from disk, fill in the same")

    print_stage("What the model fills in")
    print_fillings(sentences, before, after)
    lines = read_metrics(os.path.join(run, METRICS_FILE))
    unigrams = unigram_cross_entropy(config, records)
    _plot_losses(lines, unigrams, os.path.join(output, "losses.png"))
    plot_span_lengths(
        count_span_lengths(records, config.masking),
        os.path.join(output, "span_lengths.png"),
        f"Lengths of masked spans, beside Geo({config.masking.geometric_p})",
    )
    _print_summary(output, unigrams, lines, time.monotonic() - start)


def unigram_cross_entropy(config: PretrainingConfig, records: str) -> float:
    """Returns the loss of the unigram model of the training text on the held-out targets.

    A model that has only learned the frequency of each entry reaches this loss. Counts are smoothed
    by adding one, because some entries only occur in the held-out text.

    Args:
        config: configuration of the masks.
        records: directory of the records.

    Returns:
        Nats per token.
    """
    counts = np.array(PretrainingManifest.load(records).unigram_counts(records)) + 1.0  # [V]
    surprisals = -np.log(counts / counts.sum())
    total = 0.0
    num_targets = 0.0
    for batch in configured_dataset(config, records, split="validation").as_numpy_iterator():
        total += float(np.sum(surprisals[batch["mask_ids"]] * batch["mask_weights"]))
        num_targets += float(np.sum(batch["mask_weights"]))
    return total / num_targets


def _untrained_model(config: PretrainingConfig, records: str) -> SpanBertMaskedLM:
    """Makes a model with random weights and the tokenizer of the records."""
    manifest = PretrainingManifest.load(records)
    vocabulary = load_vocabulary(os.path.join(records, VOCABULARY_FILE))
    keras.utils.set_random_seed(config.training.library_seed)
    backbone = build_pretrainer(config, manifest.vocabulary_size).backbone
    tokenizer = SpanBertTokenizer(vocabulary, **manifest.text_rules._asdict())
    return SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer))


def _check_saved_model(
    path: str, sentences: list[MaskedSentence], expected: dict[str, np.ndarray]
) -> None:
    served = tf.saved_model.load(path).signatures["serving_default"](texts=texts_of(sentences))
    if not np.array_equal(served["fillings"], expected["fillings"]) or not np.allclose(
        served["probabilities"], expected["probabilities"], atol=1e-5
    ):
        raise RuntimeError(f"{path} fills in other words than the preset it was exported from")


def _plot_losses(lines: list[dict[str, float]], unigrams: float, path: str) -> None:
    figure = import_figure()(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, label, style in (
        ("masked_lm_loss", "masked LM, training", "-"),
        ("span_boundary_loss", "span boundary, training", "-"),
        ("validation_masked_lm_loss", "masked LM, held out", "ko-"),
    ):
        points = [(line["step"], line[name]) for line in lines if name in line]
        axes.plot(*zip(*points, strict=True), style, label=label)
    axes.axhline(unigrams, color="gray", linestyle="--", label="unigrams, held out")
    axes.set(title="Losses", xlabel="step", ylabel="nats a token")
    axes.legend()
    save_figure(figure, path)


def _print_summary(
    output: str, unigrams: float, lines: list[dict[str, float]], seconds: float
) -> None:
    loss = [line for line in lines if "validation_loss" in line][-1]["validation_masked_lm_loss"]
    print_stage("Summary")
    print_line(f"Held-out masked-LM loss:            {loss:.3f} nats a token")
    print_line(f"Training unigrams, the same tokens: {unigrams:.3f} nats a token")
    print_line(f"The model is {unigrams - loss:.3f} nats better. Took {seconds:.0f} s.")
    print_line()
    for name, content in (
        ("vocab.txt", "vocabulary"),
        ("records/", "records, with their own copy of the vocabulary"),
        ("run/", "configuration, metrics, checkpoints, TensorBoard logs"),
        ("run/preset/", "model for Keras: SpanBertMaskedLM.from_preset(...)"),
        ("served/1/", "model for TF Serving: texts with [MASK] in, fillings out"),
        ("losses.png", "the course of the losses"),
        ("span_lengths.png", "lengths of the masked spans beside the exact distribution"),
    ):
        print_line(f"  {os.path.join(output, name):<38} {content}")
    print_line()
    records = shlex.quote(os.path.join(output, "records"))
    logs = shlex.quote(os.path.join(output, "run/logs"))
    print_line("Next, look at masked examples, train longer, or watch the losses:")
    print_line(f"  spanbert-tf inspect {records} --config {CONFIG}")
    print_line(
        f"  spanbert-tf pretrain --config {CONFIG} --data {records} --output longer "
        "--set training.steps=5000 --set training.schedule_steps=5000"
    )
    print_line(f"  tensorboard --logdir {logs}")


def write_python_texts(directory: str) -> int:
    """Writes a plain text file for each topic of the reference and each documented module.

    Paragraphs are separated by an empty line. Code, headings and grammar are left out. So are
    repeated paragraphs: topics quote one another, and held-out text must not be a copy of training
    text.

    Args:
        directory: directory to create for the files.

    Returns:
        The number of files.
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
    """Yields name and text of the topics of the language reference, as `help()` shows them."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"reference.{name}", text


def _module_docstrings() -> Iterator[tuple[str, str]]:
    """Yields name and docstrings of each module of the standard library, from its source."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED_DIRECTORIES.intersection(parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # some files have errors on purpose
            continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        docstrings = [ast.get_docstring(node) for node in nodes]
        yield "module." + ".".join(parts), "\n\n".join(filter(None, docstrings))


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is prose: some words, an end mark and no interpreter's prompt."""
    ends_like_prose = paragraph.endswith((".", ":", "!", "?", ")"))
    return ends_like_prose and len(paragraph.split()) >= _LEAST_WORDS and ">>>" not in paragraph
