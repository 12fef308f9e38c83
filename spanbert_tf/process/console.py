"""Where lines and tables are printed."""

import os

import rich.console

_FILE_WIDTH = 120  # of tables in a file or a pipe


def table_console() -> rich.console.Console:
    """A console as wide as the terminal; wide enough for tables without one."""
    return rich.console.Console(width=None if os.isatty(1) else _FILE_WIDTH, emoji=False)


def print_line(line: str) -> None:
    """Prints a line at once, for what goes on where the reader of a pipe has ended.

    Ctrl-C ends all processes of `pretrain … | tee log`; what is printed from then on is dropped.
    """
    try:
        print(line, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # whatever is printed later, and what is buffered, goes there, too
        os.close(nowhere)
