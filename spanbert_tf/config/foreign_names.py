"""Keys by the names that people know from elsewhere, so that an error names the one they mean.

The names are those of `transformers.TrainingArguments` (4 and 5) and `BertConfig`, of the scripts
of google-research/bert (`run_pretraining.py`, `run_squad.py`, `run_classifier.py`,
`create_pretraining_data.py`), of SpanBERT's `run_*.py` and of fairseq's and its SpanBERT's options.
"""

# What they are called here, the first that a configuration has: a key, one with a value, or an
# option of the command. On the right, what they are called elsewhere.
_NAMES = {
    # The schedule and the optimizer.
    "optimizer.learning_rate": "lr learning_rate peak_lr max_lr",
    "optimizer.weight_decay": "weight_decay decay wd l2",
    "optimizer.warmup_steps optimizer.warmup_fraction": (
        "warmup warmup_steps warmup_ratio warmup_proportion warmup_updates num_warmup_steps"
    ),
    "optimizer.beta_1": "adam_beta1 beta1 adam_betas",
    "optimizer.beta_2": "adam_beta2 beta2",
    "optimizer.epsilon": "adam_epsilon adam_eps eps",
    "optimizer.global_clipnorm": "max_grad_norm clip_norm clip_grad gradient_clipping",
    "optimizer.bias_correction": "correct_bias",
    "optimizer.layer_decay": "layer_lr_decay layerwise_lr_decay llrd",
    # The course of a run.
    "training.epochs training.steps": "epochs num_epochs num_train_epochs max_epoch max_epochs",
    "training.steps training.max_steps": "steps max_steps max_update num_train_steps train_steps",
    "training.schedule_steps training.epochs": "total_num_update total_steps",
    "training.batch_size": (
        "train_batch_size per_device_train_batch_size per_gpu_train_batch_size max_sentences "
        "bs batch auto_find_batch_size"
    ),
    "training.batch_by_length": (
        "group_by_length length_column_name train_sampling_strategy bucket_by_sequence_length "
        "bucket_boundaries max_tokens batch_by_size length_bucket_step dynamic_padding"
    ),
    "prediction.batch_size training.evaluate_batches": (
        "eval_batch_size per_device_eval_batch_size per_gpu_eval_batch_size predict_batch_size "
        "max_sentences_valid"
    ),
    "training.evaluate_batches": "max_eval_steps",
    "training.accumulation_steps": "gradient_accumulation_steps grad_accum update_freq",
    "training.gradient_checkpointing=true": (
        "gradient_checkpointing activation_checkpointing checkpoint_activations"
    ),
    "training.evaluate_every training.evaluations_per_epoch": (
        "eval_steps eval_strategy evaluation_strategy eval_per_epoch validate_interval "
        "validate_interval_updates eval_every"
    ),
    "training.log_every": "logging_steps logging_strategy log_interval log_steps",
    "training.checkpoint_every_steps training.checkpoint_every_minutes": (
        "save_steps save_strategy save_checkpoints_steps save_interval save_interval_updates"
    ),
    "training.max_checkpoints": "save_total_limit keep_interval_updates keep_last_epochs",
    "training.keep_best": "load_best_model_at_end save_best",
    "training.best_metric": "metric_for_best_model best_checkpoint_metric",
    "training.early_stopping_patience": "patience early_stopping",
    "training.steps_per_execution": "iterations_per_loop",
    "training.seed": "random_seed data_seed",
    "training.deterministic": "full_determinism",
    "training.precision=mixed_bfloat16": "bf16 bfloat16",
    "training.precision=mixed_float16": "fp16 half amp use_fp16",
    "training.precision": "dtype mixed_precision half_precision_backend",
    "training.jit_compile": "torch_compile xla use_xla jit compile",
    "training.strategy=tpu": "use_tpu tpu",
    "training.strategy=mirrored": "n_gpu distribution_strategy ddp_backend local_rank",
    # Records and rows.
    "data.sequence_length": "max_seq_length max_seq_len max_length seq_length tokens_per_sample",
    "data.stride": "doc_stride",
    "data.has_unanswerable": "version_2_with_negative squad_v2",
    "prediction.max_answer_tokens": "max_answer_length",
    "prediction.num_candidates": "n_best_size n_best",
    # The model.
    "model.num_layers": "num_hidden_layers encoder_layers n_layers layers",
    "model.num_heads": "num_attention_heads encoder_attention_heads n_heads heads",
    "model.hidden_dim": "hidden_size encoder_embed_dim d_model embedding_dim",
    "model.intermediate_dim": "intermediate_size encoder_ffn_embed_dim ffn_dim",
    "model.dropout resolver.dropout": "dropout hidden_dropout_prob act_dropout",
    "model.attention_dropout": "attention_dropout attention_probs_dropout_prob",
    "model.max_sequence_length": "max_position_embeddings max_positions",
    "model.layer_norm_epsilon": "layer_norm_eps",
    "data.vocabulary_size": "vocab_size",
    # Masks and objectives.
    "masking.scheme": "schemes do_whole_word_mask whole_word_mask span_masking",
    "masking.rate": "masked_lm_prob mlm_probability mask_prob mask_ratio mask_rate",
    "masking.max_span_length": "span_upper max_ngram max_span",
    "masking.geometric_p": "geometric_p",
    "masking.replacement_unit": "replacement_method",
    "masking.max_span_targets": "max_pair_targets",
    "masking.random_token_rate": "random_token_prob",
    "objectives.span_boundary": "sbo use_sbo pair_loss_weight",
    "objectives.span_position_dim": "pair_positional_embedding_size",
    "objectives.next_sentence": "nsp no_nsp",
    # What is no key, but an option of the command.
    "--output": "output_dir save_dir overwrite_output_dir resume_from_checkpoint logging_dir",
    "--data": "train_file train_data_file data_dir input_file train",
    "--validation-data": "dev_file predict_file validation_file eval_file dev",
    "--preset (pretrain: --initial-preset)": (
        "model_name_or_path model_name init_checkpoint bert_model bert_config_file restore_file"
    ),
    "--devices": "num_devices gpus num_gpus use_cpu no_cuda num_tpu_cores tpu_num_cores",
}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


_TARGETS = {_plain(name): targets for targets, names in _NAMES.items() for name in names.split(" ")}


def meant_key(key: str, known: list[str]) -> str | None:
    """Finds what a key is called here: one of `known`, maybe with a value, an option, or `None`."""
    targets = _TARGETS.get(_plain(key.rpartition(".")[2]), "")
    if targets.startswith("--"):
        return f"the option {targets}"
    return next((name for name in targets.split() if name.partition("=")[0] in known), None)
