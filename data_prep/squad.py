"""`spanbert-tf prepare squad`."""

import click

from data_prep.options import question_options
from spanbert_tf.command_line import WritingCommand
from spanbert_tf.process.lines import print_line


@click.command("squad", cls=WritingCommand)
@question_options
@click.option("--version-2", is_flag=True, help="SQuAD 2.0: some questions have no answer.")
def prepare_squad(
    input_path: str,
    output: str,
    vocabulary: str,
    lowercase: bool,
    overwrite: bool,
    strip_accents: bool | None,
    version_2: bool,
    **options: int,
) -> None:
    """Write records of SQuAD 1.1 or 2.0, or of a file in their format."""
    from data_prep.examples.question_rows import QuestionOptions, write_questions
    from data_prep.examples.questions import describe_unanswered
    from data_prep.examples.squad import read_squad

    questions = read_squad(input_path)
    write_questions(
        questions,
        output,
        vocabulary=vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        options=QuestionOptions(has_unanswerable=version_2, **options),
        overwrite=overwrite,
    )
    if not version_2 and (line := describe_unanswered(questions)):
        print_line(line)
