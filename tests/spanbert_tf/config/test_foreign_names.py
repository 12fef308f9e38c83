"""Keys by the names that people know from elsewhere: each leads to the key that means the same."""

import dataclasses

import pytest
import transformers

from spanbert_tf.cli import cli
from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.config.foreign_names import _NAMES, meant_key
from spanbert_tf.config.settings import known_keys
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.tasks.table import load_task_config, task_config_class, task_names

PRETRAINING = list(known_keys(PretrainingConfig))
TASKS = {name: list(known_keys(task_config_class(name))) for name in task_names()}
ALL = {*PRETRAINING, *(key for keys in TASKS.values() for key in keys)}

# Fields of `TrainingArguments` that have a counterpart: in pre-training, in fine-tuning.
ARGUMENTS = {
    "per_device_train_batch_size": ("training.batch_size", "training.batch_size"),
    "num_train_epochs": ("training.steps", "training.epochs"),
    "max_steps": ("training.steps", "training.max_steps"),
    "learning_rate": ("optimizer.learning_rate", "optimizer.learning_rate"),
    "warmup_steps": ("optimizer.warmup_steps", "optimizer.warmup_fraction"),
    "weight_decay": ("optimizer.weight_decay", "optimizer.weight_decay"),
    "adam_beta1": ("optimizer.beta_1", "optimizer.beta_1"),
    "adam_beta2": ("optimizer.beta_2", "optimizer.beta_2"),
    "adam_epsilon": ("optimizer.epsilon", "optimizer.epsilon"),
    "gradient_accumulation_steps": ("training.accumulation_steps", "training.accumulation_steps"),
    "activation_checkpointing": (
        "training.gradient_checkpointing=true",
        "training.gradient_checkpointing=true",
    ),
    "gradient_checkpointing": (
        "training.gradient_checkpointing=true",
        "training.gradient_checkpointing=true",
    ),
    "max_grad_norm": ("optimizer.global_clipnorm", "optimizer.global_clipnorm"),
    "bf16": ("training.precision=mixed_bfloat16", "training.precision=mixed_bfloat16"),
    "fp16": ("training.precision=mixed_float16", "training.precision=mixed_float16"),
    "torch_compile": ("training.jit_compile", "training.jit_compile"),
    "auto_find_batch_size": ("training.batch_size", "training.batch_size"),
    "logging_strategy": ("training.log_every", "training.log_every"),
    "logging_steps": ("training.log_every", "training.log_every"),
    "eval_strategy": ("training.evaluate_every", "training.evaluations_per_epoch"),
    "eval_steps": ("training.evaluate_every", "training.evaluations_per_epoch"),
    "per_device_eval_batch_size": ("training.evaluate_batches", "prediction.batch_size"),
    "save_strategy": ("training.checkpoint_every_steps", "training.checkpoint_every_steps"),
    "save_steps": ("training.checkpoint_every_steps", "training.checkpoint_every_steps"),
    "save_total_limit": ("training.max_checkpoints", "training.max_checkpoints"),
    "load_best_model_at_end": ("training.keep_best", "training.keep_best"),
    "metric_for_best_model": ("training.best_metric", "training.best_metric"),
    "full_determinism": ("training.deterministic", "training.deterministic"),
    "seed": ("training.seed", "training.seed"),
    "data_seed": ("training.seed", "training.seed"),
    "local_rank": ("training.strategy=mirrored", "training.strategy=mirrored"),
    "ddp_backend": ("training.strategy=mirrored", "training.strategy=mirrored"),
    "output_dir": ("the option --output", "the option --output"),
    "resume_from_checkpoint": ("the option --output", "the option --output"),
    "use_cpu": ("the option --devices", "the option --devices"),
}
# Its fields that have none, in this release: trackers, the Hub, other libraries, other loops.
RELEASE = "5.24.0"
WITHOUT = """
    lr_scheduler_type lr_scheduler_kwargs optim optim_args optim_target_modules
    average_tokens_across_devices label_smoothing_factor bf16_full_eval fp16_full_eval tf32
    activation_checkpointing_kwargs gradient_checkpointing_kwargs torch_compile_backend
    torch_compile_mode use_liger_kernel
    liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps logging_first_step
    log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_delay prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
    save_only_model save_on_each_node enable_jit_checkpoint push_to_hub hub_token hub_private_repo
    hub_model_id hub_strategy hub_always_push hub_revision greater_is_better
    ignore_data_skip restore_callback_states_from_checkpoint accelerator_config parallelism_config
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
    dataloader_in_order remove_unused_columns label_names train_sampling_strategy
    length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers
    ddp_static_graph ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train
    do_eval do_predict
"""


def test_every_name_of_training_arguments_with_a_counterpart_leads_to_it():
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    own = {key.rpartition(".")[2] for key in ALL}
    for name in sorted(fields & ARGUMENTS.keys() - own):
        found = [meant_key(name, known) for known in (PRETRAINING, TASKS["text_classification"])]
        assert tuple(found) == ARGUMENTS[name], name
    others = fields - ARGUMENTS.keys() if transformers.__version__ == RELEASE else ()
    for name in sorted(others):
        assert name in WITHOUT.split() or meant_key(name, sorted(ALL)), name
    assert len(fields & ARGUMENTS.keys()) > 25


def test_every_target_exists():
    options = {
        text
        for name in ("pretrain", "finetune")
        for option in cli.commands[name].params
        for text in option.opts
    }
    for targets in _NAMES:
        if targets.startswith("--"):
            words = targets.replace("(pretrain:", "").replace(")", "").split()
            assert set(words) <= options, targets
            continue
        for target in targets.split():
            key, _, value = target.partition("=")
            assert key in ALL, target
            if value:
                assert load_config("spanbert_tiny", [target]).training.precision


def test_no_name_stands_twice():
    names = [name for text in _NAMES.values() for name in text.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("load", "override", "nearest"),
    [
        (load_config, "training.lr=1e-4", "optimizer.learning_rate"),
        (load_config, "epochs=3", "training.steps"),
        (load_config, "bert.num_hidden_layers=3", "model.num_layers"),
        (load_config, "max-sentences=3", "training.batch_size"),  # fairseq
        (load_config, "masked_lm_prob=0.2", "masking.rate"),  # google-research/bert
        (load_config, "num_warmup_steps=3", "optimizer.warmup_steps"),
        (load_config, "span_upper=3", "masking.max_span_length"),  # SpanBERT's fairseq
        (load_config, "init_checkpoint=x", r"the option --preset \(pretrain: --initial-preset\)"),
        (load_task_config, "training.lr=1e-4", "optimizer.learning_rate"),
        (load_task_config, "epochs=3", "training.epochs"),
        (load_task_config, "warmup_proportion=0.1", "optimizer.warmup_fraction"),
        (load_task_config, "eval_per_epoch=10", "training.evaluations_per_epoch"),
        (load_task_config, "doc_stride=64", "data.stride"),
        (load_task_config, "MAX_SEQ_LENGTH=64", "data.sequence_length"),
        (load_task_config, "fp16=true", "training.precision=mixed_float16"),
    ],
)
def test_the_nearest_key_is_nearest_in_meaning(load, override, nearest):
    name = "spanbert_base" if load is load_config else "squad_v1"
    with pytest.raises(ConfigurationError, match=rf"unknown key .*; the nearest is {nearest}$"):
        load(name, [override])
