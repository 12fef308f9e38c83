"""`spanbert-tf prepare semeval2010`."""

import click

from data_prep.options import relation_options
from spanbert_tf.command_line import WritingCommand


@click.command("semeval2010", cls=WritingCommand)
@relation_options(entities="text")
def prepare_semeval2010(
    input_path: str, training_input: str | None, **options: str | bool | int
) -> None:
    """Write records of relations of SemEval-2010 task 8."""
    from data_prep.examples.relation_rows import prepare_relations
    from data_prep.examples.semeval2010 import read_semeval2010

    prepare_relations(read_semeval2010, input_path, training_input, **options)
