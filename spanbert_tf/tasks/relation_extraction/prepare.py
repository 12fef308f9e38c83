"""`spanbert-tf prepare tacred` and `prepare semeval2010`."""

from collections.abc import Callable
from typing import Any

import click

from spanbert_tf.command_line import WritingCommand, options, record_options_with


def _relation_options(entities: str) -> Callable[[Callable], Callable]:
    """Adds the options that both commands share."""
    return options(
        record_options_with(sequence_length=128),
        click.option(
            "--training-input",
            metavar="FILE",
            help="The training set, whose entity types and relations count.  [default: --input]",
        ),
        click.option(
            "--entities",
            type=click.Choice(["masked", "text"]),
            default=entities,
            show_default=True,
            help="A marker in place of each entity, or markers around its words.",
        ),
    )


@click.command("tacred", cls=WritingCommand)
@_relation_options(entities="masked")
def prepare_tacred(input_path: str, training_input: str | None, output: str, **others: Any) -> None:
    """Write records of relations of TACRED, or in its layout."""
    from spanbert_tf.tasks.relation_extraction.rows import read_tacred

    _write(read_tacred, input_path, training_input, output, **others)


@click.command("semeval2010", cls=WritingCommand)
@_relation_options(entities="text")
def prepare_semeval2010(
    input_path: str, training_input: str | None, output: str, **others: Any
) -> None:
    """Write records of relations of SemEval-2010 task 8."""
    from spanbert_tf.tasks.relation_extraction.rows import read_semeval2010

    _write(read_semeval2010, input_path, training_input, output, **others)


def _write(
    read: Callable, path: str, training_path: str | None, output: str, **others: Any
) -> None:
    """Reads a file and, where it is another, its training set; see `write_relations`."""
    from spanbert_tf.tasks.relation_extraction.rows import write_relations

    training = read(training_path) if training_path else None
    write_relations(read(path), output, training=training, **others)
