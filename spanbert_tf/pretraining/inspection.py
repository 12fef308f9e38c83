"""Prints the counts, masked examples and span lengths of pre-training records."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from rich.table import Table
from rich.text import Text

from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.config.positions import POSITION_EMBEDDINGS, TABLE_SIZES
from spanbert_tf.console import DataConsole
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.examples import named_damage
from spanbert_tf.data.manifest import POSITION_LISTS, SPLITS, PretrainingManifest
from spanbert_tf.data.rows import parse_records, segment_aware_indices
from spanbert_tf.files.output import FileKind, Output
from spanbert_tf.layers.segment_aware_embedding import lowered_indices
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.pretraining.datasets import tokens_per_row
from spanbert_tf.pretraining.span_lengths import SpanLengths, count_span_lengths, plot_span_lengths
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import MASK_TOKEN
from spanbert_tf.text.word_segmentation import describe_segmentation

PAPER_BATCH_TOKENS = 256 * 512  # tokens of a global batch (SpanBERT, section 4.2)
_BAR_WIDTH = 40
_RANDOM_TOKENS = {"unigrams": "the unigrams", "uniform": "the vocabulary evenly"}
_ROWS_AT_ONCE = 256  # rows whose indices are counted together
# Styles of rich.
_MASKED = "bold white on blue"
_RANDOM = "bold white on red"
_KEPT = "bold black on green"
_POSITION = "dim"
_LEGEND = (
    ("original→[MASK]", _MASKED),
    " ",
    ("original→random", _RANDOM),
    " ",
    ("original→original", _KEPT),
)


def inspect_records(
    data: str,
    config: str,
    overrides: Sequence[str],
    console: DataConsole,
    *,
    png: str | None = None,
    num_examples: int = 3,
    overwrite: bool = False,
) -> None:
    """Prints the counts of a directory of records, and how a configuration masks the records.

    Args:
        data: directory of the records.
        config: name of a shipped configuration, or path of a configuration.
        overrides: settings `section.key=value` that override the configuration.
        console: console to print to.
        png: path of a picture to write with the histogram of span lengths; `None` for none.
        num_examples: number of masked examples to print.
        overwrite: whether an existing picture may be replaced.

    Raises:
        SpanBertError: the records or the configuration cannot be used.
    """
    if png:
        picture = Output(png, FileKind("a picture", _is_picture), overwrite=overwrite)
        picture.check()
    settings = load_config(config, overrides)
    manifest = PretrainingManifest.load(data)
    _print_counts(console, data, manifest)
    title = f"{config}: {settings.masking.scheme}"
    with named_damage(lambda: manifest.damage(data)):
        lengths = count_span_lengths(data, settings.masking, seed=settings.training.seed)
        _print_lengths(console, lengths, title)
        _print_examples(console, data, manifest, settings, num_examples)
        _print_head_steps(console, settings)
        index_names = POSITION_EMBEDDINGS[settings.model.position_embeddings].indices
        if index_names:
            sizes = {name: getattr(settings.model, TABLE_SIZES[name]) for name in index_names}
            _print_clipped_indices(console, data, sizes)
    if png:
        with picture.opened() as file:
            plot_span_lengths(lengths, file, title)
        console.print(f"wrote {picture.path}", highlight=False)


def _is_picture(path: str) -> bool:
    """Whether a file is a PNG that Matplotlib wrote."""
    with open(path, "rb") as file:
        head = file.read(256)
    return head.startswith(b"\x89PNG") and b"Software\0Matplotlib" in head


def fill_rate(manifest: PretrainingManifest, split: str = "train") -> float:
    """Returns the mean share of the positions for text that are filled; the rest is padding."""
    return manifest.num_tokens(split) / (manifest.num_places * manifest.num_records(split))


def rows_for_tokens(manifest: PretrainingManifest, num_tokens: int = PAPER_BATCH_TOKENS) -> int:
    """Returns how many rows hold a number of tokens on average, with special tokens."""
    return round(num_tokens / tokens_per_row(manifest))


def _print_counts(console: DataConsole, data: str, manifest: PretrainingManifest) -> None:
    annotations = ", ".join(manifest.annotations) or "none"
    summary = (
        f"{data}: {manifest.sequences} sequences of {manifest.sequence_length}, "
        f"{manifest.text_rules.describe()}, vocabulary of {manifest.vocabulary_size:,}, "
        f"annotations: {annotations}"
    )
    if manifest.has_words:
        summary += f", {describe_segmentation(manifest.word_segmentation, manifest.language)}"
    console.print(summary, highlight=False)
    table = Table("split", "shards", "records", "tokens", "fill rate")
    for column in table.columns[1:]:
        column.justify = "right"
    for split in SPLITS:
        records = manifest.num_records(split)
        shards = sum(shard.split == split for shard in manifest.shards)
        fill = f"{fill_rate(manifest, split):.1%}" if records else "-"
        table.add_row(split, f"{shards:,}", f"{records:,}", f"{manifest.num_tokens(split):,}", fill)
    console.print(table)
    if manifest.repaired_from:
        console.print("Before `prepare repair`, which may have left records out:")
    for name, count in manifest.counts.items():
        console.print(f"  {name.replace('_', ' ')}: {count:,}")
    rows = rows_for_tokens(manifest)
    console.print(
        f"The paper's batch of {PAPER_BATCH_TOKENS:,} tokens is {rows:,} rows: "
        f"--set training.batch_size={rows}"
    )


def _print_examples(
    console: DataConsole,
    data: str,
    manifest: PretrainingManifest,
    settings: PretrainingConfig,
    num_examples: int,
) -> None:
    vocabulary = manifest.vocabulary(data)
    options = settings.masking
    batches = pretraining_dataset(
        data,
        batch_size=max(num_examples, 1),
        masking=options,
        seed=settings.training.seed,
        segment_aware=settings.model.segment_aware,
        schedule_steps=settings.training.schedule_steps,
        with_words=True,
    )
    (batch,) = batches.take(1).as_numpy_iterator()
    if num_examples:
        console.print(
            Text.assemble(
                f"\n{_draws(options)}, {_share(options)} of the tokens, one draw of "
                f"{_rates(options)} a {options.chosen_scheme.replaced}, random tokens from "
                f"{_RANDOM_TOKENS[options.random_tokens]}: ",
                *_LEGEND,
            )
        )
    for row in range(num_examples):
        example = {name: values[row] for name, values in batch.items()}
        console.print(masked_example(example, vocabulary), "")


def masked_example(row: dict[str, np.ndarray], vocabulary: Sequence[str]) -> Text:
    """Formats a row of a batch as coloured text, with `original→replacement` for masked tokens.

    The row must have the feature `starts_word`, by which the pieces of a word are joined.

    If the row has SegaBERT's indices, `¶p.s` precedes the first token of sentence s of paragraph p.
    If the row begins inside a sentence, `¶p.s+t` precedes its first token, which is token t of the
    sentence. The label of a pair comes last: whether the second segment is the next one or a random
    one.
    """
    used = row["mask_weights"] == 1
    originals = dict(zip(row["mask_positions"][used], row["mask_ids"][used], strict=True))
    text = Text()
    for position in range(int(row["padding_mask"].sum())):
        shown = escape_controls(vocabulary[row["token_ids"][position]])
        style = ""
        if position in originals:
            original = escape_controls(vocabulary[originals[position]])
            if shown == original:
                style = _KEPT
            elif shown == MASK_TOKEN:
                style = _MASKED
            else:
                style = _RANDOM
            shown = f"{original}→{shown}"
        sentence = _sentence_mark(row, position)
        joins_word = not row["starts_word"][position] and position > 0 and not sentence
        if position > 0 and not joins_word:
            text.append(" ")
        if sentence:
            text.append(sentence, _POSITION).append(" ")
        text.append(shown.removeprefix("##") if joins_word else shown, style)
    if "next_sentence_labels" in row:
        kind = "random" if row["next_sentence_labels"] else "the next"
        text.append(f" ({kind} segment)", _POSITION)
    return text


def _sentence_mark(row: dict[str, np.ndarray], position: int) -> str:
    """Returns `¶paragraph.sentence` for the first token of a sentence or of the row, else `""`."""
    last_position = int(row["padding_mask"].sum()) - 1
    if "token_indices" not in row or position in (0, last_position):
        return ""
    token = row["token_indices"][position]
    if token and position > 1:
        return ""
    mark = f"¶{row['paragraph_indices'][position]}.{row['sentence_indices'][position]}"
    return f"{mark}+{token}" if token else mark


def _draws(options: MaskingOptions) -> str:
    """Describes which spans a scheme draws, and where they begin."""
    scheme = options.chosen_scheme
    if scheme.unit == "piece":
        return options.scheme
    others = "words" if scheme.max_units == 1 else "geometric spans"
    if scheme.spans and scheme.share == 1:
        return f"{options.scheme} in all draws"
    share = f" in {scheme.share:.0%} of the draws, {others} in the rest" if scheme.spans else ""
    start = {"anchor_token": "at the word of a token", "word": "at a word"}[scheme.span_start]
    return f"{options.scheme}{share}, drawn {start}"


def _share(options: MaskingOptions) -> str:
    """Returns the percentage of the tokens that are masked; if it changes, also that at the end."""
    first, last = options.exact_rates
    if not options.has_schedule:
        return f"{float(first):.0%}"
    return f"{float(first):.0%} (at first, {float(last):.0%} at last)"


def _rates(options: MaskingOptions) -> str:
    """Returns the percentages of [MASK], of random tokens and of unchanged tokens, by slashes."""
    masked = options.mask_token_rate
    random = options.random_token_rate
    kept = 1 - (masked + random)
    return "/".join(f"{100 * share:.3g}" for share in (masked, random, kept))


def _print_head_steps(console: DataConsole, settings: PretrainingConfig) -> None:
    training = settings.training
    if training.head_steps:
        alone = min(training.head_steps, training.steps)
        console.print(
            f"Steps: {training.steps:,}, the heads alone in the first {alone:,} "
            "(training.head_steps)"
        )


def _print_clipped_indices(console: DataConsole, data: str, table_sizes: Mapping[str, int]) -> None:
    counted = count_clipped_indices(data, table_sizes)
    console.print()
    console.print(
        f"Beyond SegaBERT's tables, whose last row they take, of {counted.num_tokens:,} tokens "
        f"in {counted.num_records:,} records, the paragraphs of each row lowered as far as "
        "they can be:"
    )
    for name, clipped in counted.clipped.items():
        console.print(
            f"  {name.replace('_', ' ')} from {table_sizes[name]}: {clipped:,} "
            f"({clipped / max(counted.num_tokens, 1):.1%})"
        )


class ClippedIndices(NamedTuple):
    """Counts of tokens with an index beyond its table; such an index gets the table's last row.

    Attributes:
        num_records: number of records that were counted.
        num_tokens: number of tokens of these records, without special tokens.
        clipped: maps the name of an index to the number of tokens whose index exceeds its table,
            after `lowered_indices` has lowered the paragraphs of each row.
    """

    num_records: int
    num_tokens: int
    clipped: dict[str, int]


def count_clipped_indices(
    directory: str | os.PathLike,
    table_sizes: Mapping[str, int],
    *,
    split: str = "train",
    max_batches: int = 100,
) -> ClippedIndices:
    """Counts the clipped indices of records of single sequences.

    Args:
        directory: directory of the records.
        table_sizes: maps the name of an index to the number of rows of its table.
        split: `"train"` or `"validation"`.
        max_batches: maximum number of batches of 256 records to count.
    """
    directory = os.fspath(directory)
    manifest = PretrainingManifest.load(directory)

    @tf.autograph.experimental.do_not_convert
    def indices_and_lengths(serialized: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        records = parse_records(serialized, manifest, POSITION_LISTS)
        return segment_aware_indices(records), records.lengths

    batches = tf.data.TFRecordDataset(manifest.files(directory, split)).batch(_ROWS_AT_ONCE)
    batches = batches.take(max_batches).map(indices_and_lengths)
    num_records = 0
    num_tokens = 0
    clipped = dict.fromkeys(table_sizes, 0)
    for indices, lengths in batches.as_numpy_iterator():
        num_records += len(lengths)
        num_tokens += int(lengths.sum())
        for name, size in table_sizes.items():
            lowered = keras.ops.convert_to_numpy(lowered_indices(name, indices[name], size))
            # Column 0 is [CLS]. [SEP] and padding follow the text.
            of_text = lowered[:, 1:-1]
            is_text = np.arange(of_text.shape[1]) < lengths[:, np.newaxis]
            clipped[name] += int((is_text & (of_text >= size)).sum())
    return ClippedIndices(num_records, num_tokens, clipped)


def _print_lengths(console: DataConsole, lengths: SpanLengths, title: str) -> None:
    console.print()
    console.print(f"Span lengths in words, {title}", highlight=False)
    columns = {"drawn": lengths.drawn, "merged": lengths.merged}
    table = Table("words", *(name for name, counts in columns.items() if counts.any()))
    if lengths.exact is not None:
        table.add_column("exact")
    table.add_column("")
    longest = max(np.flatnonzero(lengths.merged + lengths.drawn), default=0)
    for words in range(1, longest + 1):
        shares = [counts[words] / counts.sum() for counts in columns.values() if counts.any()]
        if lengths.exact is not None:
            shares.append(lengths.exact[words])
        bar = "█" * round(_BAR_WIDTH * shares[0])
        label = f"{words}+" if words == len(lengths.merged) - 1 else str(words)
        table.add_row(label, *(f"{share:.2%}" for share in shares), bar)
    console.print(table)
