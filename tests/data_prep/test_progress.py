"""What several workers have done is added up and shown, on a terminal and elsewhere."""

import os
import pty
import subprocess
import sys
import textwrap

from data_prep.progress import ProgressDisplay, ProgressWriter, Totals

SHOW = textwrap.dedent(
    """
    import sys, time
    from data_prep.progress import ProgressDisplay, ProgressWriter, Totals
    writer = ProgressWriter(sys.argv[1])
    with ProgressDisplay(sys.argv[1], input_bytes=4_000_000, num_shards=3):
        writer.add(Totals(documents=1_234, text_bytes=5_600_000, input_bytes=4_000_000))
        time.sleep(0.5)
        writer.add(Totals(shards=2))
    """
)


def test_totals_are_the_sum_over_workers(tmp_path):
    display = ProgressDisplay(str(tmp_path), input_bytes=100, num_shards=2)
    first, second = ProgressWriter(str(tmp_path)), ProgressWriter(str(tmp_path))
    assert display.totals() == Totals()
    first.add(Totals(documents=2, text_bytes=30))
    second.add(Totals(documents=1, input_bytes=7))
    first.add(Totals(documents=5, shards=1))
    assert display.totals() == Totals(documents=8, text_bytes=30, input_bytes=7, shards=1)


def test_workers_that_cannot_reach_the_directory_go_on(tmp_path):
    ProgressWriter(str(tmp_path / "elsewhere")).add(Totals(documents=1))
    assert not list(tmp_path.iterdir())


def test_a_terminal_gets_a_bar_with_documents_and_megabytes(tmp_path):
    parent, child = pty.openpty()
    subprocess.run([sys.executable, "-c", SHOW, str(tmp_path)], stderr=child, check=True)
    shown = os.read(parent, 100_000).decode()
    assert "1,234 documents, 5.6 MB of text" in shown
    assert "2 of 3 shards" in shown
    assert "━" in shown


def test_no_bar_goes_into_a_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""  # a line every ten seconds: none yet
