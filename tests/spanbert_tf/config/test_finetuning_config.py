import re
from dataclasses import field, replace
from typing import Literal

import pytest
from pydantic.dataclasses import dataclass

from spanbert_tf.config import (
    FinetuningConfig,
    QuestionAnsweringConfig,
    flat_values,
    load_finetuning_config,
    shipped_names,
)
from spanbert_tf.config.shipped import resolved_text
from spanbert_tf.config.tasks import TASK_CONFIGS
from spanbert_tf.errors import ConfigurationError
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

# `config.yaml` of a run of `squad_v1`, as version 0.1.0 wrote it before there were other tasks.
EARLIER_RUN = """\
optimizer:
  learning_rate: 2.0e-05
  warmup_fraction: 0.1
  weight_decay: 0.01
  epsilon: 1.0e-08
  global_clipnorm: 1.0
training:
  seed: 0
  random_weights: false
  epochs: 4
  batch_size: 32
  precision: auto
  log_every: 50
  checkpoint_every_steps: 500
  max_checkpoints: 2
data:
  sequence_length: 512
  stride: 128
  question_first: false
  has_unanswerable: false
  segment_aware: false
prediction:
  batch_size: 32
  max_answer_tokens: 30
  num_candidates: 20
grid:
  learning_rates:
  - 5.0e-06
  - 1.0e-05
  - 2.0e-05
  - 3.0e-05
  - 5.0e-05
  batch_sizes:
  - 16
  - 32
"""


@pytest.mark.parametrize("name", shipped_names("finetune"))
def test_shipped_configurations_do_only_what_the_papers_did(name):
    config = load_finetuning_config(name)
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
    config = load_finetuning_config(name)
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
    config = load_finetuning_config("segabert_squad_v1")
    optimizer = config.optimizer
    assert (optimizer.warmup_fraction, optimizer.epsilon, optimizer.weight_decay) == (0, 1e-6, 0.01)
    assert (optimizer.learning_rate, config.training.keep_best) == (3e-5, False)


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_each_configuration_says_whose_optimizer_it_follows(kind):
    for name in shipped_names(kind):
        text = resolved_text(name)
        said = re.search(r"^# Optimizer: (?:as (\w+) says)?", text, re.MULTILINE)
        assert said, name
        assert said[1] is None or said[1] in shipped_names(kind), name


@pytest.mark.parametrize("name", [name for name in GLUE_TASKS if name not in ("mnli_mm", "ax")])
def test_each_glue_task_has_the_papers_values(name):
    config = load_finetuning_config(name)
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
    config = load_finetuning_config(f"coreference_{name}")  # experiments.conf, appendix B
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


def test_run_of_an_earlier_version_still_loads(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(EARLIER_RUN)
    then = [
        "optimizer.epsilon=1e-8",
        "training.evaluations_per_epoch=0",
        "training.keep_best=false",
    ]
    assert load_finetuning_config(str(path)) == load_finetuning_config("squad_v1", then)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task=squad",
            f"task must be {' or '.join(TASK_CONFIGS)}, not 'squad'",
        ),
        (
            "task=[1]",
            f"task must be {' or '.join(TASK_CONFIGS)}, not [1]",
        ),
        (
            "task=null",
            f"task must be {' or '.join(TASK_CONFIGS)}, not None",
        ),
        ("optimizer.layer_decay=0", "optimizer.layer_decay: 0.0 is not more than 0 and at most 1"),
        ("optimizer.layer_decay=1.1", "1.1 is not more than 0 and at most 1"),
        ("optimizer.frozen_layers=-1", "optimizer.frozen_layers: -1 is less than 0"),
        ("training.steps=3", "unknown key training.steps; the nearest is training.max_steps"),
        ("training.max_steps=0", "training.max_steps: 0 is less than 1"),
        (
            "optimizer.exclude_from_weight_decay=[kernel]",
            "optimizer.exclude_from_weight_decay must be bias or gamma or beta, not 'kernel'",
        ),
        (
            "optimizer.clipnorm=1.0",
            "optimizer.clipnorm: 1.0 and global_clipnorm (1.0) exclude each other; for example "
            "--set optimizer.global_clipnorm=null",
        ),
        ("optimizer.lora_rank=0", "optimizer.lora_rank: 0 is less than 1"),
        ("optimizer.lora_rank=two", "optimizer.lora_rank must be a whole number or null, not 'two"),
        ("optimizer.task_layers=1e-3", "optimizer.task_layers is a section"),
        (
            "optimizer.task_layers.learning_rate=0",
            "optimizer.task_layers.learning_rate: 0.0 is not more than 0",
        ),
        (
            "optimizer.task_layers.warmup_fraction=1",
            "optimizer.task_layers.warmup_fraction: 1.0 is not from 0 to below 1",
        ),
        ("optimizer.task_layers.beta_1=0.9", "the nearest is optimizer.beta_1"),
        ("training.strategy=two_devices", "training.strategy must be one_device or mirrored or"),
        ("training.accumulation_steps=0", "training.accumulation_steps: 0 is less than 1"),
        ("training.evaluations_per_epoch=0.5", "must be a whole number, not 0.5"),
        ("training.early_stopping_patience=0", "training.early_stopping_patience: 0 is less than"),
        ("training.keep_best=yes please", "training.keep_best must be true or false"),
        ("grid.learning_rates=[]", "grid.learning_rates must be a list, each entry a number"),
        ("grid.learning_rates=[1e-5, 0]", "grid.learning_rates: 0.0 is not more than 0"),
        ("grid.batch_sizes=[16, 0]", "grid.batch_sizes: 0 is less than 1"),
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
        load_finetuning_config("squad_v1", [override])
    assert str(raised.value).startswith(f"--set {override}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["keep_best=true", "early_stopping_patience=3"])
def test_what_evaluations_decide_needs_some(name):
    with pytest.raises(ConfigurationError, match=r"--set training.evaluations_per_epoch=1$"):
        load_finetuning_config("segabert_squad_v1", [f"training.{name}"])


def test_replaced_values_are_checked():
    config = load_finetuning_config("squad_v1")
    assert replace(config.training, batch_size=8).batch_size == 8
    with pytest.raises(ConfigurationError, match="batch_size: 0 is less than 1"):
        replace(config.training, batch_size=0)
    with pytest.raises(ConfigurationError, match=r"no multiple of training.accumulation_steps"):
        replace(config, training=replace(config.training, accumulation_steps=5))


@dataclass(frozen=True)
class TreesConfig(Section):
    num_trees: PositiveInt = 3


@dataclass(frozen=True)
class ForestConfig(FinetuningConfig):
    task: Literal["forests"] = "forests"
    data: TreesConfig = field(default_factory=TreesConfig)


TASKS = {"forests": ForestConfig, "question_answering": QuestionAnsweringConfig}


def test_task_decides_which_sections_there_are(tmp_path):
    path = tmp_path / "forest.yaml"
    path.write_text("task: forests\ntraining:\n  epochs: 2\ndata:\n  num_trees: 7\n")
    config = load_finetuning_config(str(path), tasks=TASKS)
    assert isinstance(config, ForestConfig)
    assert (config.data.num_trees, config.training.epochs) == (7, 2)
    copy = tmp_path / "copy.yaml"
    copy.write_text(config.to_yaml())
    assert load_finetuning_config(str(copy), tasks=TASKS) == config
    with pytest.raises(ConfigurationError, match=r"line 5: data.num_trees: 0 is less than 1"):
        path.write_text("task: forests\n\n\ndata:\n  num_trees: 0\n")
        load_finetuning_config(str(path), tasks=TASKS)
    with pytest.raises(ConfigurationError, match=r"unknown key data.stride; the nearest is data."):
        load_finetuning_config(str(copy), ["data.stride=5"], TASKS)
    assert load_finetuning_config("squad_v1", tasks=TASKS).data.stride == 128
