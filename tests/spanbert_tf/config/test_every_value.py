"""Properties of all configurations: what is written is read, and what an error proposes fits."""

import contextlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
import typing
from types import NoneType, UnionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from spanbert_tf.config import FinetuningConfig, PretrainingConfig, load_config
from spanbert_tf.config.positions import POSITION_EMBEDDINGS, PositionEmbeddings
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.masking.schemes import SCHEMES
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringConfig
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.validation import Section

# Ranges of numbers, the widest that all keys of a type have in common but for these.
INTEGERS = st.integers(8, 2**40)
FLOATS = st.floats(1e-300, 0.999)
# Not what stands between two surrogates: a file in UTF-8 cannot hold it.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["1e5", "null", "5"])


def _values(annotation):
    """Any values of an annotated type that are within its range."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return sections(annotation)
    if origin in (typing.Union, UnionType):
        return st.one_of(*map(_values, parts))
    if origin is typing.Literal:
        return st.sampled_from(parts)
    if origin is list:
        return st.lists(_values(parts[0]), min_size=1, max_size=4)
    simple = {int: INTEGERS, float: FLOATS, bool: st.booleans(), str: TEXTS, NoneType: st.none()}
    return simple[annotation]


def _fields(section):
    fields = {
        name: _values(field.annotation)
        for name, field in section.model_fields.items()
        if name != "callbacks"  # which a file of a run does not hold
    }
    if section is MaskingOptions:
        fields["scheme"] = st.sampled_from(list(SCHEMES))
    return fields


@st.composite
def sections(draw, section):
    values = draw(st.fixed_dictionaries(_fields(section)))
    if "clipnorm" in values and draw(st.booleans()):  # one of the two limits, or none
        values["global_clipnorm"] = None
    elif "clipnorm" in values:
        values["clipnorm"] = None
    if values.get("profile_steps") is not None:  # the first and the last one
        values["profile_steps"] = sorted([draw(INTEGERS), draw(INTEGERS)])
    for name in getattr(section, "periods", ()):
        if values[name] is not None:  # executions divide them
            values[name] = values["steps_per_execution"] * draw(st.integers(1, 64))
    if section is MaskingOptions:
        values["rate"] = draw(FLOATS | st.lists(FLOATS, min_size=2, max_size=2))
        values["random_token_rate"] = draw(st.floats(0, 1 - values["mask_token_rate"]))
        if values["scheme"] == "subwords":
            values["span_start"] = None
        if values["scheme"] not in ("entities", "noun_phrases"):
            values["other_draws"] = None
    if section in (PretrainingConfig, QuestionAnsweringConfig):
        values = _made_to_fit(draw, values)
    return section(**values)


def _made_to_fit(draw, values):
    """Values of a whole configuration with those that depend on others drawn once more."""
    new, training = Section.replace, values["training"]
    small = st.integers(1, 64)
    if "model" not in values:
        if values["optimizer"].lora_rank is not None:
            values |= {"optimizer": new(values["optimizer"], frozen_layers=0)}
        parts = draw(small)
        training = new(
            training,
            accumulation_steps=parts,
            batch_size=parts * draw(small),
            evaluations_per_epoch=draw(small),
        )
        return values | {"training": training}
    heads, steps, is_pair = draw(small), draw(small), draw(st.booleans())
    end = steps + draw(small)
    return values | {
        "training": new(training, steps=steps, schedule_steps=end),
        "optimizer": new(values["optimizer"], warmup_steps=draw(st.integers(0, end - 1))),
        "model": new(
            values["model"],
            num_heads=heads,
            hidden_dim=heads * draw(small),
            max_sequence_length=values["data"].sequence_length + draw(small),
            position_embeddings="absolute" if is_pair else values["model"].position_embeddings,
        ),
        "data": new(values["data"], sequences="pair" if is_pair else "single"),
        "objectives": new(
            values["objectives"], next_sentence=is_pair and values["objectives"].next_sentence
        ),
    }


def _of_this_machine(config):
    """No file names another machine."""
    return config.replace(training=config.training.replace(tpu="local"))


@contextlib.contextmanager
def _file(text):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        yield path


@settings(max_examples=50, deadline=None)
@given(config=sections(PretrainingConfig))
def test_pretraining_configuration_is_read_as_it_was_written(config):
    with _file(config.to_yaml()) as path:
        assert load_config(path) == _of_this_machine(config)


@settings(max_examples=50, deadline=None)
@given(config=sections(QuestionAnsweringConfig))
def test_finetuning_configuration_is_read_as_it_was_written(config):
    with _file(config.to_yaml()) as path:
        assert load_task_config(path) == _of_this_machine(config)


def test_configurations_name_the_kinds_of_positions_of_the_table():
    assert typing.get_args(PositionEmbeddings) == tuple(POSITION_EMBEDDINGS)


small = st.integers(1, 40)
UNFITTING = {
    "model.num_heads": small,
    "model.hidden_dim": small,
    "model.max_sequence_length": small,
    "model.position_embeddings": st.sampled_from(list(POSITION_EMBEDDINGS)),
    "masking.scheme": st.sampled_from(["subwords", "whole_words", "entities"]),
    "masking.span_start": st.sampled_from(["anchor_token", "word", "null"]),
    "masking.other_draws": st.sampled_from(["geometric_spans", "whole_words", "null"]),
    "masking.mask_token_rate": st.floats(0, 1),
    "masking.random_token_rate": st.floats(0, 1),
    "objectives.next_sentence": st.booleans(),
    "optimizer.warmup_steps": st.integers(0, 40),
    "optimizer.clipnorm": st.floats(0.1, 10),
    "training.steps": small,
    "training.schedule_steps": small,
    "training.steps_per_execution": small,
    "training.evaluate_every": small,
    "model.from_preset": st.booleans(),
    "data.sequences": st.sampled_from(["single", "pair"]),
    "data.sequence_length": st.integers(8, 40),
}


@settings(max_examples=100, deadline=None)
@given(values=st.fixed_dictionaries(UNFITTING))
def test_what_errors_propose_leads_to_a_configuration_that_fits(values):
    overrides = [f"{key}={str(value).lower()}" for key, value in values.items()]
    with _file("model: {}") as path:
        for _ in range(17):  # sixteen rules can be broken at once
            try:
                load_config(path, overrides)
                return
            except ConfigurationError as error:
                proposal = re.search(r"; for example --set (\S+)$", str(error))
                assert proposal, error
                overrides.append(proposal.group(1))
    raise AssertionError(overrides)


@pytest.mark.parametrize(
    ("load", "overrides", "proposal"),
    [
        (load_config, ["model.hidden_dim=768", "model.num_heads=7"], "model.num_heads=6"),
        (load_config, ["data.sequence_length=600"], "model.max_sequence_length=600"),
        (load_config, ["training.steps=3000000"], "training.schedule_steps=3000000"),
        (
            load_config,
            ["training.steps=60", "training.schedule_steps=60"],
            "optimizer.warmup_steps=6",
        ),
        (load_config, ["objectives.next_sentence=true"], "data.sequences=pair"),
        (
            load_config,
            ["model.position_embeddings=segment_aware", "data.sequences=pair"],
            "data.sequences=single",
        ),
        (load_config, ["masking.mask_token_rate=0.95"], "masking.random_token_rate=0.05"),
        (load_config, ["optimizer.clipnorm=1"], "optimizer.global_clipnorm=null"),
        (
            load_config,
            ["masking.scheme=subwords", "masking.span_start=word"],
            "masking.span_start=null",
        ),
        (load_config, ["masking.other_draws=whole_words"], "masking.other_draws=null"),
        (
            load_config,
            ["training.steps_per_execution=8"],  # lines of the log come every 100 steps
            "training.steps_per_execution=5",
        ),
        (
            load_config,
            ["training.steps_per_execution=20", "training.evaluate_every=150"],
            "training.steps_per_execution=10",
        ),
    ],
)
def test_proposals(load, overrides, proposal):
    with pytest.raises(ConfigurationError) as raised:
        load("spanbert_base", overrides)
    assert str(raised.value).endswith(f"; for example --set {proposal}")
    assert "\n" not in str(raised.value)


def test_values_that_do_not_fit_are_placed_where_the_uppermost_was_written(tmp_path):
    (tmp_path / "base.yaml").write_text("model:\n  hidden_dim: 100\n  num_heads: 10\n")
    path = tmp_path / "mine.yaml"
    path.write_text("base: base.yaml\nmodel:\n\n  num_heads: 7\n")
    with pytest.raises(ConfigurationError) as raised:
        load_config(str(path))
    assert str(raised.value).startswith(f"{path}: line 4: model.hidden_dim: 100 is no multiple of")
    with pytest.raises(ConfigurationError) as raised:
        load_config(str(path), ["model.hidden_dim=50"])
    assert str(raised.value).startswith("--set model.hidden_dim=50: model.hidden_dim: 50 is no")
    with pytest.raises(ConfigurationError) as raised:
        load_config(str(path), ["model.num_heads=0"])
    assert (
        str(raised.value)
        == "--set model.num_heads=0: model.num_heads: 0 must be greater than or equal to 1"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: &all\n  steps: *all\n", "line 1: not YAML: anchors (&)"),
        ("training:\n  seed: 2024-13-01\n", "line 2: not YAML: month must be in 1..12"),
        ("training:\n  seed: 0x_\n", "line 2: not YAML: invalid literal"),
        ("training:\n  seed: !!python/name:os.system\n", "line 2: not YAML: could not determine"),
        ("training:\n  seed: =\n", "line 2: not YAML"),
        ("training:\n  ? [1]\n  : 2\n", "line 2: a key must be text"),
        ("training:\n  seed: " + "[" * 1100, "line 2: not YAML: is nested deeper"),
        ("training:\n  seed: " + "1" * 5000 + "\n", "line 2: not YAML: a number or date of 5,000"),
        ("training:\n  seed: 1\x00\n", "not YAML"),
    ],
)
def test_yaml_that_python_cannot_hold_is_an_error_of_one_line(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        load_config(str(path))
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "override", ["training.seed=2024-13-01", "training.seed==", "training.seed=" + "1" * 5000]
)
def test_override_that_python_cannot_hold(override):
    with pytest.raises(ConfigurationError, match="the value is not YAML"):
        load_config("spanbert_tiny", [override])


def test_override_of_several_lines_is_an_error_of_one():
    with pytest.raises(ConfigurationError) as raised:
        load_config("spanbert_tiny", ["training.seed='a\n\nb'"])
    assert "\n" not in str(raised.value)


def test_sections_cannot_be_changed():
    config = load_config("spanbert_tiny")
    with pytest.raises(ValidationError, match="frozen"):
        config.training.steps = 5
    with pytest.raises(ConfigurationError, match="warmup_steps: 10000 is not less"):
        PretrainingConfig().replace(training=config.training.replace(steps=5, schedule_steps=5))


def test_masking_options_are_checked_when_they_are_made():
    with pytest.raises(ConfigurationError, match=r"masking.rate: 1 must be less than 1"):
        MaskingOptions.of({"scheme": "subwords", "rate": 1})
    with pytest.raises(ConfigurationError, match=r"masking.rate: '0.15' must be a valid number"):
        MaskingOptions.of({"rate": "0.15"})
    with pytest.raises(ConfigurationError, match=r"masking.masking_rate: .* not permitted"):
        MaskingOptions.of({"masking_rate": 0.15})
    with pytest.raises(ValidationError, match="masking_rate"):
        MaskingOptions(masking_rate=0.15)
    assert MaskingOptions(**MaskingOptions(rate=0.3).model_dump()).rate == 0.3


@pytest.mark.parametrize(
    "section",
    [
        field.annotation
        for config in (FinetuningConfig, QuestionAnsweringConfig)
        for name, field in config.model_fields.items()
        if name != "task"
    ],
)
def test_every_key_of_finetuning_is_described(section):
    described = "".join(inspect.cleandoc(base.__doc__ or "") for base in section.__mro__)
    for name in section.model_fields:
        assert f"\n    {name}: " in described, name


HEAVY = {"tensorflow", "keras", "official"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["pretrain", "--config", "spanbert_tiny", "--set", "training.stepz=5"], "training.steps"),
        (
            ["pretrain", "--config", "spanbert_tiny", "--set", "masking.rate=2"],
            "masking.rate: 2 must",
        ),
        (
            ["inspect", "--set", "data.sequences=triple"],
            "data.sequences: 'triple' must be 'single' or 'pair'",
        ),
        (["pretrain", "--config", "nowhere"], "neither a file nor one of"),
        (
            ["finetune", "--config", "squad_v1", "--preset", "p", "--set", "training.epochs=-1"],
            "training.epochs: -1 must be greater than or equal to 0",
        ),
        (
            ["finetune", "--config", "squad_v1", "--preset", "p", "--set", "training.epoch=1"],
            "the nearest is training.epochs",
        ),
    ],
)
def test_wrong_configuration_is_reported_before_tensorflow_is_imported(command, message, tmp_path):
    if command[0] == "inspect":
        command = [*command, str(tmp_path)]
    else:
        command = [*command, "--data", str(tmp_path), "--output", str(tmp_path / "run")]
    program = (
        "import sys, spanbert_tf.cli\n"
        "try:\n"
        f"    spanbert_tf.cli.main({command!r})\n"
        "finally:\n"
        f"    print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (2, "[]"), result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_configurations_and_masking_options_load_nothing_heavy():
    program = (
        "import sys, spanbert_tf.config, spanbert_tf.masking, spanbert_tf.tasks.table\n"
        "spanbert_tf.config.load_config('spanbert_base').masking.num_slots(512)\n"
        "spanbert_tf.tasks.table.load_task_config('squad_v1')\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
