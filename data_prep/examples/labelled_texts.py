"""Texts with their labels, as the readers of classification data hand them on."""

import dataclasses
import math

from spanbert_tf.errors import BadInputError

_LARGEST = float.fromhex("0x1.fffffep127")  # of float32, in which labels are stored


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A text, or a pair of texts.

    Attributes:
        line: its line in the file, from 1.
        texts: one text, or two.
        label: name of the class, or number of a regression; `None` where there is none.
    """

    line: int
    texts: tuple[str, ...]
    label: str | float | None


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """What a file holds; all of its texts have labels, or none has.

    Attributes:
        path: path of the file.
        examples: the texts in the order of the file.
        labels: names of the classes in the order of their numbers; of a regression the name of
            its number alone.
        is_pair: whether the texts are pairs.
        is_regression: whether labels are numbers.
        dataset: name of the GLUE task.
        num_skipped: lines that were left out.
    """

    path: str
    examples: list[LabelledText]
    labels: tuple[str, ...]
    is_pair: bool
    is_regression: bool = False
    dataset: str | None = None
    num_skipped: int = 0

    def check(self) -> None:
        """Refuses texts that no records can be made of.

        Raises:
            BadInputError: there is no example, some have labels, or a label is unknown.
        """
        if not self.examples:
            raise BadInputError(f"{self.path}: holds no texts")
        first = self.examples[0]
        for example in self.examples:
            if (example.label is None) != (first.label is None):
                has, had = ("no", "one") if example.label is None else ("a", "none")
                raise BadInputError(
                    f"{self.path}: line {example.line}: has {has} label, line {first.line} has "
                    f"{had}; prepare texts without labels alone"
                )
        for example in self.examples:
            if isinstance(example.label, str) and example.label not in self.labels:
                raise BadInputError(
                    f"{self.path}: line {example.line}: label {example.label!r} is none of "
                    f"{', '.join(self.labels)}"
                )


def parse_number(text: object, place: str) -> float:
    """The number of a regression.

    Args:
        text: the label.
        place: file and line, for errors.

    Raises:
        BadInputError: it is no finite number, or infinite in float32.
    """
    try:
        number = float(str(text)) if not isinstance(text, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInputError(f"{place}: label {text!r} is no number")
    if abs(number) > _LARGEST:
        raise BadInputError(f"{place}: label {text!r} is infinite in float32; scale the labels")
    return number
