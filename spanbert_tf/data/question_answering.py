"""The data set of questions: packed rows with the positions of their answers.

B rows, S positions of the longest row of a batch.
"""

import json
import os

import tensorflow as tf

from spanbert_tf.data import question_answering_schema as schema
from spanbert_tf.data.question_answering_schema import QuestionAnsweringInfo
from spanbert_tf.data.records import training_windows
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype
from spanbert_tf.data.unsigned_lists import decode_unsigned
from spanbert_tf.errors import BadInputError
from spanbert_tf.vocabulary import PAD_TOKEN, load_vocabulary

_ROWS_SORTED = 4096
_NUMBERS = (
    schema.QUESTION_INDEX,
    schema.PASSAGE_START,
    schema.SECOND_START,
    schema.START_POSITION,
    schema.END_POSITION,
)
_PASSAGE_LISTS = {
    schema.OFFSET_STARTS: schema.OFFSET_DTYPE,
    schema.OFFSET_ENDS: schema.OFFSET_DTYPE,
    schema.HAS_MOST_CONTEXT: schema.FLAG_DTYPE,
}


def question_answering_dataset(
    directory: str | os.PathLike,
    *,
    batch_size: int,
    training: bool,
    seed: int = 0,
    first_batch: int = 0,
    sort_by_length: bool = False,
) -> tf.data.Dataset:
    """Batches of rows for `SpanBertQuestionAnswerer`.

    Args:
        directory: what `spanbert-tf prepare squad` or `prepare mrqa` wrote.
        batch_size: B.
        training: endless batches, each epoch in an order of its own that is a function of (seed,
            epoch); otherwise each row once, in the order of the file, the last batch smaller.
        seed: of the order.
        first_batch: how many batches of the training stream to pass over, to resume.
        sort_by_length: not for training: of every 4,096 rows the longest come first, which saves
            padding.

    Returns:
        A data set of `(x, y)`: `x` has `token_ids`, `segment_ids`, `padding_mask` (int32 [B, S]),
        `question_index`, `passage_start` (int32 [B]), and in each position of the passage its
        characters in the context, `offset_starts` and `offset_ends`, and `has_most_context` (int32
        [B, S]); if the records tell them, `paragraph_indices`, `sentence_indices` and
        `token_indices` (int32 [B, S]). `y` has `start_positions` and `end_positions`, int32 [B], 0
        where there is no answer.

    Raises:
        BadInputError: the directory or one of its files is missing or unusable.
    """
    directory = os.fspath(directory)
    info = QuestionAnsweringInfo.load(directory)
    path = os.path.join(directory, schema.WINDOWS_FILE)
    if not os.path.exists(path):
        raise BadInputError(f"{path}: is missing; write the records again")
    if training:
        first_row = first_batch * batch_size
        windows = training_windows([path], info.counts["windows"], seed, first_row)
        rows = windows.map(lambda serialized, _: serialized).unbatch()
    else:
        rows = tf.data.TFRecordDataset(path)
        if sort_by_length:
            rows = rows.batch(_ROWS_SORTED).map(_longest_first).unbatch()
    vocabulary = load_vocabulary(os.path.join(directory, VOCABULARY_FILE))
    pad_id = vocabulary.index(PAD_TOKEN)
    rows = rows.map(lambda row: _parse(row, info), num_parallel_calls=tf.data.AUTOTUNE)
    padding = tf.nest.map_structure(lambda spec: tf.zeros([], spec.dtype), rows.element_spec)
    padding[0]["token_ids"] = tf.constant(pad_id, tf.int32)
    return rows.padded_batch(batch_size, padding_values=padding, drop_remainder=training).prefetch(
        tf.data.AUTOTUNE
    )


def _longest_first(serialized: tf.Tensor) -> tf.Tensor:
    # All lists of a record grow with its row.
    order = tf.argsort(tf.strings.length(serialized), direction="DESCENDING", stable=True)
    return tf.gather(serialized, order)


@tf.autograph.experimental.do_not_convert
def _parse(serialized: tf.Tensor, info: QuestionAnsweringInfo) -> tuple[dict, dict]:
    features = {name: tf.io.FixedLenFeature([], tf.int64) for name in _NUMBERS}
    names = (schema.WINDOW_TOKEN_IDS, *_PASSAGE_LISTS)
    positions_of_rows = schema.SEGMENT_POSITIONS if info.segment_aware else ()
    features |= {
        name: tf.io.FixedLenFeature([], tf.string) for name in (*names, *positions_of_rows)
    }
    record = tf.io.parse_single_example(serialized, features)
    numbers = {name: tf.cast(record[name], tf.int32) for name in _NUMBERS}
    dtype = token_id_dtype(info.vocabulary_size)
    token_ids = tf.cast(decode_unsigned(record[schema.WINDOW_TOKEN_IDS], dtype), tf.int32)  # [S]
    positions = tf.range(tf.size(token_ids))
    x = {
        "token_ids": token_ids,
        "segment_ids": tf.cast(positions >= numbers[schema.SECOND_START], tf.int32),
        "padding_mask": tf.ones_like(token_ids),
        "question_index": numbers[schema.QUESTION_INDEX],
        "passage_start": numbers[schema.PASSAGE_START],
    }
    for name, list_dtype in _PASSAGE_LISTS.items():
        values = tf.cast(decode_unsigned(record[name], list_dtype), tf.int32)  # [passage tokens]
        before = numbers[schema.PASSAGE_START]
        after = tf.size(token_ids) - before - tf.size(values)
        x[name] = tf.pad(values, [[before, after]])  # [S]
    for name in positions_of_rows:
        x[name] = tf.cast(decode_unsigned(record[name], schema.POSITION_DTYPE), tf.int32)  # [S]
    y = {
        "start_positions": numbers[schema.START_POSITION],
        "end_positions": numbers[schema.END_POSITION],
    }
    return x, y


def load_questions(directory: str) -> list[dict]:
    """The lines of `questions.jsonl`, with `id`, `question`, `context_index` and `gold_texts`.

    Raises:
        BadInputError: the file cannot be read.
    """
    return _read_lines(os.path.join(directory, schema.QUESTIONS_FILE))


def load_contexts(directory: str) -> list[str]:
    """The passages.

    Raises:
        BadInputError: the file cannot be read.
    """
    return _read_lines(os.path.join(directory, schema.CONTEXTS_FILE))


def _read_lines(path: str) -> list:
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: cannot be read ({error}); write the records again") from error
