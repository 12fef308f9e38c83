import contextlib
import os
import pty
import re
import subprocess
import sys

import data_prep.beam.progress
import spanbert_tf.terminal
from data_prep.beam.progress import Progress, Totals
from spanbert_tf.terminal import describe_share, show_progress


def test_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(data_prep.beam.progress, "_SECONDS_BETWEEN_LINES", 0)
    with Progress(2_000_000, 4) as progress:
        progress.add(Totals(1_000, 2_000_000, 800_000))
        progress.add(Totals(234, 500_000, 100_000, 3))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("preparing: 1,234 documents, 2.5 MB of text, ")
    assert last.endswith(" MB/s, 3 of 4 shards")


def test_lines_come_now_and_then(capsys):
    with Progress(2_000_000, 4) as progress:
        for _ in range(100):
            progress.add(Totals(1, 1_000, 1_000))
    assert capsys.readouterr().err == ""


def test_lines_tell_the_share_of_the_input_that_is_read(monkeypatch, capsys):
    """By bytes on disk, of which compressed text has fewer."""
    monkeypatch.setattr(data_prep.beam.progress, "_SECONDS_BETWEEN_LINES", 0)
    with Progress(2_000_000, 4) as progress:
        progress.add(Totals(1_234, 2_500_000, 900_000))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r" MB/s, 45 %, \d:\d\d:\d\d left$", last)


def test_the_time_left_is_that_of_the_rest_at_the_same_speed():
    assert describe_share(1, 4, 20) == "25 %, 0:01:00 left"
    assert describe_share(3_000, 3_000, 7) == "100 %, 0:00:00 left"
    assert describe_share(0, 9, 7) == "0 %"


def on_a_terminal(script, *arguments):
    """What a script in Python shows on a terminal as its stderr."""
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", script, *arguments], stderr=end, check=True)
    os.close(end)
    shown = b""
    # One read gives what one write left there, at times; after the last, Linux says EIO.
    with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while part := file.read(100_000):
            shown += part
    return shown.decode()


def test_items_are_handed_on_and_lines_say_how_many(monkeypatch, capsys):
    monkeypatch.setattr(spanbert_tf.terminal, "_SECONDS_BETWEEN_LINES", 0)
    assert list(show_progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [
        f"preparing: {number} of 3 letters, {share} %, 0:00:00 left"
        for number, share in ((1, 33), (2, 67))  # the end shows by itself
    ]


def test_a_bar_of_items_on_a_terminal():
    script = """if True:
        from spanbert_tf.terminal import show_progress
        assert list(show_progress(range(4000), 4000, "questions")) == list(range(4000))
    """
    shown = on_a_terminal(script)
    assert "4,000 of 4,000 questions" in shown
    assert "━━━━" in shown


def test_a_bar_on_a_terminal():
    script = """if True:
        from data_prep.beam.progress import Progress, Totals
        with Progress(100, 1) as progress:
            progress.add(Totals(7, 3_000_000, 100, 1))
    """
    shown = on_a_terminal(script)
    assert "7 documents, 3.0 MB of text" in shown
    assert "━━━━" in shown
