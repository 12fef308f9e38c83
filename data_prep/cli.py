"""`spanbert-tf prepare`: the commands that write vocabularies and records."""

import importlib.metadata

import click

from data_prep.classification import prepare_classification
from data_prep.coreference import prepare_coreference
from data_prep.glue import prepare_glue
from data_prep.mrqa import prepare_mrqa
from data_prep.named_entities import prepare_named_entities
from data_prep.pretraining import prepare_pretraining
from data_prep.semeval2010 import prepare_semeval2010
from data_prep.squad import prepare_squad
from data_prep.tacred import prepare_tacred
from data_prep.vocabulary import prepare_vocabulary

ENTRY_POINTS = "spanbert_tf.prepare"


class _OpenGroup(click.Group):
    """A group that other packages add commands to, by entry points of `ENTRY_POINTS`.

    The value of an entry point is a `click.Command`; its module is imported when it is called.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, those of other packages included."""
        return sorted({*self.commands, *_entry_points().names})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command of this package, or one of another that is not imported yet."""
        if name in self.commands:
            return self.commands[name]
        return next(map(_CommandOfPackage, _entry_points().select(name=name)), None)


class _CommandOfPackage(click.Command):
    """Stands for the command of another package until it is called, so that help is quick."""

    def __init__(self, point: importlib.metadata.EntryPoint) -> None:
        package = point.dist.name if point.dist else point.module
        super().__init__(point.name, help=f"Command of the package {package}.")
        self._point = point

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra
    ) -> click.Context:
        """The context of the command itself."""
        try:
            command = self._point.load()
        except (ImportError, AttributeError) as error:
            raise click.ClickException(
                f"prepare {self.name}: {self._point.value} cannot be loaded ({error}); mend or "
                "remove its package"
            ) from error
        return command.make_context(info_name, args, parent=parent, **extra)


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=ENTRY_POINTS)


@click.group(cls=_OpenGroup)
def prepare() -> None:
    """Write vocabularies and records."""


for _command in (
    *(prepare_vocabulary, prepare_pretraining, prepare_squad, prepare_mrqa),
    *(prepare_glue, prepare_classification, prepare_coreference),
    *(prepare_named_entities, prepare_tacred, prepare_semeval2010),
):
    prepare.add_command(_command)
