"""Memory and time of question answering by the length of the passage, 50 kB to 2 MB.

    python -m benchmarks.long_passages [--kilobytes 50 --kilobytes 200]

A tiny model of 64 positions, whose windows begin every 8 tokens: a token stands in eight of them.
Each passage is read in a process of its own that has answered a short one; the export and the
command `predict` call the same function.
"""

import concurrent.futures
import multiprocessing
import os
import time

import click

from benchmarks.machine import describe_machine
from benchmarks.process_memory import peak_above

_SENTENCE = "The cat of Ann, which sat on the mat, has (in 1876) seen an owl. "
_QUESTION = "Who has seen an owl?"
_PIECES = ("the", "cat", "of", "ann", "which", "sat", "on", "mat", "has", "in", "seen", "an", "owl")
_MARKS = (",", ".", "(", ")", "?", "1876", "who")
_LENGTH, _STRIDE = 64, 8


@click.command()
@click.option("--kilobytes", multiple=True, type=int, default=(50, 200, 2_000), show_default=True)
def main(kilobytes: tuple[int, ...]) -> None:
    """Prints a row of a table for each length."""
    print(describe_machine())
    print("| passage | memory more | seconds |\n| ---: | ---: | ---: |")
    context = multiprocessing.get_context("spawn")
    for size in kilobytes:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            gibibytes, seconds = pool.submit(_cost, size * 1_000).result()
        print(f"| {size:,} kB | {gibibytes:.2f} GiB | {seconds:.1f} |", flush=True)


def _cost(num_bytes: int) -> tuple[float, float]:
    """GiB above those of a short passage, and seconds."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    from spanbert_tf.models import (
        SpanBertBackbone,
        SpanBertQuestionAnswerer,
        SpanBertQuestionAnswererPreprocessor,
        SpanBertTokenizer,
    )
    from spanbert_tf.tasks.question_answering.graph import AnswerQuestions

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_PIECES, *_MARKS]
    backbone = SpanBertBackbone(len(vocabulary), 1, 2, 8, 16, max_sequence_length=_LENGTH)
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    preprocessor = SpanBertQuestionAnswererPreprocessor(tokenizer, sequence_length=_LENGTH)
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor, stride=_STRIDE)
    served = AnswerQuestions(answerer, top_k=3)
    answer = tf.function(served.answer, input_signature=served.signatures()["serving_default"][1])
    passage = (_SENTENCE * (num_bytes // len(_SENTENCE) + 1))[:num_bytes]
    answer(tf.constant([_QUESTION]), tf.constant([_SENTENCE]))
    start = time.perf_counter()
    gibibytes = peak_above(lambda: answer(tf.constant([_QUESTION]), tf.constant([passage])))
    return gibibytes, time.perf_counter() - start


if __name__ == "__main__":
    main()
