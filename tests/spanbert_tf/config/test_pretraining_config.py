import inspect
import itertools
import os
import time

import numpy as np
import pytest
import yaml

from spanbert_tf.config import (
    PretrainingConfig,
    flat_values,
    load_config,
    shipped_directory,
    shipped_names,
)
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.validation import largest_divisor

NAMES = shipped_names("pretrain")


def _write(directory, text, name="mine.yaml"):
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_large_has_the_values_of_the_paper():
    config = load_config("spanbert_large")
    shape = (24, 16, 1024, 4096)
    model = config.model
    assert (model.num_layers, model.num_heads, model.hidden_dim, model.intermediate_dim) == shape
    assert config.optimizer.model_dump() == {
        "learning_rate": 1e-4,
        "warmup_steps": 10_000,
        "encoder_learning_rate": None,
        "layer_decay": 1.0,
        "weight_decay": 0.1,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-8,
        "bias_correction": True,
        "global_clipnorm": 1.0,
        "clipnorm": None,
        "exclude_from_weight_decay": ["bias", "gamma", "beta"],
        "all_reduce_dtype": None,
    }
    assert config.training.schedule_steps == config.training.steps == 2_400_000
    assert config.masking == MaskingOptions(replacement_unit="span")
    assert config.objectives.span_position_dim == 200


def test_twin_differs_from_its_base_in_what_it_says_and_nothing_else():
    base, large = flat_values(load_config("spanbert_base")), load_config("spanbert_large")
    differing = {key for key, value in flat_values(large).items() if base[key] != value}
    assert differing == {
        "model.num_layers",
        "model.num_heads",
        "model.hidden_dim",
        "model.intermediate_dim",
    }


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (7, 7), (2**32 - 1, 2**32 - 1), (2**32, 0)])
def test_any_seed_can_be_given_to_numpy(seed, expected):
    config = load_config("spanbert_base", [f"training.seed={seed}"])
    assert (config.training.seed, config.training.library_seed) == (seed, expected)
    np.random.RandomState(config.training.library_seed)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_configuration_survives_being_written_and_read(name, tmp_path):
    config = load_config(name)
    copy = load_config(_write(tmp_path, config.to_yaml()))
    assert copy.model_dump() == config.model_dump()


def test_base_chain_is_laid_over_from_the_far_end(tmp_path):
    _write(tmp_path, "training:\n  steps: 10\n  batch_size: 2\n  seed: 1\n", "a.yaml")
    _write(tmp_path, "base: a.yaml\ntraining:\n  steps: 20\n  batch_size: 4\n", "b.yaml")
    path = _write(tmp_path, "base: b.yaml\ntraining:\n  steps: 30\n", "c.yaml")
    training = load_config(path, ["training.log_every=7"]).training
    assert (training.steps, training.batch_size, training.seed, training.log_every) == (30, 4, 1, 7)


def test_a_base_above_a_linked_folder_is_the_one_that_the_system_opens(tmp_path):
    (tmp_path / "real" / "exp").mkdir(parents=True)
    _write(tmp_path, "training: {steps: 1}\n", "common.yaml")
    _write(tmp_path / "real", "training: {steps: 2}\n", "common.yaml")
    _write(tmp_path / "real" / "exp", "base: ../common.yaml\n")
    (tmp_path / "link").symlink_to("real/exp")
    assert load_config(str(tmp_path / "link" / "mine.yaml")).training.steps == 2


def test_a_base_of_itself_is_seen_however_it_is_written(tmp_path):
    (tmp_path / "exp").mkdir()
    path = _write(tmp_path / "exp", "base: ../exp/mine.yaml\n")
    with pytest.raises(ConfigurationError, match="is its own base"):
        load_config(path)


@pytest.mark.parametrize("load", [load_config, load_task_config])
@pytest.mark.parametrize("is_base", [False, True])
def test_another_machine_is_named_on_the_command_line_alone(is_base, load, tmp_path):
    """A file of somebody else's sent the records there, and opened a port."""
    task = "task: named_entities\n" if load is load_task_config else ""
    text = f"{task}training:\n  strategy: tpu\n  tpu: grpc://10.0.0.9:8470\n"
    path = _write(tmp_path, text, "theirs.yaml")
    given = _write(tmp_path, "base: theirs.yaml\n", "mine.yaml") if is_base else path
    with pytest.raises(ConfigurationError) as raised:
        load(given)
    line = text.splitlines().index("  tpu: grpc://10.0.0.9:8470") + 1
    assert str(raised.value) == (
        f"{path}: line {line}: training.tpu names another machine, which no file may; remove the "
        "line, and where you trust that machine, give it as --set training.tpu=NAME"
    )
    config = load(given, ["training.tpu=grpc://10.0.0.7:8470"])
    assert config.training.tpu == "grpc://10.0.0.7:8470"
    # The `config.yaml` of that run is such a file: to go on, the address is given again.
    assert load(_write(tmp_path, config.to_yaml(), "config.yaml")).training.tpu == "local"


def test_overrides_are_read_as_yaml():
    config = load_config(
        "spanbert_tiny",
        ["optimizer.learning_rate=2e-3", "optimizer.global_clipnorm=null", "model.dropout=0"],
    )
    assert config.optimizer.learning_rate == 2e-3
    assert config.optimizer.global_clipnorm is None
    assert config.model.dropout == 0.0
    assert isinstance(config.model.dropout, float)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps='1000'", "training.steps: '1000' must be a valid integer"),
        ("training.steps=1000.0", "training.steps: 1000.0 must be a valid integer"),
        ("training.steps=true", "training.steps: True must be a valid integer"),
        ("training.steps=null", "training.steps: None must be a valid integer"),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate: 'fast' must be a valid number"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate: nan must be a finite number"),
        ("optimizer.learning_rate=false", "optimizer.learning_rate: False must be a valid number"),
        ("optimizer.learning_rate=[1]", "optimizer.learning_rate: [1] must be a valid number"),
        ("objectives.span_boundary=1", "objectives.span_boundary: 1 must be a valid boolean"),
        ("optimizer.global_clipnorm=x", "optimizer.global_clipnorm: 'x' must be a valid number"),
        (
            "training.strategy=ring",
            "training.strategy: 'ring' must be 'one_device', 'mirrored', 'multi_worker' or 'tpu'",
        ),
        ("training.stepz=5", "unknown key training.stepz; the nearest is training.steps"),
        ("optimizer.batch_size=5", "unknown key optimizer.batch_size; the nearest is training.b"),
        ("training=5", "training is a section"),
        ("training.steps.more=5", "unknown key training.steps.more; the nearest is training.steps"),
        ("training.steps", "write KEY=VALUE"),
        ("training.steps=[", "the value is not YAML"),
    ],
)
def test_override_of_wrong_key_or_type(override, message):
    with pytest.raises(ConfigurationError) as raised:
        load_config("spanbert_tiny", [override])
    assert f"--set {override}" in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  seed: 3\n  stepz: 5\n", "line 3: unknown key training.stepz"),
        ("training:\n  steps: 5x\n", "line 2: training.steps: '5x' must be a valid integer"),
        ("model:\n  dropout: 0.1\n  dropout: 0.2\n", "line 3: model.dropout is set twice"),
        ("training.steps: 9\ntraining: {steps: 5}\n", "line 2: training.steps is set twice"),
        ("training: {steps: 5}\ntraining.steps: 9\n", "line 2: training.steps is set twice"),
        ("model:\n  dropout: [\n", "not YAML"),
        ("- 1\n", "holds no mapping"),
        ("", "holds no mapping"),
        ("base: [1]\n", "line 1: base must be a name or a path"),
        ("base: nowhere\n", "line 1: nowhere is neither a file nor one of"),
        ("base: spanbert_bsae\n", "; the nearest is spanbert_base"),
        ("base: mine.yaml\n", "is its own base"),
        ("model:\n  num_heads: 5\n", "model.hidden_dim: 768 is no multiple of model.num_heads"),
        ("model:\n  dropout: 1.0\n", "model.dropout: 1.0 must be less than 1"),
        (
            "training:\n  batch_size: 0\n",
            "training.batch_size: 0 must be greater than or equal to 1",
        ),
        ("training:\n  steps: 9\n  schedule_steps: 8\n", "training.steps: 9 is more than"),
        ("optimizer:\n  warmup_steps: 3000000\n", "optimizer.warmup_steps: 3000000 is not less"),
        ("optimizer:\n  epsilon: 0\n", "optimizer.epsilon: 0 must be greater than 0"),
        ("masking:\n  rate: 1.5\n", "masking.rate: 1.5 must be less than 1"),
        (
            "masking:\n  scheme: subwords\n  span_start: word\n",
            "line 3: masking.span_start: word has no effect with masking.scheme=subwords",
        ),
        ("data:\n  sequence_length: 513\n", "data.sequence_length: 513 is more than"),
        (
            "model: {position_embeddings: segment_aware}\ndata: {sequences: pair}\n",
            "segment_aware needs data.sequences=single",
        ),
        ("objectives:\n  next_sentence: true\n", "needs data.sequences=pair"),
    ],
)
def test_file_with_an_error(text, message, tmp_path):
    path = _write(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        load_config(path)
    assert path in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("# naïve\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="cannot be read as UTF-8"):
        load_config(str(path))


def test_missing_configuration_names_the_shipped_ones():
    with pytest.raises(ConfigurationError, match=r"neither a file nor one of .*spanbert_base"):
        load_config("spanbert_bass")


def test_scientific_notation_without_a_point_is_a_number(tmp_path):
    path = _write(tmp_path, "optimizer:\n  learning_rate: 1e-4\n  epsilon: 5E-9\n")
    optimizer = load_config(path).optimizer
    assert (optimizer.learning_rate, optimizer.epsilon) == (1e-4, 5e-9)
    # PyYAML alone reads text here, which is why the reader has a rule of its own.
    assert yaml.safe_load("1e-4") == "1e-4"


def docstrings(section):
    return "".join(inspect.cleandoc(base.__doc__ or "") for base in section.__mro__)


def test_every_key_is_described():
    """The docstring of each section, or of a base of it, names each of its keys."""
    for section in PretrainingConfig.model_fields.values():
        for name in section.annotation.model_fields:
            assert f"\n    {name}: " in docstrings(section.annotation), name


# name: scheme, unit of replacement, sequences, next sentence prediction, SBO, steps in millions
# (arXiv 1907.10529, sections 4.3, 6.1, 6.2 and footnote 10).
SYSTEMS = {
    "bert_2seq_nsp": ("subwords", "token", "pair", True, False, 2.4),
    "bert_1seq": ("subwords", "token", "single", False, False, 2.4),
    "spanbert": ("geometric_spans", "span", "single", False, True, 2.4),
    "masking_subwords": ("subwords", "token", "pair", True, False, 1.2),
    "masking_whole_words": ("whole_words", "span", "pair", True, False, 1.2),
    "masking_entities": ("entities", "span", "pair", True, False, 1.2),
    "masking_noun_phrases": ("noun_phrases", "span", "pair", True, False, 1.2),
    "masking_geometric_spans": ("geometric_spans", "span", "pair", True, False, 1.2),
    "spans_2seq_nsp": ("geometric_spans", "span", "pair", True, False, 1.2),
    "spans_1seq": ("geometric_spans", "span", "single", False, False, 1.2),
    "spans_1seq_sbo": ("geometric_spans", "span", "single", False, True, 1.2),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_of_the_spanbert_paper(name):
    config = load_config(name)
    assert SYSTEMS[name] == (
        config.masking.scheme,
        config.masking.replacement_unit,
        config.data.sequences,
        config.objectives.next_sentence,
        config.objectives.span_boundary,
        config.training.steps / 1e6,
    )
    large = load_config("spanbert_large")
    assert config.model.model_dump() == large.model.model_dump()
    assert config.optimizer.model_dump() == large.optimizer.model_dump()
    assert config.training.schedule_steps == 2_400_000


# What the released commands say (facebookresearch/SpanBERT, 5dd2131, pretraining/all_slurm/slurm):
# longest span in words and p of the draws that take no annotated span; all begin at a token's word.
RELEASED_DRAWS = {
    "masking_whole_words": (1, 0.2),  # word.sh: --span-upper 1, so that p decides nothing
    "masking_entities": (10, 0.4),  # ner.sh
    "masking_noun_phrases": (10, 0.4),  # np.sh
    "masking_geometric_spans": (10, 0.2),  # span_0.2.sh
}


@pytest.mark.parametrize("name", RELEASED_DRAWS)
def test_draws_are_those_of_the_released_commands(name):
    masking = load_config(name).masking
    longest, p = RELEASED_DRAWS[name]
    assert (masking.chosen_scheme.max_units, masking.geometric_p) == (longest, p)
    assert masking.chosen_scheme.span_start == "anchor_token"
    assert masking.chosen_scheme.replaced == "span"  # --replacement-method span


@pytest.mark.parametrize("name", NAMES)
def test_random_tokens_are_drawn_as_the_authors_of_each_system_do(name):
    is_of_segabert = name in SEGMENT_AWARE_SYSTEMS and name != "segaspanbert"
    expected = "uniform" if is_of_segabert else "unigrams"
    assert load_config(name).masking.random_tokens == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != "continue"])
def test_only_continuing_differs_from_a_plain_training(name):
    config = load_config(name)
    assert not config.model.from_preset
    assert config.objectives.output_bias == "zeros"
    assert config.optimizer.encoder_learning_rate is None
    assert (config.optimizer.layer_decay, config.training.head_steps) == (1.0, 0)
    assert config.training.initial_encoder_share == 0


# name: layers, width, heads, position embeddings, scheme, SBO, steps, warm-up
# (arXiv 2004.14996, sections 2 and 3.3; the last is ours).
SEGMENT_AWARE_SYSTEMS = {
    "segabert_base": (12, 768, 12, "segment_aware", "subwords", False, 500_000, 5000),
    "bert_base_for_segabert": (12, 768, 12, "absolute", "subwords", False, 500_000, 5000),
    "segabert_large": (24, 1024, 16, "segment_aware", "subwords", False, 1_000_000, 10_000),
    "bert_with_ps": (
        12,
        768,
        12,
        "absolute_with_paragraph_and_sentence",
        "subwords",
        False,
        500_000,
        5000,
    ),
    "segaspanbert": (
        12,
        768,
        12,
        "segment_aware",
        "geometric_spans",
        True,
        2_400_000,
        10_000,
    ),
}


@pytest.mark.parametrize("name", SEGMENT_AWARE_SYSTEMS)
def test_systems_of_the_segabert_paper(name):
    config = load_config(name)
    assert SEGMENT_AWARE_SYSTEMS[name] == (
        config.model.num_layers,
        config.model.hidden_dim,
        config.model.num_heads,
        config.model.position_embeddings,
        config.masking.scheme,
        config.objectives.span_boundary,
        config.training.steps,
        config.optimizer.warmup_steps,
    )
    assert config.optimizer.learning_rate == 1e-4
    assert config.training.schedule_steps == config.training.steps
    assert config.data.sequences == "single"


def test_every_shipped_configuration_is_tested_against_its_source():
    sized_like_the_paper = {"spanbert_large", "spanbert_base", "spanbert_tiny"}
    of_this_project = {"continue"}
    known = {*SYSTEMS, *SEGMENT_AWARE_SYSTEMS, *sized_like_the_paper, *of_this_project}
    assert known == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_configuration_opens_with_its_source_and_command(name):
    path = os.path.join(shipped_directory("pretrain"), f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    comment = "".join(itertools.takewhile(lambda line: line[0] == "#", text.splitlines(True)))
    assert f"--config {name} " in comment
    assert "Batch" in comment


def test_steps_of_a_profile_are_two_in_order(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("base: spanbert_base\n")
    found = load_config(str(path), ["training.profile_steps=[10,20]"])
    assert found.training.profile_steps == [10, 20]
    for value, words in (("[20,10]", "ends before it begins"), ("[3]", "at least 2 items")):
        with pytest.raises(ConfigurationError, match=f"training.profile_steps.*{words}"):
            load_config(str(path), [f"training.profile_steps={value}"])


@pytest.mark.parametrize(("number", "limit", "found"), [(768, 5, 4), (12, 50, 12), (7, 6, 1)])
def test_the_largest_divisor_up_to_a_limit(number, limit, found):
    assert largest_divisor(number, limit) == found


@pytest.mark.parametrize("num_heads", [7, 10**98])
def test_numbers_with_digits_too_many_are_refused_at_once(num_heads):
    """Their divisors were searched for up to the root."""
    overrides = [f"model.hidden_dim={10**99 - 1}", f"model.num_heads={num_heads}"]
    began = time.process_time()
    with pytest.raises(ConfigurationError, match=r"model.hidden_dim: .* is no multiple of model"):
        load_config("spanbert_base", overrides)
    assert time.process_time() - began < 5
