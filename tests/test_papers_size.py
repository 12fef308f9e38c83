"""The benchmark at the papers' size, at two layers of 32."""

import re
import shutil

import pytest
from click.testing import CliRunner

from benchmarks import papers_size

SMALL = ["--layers", "2", "--width", "32", "--vocabulary", "300", "--length", "64"]
COST = re.compile(r"(\w+) +[\d.]+ s +[\d.]+ s +(\d+\.\d\d) GB +\d+\.\d\d GB")


def test_rows_read_what_earlier_rows_write():
    earlier = set()
    for name, row in papers_size.ROWS.items():
        assert row.reads() <= earlier, name
        earlier.add(name)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The whole table, and where its rows have written."""
    directory = tmp_path_factory.mktemp("papers_size")
    return run(directory), directory


def run(directory, *options):
    arguments = [*SMALL, "--directory", str(directory), *options]
    return CliRunner().invoke(papers_size.main, arguments, catch_exceptions=False)


@pytest.mark.slow
def test_every_row_runs_with_its_peer(table):
    result, _ = table
    assert result.exit_code == 0, result.output
    found = [
        match for match in map(COST.match, map(str.strip, result.output.splitlines())) if match
    ]
    expected = []
    for name, row in papers_size.ROWS.items():
        expected += [name, "transformers"] if row.peer else [name]
    assert [match[1] for match in found] == expected
    assert all(float(match[2]) > 0.1 for match in found)  # each imports TensorFlow or PyTorch


@pytest.mark.slow
def test_what_a_row_reads_is_made_before_it_and_once(table):
    _, directory = table
    for expected in (["from_fairseq", "to_tf1"], ["to_tf1"], ["fill_masks"]):  # the last: a file
        shutil.rmtree(directory / expected[0], ignore_errors=True)
        result = run(directory, "--only", expected[-1])
        assert re.findall(r"^(\w+) +\d", result.output, re.M) == expected


@pytest.mark.slow
def test_a_command_that_fails_is_shown_with_what_it_said(table):
    _, directory = table
    (directory / "from_huggingface" / "config.json").unlink()
    result = run(directory, "--only", "export_masked")
    assert result.exit_code == 1
    assert "export --preset from_huggingface" in result.stderr
    assert "config.json" in result.stderr.splitlines()[-1]
