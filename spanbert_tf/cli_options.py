"""Options that commands of several modules share."""

import click

EXISTING_DIRECTORY = click.Path(exists=True, file_okay=False)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the configuration, for example training.steps=1000.",
)
