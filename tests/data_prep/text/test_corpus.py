import gzip
import json
import re
import warnings

import pytest
from apache_beam.io.filesystem import FileSystem
from hypothesis import example, given
from hypothesis import strategies as st

import data_prep.text.corpus
from data_prep.text import storage
from data_prep.text.corpus import DocumentReader, split_sentences
from data_prep.text.storage import find_files
from spanbert_tf.errors import BadInputError

NOVEL = """\ufeff
  CHAPTER I

It was the best of times, it was the
worst of times.\t

\f
“Is he married or single?” —
   asked Mr. Bennet.


THE END"""
NOVEL_PARAGRAPHS = [
    "CHAPTER I",
    "It was the best of times, it was the worst of times.",
    "“Is he married or single?” — asked Mr. Bennet.",
    "THE END",
]
OLD_WIKIPEDIA = """<doc id="12" url="https://en.wikipedia/?curid=12" title="Bonnie &amp; Clyde">
Bonnie &amp; Clyde

They were &lt;criminals&gt;.

A paragraph.
Another, without an empty line.

</doc>
<doc id="13" url="https://en.wikipedia/?curid=13" title="A "quoted" title">
A "quoted" title

</doc>
<doc id="14" url="https://en.wikipedia/?curid=14" title="None">
</doc>
"""
NEW_WIKIPEDIA = """<doc id="12" url="?curid=12" title="Bonnie &amp; Clyde">
Bonnie &amp; Clyde

They were &lt;criminals&gt;.
A paragraph.
Another, without an empty line.

</doc>
<doc id="13" url="?curid=13" title="A "quoted" title">
A "quoted" title


</doc>
<doc id="14" url="?curid=14" title="None">
</doc>
"""
JSON_LINES = "\n".join(
    json.dumps(record)
    for record in (
        {
            "id": "12",
            "title": "Bonnie & Clyde",
            "text": "Bonnie & Clyde\n\nThey were &lt;criminals&gt;.\nA paragraph.\n"
            "Another, without an empty line.",
        },
        {"title": 'A "quoted" title', "text": 'A "quoted" title\n'},
        {"text": ""},
    )
)
WIKIPEDIA_DOCUMENTS = [
    ["They were <criminals>.", "A paragraph.", "Another, without an empty line."],
    "title only",
    "empty",
]


def read_documents(path, separator=None):
    """Each document's paragraphs with single spaces, or what it is if it has none."""
    documents = [[]]
    for part in DocumentReader(str(path), separator):
        documents[-1] += [" ".join(text.split()) for text in part.paragraphs]
        assert all("\n" not in text for text in part.paragraphs)
        if part.ends_document:
            documents[-1] = documents[-1] or ("title only" if part.has_title else "empty")
            documents.append([])
    assert documents.pop() == []
    return documents


@pytest.mark.parametrize("read_size", [100, 150, 2**20])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("text", "documents"),
    [
        (NOVEL, [NOVEL_PARAGRAPHS]),
        (OLD_WIKIPEDIA, WIKIPEDIA_DOCUMENTS),
        (NEW_WIKIPEDIA, WIKIPEDIA_DOCUMENTS),
        (JSON_LINES, WIKIPEDIA_DOCUMENTS),
    ],
    ids=["plain", "old", "new", "json"],
)
def test_formats_are_recognised_by_content(
    tmp_path, monkeypatch, text, documents, line_end, is_compressed, read_size
):
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", read_size)
    content = text.replace("\n", line_end).encode()
    path = tmp_path / "text.bin"
    path.write_bytes(gzip.compress(content, mtime=0) if is_compressed else content)
    assert read_documents(path) == documents


@pytest.mark.parametrize(
    "text",
    ["[1] Smith, 1999.", "[The] first", '[" "]said he', "{1} note", "{ }", "[]", '["a" b]'],
)
def test_brackets_make_no_json_of_plain_text(tmp_path, text):
    path = tmp_path / "text.txt"
    path.write_text(text)
    assert read_documents(path) == [[text]]


@pytest.mark.parametrize("read_size", [30, 2**20])
def test_separator_lines_divide_plain_text(tmp_path, monkeypatch, read_size):
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", read_size)
    path = tmp_path / "text.txt"
    path.write_text("###\none\n\ntwo ### two\n###  \n\n###\nthree ###\n### four\n\n###\n")
    documents = [["one", "two ### two"], "empty", ["three ### ### four"]]
    assert read_documents(path, "###") == documents
    assert len(read_documents(path)) == 1


@pytest.mark.parametrize("read_size", [14, 15, 16, 20, 23, 2**20])
def test_empty_lines_may_divide_documents(tmp_path, monkeypatch, read_size):
    """BERT's own format: wherever a block ends, the documents are the same."""
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", read_size)
    path = tmp_path / "text.txt"
    path.write_text("one\ntwo\nthree\n\nfour\n  \nfive\nsix\n")
    assert read_documents(path, "") == [["one two three"], ["four"], ["five six"]]


def test_a_line_without_end_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(data_prep.text.corpus, "READ_SIZE", 1000)
    text = "é" * 5_001 + " " + "word " * 10_000 + "😀" * 3_000
    path = tmp_path / "line.txt"
    path.write_text(text)
    pieces = [piece for part in DocumentReader(str(path)) for piece in part.paragraphs]
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 3000
    record = json.dumps({"text": text})
    path.write_text(f"{record}\n{record}")
    assert read_documents(path) == [[" ".join(text.split())]] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n\t\n", "nothing but white space"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"fine\n\nna\xefve text", "line 3: not UTF-8 at byte 8 .*0xef"),
        (b"\xef\xbb\xbffine\xff", "not UTF-8 at byte 7"),
        (b"x" * 50 + b"\xc3", "not UTF-8 at byte 50"),
        ("text".encode("utf-16"), "is UTF-16 or UTF-32 .*iconv -f UTF-16"),
        (gzip.compress(bytes(range(32, 127)) * 99, mtime=0)[:-9], "broken gzip"),
        (
            gzip.compress(b"text" * 99, mtime=0)[:20]
            + b"??"
            + gzip.compress(b"text" * 99, mtime=0)[22:],
            "broken gzip",
        ),
        (b'{"text": "one"}\n{"text": ["two"]}', "line 2: 'text' is no text but .* list"),
        (b'{"text": 1}\n{"text": null}', "no cell of text has a text"),
        (b'{"text": "one"}\n{"text": "tw', "line 2: "),
        (b'{"text": "\\ud800"}', "line 1: "),
        (b'{"text": "one"}\n["text"]', "line 2: "),
        (b'[{"text": "one"}, {"text": "two"', "entry 2: not JSON"),
        (b'[{"text": "one"} {"text": "two"}]', "entry 1: is followed by '{'"),
        (b'[{"text": "one"}, 2]', "entry 2: is no JSON object"),
        (b'[{"text": "one"}]\n[', "entry 1: more text follows the end of the array"),
        (b'[{"text": "one"}', "entry 1: is followed by ''"),
        (b'["one", "two"]', "is a JSON array of texts"),
        (b'{}\n{"body": "two"}\n', "line 1: has no column 'text'; it has no columns"),
        (b'{\n  "text": "one"\n}\n', "line 1: "),
        (b'<doc id="1" title="A">\nA\n\nB\n</doc>\n\n stray\n', "line 7: text outside"),
        (b'<doc id="1" title="A">\nA\n\nB\n', "line 4: ends inside a document"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, content, message):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=re.escape(str(path)) + ": .*" + message) as raised:
        list(DocumentReader(str(path)))
    assert "\n" not in str(raised.value)


@given(st.text(r"ab*?[]!^/\-.", max_size=12))
@example("[[]")
@example(r"[\[]")
def test_patterns_mean_for_local_files_what_they_mean_to_beam(pattern):
    ours = storage.glob_expression(pattern)
    theirs = FileSystem.translate_pattern(pattern)
    assert parsed(ours) == parsed(theirs)


def parsed(expression):
    """What an expression means: in a set, `[` and `\\[` are the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a bracket in a set, which Beam leaves as it is
        try:
            return repr(re._parser.parse(expression))
        except re.error:
            return None


def test_find_files_names_them_by_their_common_directory(tmp_path):
    for name in ("b/2.txt", "a/1.txt", "a/deep/3.txt", "c/4.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    pattern = str(tmp_path / "**" / "*.txt")
    assert [file.name for file in find_files(pattern)] == ["a/1.txt", "a/deep/3.txt", "b/2.txt"]
    several = [str(tmp_path / "a" / "*"), str(tmp_path / "a" / "**"), str(tmp_path / "c" / "4.md")]
    assert [file.name for file in find_files(several)] == ["a/1.txt", "a/deep/3.txt", "c/4.md"]
    assert [file.name for file in find_files(str(tmp_path / "a" / "[0-9].txt"))] == ["1.txt"]


def test_file_whose_name_looks_like_a_pattern_is_itself(tmp_path):
    for name in ("a[1].txt", "a1.txt", "b*.txt", "bc.txt"):
        (tmp_path / name).write_text("text")
    for name in ("a[1].txt", "b*.txt"):
        assert [file.name for file in find_files(str(tmp_path / name))] == [name]
    assert len(find_files(str(tmp_path / "b*"))) == 2


def test_brackets_of_the_working_directory_are_no_pattern(tmp_path, monkeypatch):
    for directory, name in (("run[1]", "here.txt"), ("run1", "beside.txt")):
        (tmp_path / directory / "texts").mkdir(parents=True)
        (tmp_path / directory / "texts" / name).write_text("text")
    monkeypatch.chdir(tmp_path / "run[1]")
    for pattern in ("texts/*.txt", "./texts/**", "texts/../texts/h*"):
        assert [file.name for file in find_files(pattern)] == ["here.txt"]
    monkeypatch.chdir(tmp_path / "run1")
    assert [file.name for file in find_files("texts/*")] == ["beside.txt"]


def test_links_to_directories_are_followed_but_not_in_circles(tmp_path):
    texts, disk = tmp_path / "texts", tmp_path / "disk"
    for name in ("texts/own.txt", "disk/far.txt", "disk/deep/farther.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    (texts / "linked").symlink_to(disk)
    (texts / "file.txt").symlink_to(disk / "far.txt")
    (disk / "deep" / "back").symlink_to(texts)
    (texts / "itself").symlink_to(texts)
    names = ["file.txt", "linked/deep/farther.txt", "own.txt"]  # the first is linked/far.txt, too
    for pattern, found in (
        ("**", names),
        ("l*/*.txt", ["far.txt"]),
        ("*.txt", ["file.txt", "own.txt"]),
    ):
        files = find_files(str(texts / pattern), follow_links=True)
        assert [file.name for file in files] == found


@pytest.mark.parametrize("pattern", ["**", "*.txt", "gone.txt"])
def test_a_link_to_nothing_is_refused(tmp_path, pattern):
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "moved.txt")
    with pytest.raises(BadInputError, match=r"gone\.txt: is a link to nothing \(.*moved\.txt\)"):
        find_files(str(tmp_path / pattern))
    assert [file.name for file in find_files(str(tmp_path / "t*"))] == ["text.txt"]


def test_files_of_two_file_systems_are_refused(tmp_path, monkeypatch):
    """They share no directory to be named by."""
    (tmp_path / "here.txt").write_text("text")
    monkeypatch.setattr(storage, "_match_remote_files", lambda pattern: {"gs://b/there.txt": 4})
    assert [file.name for file in find_files("gs://b/*")] == ["there.txt"]
    words = r"gs://b/there\.txt: is on another file system than .*here\.txt; copy"
    with pytest.raises(BadInputError, match=words):
        find_files([str(tmp_path / "*"), "gs://b/*"])


def test_patterns_without_files_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="no such file"):
        find_files(str(tmp_path / "nothing*"))
    with pytest.raises(BadInputError, match="is a directory"):
        find_files(str(tmp_path))
    (tmp_path / "AA").mkdir()  # as WikiExtractor writes
    with pytest.raises(BadInputError, match=r"A\*: matches directories; write .*A\*/\*\*"):
        find_files(str(tmp_path / "A*"))
    (tmp_path / "empty").touch()
    with pytest.raises(BadInputError, match="empty: is empty"):
        find_files(str(tmp_path / "*"))


@pytest.mark.parametrize(
    "paragraph",
    [
        "Mr. J. R. Smith came. “Did he?” Yes!  He did, i.e. at 3 p.m. on Monday.",
        "By\u00a0A.\u00a0B.\u2003C. Smith.\u3000Next one. \u0085And A.\u2028B. end",
        "no end",
        "  Spaces.   Between.  ",
        "中文。没有空格。",
    ],
)
def test_sentences_are_the_paragraph_to_the_character(paragraph):
    sentences, counts = split_sentences([paragraph, "One. Two."], "en")
    assert "".join(sentences[: counts[0]]) == paragraph
    assert counts == [len(sentences) - 2, 2]
    assert not any("Smith. came" in sentence for sentence in sentences)


def test_abbreviations_end_no_sentence():
    sentences, _ = split_sentences(["Mr. Smith met Dr. Jones. They talked."], "en")
    assert sentences == ["Mr. Smith met Dr. Jones. ", "They talked."]


@pytest.mark.parametrize(
    "pattern", ["wikipedia/AA/wiki_0[0-3].gz", "wikipedia_newstyle/AA/wiki_00.gz"]
)
def test_real_dumps_have_as_many_documents_as_tags(shared_data, pattern):
    for file in find_files(str(shared_data / "text" / pattern)):
        with gzip.open(file.path, "rt", encoding="utf-8") as text:
            num_tags = sum(line.startswith("<doc id=") for line in text)
        documents = read_documents(file.path)
        assert len(documents) == num_tags
        assert "empty" not in documents
