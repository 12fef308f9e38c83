"""`python -m data_prep.semeval2010`, the same as `spanbert-tf prepare semeval2010`."""

import sys

import click

from data_prep.options import relation_options
from spanbert_tf.command_line import WritingCommand, quiet_libraries, run_command


@click.command("semeval2010", cls=WritingCommand)
@relation_options(entities="text")
def prepare_semeval2010(
    input_path: str, training_input: str | None, **options: str | bool | int
) -> None:
    """Write records of relations of SemEval-2010 task 8."""
    from data_prep.examples.relation_rows import prepare_relations
    from data_prep.examples.semeval2010 import read_semeval2010

    prepare_relations(read_semeval2010, input_path, training_input, **options)


if __name__ == "__main__":
    quiet_libraries()
    run_command(prepare_semeval2010, "spanbert-tf prepare semeval2010", sys.argv[1:])
