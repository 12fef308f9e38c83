"""The files of GLUE's submissions: `CoLA.tsv` and the like, and the zip of them."""

import math
from collections.abc import Sequence

from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE

HEADER = "index\tprediction"


def submission_file(dataset: str) -> str:
    """The name of a task's file: `CoLA.tsv`."""
    return f"{GLUE_TASKS[dataset].title}.tsv"


def submission_text(dataset: str, predictions: Sequence[str | float]) -> str:
    """The content of a task's file: a line for each text of the test set, in its order.

    Args:
        dataset: name of the GLUE task.
        predictions: names of the classes; of a regression numbers, which are cut to GLUE's range.
    """
    lines = (f"{index}\t{_shown(dataset, one)}" for index, one in enumerate(predictions))
    return "".join(f"{line}\n" for line in (HEADER, *lines))


def _shown(dataset: str, prediction: str | float) -> str:
    if not GLUE_TASKS[dataset].is_regression:
        return str(prediction)
    lowest, highest = SCORE_RANGE
    number = float(prediction)
    return f"{min(max(number, lowest), highest) if math.isfinite(number) else lowest:.3f}"
