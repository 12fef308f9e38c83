"""Examples of TACRED (Zhang et al., 2017), or in its layout: `spanbert-tf prepare tacred`."""

from typing import NotRequired

from data_prep.examples.relations import RelationSet
from spanbert_tf.files.text_files import check_json_value, parse_json, read_text_file
from spanbert_tf.tasks.relation_extraction.examples import MarkedTokens, text_of_tokens

NO_RELATION = "no_relation"
_LAYOUT = "TACRED is one JSON list of examples (of JSON lines: jq -s .)"


class _Entry(MarkedTokens):
    id: str | int
    relation: NotRequired[str | None]


def read_tacred(path: str) -> RelationSet:
    """Reads a JSON list of examples; ends of entities are inclusive.

    Args:
        path: path of the file, .gz or not. Keys that are not needed (`stanford_pos` …) are ignored.

    Raises:
        BadInputError: it is not JSON, an example lacks a key, or an entity is not in its sentence
            or overlaps the other; the message names the entry.
    """
    examples = []
    entries = parse_json(read_text_file(path), list, path, _LAYOUT)
    for number, entry in enumerate(entries, start=1):
        place = f"{path}: entry {number}"
        found = check_json_value(entry, _Entry, place)
        identifier = str(found["id"])
        text = text_of_tokens(found, f"{place} ({identifier})")
        examples.append({"id": identifier, **text, "relation": found.get("relation")})
    return RelationSet(path, "tacred", NO_RELATION, examples)
