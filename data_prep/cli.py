"""`spanbert-tf prepare`: the table of the commands that write vocabularies and records."""

import importlib.metadata
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint

import click

# Other packages add commands by entry points of this group; the value is a `click.Command`.
ENTRY_POINTS = "spanbert_tf.prepare"
_COMMANDS = {
    "classification": "spanbert_tf.tasks.text_classification.prepare:prepare_classification",
    "coreference": "spanbert_tf.tasks.coreference.prepare:prepare_coreference",
    "glue": "spanbert_tf.tasks.text_classification.prepare:prepare_glue",
    "mrqa": "spanbert_tf.tasks.question_answering.prepare:prepare_mrqa",
    "named_entities": "spanbert_tf.tasks.named_entities.prepare:prepare_named_entities",
    "pretraining": "data_prep.commands:prepare_pretraining",
    "repair": "data_prep.commands:prepare_repair",
    "semeval2010": "spanbert_tf.tasks.relation_extraction.prepare:prepare_semeval2010",
    "squad": "spanbert_tf.tasks.question_answering.prepare:prepare_squad",
    "tacred": "spanbert_tf.tasks.relation_extraction.prepare:prepare_tacred",
    "vocabulary": "data_prep.commands:prepare_vocabulary",
}


class _Commands(Mapping):
    """Commands by their names, imported when they are asked for."""

    def __getitem__(self, name: str) -> click.Command:
        if name in _COMMANDS:
            return EntryPoint(name, _COMMANDS[name], ENTRY_POINTS).load()
        (point, *_) = _entry_points().select(name=name) or [None]
        if point is None:
            raise KeyError(name)
        return _CommandOfPackage(point)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_COMMANDS, *_entry_points().names}))  # the same in each process

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _CommandOfPackage(click.Command):
    """Stands for the command of another package until it is called, so that help is quick."""

    def __init__(self, point: EntryPoint) -> None:
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


@click.group(commands=_Commands())
def prepare() -> None:
    """Write vocabularies and records."""
