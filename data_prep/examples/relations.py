"""Examples of relations between two entities, as the readers of their formats hand them on."""

import collections
import dataclasses

from spanbert_tf.errors import BadInputError
from spanbert_tf.process.lines import escape_controls
from spanbert_tf.tasks.relation_extraction.schema import ExampleLine


@dataclasses.dataclass(frozen=True)
class RelationSet:
    """What a file holds.

    Attributes:
        path: path of the file.
        layout: `"tacred"` or `"semeval2010"`, whose official scorer counts.
        negative: the relation of none.
        examples: in their order; their relations are `None` where the file has none.
    """

    path: str
    layout: str
    negative: str
    examples: list[ExampleLine]

    def labels(self) -> list[str]:
        """The relation of none, and the others sorted."""
        found = {example["relation"] for example in self.examples} - {None, self.negative}
        return [self.negative, *sorted(found)]


def check_relations(relations: RelationSet) -> None:
    """Refuses a file without examples or with relations in some alone, ids twice, controls.

    Raises:
        BadInputError: it is such a file; the message names the example.
    """
    path, examples = relations.path, relations.examples
    if not examples:
        raise BadInputError(f"{path}: holds no examples")
    counts = collections.Counter(example["id"] for example in examples)
    if twice := [identifier for identifier, count in counts.items() if count > 1]:
        raise BadInputError(f"{path}: example id {twice[0]!r} is there {counts[twice[0]]} times")
    without = [example["id"] for example in examples if example["relation"] is None]
    for example in examples:
        relation = example["relation"] or ""
        if relation != escape_controls(relation):  # files of predictions have one a line
            raise BadInputError(
                f"{path}: example {example['id']!r}: the relation {relation!r} has a line end or "
                "another control character; rename it"
            )
    if 0 < len(without) < len(examples):
        raise BadInputError(f"{path}: example {without[0]!r}: has no relation, as others have")
