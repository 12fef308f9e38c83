"""`python -m data_prep.tacred`, the same as `spanbert-tf prepare tacred`."""

import sys

import click

from data_prep.options import relation_options
from spanbert_tf.command_line import WritingCommand, quiet_libraries, run_command


@click.command("tacred", cls=WritingCommand)
@relation_options(entities="masked")
def prepare_tacred(
    input_path: str, training_input: str | None, **options: str | bool | int
) -> None:
    """Write records of relations of TACRED, or in its layout."""
    from data_prep.examples.relation_rows import prepare_relations
    from data_prep.examples.tacred import read_tacred

    prepare_relations(read_tacred, input_path, training_input, **options)


if __name__ == "__main__":
    quiet_libraries()
    run_command(prepare_tacred, "spanbert-tf prepare tacred", sys.argv[1:])
