"""The order of the house: what may import what, and how many rooms there are.

A room is a folder, or a module beside the folders. `ORDER` is `CONTRIBUTING.md`'s list, from top to
bottom: a module imports from its own room and from those below it, never from those above.
"""

import ast
import collections
import functools
import pathlib
import re

from spanbert_tf.tasks.table import TASKS

ROOT = pathlib.Path(__file__).parents[1]
ORDER = (
    "spanbert_tf.cli",
    "spanbert_tf.task_cli",
    "spanbert_tf.studies",
    "spanbert_tf.server",
    "spanbert_tf",  # `predictor`, and the submodules, when they are asked for
    "data_prep.__main__",
    "data_prep.cli",
    "data_prep.repair",
    "data_prep.beam",
    "data_prep.blocks",
    "data_prep.text",
    "data_prep",
    "spanbert_tf.tasks.*",  # which know nothing of each other
    "spanbert_tf.tasks",
    "spanbert_tf.pretraining",
    "spanbert_tf.conversion",
    "spanbert_tf.serving",
    "spanbert_tf.presets",
    "spanbert_tf.training",
    "spanbert_tf.models",
    "spanbert_tf.layers",
    "spanbert_tf.data",
    "spanbert_tf.config",
    "spanbert_tf.masking",
    "spanbert_tf.text",
    "spanbert_tf.command_line",
    "spanbert_tf.files",
    "spanbert_tf.process",
    "spanbert_tf.doctor",
    "spanbert_tf.console",
    "spanbert_tf.terminal",
    "spanbert_tf.validation",
    "spanbert_tf.temporary",
    "spanbert_tf.lazy",
    "spanbert_tf.errors",
)
# Tables of places that are imported when they are asked for: the only way up.
TABLES = (
    "spanbert_tf.process",  # starts the command line anew, in another process
    "spanbert_tf.tasks.table",
    "spanbert_tf.files.kinds",  # asks the table of tasks which commands write records
)
# The packages that choose a module for the backend of Keras; a run records its name.
ASK_FOR_BACKEND = {
    "spanbert_tf.layers.operations",
    "spanbert_tf.models.train_step",
    "spanbert_tf.training.devices",
    "spanbert_tf.training.update_operations",
    "spanbert_tf.training.run",
}
MOST_ROOMS = 15
PLACE = re.compile(r"((?:spanbert_tf|data_prep)(?:\.\w+)*)(?::\w+)?")


@functools.cache
def modules():
    """Module → its file, for packages the `__init__.py`."""
    found = {}
    for package in ("spanbert_tf", "data_prep"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def room(module):
    """The room of a module: its folder, or itself where it lies beside the folders.

    A subfolder with a module for each backend belongs to its parent folder; the folders of tasks do
    not.
    """
    is_package = modules()[module].name == "__init__.py"
    folder = module if is_package else module.rpartition(".")[0]
    if folder in ("spanbert_tf", "data_prep"):
        return module
    if folder.startswith("spanbert_tf.") and not folder.startswith("spanbert_tf.tasks."):
        folder = ".".join(folder.split(".")[:2])
    return folder


def rank(name):
    """The place of a room in `ORDER`."""
    if name not in ORDER and name.startswith("spanbert_tf.tasks."):
        name = "spanbert_tf.tasks.*"
    assert name in ORDER, f"{name}: is a room without a place in ORDER"
    return ORDER.index(name)


def imports(module):
    """Each module that one imports, anywhere in it but for types alone, and the line."""
    tree = ast.parse(modules()[module].read_text())
    for_types = [
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    ]
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in whole]
        else:
            assert not isinstance(node, ast.ImportFrom), f"{module}: a relative import"
            continue
        for name in dict.fromkeys(names):
            if name in modules() and name != module:
                yield name, node.lineno


def named_places(module):
    """Each module that a string names as a place to import from later, and the line."""
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = PLACE.fullmatch(node.value)
            if found and "." in found[1] and found[1] in modules():
                yield found[1], node.lineno


def against_the_order(module, names):
    own = room(module)
    for name, line in names:
        other = room(name)
        if other != own and rank(other) <= rank(own):
            yield f"{module}, line {line}: {name}"


def test_the_order_names_rooms_that_are_there():
    ranks = {rank(room(name)) for name in modules()}
    assert [name for name in ORDER if ORDER.index(name) not in ranks] == []


def test_imports_go_down():
    wrong = [text for name in modules() for text in against_the_order(name, imports(name))]
    assert not wrong, "\n".join(["these imports go up:", *wrong])


def test_places_go_up_from_tables_alone():
    wrong = [
        text
        for name in modules()
        if name not in TABLES
        for text in against_the_order(name, named_places(name))
    ]
    assert not wrong, "\n".join(["these places go up, and stand in no table:", *wrong])


def calls(module):
    """The functions that a module calls, as they are written there."""
    tree = ast.parse(modules()[module].read_text())
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_the_backend_is_asked_for_where_a_module_is_chosen_for_it():
    ask = {
        name
        for name in modules()
        if any(re.fullmatch(r"(.*\.)?backend\.backend|backend", call) for call in calls(name))
    }
    assert ask == ASK_FOR_BACKEND


def test_there_is_one_table_of_tasks():
    """No other dict, list, set or tuple has the names of two tasks."""
    kinds = (ast.Dict, ast.List, ast.Set, ast.Tuple)
    tables = {
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
        and sum(getattr(child, "value", None) in TASKS for child in ast.iter_child_nodes(node)) > 1
    }
    assert tables == {"spanbert_tf.tasks.table"}


def test_no_module_comes_back_to_itself():
    """Also by imports inside of functions."""
    left = {name: {other for other, _ in imports(name)} for name in modules()}
    done = [True]
    while done:  # takes away what imports nothing that is left, or is imported by nothing
        left = {name: others & left.keys() for name, others in left.items()}
        imported = set().union(*left.values())
        done = [name for name, others in left.items() if not others or name not in imported]
        for name in done:
            del left[name]
    circles = [f"{name}: {', '.join(sorted(others))}" for name, others in left.items()]
    assert not circles, "\n".join(["these import each other:", *circles])


def test_rooms_are_few_and_none_is_of_one_file():
    files = collections.Counter(room(name) for name in modules())
    rooms = [name for name in files if modules()[name].name == "__init__.py" and "." in name]
    small = [f"{name}: {files[name] - 1}" for name in rooms if files[name] < 3]
    assert not small, "\n".join(["these rooms have fewer than two files:", *small])
    # Beside the tasks', and with `data_prep` as one.
    counted = [name for name in rooms if not name.startswith(("data_prep.", "spanbert_tf.tasks"))]
    assert len(counted) < MOST_ROOMS, f"more than {MOST_ROOMS} rooms: {', '.join(counted)}"
