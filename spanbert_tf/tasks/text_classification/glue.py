"""The tasks of GLUE (Wang et al., 2019): columns, labels, metrics, test sets and submissions.

Importing this module does not import TensorFlow.
"""

import dataclasses
import math
from collections.abc import Sequence

ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_BINARY = ("0", "1")
EVALUATION_FILE = "evaluation.json"  # the scores of the predictions beside it
_SENTENCES = ("sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task as GLUE distributes and scores it.

    Attributes:
        title: name in GLUE's table, and name of the file in a submission.
        texts: headers of the columns of texts.
        label: header of the column of labels; `None` if no file has labels.
        labels: names of the classes in the order of their numbers; empty for a regression.
        metrics: keys of the scores, in the order of the paper's tables.
        test_rows: number of texts in the test set.
        dev_rows: number of texts in the development set; 0 if there is none.
        columns: columns of the labelled files, if they have no header.
        skips_short_rows: whether rows with too few columns are part of the distribution.
    """

    title: str
    texts: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    test_rows: int
    dev_rows: int
    columns: tuple[str, ...] = ()
    skips_short_rows: bool = False

    @property
    def is_pair(self) -> bool:
        """Whether its texts are pairs."""
        return len(self.texts) == 2

    @property
    def is_regression(self) -> bool:
        """Whether its labels are numbers."""
        return not self.labels


_COLA_COLUMNS = ("source", "label", "original_label", "sentence")
_MNLI = GlueTask("MNLI-m", _SENTENCES, "gold_label", _NLI, ("accuracy",), 9796, 9815)
# In the order of GLUE's table.
GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA", ("sentence",), "label", _BINARY, ("matthews",), 1063, 1043, columns=_COLA_COLUMNS
    ),
    "sst2": GlueTask("SST-2", ("sentence",), "label", _BINARY, ("accuracy",), 1821, 872),
    "mrpc": GlueTask(
        "MRPC", ("#1 String", "#2 String"), "Quality", _BINARY, ("f1", "accuracy"), 1725, 408
    ),
    "stsb": GlueTask("STS-B", _SENTENCES, "score", (), ("pearson", "spearman"), 1379, 1500),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        _BINARY,
        ("f1", "accuracy"),
        390_965,
        40_430,
        skips_short_rows=True,
    ),
    "mnli": _MNLI,
    "mnli_mm": dataclasses.replace(_MNLI, title="MNLI-mm", test_rows=9847, dev_rows=9832),
    "qnli": GlueTask(
        "QNLI", ("question", "sentence"), "label", ENTAILMENT, ("accuracy",), 5463, 5463
    ),
    "rte": GlueTask("RTE", _SENTENCES, "label", ENTAILMENT, ("accuracy",), 3000, 277),
    "wnli": GlueTask("WNLI", _SENTENCES, "label", _BINARY, ("accuracy",), 146, 71),
    "ax": GlueTask("AX", _SENTENCES, None, _NLI, ("matthews",), 1104, 0),
}
SCORE_RANGE = (0.0, 5.0)  # of STS-B
HEADER = "index\tprediction"  # of a submission's files


def submission_file(dataset: str) -> str:
    """Returns the name of a task's file in the zip of a submission, such as `CoLA.tsv`."""
    return f"{GLUE_TASKS[dataset].title}.tsv"


def submission_text(dataset: str, predictions: Sequence[str | float]) -> str:
    """Returns the content of a task's file: a line for each text of the test set, in its order.

    Numbers of a regression are cut to GLUE's range.
    """
    lines = (f"{index}\t{_shown(dataset, one)}" for index, one in enumerate(predictions))
    return "".join(f"{line}\n" for line in (HEADER, *lines))


def _shown(dataset: str, prediction: str | float) -> str:
    if not GLUE_TASKS[dataset].is_regression:
        return str(prediction)
    lowest, highest = SCORE_RANGE
    number = float(prediction)
    return f"{min(max(number, lowest), highest) if math.isfinite(number) else lowest:.3f}"
