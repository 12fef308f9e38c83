"""Options that several of the prepare commands share."""

from collections.abc import Callable

import click

from spanbert_tf.command_line import (
    options,
    record_options,
    record_options_with,
    segment_aware_option,
)


def relation_options(entities: str) -> Callable[[Callable], Callable]:
    """The options that `prepare tacred` and `prepare semeval2010` share.

    Args:
        entities: default of `--entities`.
    """
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


question_options = options(
    record_options,
    click.option("--stride", type=click.IntRange(min=1), default=128, show_default=True),
    click.option("--question-first", is_flag=True, help="[CLS] question [SEP] passage [SEP]"),
    segment_aware_option,
)
