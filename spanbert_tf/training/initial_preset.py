"""`--initial-preset`: begins a run with the weights of an earlier model."""

import os

from spanbert_tf.data.question_answering_schema import QuestionAnsweringInfo
from spanbert_tf.data.schema import VOCABULARY_FILE, DatasetInfo, vocabulary_hash
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.presets.loading import load_preset
from spanbert_tf.presets.pretraining import load_preset_into


def begin_with_preset(model: SpanBertPretrainer, preset: str, data: str, info: DatasetInfo) -> None:
    """Gives a model a preset's weights and prints, part by part, what became of it.

    Args:
        model: new, of the shape of the preset's encoder.
        preset: directory, or another name that `from_preset` takes.
        data: directory of the records, for errors.
        info: description of the records.

    Raises:
        BadInputError: the preset cannot be read.
        MismatchError: its vocabulary, its casing or its shape is not that of the run.
    """
    checked_tokenizer(preset, data, info)
    report = load_preset_into(model, preset)
    print(f"{preset}:")
    for part, outcome in report.items():
        print(f"  {part.replace('_', ' ')}: {outcome}")
    print("  optimizer and schedule: starts fresh", flush=True)


def checked_tokenizer(
    preset: str, data: str, info: DatasetInfo | QuestionAnsweringInfo
) -> SpanBertTokenizer:
    """The tokenizer of a preset, which reads text as the records were written.

    Raises:
        BadInputError: the preset has no tokenizer of ours.
        MismatchError: vocabulary or casing differ.
    """
    tokenizer = load_preset(SpanBertTokenizer, preset)
    if tokenizer.lowercase != info.lowercase:
        case = {True: "lower-cased", False: "cased"}
        raise MismatchError(
            f"{preset}: its text is {case[tokenizer.lowercase]}, that of the records in {data} "
            f"{case[info.lowercase]} (lowercase); write the records again with "
            f"{'--lowercase' if tokenizer.lowercase else '--cased'}"
        )
    if vocabulary_hash(tokenizer.get_vocabulary()) != info.vocabulary_hash:
        raise MismatchError(
            f"{preset}: its vocabulary is not that of the records in {data} (vocabulary_hash); "
            "write the records again with --vocabulary "
            f"{os.path.join(preset, 'assets', 'tokenizer', 'vocabulary.txt')}, not "
            f"{os.path.join(data, VOCABULARY_FILE)}"
        )
    return tokenizer
