"""Where tables are printed, and text in colours of our own.

Apart from the lines of `terminal`: importing rich would be a fifth of what `--help` takes.
"""

import os
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from spanbert_tf.terminal import drop_output, escape_controls, escape_lines

_FILE_WIDTH = 120  # of tables in a file or a pipe


class DataConsole(rich.console.Console):
    """A console on which texts of data are no more than text.

    A string, also in the cells and titles of tables, is one line: its controls are escaped
    (`escape_controls`) before widths are measured, and nothing in it is rich's markup or the name
    of an emoji. Colours come from `rich.text.Text` alone; who builds one escapes what goes into it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "markup": False, "emoji": False})

    def on_broken_pipe(self) -> None:
        """Goes on, as `print_line` does, where rich would end the process."""
        drop_output()

    def render_str(self, text: str, **options: Any) -> rich.console.Text:
        """A string as text; called by rich for every string, wherever it stands."""
        return super().render_str(escape_controls(text), **options)

    def render(
        self,
        renderable: rich.console.RenderableType,
        options: rich.console.ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        """What is printed; the last place where controls in a `Text` can be escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_lines(segment.text))


def table_console() -> DataConsole:
    """A console as wide as the terminal; wide enough for tables without one."""
    return DataConsole(width=None if os.isatty(1) else _FILE_WIDTH)
