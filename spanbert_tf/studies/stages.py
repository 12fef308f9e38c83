"""What studies of several stages share: the title of a stage, and a check of their records."""

from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError
from spanbert_tf.terminal import print_line


def print_stage(name: str) -> None:
    """Prints an empty line and the title of a stage."""
    print_line()
    print_line(f"== {name}")


def check_enough_records(text: str, records: str, batch_size: int, study: str) -> None:
    """Refuses too few records: the advice of `pretrain` names options that a study may lack.

    Args:
        text: the text that they were written of, for the error.
        records: directory of the records.
        batch_size: rows of a batch of training.
        study: name of the study, for the error.

    Raises:
        BadInputError: there are fewer training records than rows in a batch, or no held-out ones.
    """
    manifest = PretrainingManifest.load(records)
    num_records = manifest.num_records("train")
    num_held_out = manifest.num_records("validation")
    if num_records < batch_size or not num_held_out:
        raise BadInputError(
            f"{text}: is too short for {study}: {num_records} training and "
            f"{num_held_out} held-out records, at least {batch_size} and 1 are needed; give more"
        )
