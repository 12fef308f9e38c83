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
