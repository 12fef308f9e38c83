"""`spanbert-tf prepare mrqa`."""

import click

from data_prep.options import question_options
from spanbert_tf.command_line import WritingCommand


@click.command("mrqa", cls=WritingCommand)
@question_options
@click.option("--allow-missing-header", is_flag=True, help="As in the samples of the task.")
@click.option(
    "--half",
    type=click.Choice(["development", "test"]),
    help="Half of a development set, where there is no test set.",
)
def prepare_mrqa(
    input_path: str,
    output: str,
    vocabulary: str,
    lowercase: bool,
    overwrite: bool,
    strip_accents: bool | None,
    allow_missing_header: bool,
    half: str | None,
    **options: int,
) -> None:
    """Write records of one of the MRQA shared task's sets."""
    from data_prep.examples.mrqa import read_mrqa
    from data_prep.examples.question_rows import QuestionOptions, write_questions

    write_questions(
        read_mrqa(input_path, allow_missing_header=allow_missing_header, half=half),
        output,
        vocabulary=vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        options=QuestionOptions(**options),
        overwrite=overwrite,
    )
