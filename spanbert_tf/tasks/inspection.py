"""`spanbert-tf inspect` on records of any kind."""

from collections.abc import Sequence

from spanbert_tf.console import DataConsole
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.tasks.task import holds_task_records, task_of_records


def inspect_records(
    data: str,
    config: str,
    overrides: Sequence[str] = (),
    *,
    png: str | None = None,
    num_examples: int = 3,
    overwrite: bool = False,
    console: DataConsole | None = None,
) -> None:
    """Prints what a set of records holds; arguments as for those for pre-training."""
    console = console or DataConsole()
    if not holds_task_records(data):
        from spanbert_tf.pretraining import inspection  # nothing of a task needs it

        options = {"png": png, "num_examples": num_examples, "overwrite": overwrite}
        inspection.inspect_records(data, config, overrides, console, **options)
    elif png or overrides:
        raise ConfigurationError(
            f"{data}: holds records of a task, which no masks are drawn for; leave out --png and "
            "--set"
        )
    else:
        task = task_of_records(data)
        task.inspect(task.open(data), console, num_examples)
