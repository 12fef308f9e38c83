"""Files of documents: CoNLL-2012, GUM's columns and JSON lines."""

import gzip
import json

import pytest

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import Document, clean_clusters
from spanbert_tf.tasks.coreference.files import read_documents

ROWS = """#begin document (bc/cctv/00/cctv_0000); part 001
bc/cctv/00/cctv_0000   1    0    Ann    NNP   *   -   -   -   Speaker#1   *   *   *   (19)
bc/cctv/00/cctv_0000   1    1     /.    .     *   -   -   -   Speaker#1   *   *   *   -

bc/cctv/00/cctv_0000   1    0   -LRB-   X     *   -   -   -   -   *   *   *   (3|(19
bc/cctv/00/cctv_0000   1    1     8)    X     *   -   -   -   -   *   *   *   19)
bc/cctv/00/cctv_0000   1    2     it    X     *   -   -   -   -   *   *   *   3)|(4)

#end document
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return [str(path)]


def test_rows_of_ontonotes(tmp_path):
    (document,) = read_documents(write(tmp_path / "a.v4_gold_conll", ROWS))
    assert document == Document(
        name="bc/cctv/00/cctv_0000",
        part=1,
        words=["Ann", ".", "-LRB-", "8)", "it"],
        sentence_starts=[0, 2],
        speakers=["Speaker#1", "Speaker#1", "", "", ""],
        clusters=[[(0, 0), (2, 3)], [(2, 4)], [(4, 4)]],
    )
    assert document.key == "bc/cctv/00/cctv_0000_1"


def test_parts_have_clusters_of_their_own(shared_data):
    path = shared_data / "coref" / "allennlp_fixture.coref.gold_conll"
    documents = read_documents([str(path)])
    assert [document.part for document in documents] == [0, 1, 3, 5]
    assert sum(len(spans) for d in documents for spans in d.clusters) == 13
    assert all(end < len(d.words) for d in documents for spans in d.clusters for _, end in spans)


def test_ontogum_has_the_counts_that_its_makers_state(shared_data):
    path = shared_data / "coref" / "conll2012_style" / "dev.english.v4_gold_conll.gz"
    documents = read_documents([str(path)])
    assert len(documents) == 30
    assert sum(len(d.words) for d in documents) == 28_119
    assert sum(len(d.sentence_starts) for d in documents) == 1_575
    assert sum(len(d.clusters) for d in documents) == 855
    assert sum(len(spans) for d in documents for spans in d.clusters) == 3_815


def test_gum_columns_have_no_sentences_and_brackets_run_together(tmp_path):
    text = "# begin document \n0\tAnn\t(2(1)\n1\t \t_\n2\tit\t(1)2)\n"
    (document,) = read_documents(write(tmp_path / "GUM_bio_x.conll", text))
    assert (document.name, document.sentence_starts) == ("GUM_bio_x", None)
    assert document.clusters == [[(0, 0), (2, 2)], [(0, 2)]]


def test_json_lines_of_words(tmp_path):
    line = {
        "doc_key": "nw/x_2",
        "sentences": [["Ann", "sat"], [], ["She", "did"]],
        "speakers": [["A", "A"], [], ["-", "-"]],
        "clusters": [[[0, 0], [2, 2]], []],
    }
    (document,) = read_documents(write(tmp_path / "a.jsonlines", json.dumps(line)))
    expected = (["Ann", "sat", "She", "did"], [0, 2], ["A", "A", "", ""], [[(0, 0), (2, 2)]])
    assert (document.name, document.part) == ("nw/x", 2)
    assert expected == (
        document.words,
        document.sentence_starts,
        document.speakers,
        document.clusters,
    )


@pytest.mark.parametrize(
    ("key", "name", "part"),
    [
        *(("a_1", "a", 1), ("a_01", "a_01", 0), ("a_007", "a_007", 0)),
        *(("a_0", "a", 0), ("a", "a", 0)),
        (f"a_{'9' * 18}", "a", 10**18 - 1),
        *((f"a_{'9' * n}", f"a_{'9' * n}", 0) for n in (19, 5_000)),  # Python reads 4,300
    ],
)
def test_part_of_a_key_is_a_number_as_it_is_written(key, name, part, tmp_path):
    line = {"doc_key": key, "sentences": [["Ann"]], "clusters": []}
    (document,) = read_documents(write(tmp_path / "a.jsonlines", json.dumps(line)))
    assert (document.name, document.part) == (name, part)


def test_json_lines_of_pieces_become_words_again(tmp_path, shared_data):
    path = str(shared_data / "coref" / "trial.jsonlines")
    (document,) = read_documents([path])
    assert document.words[:7] == [
        *("Meanwhile", "Prime", "Minister", "Ehud", "Barak", "told", "Israeli"),
    ]
    assert len(document.words) == 34 and document.clusters == []
    assert document.sentence_starts == [0, document.words.index("He")]


def test_directories_and_patterns_are_read_and_gzip_is_seen(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.v4_gold_conll.gz").write_bytes(gzip.compress(ROWS.encode()))
    write(tmp_path / "a.conll", ROWS.replace("part 001", "part 000"))
    write(tmp_path / "notes.txt", "no document")
    assert [d.part for d in read_documents([str(tmp_path)])] == [0, 1]
    assert len(read_documents([str(tmp_path / "*.conll"), str(tmp_path / "deep")])) == 2


def test_clusters_that_share_a_mention_are_one():
    clusters = [[(0, 0), (5, 6)], [], [(9, 9), (2, 2)], [(5, 6), (2, 2)], [(0, 0), (0, 0)]]
    assert clean_clusters(clusters) == [[(0, 0), (2, 2), (5, 6), (9, 9)]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace("19)\n", "18)\n"), "line 6: a mention of cluster 18 ends"),
        (ROWS.replace("  *   *   *   (19)", "(19)"), "line 2: has 11 columns"),
        (ROWS + ROWS, "occurs twice"),
        (ROWS.replace("#end document", "") + ROWS, "a document begins before `#end document`"),
        ("#end document\n" + ROWS, "is neither CoNLL"),
        (ROWS + "word\n", "line 10: stands before any"),
        ("#begin document (a); part 000\n#end document\n", "contains no document with words"),
        ("", "is neither CoNLL"),
        ('{"doc_key": "a", "sentences": [["b"]]}', "line 1: clusters: is missing"),
        (
            '{"doc_key": "a", "sentences": [["b"]], "clusters": [[[0, 1]]]}',
            r"line 1: \[0, 1\] is not a span of 1 tokens",
        ),
        (
            '{"doc_key": "a", "sentences": [["b"]], "clusters": [], "subtoken_map": [0, 1]}',
            "subtoken_map and sentence_map must have the same",
        ),
    ],
)
def test_bad_files_are_named(text, message, tmp_path):
    with pytest.raises(BadInputError, match=message):
        read_documents(write(tmp_path / "file_conll", text))


def test_missing_files_and_empty_directories_are_named(tmp_path):
    with pytest.raises(BadInputError, match="no such file"):
        read_documents([str(tmp_path / "*.conll")])
    with pytest.raises(BadInputError, match="contains no file whose name ends in"):
        read_documents([str(tmp_path)])


def test_one_path_is_read_as_a_list_of_it(tmp_path):
    (path,) = write(tmp_path / "a_conll", ROWS)
    expected = read_documents([path])
    for given in (path, tmp_path / "a_conll", [tmp_path / "a_conll"]):
        assert read_documents(given) == expected


def test_linked_directories_are_read_and_each_file_once(tmp_path):
    disk, documents = tmp_path / "disk", tmp_path / "documents"
    disk.mkdir()
    documents.mkdir()
    write(documents / "a_conll", ROWS)
    write(disk / "b_conll", ROWS.replace("cctv_0000", "cctv_0001"))
    (documents / "linked").symlink_to(disk)
    (documents / "latest").symlink_to(documents / "linked")
    (disk / "back").symlink_to(documents)
    names = [document.name for document in read_documents(documents, follow_links=True)]
    assert names == ["bc/cctv/00/cctv_0000", "bc/cctv/00/cctv_0001"]


def test_a_document_of_two_files_names_both(tmp_path):
    for name in ("a_conll", "b_conll"):
        write(tmp_path / name, ROWS)
    message = f"^{tmp_path}/b_conll: document .* also occurs in {tmp_path}/a_conll$"
    with pytest.raises(BadInputError, match=message):
        read_documents(tmp_path)
