"""No regular expression backtracks over data: each is tried with 1 MB that it nearly fits."""

import ast
import importlib
import pathlib
import re
import signal

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MEGABYTE, SECONDS = 2**20, 20
# Their text is our own.
NOT_OF_DATA = {"spanbert_tf/config/shipped.py"}
# What the first piece of a pattern needs, and what is repeated behind it.
STARTS = ("", "#begin document ", "#begin document (a); part ", "1\t", "<?xml ")
PIECES = (
    *(" ", "\n", "\t", "a", "0", "1_", "_1", "(", ")", ");", '"', '""', "<", ">", "> ", "&", "."),
    *("-", ":", "1:", "1.", "<!---->", "<!--a--> ", "<e1>", "<e1>a</e1>", "<e2>a</e2>", "[unused"),
    *("/layer_1", "module.", "bert.", '","', "title=", "A", "([1", "\n \n", "grpc:"),
    *("I1126 ", " Started server with"),
)


def expressions():
    """Place → pattern, how it is called, of each one in the packages; those of names once."""
    for path in sorted((*ROOT.glob("spanbert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py"))):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree) if name not in NOT_OF_DATA else ():
            if not isinstance(node, ast.Assign | ast.Call):
                continue
            call = node.value if isinstance(node, ast.Assign) else node
            if not isinstance(call, ast.Call) or not is_of_re(call):
                continue
            method = call.func.attr
            if method == "compile" and isinstance(node, ast.Assign):
                target = node.targets[0].id
                used = re.findall(rf"\b{target}\.(\w+)", path.read_text())
                used += re.findall(rf"map\({target}\.(\w+)", path.read_text())
                yield f"{name}:{target}", (name, target), set(used) - {"pattern"}
            elif method != "compile" and isinstance(call.args[0], ast.Constant):
                yield f"{name}:{call.lineno}", call.args[0].value, {method}


def is_of_re(call):
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "re"
    )


@pytest.fixture
def alarm():
    """Raises after the goal's time of the processor; `re` looks for signals as it works."""

    def ring(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    "pattern, methods", [pytest.param(*found, id=place) for place, *found in expressions()]
)
@pytest.mark.slow
def test_it_takes_a_megabyte(pattern, methods, alarm):
    if isinstance(pattern, tuple):
        path, target = pattern
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        found = getattr(module, target, None)
        if found is None:  # of a function, put together from an option
            pytest.skip("is no constant")
        pattern = found.pattern
    compiled = re.compile(pattern)
    is_of_bytes = isinstance(pattern, bytes)  # of lines that another program writes
    methods = {method if method in ("match", "fullmatch") else "search" for method in methods}
    methods = methods or {"match"}  # as PyYAML calls it
    for method in methods:
        for start in STARTS if method != "search" else ("",):
            for piece in PIECES:
                text = start + piece * (MEGABYTE // len(piece)) + "\0"  # what fits nowhere
                getattr(compiled, method)(text.encode() if is_of_bytes else text)
