"""Whatever the documents: each format gives back those that were written in it."""

import pytest
from corpus_files import (
    CORPORA,
    json_lines_text,
    plain_text,
    read_documents,
    wikipedia_text,
    write_file,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.text.corpus import READ_SIZE, DocumentReader

_TEXTS = {
    "plain": plain_text,
    "plain with carriage returns": lambda documents: plain_text(documents, newline="\r\n"),
    "older WikiExtractor": lambda documents: wikipedia_text(documents, escape=True),
    "newer WikiExtractor": lambda documents: wikipedia_text(documents, gap="\n", escape=True),
    "JSON lines": json_lines_text,
}


@pytest.mark.parametrize("text_format", _TEXTS)
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(documents=CORPORA, compress=st.booleans())
def test_written_documents_are_read_back(tmp_path, text_format, documents, compress):
    text = _TEXTS[text_format](documents)
    path = write_file(tmp_path / "data", text, compress=compress)
    read = read_documents(DocumentReader(path, "====="))
    assert [paragraphs for paragraphs, _ in read] == documents
    assert {has_title for _, has_title in read} == {not text_format.startswith("plain")}


@pytest.mark.parametrize("text_format", ["plain", "older WikiExtractor"])
def test_large_documents_come_in_small_parts_while_the_file_is_read(tmp_path, text_format):
    paragraph = "A rather long paragraph, café. " * 60  # 1.9 KB
    documents = [[f"{number} {paragraph}".strip() for number in range(2_000)], ["The end."]]
    path = write_file(tmp_path / "large", _TEXTS[text_format](documents), compress=True)
    reader = DocumentReader(path, "=====")
    read, given_bytes, document = [[], []], 0, 0
    for part in reader:
        read[document] += [text.strip() for text in part.paragraphs]
        document += part.ends_document
        part_bytes = sum(len(text.encode()) for text in part.paragraphs)
        given_bytes += part_bytes
        # What is held is what was read and not yet given: a part, and less than one read ahead.
        assert part_bytes < 2 * READ_SIZE
        assert reader.bytes_read - given_bytes < 2 * READ_SIZE
    assert read == documents
    assert reader.bytes_read > 3 * READ_SIZE
