"""Links in a corpus of somebody else's do not bring this user's other files into the records."""

import os

import pytest

from data_prep.text.storage import find_files
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.files import read_documents

DOCUMENT = (
    '{"doc_key": "nw/NAME", "sentences": [["A", "b"]], "speakers": [["", ""]], "clusters": []}'
)


@pytest.fixture
def corpus(tmp_path):
    """A folder with a file of its own, and one beside it with what is private."""
    for name in ("corpus/own", "private/secret"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir()
        path.write_text(DOCUMENT.replace("NAME", path.stem))
    return tmp_path / "corpus"


def names_of_texts(pattern, **options):
    return [os.path.basename(file.path) for file in find_files(str(pattern), **options)]


def names_of_documents(pattern, **options):
    """`prepare coreference` takes the directory in place of `directory/**`."""
    pattern = str(pattern).removesuffix("/**")
    return [f"{document.name[3:]}.jsonl" for document in read_documents(pattern, **options)]


READERS = [names_of_texts, names_of_documents]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "link, target, pattern",
    [
        ("more", "../private", "**"),
        ("more", "../private", "*/*.jsonl"),
        ("a/b", "../../private", "**"),
        ("more.jsonl", "../private/secret.jsonl", "*.jsonl"),
        ("twice", "own-link", "**"),
    ],
)
def test_links_that_lead_out_are_named_and_read_only_if_asked(link, target, pattern, read, corpus):
    (corpus / link).parent.mkdir(exist_ok=True)
    if target == "own-link":  # a link that stays, to one that leads out
        (corpus / "own-link").symlink_to("../private")
    (corpus / link).symlink_to(target)
    with pytest.raises(BadInputError) as caught:
        read(corpus / pattern)
    line = str(caught.value)
    assert line.startswith(f"{corpus}: links lead out of it ({corpus}") and line.isprintable()
    assert f" -> {corpus.parent / 'private'}" in line
    assert f"{corpus / link}" in line
    found = read(corpus / pattern, follow_links=True)
    assert {"secret.jsonl", "more.jsonl"} & set(found)


@pytest.mark.parametrize("read", READERS)
def test_what_is_outside_is_not_even_listed(read, corpus, monkeypatch):
    (corpus / "more").symlink_to("../private")
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    with pytest.raises(BadInputError):
        read(corpus / "**")
    assert listed == [str(corpus)]


@pytest.mark.parametrize("read", READERS)
def test_links_inside_and_what_the_user_names_are_read(read, corpus):
    """A corpus may lie on another disk, and link to its own parts."""
    (corpus / "deep").mkdir()
    (corpus / "own.jsonl").rename(corpus / "deep" / "own.jsonl")
    (corpus / "latest").symlink_to("deep")
    (corpus.parent / "link").symlink_to("corpus")
    (corpus.parent / "file.jsonl").symlink_to("private/secret.jsonl")
    assert read(corpus.parent / "link" / "latest" / "*.jsonl") == ["own.jsonl"]
    assert read(corpus.parent / "link" / "d*" / "*.jsonl") == ["own.jsonl"]
    assert read(corpus / "lat*" / "*.jsonl") == ["own.jsonl"]
    assert read(corpus / "**") == ["own.jsonl"]  # once
    assert len(read(corpus.parent / "file.jsonl")) == 1


def test_many_links_are_one_line(corpus):
    for number in range(1_000):
        (corpus / f"{number}.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(BadInputError, match="997 more") as caught:
        find_files(str(corpus / "**"))
    assert str(caught.value).isprintable()
