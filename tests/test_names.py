"""Every name that a test, or a program in one of its strings, asks of this project is there.

Of the slow tests each day runs others: without this, a name that has moved would show days later.
"""

import ast
import importlib
import pathlib
import textwrap
import types
from collections.abc import Iterator

_TESTS = pathlib.Path(__file__).parent
_OURS = ("spanbert_tf", "data_prep", "benchmarks")


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OURS


def _member(owner: object, name: str) -> object:
    """What a module or class calls so, a package its modules, too. `AttributeError` for nothing."""
    try:
        return getattr(owner, name)
    except AttributeError:
        try:
            return importlib.import_module(f"{owner.__name__}.{name}")
        except ImportError:
            raise AttributeError(f"{owner.__name__}.{name}") from None


def _imported(tree: ast.AST) -> dict[str, object]:
    """What a program imports of this project, by the names that it has there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            module = importlib.import_module(node.module)
            found |= {one.asname or one.name: _member(module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            for one in filter(lambda one: _is_ours(one.name), node.names):
                module = importlib.import_module(one.name)
                root = importlib.import_module(one.name.partition(".")[0])
                found[one.asname or root.__name__] = module if one.asname else root
    return found


def _missing(tree: ast.AST, place: str) -> Iterator[str]:
    known = _imported(tree)

    def value_of(node: ast.AST) -> object:
        """Of `module.Class.name`; `None` where the value is no module and no class of ours."""
        match node:
            case ast.Name(id=name):
                return known.get(name)
            case ast.Attribute(value=owner, attr=name):
                value = value_of(owner)
                return _member(value, name) if isinstance(value, types.ModuleType | type) else None

    for node in ast.walk(tree):
        try:
            match node:
                case ast.Attribute():
                    value_of(node)
                # monkeypatch.setattr(module, "name", …)
                case ast.Call(
                    func=ast.Attribute(attr="setattr"),
                    args=[owner, ast.Constant(value=str(name)), _],
                ):
                    value_of(ast.Attribute(owner, name))
                case ast.Constant(value=str(text)) if "import " in text and "\n" in text:
                    yield from _missing(ast.parse(textwrap.dedent(text)), f"{place}:{node.lineno}")
        except AttributeError as error:
            yield f"{place}:{node.lineno}: {error}"
        except SyntaxError:  # no program
            continue


def test_what_tests_name_is_there():
    files = [file for file in sorted(_TESTS.rglob("*.py")) if file != pathlib.Path(__file__)]
    assert len(files) > 100
    missing = [
        line
        for file in files
        for line in _missing(ast.parse(file.read_text()), str(file.relative_to(_TESTS)))
    ]
    assert missing == []


def test_names_that_are_not_there_are_found():
    program = """
import spanbert_tf.training.checkpoint_files
from spanbert_tf.training import checkpoints
checkpoints.Checkpoints.save_all
spanbert_tf.training.checkpoint_files.STEP
monkeypatch.setattr(checkpoints, "_sha256_of", None)
"""
    in_a_string = ast.parse(f"import os\nPROGRAM = {program!r}\n")
    assert list(_missing(in_a_string, "file")) == [
        "file:2:4: Checkpoints.save_all",
        "file:2:6: spanbert_tf.training.checkpoints._sha256_of",
    ]
