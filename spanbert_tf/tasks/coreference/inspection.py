"""`spanbert-tf inspect` on documents with coreferent mentions."""

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.tasks.coreference.dataset import load_documents
from spanbert_tf.tasks.coreference.files import as_text
from spanbert_tf.tasks.coreference.records import CoreferenceInfo
from spanbert_tf.tasks.inspection import print_counts


def inspect_documents(data: str, console: DataConsole, num_examples: int) -> None:
    """Prints what a set of records holds, and some documents with their mentions in brackets.

    Args:
        data: directory of the records.
        console: where to print.
        num_examples: documents to print.

    Raises:
        BadInputError: a file of the records is missing or damaged.
    """
    records = Records.of(data, CoreferenceInfo)
    info = records.info
    console.print(
        f"{data}: coreference in segments of up to {info.sequence_length}, "
        f"{info.max_training_segments} trained at once, {info.casing.describe()}, vocabulary of "
        f"{info.vocabulary_size:,}",
    )
    print_counts(info, console)
    for line in load_documents(records)[:num_examples]:
        clusters = [[(start, end) for start, end in spans] for spans in line["clusters"]]
        console.print()
        for shown in as_text(line, clusters).removesuffix("\n").split("\n"):
            console.print(shown, highlight=False)
