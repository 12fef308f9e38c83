"""Examples of SemEval-2010 task 8 (Hendrickx et al., 2010): `spanbert-tf prepare semeval2010`."""

import re

from data_prep.examples.relations import RelationSet
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.tasks.relation_extraction.scoring import OTHER

_SENTENCE = re.compile(r'(\d+)\t"?(.*?)"?')
# Each part ends at the first mark of its kind: where the rest does not fit, no later one helps, and
# looking for it would take cubic time.
_MARKED = re.compile("(?>(.*?)<e1>)(?>(.+?)</e1>)(?>(.*?)<e2>)(?>(.+?)</e2>)(.*)")
_RELATION = re.compile(r"Other|[A-Z][A-Za-z]*-[A-Z][A-Za-z]*\((e1,e2|e2,e1)\)")
_COMMENT = "Comment:"


def read_semeval2010(path: str) -> RelationSet:
    """Reads the task's own files: a line with number and sentence, its relation, a comment.

    Args:
        path: path of the file, .gz or not. Of the test set, sentences are followed by nothing.

    Raises:
        BadInputError: a line is none of these, or a sentence has not `<e1>…</e1>` and, after it,
            `<e2>…</e2>`; the message names the line.
    """
    examples = []
    for number, line in enumerate(read_text_file(path).split("\n"), start=1):
        line, place = line.strip("\r "), f"{path}: line {number}"
        if not line or line.startswith(_COMMENT):
            continue
        if sentence := _SENTENCE.fullmatch(line):
            examples.append(_example(*sentence.groups(), place))
        elif _RELATION.fullmatch(line) and examples and examples[-1]["relation"] is None:
            examples[-1]["relation"] = line
        else:
            raise BadInputError(
                f"{place}: {line[:40]!r} is no number with a sentence, no relation of the task "
                "that follows one, and no comment"
            )
    return RelationSet(path, "semeval2010", OTHER, examples)


def _example(identifier: str, marked: str, place: str) -> dict:
    found = _MARKED.fullmatch(marked)
    if not found:
        raise BadInputError(f"{place}: the sentence has not <e1>…</e1> and then <e2>…</e2>, once")
    parts = found.groups()
    ends = [sum(map(len, parts[:count])) for count in range(1, len(parts))]
    return {
        "id": identifier,
        "text": "".join(parts),
        "subject": [ends[0], ends[1]],
        "object": [ends[2], ends[3]],
        "subject_type": "",
        "object_type": "",
        "relation": None,
    }
