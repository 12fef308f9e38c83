import itertools
import os
import pty
import subprocess
import sys
import textwrap
import threading

import data_prep.progress
from data_prep.progress import ProgressDisplay, ProgressWriter, Totals


def test_totals_are_those_of_all_writers_and_never_fall(tmp_path):
    writers = [ProgressWriter(str(tmp_path)) for _ in range(3)]
    display = ProgressDisplay(str(tmp_path), 1, 1)
    rounds = 300

    def work(writer):
        for _ in range(rounds):
            writer.add(Totals(documents=1, text_bytes=10))

    threads = [threading.Thread(target=work, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    seen = [display.totals().text_bytes]
    while any(thread.is_alive() for thread in threads):
        seen.append(display.totals().text_bytes)
    assert all(before <= behind for before, behind in itertools.pairwise(seen))
    assert display.totals() == Totals(3 * rounds, 30 * rounds, 0, 0)


def test_lines_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data_prep.progress, "_LOOKS_BETWEEN_LINES", 1)
    with ProgressDisplay(str(tmp_path), 2_000_000, 4):
        writer = ProgressWriter(str(tmp_path))
        writer.add(Totals(1_234, 2_500_000, 900_000, 3))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("preparing: 1,234 documents, 2.5 MB of text, ")
    assert last.endswith(" MB/s, 3 of 4 shards")


def test_a_bar_on_a_terminal(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from data_prep.progress import ProgressDisplay, ProgressWriter, Totals
        with ProgressDisplay(sys.argv[1], 100, 1):
            ProgressWriter(sys.argv[1]).add(Totals(7, 3_000_000, 100, 1))
        """
    )
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], stderr=end, check=True)
    os.close(end)
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "7 documents, 3.0 MB of text" in shown
    assert "━━━━" in shown
