import re
from typing import Literal

import pytest

from spanbert_tf.config import FinetuningConfig, flat_values, shipped_names
from spanbert_tf.config.finetuning import load_finetuning_config
from spanbert_tf.config.shipped import resolved_text
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringConfig
from spanbert_tf.tasks.table import load_task_config, task_names
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS
from spanbert_tf.validation import PositiveInt, Section

NEW_KEYS = {
    "task": "question_answering",
    "optimizer.beta_1": 0.9,
    "optimizer.beta_2": 0.999,
    "optimizer.bias_correction": True,
    "optimizer.clipnorm": None,
    "optimizer.exclude_from_weight_decay": ["bias", "gamma", "beta"],
    "optimizer.layer_decay": 1.0,
    "optimizer.frozen_layers": 0,
    "optimizer.task_layers.learning_rate": None,
    "optimizer.task_layers.warmup_fraction": None,
    "optimizer.task_layers.weight_decay": None,
    "optimizer.task_layers.epsilon": None,
    "optimizer.task_layers.global_clipnorm": None,
    "optimizer.lora_rank": None,
    "training.accumulation_steps": 1,
    "training.gradient_checkpointing": False,
    "training.strategy": "one_device",
    "training.jit_compile": False,
    "training.deterministic": False,
    "training.max_skipped_steps": 10,
    "training.max_steps": None,
    "training.evaluations_per_epoch": 0,
    "training.keep_best": False,
    "training.early_stopping_patience": None,
}

# What the papers did not do alike in all tasks.
OF_TASKS = ("task", "training.evaluations_per_epoch", "training.keep_best")


@pytest.mark.parametrize("name", shipped_names("finetune"))
def test_shipped_configurations_do_only_what_the_papers_did(name):
    config = load_task_config(name)
    values, expected = flat_values(config), dict(NEW_KEYS)
    for key in OF_TASKS:
        expected.pop(key)
    if config.task == "coreference":  # whose task layers have values of their own, see below
        expected = {key: v for key, v in expected.items() if ".task_layers." not in key}
    assert {key: values[key] for key in expected} == expected


MRQA = ("newsqa", "triviaqa", "searchqa", "hotpotqa", "natural_questions")


@pytest.mark.parametrize("name", ["squad_v1", "squad_v2", *MRQA])
def test_question_answering_has_the_values_of_the_released_code(name):
    """run_squad.py and run_mrqa.py: `--eval_per_epoch` is 10, and 5 in README's MRQA command; the
    best by F1 is kept; BertAdam's epsilon is 1e-6, its decay 0.01, the warm-up a tenth."""
    config = load_task_config(name)
    training, optimizer = config.training, config.optimizer
    assert (training.evaluations_per_epoch, training.keep_best) == (5 if name in MRQA else 10, True)
    assert (optimizer.epsilon, optimizer.weight_decay, optimizer.warmup_fraction) == (
        1e-6,
        0.01,
        0.1,
    )
    assert (training.epochs, training.batch_size, optimizer.learning_rate) == (4, 32, 2e-5)


def test_segaberts_squad_has_the_values_of_its_authors_script():
    """train_squad.sh gives rate, epochs and batches; the rest is run_squad.py's, from line 530."""
    config = load_task_config("segabert_squad_v1")
    optimizer = config.optimizer
    assert (optimizer.warmup_fraction, optimizer.epsilon, optimizer.weight_decay) == (0, 1e-6, 0.01)
    assert (optimizer.learning_rate, config.training.keep_best) == (3e-5, False)


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_each_configuration_says_whose_optimizer_it_follows(kind):
    for name in shipped_names(kind):
        text = resolved_text(name, load_task_config)
        said = re.search(r"^# Optimizer: (?:as (\w+) says)?", text, re.MULTILINE)
        assert said, name
        assert said[1] is None or said[1] in shipped_names(kind), name


@pytest.mark.parametrize("name", [name for name in GLUE_TASKS if name not in ("mnli_mm", "ax")])
def test_each_glue_task_has_the_papers_values(name):
    config = load_task_config(name)
    assert (config.task, config.data.dataset) == ("text_classification", name)
    assert (config.data.sequence_length, config.optimizer.epsilon) == (128, 1e-6)
    assert config.grid.learning_rates == [5e-6, 1e-5, 2e-5, 3e-5, 5e-5]
    assert (config.grid.batch_sizes, config.grid.epochs) == ([16, 32], [])
    assert config.training.epochs == {"cola": 4, "wnli": 0}.get(name, 10)
    is_trained = name != "wnli"
    assert config.classifier.initial == ("random" if is_trained else "majority")
    assert config.training.keep_best == is_trained
    assert config.training.evaluations_per_epoch == (10 if is_trained else 0)


@pytest.mark.parametrize(
    ("name", "length", "segments", "encoder_rate", "task_rate"),
    [
        ("spanbert_base", 384, 3, 2e-5, 1e-4),
        ("spanbert_large", 512, 3, 1e-5, 3e-4),
        ("bert_base", 128, 11, 1e-5, 2e-4),
        ("bert_large", 384, 3, 1e-5, 2e-4),
    ],
)
def test_coreference_has_the_originals_values(name, length, segments, encoder_rate, task_rate):
    config = load_task_config(f"coreference_{name}")  # experiments.conf, appendix B
    assert (config.data.sequence_length, config.data.max_training_segments) == (length, segments)
    optimizer, layers = config.optimizer, config.optimizer.task_layers
    assert (optimizer.learning_rate, layers.learning_rate) == (encoder_rate, task_rate)
    assert (optimizer.epsilon, optimizer.weight_decay, optimizer.global_clipnorm) == (1e-6, 0.01, 1)
    assert (optimizer.warmup_fraction, layers.warmup_fraction) == (0.1, 0)
    assert (layers.epsilon, layers.weight_decay, layers.global_clipnorm) == (1e-8, 0, 1)
    assert (config.training.epochs, config.training.batch_size) == (20, 1)
    resolver = config.resolver
    assert (resolver.max_span_width, resolver.max_antecedents, resolver.max_top_spans) == (
        *(30, 50, 3900),
    )
    assert (resolver.ffnn_dim, resolver.feature_dim, resolver.depth) == (3000, 20, 2)
    assert (resolver.top_span_ratio, resolver.dropout) == (0.4, 0.3)
    assert not resolver.word_boundaries


def test_a_file_has_to_say_its_task(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("training:\n  epochs: 2\n")
    with pytest.raises(ConfigurationError, match=rf"^{path}: task must be .* or .*, not None$"):
        load_task_config(str(path))
    assert load_task_config(str(path), ["task=coreference"]).training.epochs == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task=squad",
            f"task must be {' or '.join(task_names())}, not 'squad'",
        ),
        (
            "task=[1]",
            f"task must be {' or '.join(task_names())}, not [1]",
        ),
        (
            "task=null",
            f"task must be {' or '.join(task_names())}, not None",
        ),
        ("optimizer.layer_decay=0", "optimizer.layer_decay: 0 must be greater than 0"),
        ("optimizer.layer_decay=1.1", "1.1 must be less than or equal to 1"),
        (
            "optimizer.frozen_layers=-1",
            "optimizer.frozen_layers: -1 must be greater than or equal to 0",
        ),
        ("training.steps=3", "unknown key training.steps; the nearest is training.max_steps"),
        ("training.max_steps=0", "training.max_steps: 0 must be greater than or equal to 1"),
        (
            "optimizer.exclude_from_weight_decay=[kernel]",
            "optimizer.exclude_from_weight_decay: 'kernel' must be 'bias', 'gamma' or 'beta'",
        ),
        (
            "optimizer.clipnorm=1.0",
            "optimizer.clipnorm: 1.0 and global_clipnorm (1.0) exclude each other; for example "
            "--set optimizer.global_clipnorm=null",
        ),
        ("optimizer.lora_rank=0", "optimizer.lora_rank: 0 must be greater than or equal to 1"),
        ("optimizer.lora_rank=two", "optimizer.lora_rank: 'two' must be a valid integer"),
        ("optimizer.task_layers=1e-3", "optimizer.task_layers is a section"),
        (
            "optimizer.task_layers.learning_rate=0",
            "optimizer.task_layers.learning_rate: 0 must be greater than 0",
        ),
        (
            "optimizer.task_layers.warmup_fraction=1",
            "optimizer.task_layers.warmup_fraction: 1 must be less than 1",
        ),
        ("optimizer.task_layers.beta_1=0.9", "the nearest is optimizer.beta_1"),
        (
            "training.strategy=two_devices",
            "training.strategy: 'two_devices' must be 'one_device', 'mirrored', ",
        ),
        (
            "training.accumulation_steps=0",
            "training.accumulation_steps: 0 must be greater than or equal to 1",
        ),
        ("training.evaluations_per_epoch=0.5", "0.5 must be a valid integer"),
        (
            "training.early_stopping_patience=0",
            "training.early_stopping_patience: 0 must be greater than",
        ),
        (
            "training.keep_best=yes please",
            "training.keep_best: 'yes please' must be a valid boolean",
        ),
        ("grid.learning_rates=[]", "grid.learning_rates: [] must have at least 1 item"),
        ("grid.learning_rates=[1e-5, 0]", "grid.learning_rates: 0 must be greater than 0"),
        ("grid.batch_sizes=[16, 0]", "grid.batch_sizes: 0 must be greater than or equal to 1"),
        (
            "training.accumulation_steps=12",
            "training.batch_size: 32 is no multiple of training.accumulation_steps (12); for "
            "example --set training.accumulation_steps=8",
        ),
        (
            "training.evaluations_per_epoch=0",
            "training.keep_best: needs evaluations before the end, but "
            "training.evaluations_per_epoch is 0; for example --set "
            "training.evaluations_per_epoch=1",
        ),
    ],
)
def test_wrong_values_are_refused(override, message):
    with pytest.raises(ConfigurationError) as raised:
        load_task_config("squad_v1", [override])
    assert str(raised.value).startswith(f"--set {override}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["keep_best=true", "early_stopping_patience=3"])
def test_what_evaluations_decide_needs_some(name):
    with pytest.raises(ConfigurationError, match=r"--set training.evaluations_per_epoch=1$"):
        load_task_config("segabert_squad_v1", [f"training.{name}"])


def test_replaced_values_are_checked():
    config = load_task_config("squad_v1")
    assert config.training.replace(batch_size=8).batch_size == 8
    with pytest.raises(
        ConfigurationError, match="batch_size: 0 must be greater than or equal to 1"
    ):
        config.training.replace(batch_size=0)
    with pytest.raises(ConfigurationError, match=r"no multiple of training.accumulation_steps"):
        config.replace(training=config.training.replace(accumulation_steps=5))


class TreesConfig(Section):
    num_trees: PositiveInt = 3


class ForestConfig(FinetuningConfig):
    task: Literal["forests"] = "forests"
    data: TreesConfig = TreesConfig()


TASKS = {"forests": ForestConfig, "question_answering": QuestionAnsweringConfig}


def load(name_or_path, overrides=()):
    return load_finetuning_config(name_or_path, overrides, TASKS, TASKS.get)


def test_task_decides_which_sections_there_are(tmp_path):
    path = tmp_path / "forest.yaml"
    path.write_text("task: forests\ntraining:\n  epochs: 2\ndata:\n  num_trees: 7\n")
    config = load(str(path))
    assert isinstance(config, ForestConfig)
    assert (config.data.num_trees, config.training.epochs) == (7, 2)
    copy = tmp_path / "copy.yaml"
    copy.write_text(config.to_yaml())
    assert load(str(copy)) == config
    with pytest.raises(
        ConfigurationError, match=r"line 5: data.num_trees: 0 must be greater than or equal to 1"
    ):
        path.write_text("task: forests\n\n\ndata:\n  num_trees: 0\n")
        load(str(path))
    with pytest.raises(ConfigurationError, match=r"unknown key data.stride; the nearest is data."):
        load(str(copy), ["data.stride=5"])
    assert load("squad_v1").data.stride == 128


def test_adapters_of_frozen_layers_are_refused():
    values = ["optimizer.frozen_layers=1", "optimizer.lora_rank=8"]
    with pytest.raises(ConfigurationError, match=r"--set optimizer\.frozen_layers=0"):
        load_task_config("squad_v1", values)


def test_a_misspelt_base_of_either_kind_is_told_the_names_of_both(tmp_path):
    """The kind of a file is its base's, which is not known."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: squad_v11\n")
    with pytest.raises(ConfigurationError) as raised:
        resolved_text(str(path), load_task_config)
    line = f"{path}: line 1: squad_v11 is neither a file nor one of "
    names, _, nearest = str(raised.value).removeprefix(line).partition("; ")
    assert nearest == "the nearest is squad_v1"
    assert names.split(", ") == [*shipped_names("pretrain"), *shipped_names("finetune")]


def test_a_base_of_the_other_kind_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: spanbert_base\ntask: question_answering\n")
    with pytest.raises(ConfigurationError, match=r"neither a file nor one of .*squad_v1"):
        resolved_text(str(path), load_task_config)
