"""Where tables are printed."""

import os

import rich.console

_FILE_WIDTH = 120  # of tables in a file or a pipe


def table_console() -> rich.console.Console:
    """A console as wide as the terminal; wide enough for tables without one."""
    return rich.console.Console(width=None if os.isatty(1) else _FILE_WIDTH)
