"""The data set of questions: packed rows with the positions of their answers.

B rows, S positions of a batch.
"""

import os

import tensorflow as tf

from spanbert_tf.data.batches import packed_batches
from spanbert_tf.data.records import Records
from spanbert_tf.data.rows import LIST, NUMBER, PackedRows
from spanbert_tf.tasks.question_answering import records as schema
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringInfo

_NUMBERS = (
    schema.QUESTION_INDEX,
    schema.PASSAGE_START,
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
) -> tf.data.Dataset:
    """Batches of rows for `SpanBertQuestionAnswerer`, rows of similar length together.

    S is one of at most 16 widths; see `length_batches`.

    Args:
        directory: what `spanbert-tf prepare squad` or `prepare mrqa` wrote.
        batch_size: B.
        training: endless batches of B rows, each epoch in an order of its own that is a function of
            (seed, epoch), without the questions whose answers were lost; otherwise each row once,
            the longest first, the last batch smaller.
        seed: seed of the order.
        first_batch: how many batches of the training stream to pass over, to resume.

    Returns:
        A data set of `(x, y)`, for training `(x, y, sample_weight)`: `x` has `token_ids`,
        `segment_ids`, `padding_mask` (int32 [B, S]), `question_index`, `passage_start` (int32 [B]),
        and in each position of the passage its characters in the context, `offset_starts` and
        `offset_ends`, and `has_most_context` (int32 [B, S]); if the records have them,
        `paragraph_indices`, `sentence_indices` and `token_indices` (int32 [B, S]); if not for
        training, `row_index` (int32 [B]), the number of the row in the file. `y` has
        `start_positions` and `end_positions`, int32 [B], 0 where there is no answer.
        `sample_weight`, float32 [B], is 0 where a copied row fills up the last batch of an epoch.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    return packed_batches(
        Records.of(directory, QuestionAnsweringInfo),
        _parse,
        batch_size=batch_size,
        training=training,
        seed=seed,
        first_batch=first_batch,
    )


def _parse(rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor) -> tuple[dict, dict]:
    """Tensors of B rows, padded to a width."""
    features = dict.fromkeys(_NUMBERS, NUMBER) | dict.fromkeys(_PASSAGE_LISTS, LIST)
    x, record = rows.parse(serialized, width, features)
    x["question_index"] = record[schema.QUESTION_INDEX]
    x["passage_start"] = record[schema.PASSAGE_START]
    in_passage = tf.range(width)[tf.newaxis] - x["passage_start"][:, tf.newaxis]  # [B, S]
    for name, dtype in _PASSAGE_LISTS.items():
        values = rows.decode(record[name], dtype, width)  # of the passage from position 0 on
        shifted = tf.gather(values, tf.maximum(in_passage, 0), batch_dims=1)
        x[name] = tf.where(in_passage >= 0, shifted, 0)
    y = {
        "start_positions": record[schema.START_POSITION],
        "end_positions": record[schema.END_POSITION],
    }
    return x, y


def load_questions(directory: str | os.PathLike) -> list[dict]:
    """The lines of `questions.jsonl`, with `id`, `question`, `context_index` and `gold_texts`.

    Raises:
        BadInputError: a file of the records is damaged.
    """
    records = Records.of(directory, QuestionAnsweringInfo)
    return records.lines(schema.QUESTIONS_FILE)


def load_contexts(directory: str | os.PathLike) -> list[str]:
    """The passages.

    Raises:
        BadInputError: a file of the records is damaged.
    """
    return Records.of(directory, QuestionAnsweringInfo).lines(schema.CONTEXTS_FILE)
