"""`spanbert-tf prepare tacred`."""

import click

from data_prep.options import relation_options
from spanbert_tf.command_line import WritingCommand


@click.command("tacred", cls=WritingCommand)
@relation_options(entities="masked")
def prepare_tacred(
    input_path: str, training_input: str | None, **options: str | bool | int
) -> None:
    """Write records of relations of TACRED, or in its layout."""
    from data_prep.examples.relation_rows import prepare_relations
    from data_prep.examples.tacred import read_tacred

    prepare_relations(read_tacred, input_path, training_input, **options)
