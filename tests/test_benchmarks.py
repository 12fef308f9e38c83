"""The benchmarks run by hand, for minutes; what they import is checked here."""

import ast
import importlib
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
PACKAGES = ("benchmarks", "data_prep", "spanbert_tf")


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_imports_inside_of_functions_exist(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), node.module


def test_steps_are_told_as_they_are_made_and_timed(capsys):
    """A pre-training step takes minutes to build and to time; nothing was printed until the end."""
    from benchmarks.pretraining_step import _made, interleaved_medians

    told = []  # lines that were there when each step was called

    def make(name):
        return lambda: told.append((name, capsys.readouterr().err.splitlines()))

    steps = _made({name: lambda name=name: make(name) for name in "ab"})
    assert interleaved_medians(steps, 2).keys() == {"a", "b"}
    assert [(name, lines) for name, lines in told if lines] == [
        ("a", ["building 1 of 2: a"]),
        ("b", ["building 2 of 2: b"]),
        ("a", ["timing: round 1 of 2"]),
        ("a", ["timing: round 2 of 2"]),
    ]
