"""A console for tables and coloured text.

It is separate from `terminal` because importing rich would take a fifth of the time of `--help`.
"""

import os
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from spanbert_tf.terminal import drop_output, escape_controls, escape_lines

_FILE_WIDTH = 120  # columns of tables in a file or a pipe


class DataConsole(rich.console.Console):
    """A console that prints untrusted data safely.

    Each string, also in the cells and titles of tables, is one line: its control characters are
    escaped (`escape_controls`) before widths are measured, and it is never read as rich's markup or
    as the name of an emoji. Use `rich.text.Text` for colours, and escape the data in it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "markup": False, "emoji": False})

    def on_broken_pipe(self) -> None:
        """Drops further output, as `print_line` does; rich would end the process."""
        drop_output()

    def render_str(self, text: str, **options: Any) -> rich.console.Text:
        """Converts a string to text. Rich calls this for every string."""
        return super().render_str(escape_controls(text), **options)

    def render(
        self,
        renderable: rich.console.RenderableType,
        options: rich.console.ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        """Renders an object, and escapes control characters in a `Text`."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_lines(segment.text))


def table_console() -> DataConsole:
    """Makes a console as wide as the terminal, or wide enough for tables without a terminal."""
    return DataConsole(width=None if os.isatty(1) else _FILE_WIDTH)
