"""Files of CorefUD: what is read, against the package `conllu`, and written, to the byte."""

import collections
import gzip
import itertools
import json
import re

import conllu
import hypothesis
import made_up_documents
import pytest
from hypothesis import strategies as st
from task_tests import SPECIAL

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.corefud import as_corefud
from spanbert_tf.tasks.coreference.files import read_documents, write_predictions
from spanbert_tf.tasks.coreference.prepare import prepare_coreference
from spanbert_tf.tasks.coreference.records import gold_clusters
from spanbert_tf.tasks.coreference.rows import _document_line


def rows(*cells):
    """Rows with numbers, words and the column MISC."""
    lines = []
    for number, word, misc in cells:
        lines.append("\t".join([number, word, word.lower(), "X", "_", "_", "0", "_", "_", misc]))
    return "".join(f"{line}\n" for line in lines)


# A pronoun that the text leaves out, a word that the text spells as one with the next, mentions
# inside others, in two parts, and of two sentences.
FIRST = (
    "# newdoc id = one\n# global.Entity = eid-etype-head-other\n# newpar\n# newpar\n"
    "# speaker = Eva\n#text=Vám se líbí\n"
    + rows(
        ("1-2", "Vám", "SpaceAfter=No"),
        ("1", "V", "Entity=(e1-person-1-gstype:gen(e2)"),
        ("2", "ám", "Bridge=e1<e2|Entity=e1)|SpaceAfter=No"),
        ("2.1", "_", "Entity=(e3-person-1)"),
        ("3", "se", "Entity=(e4[1/2]-thing-1)"),
        ("4", "líbí", "Entity=(e2(e2-thing-1"),
        ("5", ".", "Entity=e2)(e4[2/2]-thing-1)(e3)|Ref=a=b"),
    )
    + "\n# text = Ano\n"
    + rows(
        ("1", "Ano", "Entity=e2)(e3"), ("1.1", "_", "Entity=e3)(e1"), ("2", "ne", "Entity=e1)|Z")
    )
    + "\n"
)
SECOND = (
    "# newdoc\n# text = 東京 へ\n" + rows(("1", "東京", "Entity=(e1)"), ("2", "へ", "_")) + "\n"
)


def write(path, text):
    path.write_bytes(text.encode())
    return [str(path)]


def test_words_sentences_and_mentions(tmp_path):
    one, two = read_documents(write(tmp_path / "made.conllu", FIRST + SECOND))
    assert (one.key, two.key) == ("one_0", "made_0")
    assert one.words == ["V", "ám", "se", "líbí", ".", "Ano", "ne"]
    assert one.sentence_starts == [0, 5]
    assert one.speakers == ["Eva"] * 5 + [""] * 2
    assert one.clusters == [
        [(0, 0), (3, 4), (3, 5)],  # e2
        [(0, 1), (6, 6)],  # e1, whose last mention begins with a word that is left out
        [(4, 4), (5, 5)],  # e3
    ]
    assert one.left_out == {"mentions_discontinuous": 1, "mentions_empty": 1}
    assert (two.words, two.clusters) == (["東京", "へ"], [[(0, 0)]])
    assert (one.conllu, two.conllu) == (FIRST, SECOND)


def test_documents_without_names_are_parts_of_their_file(tmp_path):
    documents = read_documents(write(tmp_path / "a.b.conllu.txt", FIRST + SECOND + SECOND))
    assert [document.key for document in documents] == ["one_0", "a.b_0", "a.b_1"]


def test_singletons_are_dropped_and_counted(tmp_path):
    paths = write(tmp_path / "made.conllu", FIRST + SECOND)
    one, two = read_documents(paths, drops_singletons=True)
    assert one.clusters == read_documents(paths)[0].clusters and two.clusters == []
    assert (one.left_out["singletons_dropped"], two.left_out["singletons_dropped"]) == (0, 1)
    assert one.left_out["mentions_empty"] == 1


def without_entities(text):
    """All but the column that is written, by the package."""
    sentences = conllu.parse(text)
    for token in itertools.chain.from_iterable(sentences):
        misc = token["misc"] or {}
        misc.pop("Entity", None)
        token["misc"] = misc or None
    return "".join(sentence.serialize() for sentence in sentences)


def columns_but_misc(text):
    return [line.split("\t")[:9] if "\t" in line else line for line in text.split("\n")]


def attributes(text):
    """The attributes of each row but Entity, in their order."""
    found = []
    for line in text.split("\n"):
        if "\t" in line:
            cells = line.split("\t")[9].split("|")
            found.append([cell for cell in cells if not re.match("Entity=|_$", cell)])
    return found


def check_round_trip(documents, clusters, directory):
    """What is written has these clusters, and is otherwise what was read."""
    lines = [_document_line(document, document.sentence_starts) for document in documents]
    text = as_corefud(lines, clusters)
    before = "".join(document.conllu for document in documents)
    assert columns_but_misc(text) == columns_but_misc(before)
    assert attributes(text) == attributes(before)
    again = read_documents(write(directory / "again.conllu", text))
    assert [document.clusters for document in again] == clusters
    assert as_corefud([_document_line(d, d.sentence_starts) for d in again], clusters) == text
    return text


def test_predictions_are_written_into_the_lines_that_were_read(tmp_path):
    documents = read_documents(write(tmp_path / "made.conllu", FIRST + SECOND))
    text = check_round_trip(documents, [[[(0, 1), (1, 1)], [(1, 5)], [(4, 6)]], []], tmp_path)
    cells = [line.split("\t")[9] for line in text.split("\n") if "\t" in line]
    assert cells == [
        "SpaceAfter=No",
        "Entity=(e1",
        "Bridge=e1<e2|Entity=(e1)e1)(e2|SpaceAfter=No",
        "_",
        "_",
        "_",
        "Entity=(e3|Ref=a=b",
        "Entity=e2)",
        "_",
        "Entity=e3)|Z",
        "_",
        "_",
    ]


NESTED = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted), unique_by=tuple)


def do_cross(one, other):
    return one[0] < other[0] <= one[1] < other[1] or other[0] < one[0] <= other[1] < one[1]


@hypothesis.settings(max_examples=100)
@hypothesis.given(NESTED, st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_any_clusters_come_back(tmp_path_factory, spans, numbers):
    """But mentions of one entity that cross, which brackets cannot tell from nested ones."""
    by_number = collections.defaultdict(list)
    for span, number in zip(spans, numbers, strict=False):
        if not any(do_cross(span, other) for other in by_number[number]):
            by_number[number].append(tuple(span))
    clusters = sorted(sorted(spans) for spans in by_number.values() if spans)
    directory = tmp_path_factory.mktemp("corefud")
    documents = read_documents(write(directory / "made.conllu", FIRST))
    check_round_trip(documents, [clusters], directory)


def test_files_without_entities_get_a_line_of_fields(tmp_path):
    plain = "# sent_id = 1\n" + rows(("1", "She", "_"), ("2", "sat", "SpaceAfter=No"))
    (tmp_path / "one.conllu").write_text(plain)
    (tmp_path / "two.conllu").write_text("# newdoc\n" + plain)
    documents = read_documents([str(tmp_path)])
    lines = [_document_line(document, [0]) for document in documents]
    clusters = [[[(0, 0)]], [[(0, 1)]]]
    text = as_corefud(lines, clusters)
    fields = "# global.Entity = eid\n"
    first = "# sent_id = 1\n" + rows(("1", "She", "Entity=(e1)"), ("2", "sat", "SpaceAfter=No"))
    second = "# newdoc\n# sent_id = 1\n" + rows(
        ("1", "She", "Entity=(e2"), ("2", "sat", "Entity=e2)|SpaceAfter=No")
    )
    assert text == f"{fields}{first}\n{second}"
    later = as_corefud(lines[::-1], clusters[::-1])
    assert later.startswith(f"# newdoc\n{fields}# sent_id") and later.count("global") == 1


BROKEN = {
    "brackets": ("Entity=(e2(e2-thing-1", "Entity=(e2((e2", "line 12: '((e2' is no bracket"),
    "no bracket": ("Entity=(e2(e2-thing-1", "Entity=e2", "line 12: 'e2' is no bracket"),
    "not begun": ("Entity=(e4[1/2]-thing-1)", "Entity=e9)", "line 11: a mention of entity e9 ends"),
    "not ended": ("(e3\n", "(e3(e9\n", "line 16: a mention of entity e9 begins"),
    "no fields": ("# global.Entity", "# local.Entity", "line 8: Entity= stands before any"),
    "other fields": ("= eid-", "= etype-eid-", "line 2: the first field of global.Entity is not"),
    "column": ("\tse\tX", "\tX", "line 11: has 9 columns; CoNLL-U has 10"),
    "number": ("\n3\tse", "\n3a\tse", "line 11: '3a' is no number of a word"),
    "range": ("SpaceAfter=No\n1\t", "Entity=(e1)\n1\t", "line 7: has Entity=, which stands at"),
    "line ends": ("\n#text", "\r\n#text", "line 5: ends with a carriage return"),
    "name": ("# newdoc\n", "# newdoc id = one\n", "document 'one_0' occurs twice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_a_line(name, tmp_path):
    good, bad, message = BROKEN[name]
    text = (FIRST + SECOND).replace("Entity=e2)(e3\n", "Entity=e2)(e3\n")
    assert text.count(good) == 1
    path = tmp_path / "made.conllu"
    with pytest.raises(BadInputError) as raised:
        read_documents(write(path, text.replace(good, bad)))
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_a_first_row_without_a_column_is_still_of_conllu(tmp_path):
    text = rows(("1", "a", "_")).replace("\t_\t_\n", "\t_\n")
    with pytest.raises(BadInputError, match="line 1: has 9 columns"):
        read_documents(write(tmp_path / "made.conllu", text))


def test_all_is_written_by_prepare_and_beside_the_other_predictions(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in SPECIAL + made_up_documents.VOCABULARY)
    )
    write(tmp_path / "made.conllu", FIRST + SECOND)
    arguments = ["--input", tmp_path / "made.conllu", "--output", tmp_path / "data"]
    arguments += ["--vocabulary", tmp_path / "vocab.txt", "--lowercase", "--singletons", "drop"]
    prepare_coreference.main(list(map(str, arguments)), standalone_mode=False)
    printed = capsys.readouterr().out
    for message in (
        "1 mentions are discontinuous and were left out",
        "1 mentions have no word of the text and were left out",
        "1 clusters have one mention and were dropped",
    ):
        assert f"  {message}\n" in printed
    lines = [json.loads(line) for line in (tmp_path / "data/documents.jsonl").open()]
    (tmp_path / "out").mkdir()
    write_predictions(lines, [gold_clusters(line) for line in lines], str(tmp_path / "out"))
    (again, other) = read_documents([str(tmp_path / "out" / "predictions.conllu")])
    assert again.clusters == gold_clusters(lines[0]) and other.clusters == []
    del lines[0]["conllu"], lines[1]["conllu"]
    (tmp_path / "plain").mkdir()
    write_predictions(lines, [gold_clusters(line) for line in lines], str(tmp_path / "plain"))
    assert not (tmp_path / "plain" / "predictions.conllu").exists()


def gum_files(shared_data):
    return sorted((shared_data / "coref" / "gum_conllu").glob("*/*.conllu.gz"))


def mentions_of_gum(text):
    """Sizes of clusters by the package and a scan for brackets, which are whole words in GUM."""
    mentions = collections.defaultdict(list)
    begun = collections.defaultdict(list)
    words = []
    for token in itertools.chain.from_iterable(conllu.parse(text)):
        if not isinstance(token["id"], int):
            continue
        words.append(token["form"])
        cell = (token["misc"] or {}).get("Entity", "")
        for opening, closing in re.findall(r"\(([^()]+)|([^()]*)\)", cell):
            if opening:
                entity = opening.partition("-")[0]
                begun[entity].append(len(words) - 1)
            else:
                entity = closing or entity
                mentions[entity].append((begun[entity].pop(), len(words) - 1))
    return words, sorted(sorted(spans) for spans in mentions.values())


def test_gum_is_read_as_the_package_reads_it(shared_data):
    paths = gum_files(shared_data)
    assert len(paths) == 16
    for path in paths:
        text = gzip.decompress(path.read_bytes()).decode()
        (document,) = read_documents([str(path)])
        words, clusters = mentions_of_gum(text)
        assert document.words == words and document.clusters == clusters
        sizes = [
            sum(isinstance(token["id"], int) for token in sentence)
            for sentence in conllu.parse(text)
        ]
        assert document.sentence_starts == [0, *itertools.accumulate(sizes)][:-1]
        assert document.key == f"{path.name.partition('.')[0]}_0"


def test_gum_comes_back_to_the_byte(shared_data, tmp_path):
    for path in gum_files(shared_data):
        documents = read_documents([str(path)])
        clusters = [document.clusters for document in documents]
        text = check_round_trip(documents, clusters, tmp_path)
        original = gzip.decompress(path.read_bytes()).decode()
        assert without_entities(text) == without_entities(original)
        assert [line for line in text.split("\n") if "Entity" not in line] == [
            line for line in original.split("\n") if "Entity" not in line
        ]
