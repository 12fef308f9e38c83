"""One fine-tuning run for question answering: `model.fit`, checkpoints, scores, and the preset."""

import json
import os
import sys

import keras
import keras_hub

from spanbert_tf.data.question_answering import question_answering_dataset
from spanbert_tf.data.question_answering_schema import QuestionAnsweringInfo
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.finetuning_config import (
    FinetuningTrainingConfig,
    QuestionAnsweringConfig,
    load_finetuning_config,
)
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
)
from spanbert_tf.presets.loading import load_checked, load_preset
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.question_answering.prediction import evaluate, shown_scores
from spanbert_tf.question_answering.settings import AnsweringSettings
from spanbert_tf.strict_yaml import flat_values
from spanbert_tf.training.callbacks import (
    MetricsLog,
    PeriodicCheckpoint,
    RunInterrupted,
    StopOnSignal,
)
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.initial_preset import checked_tokenizer
from spanbert_tf.training.optimizers import WarmupLinearDecay, adamw
from spanbert_tf.training.run_directory import CHECKPOINTS, CONFIG_FILE, PRESET
from spanbert_tf.training.strategies import choose_precision

SCORES_FILE = "scores.json"


def run_question_answering(
    config: QuestionAnsweringConfig,
    preset: str,
    data: str,
    output: str,
    validation_data: str | None = None,
) -> dict[str, float] | None:
    """Fine-tunes an encoder, or goes on with a run that was stopped or killed.

    Args:
        config: of the run.
        preset: whose encoder the run begins with.
        data: directory of the training questions.
        output: directory of the run.
        validation_data: directory of questions to score the model on at the end; for SQuAD 2.0
            they also decide from when on a question counts as unanswerable.

    Returns:
        The scores; empty without `validation_data`; `None` if SIGTERM ended the run.

    Raises:
        BadInputError: a file or directory cannot be used.
        MismatchError: preset, questions, configuration and earlier run do not fit together.
    """
    info = QuestionAnsweringInfo.load(data)
    for directory in filter(None, (data, validation_data)):
        _check_questions(config, QuestionAnsweringInfo.load(directory), directory)
    _check_run(config, output)
    keras.utils.set_random_seed(config.training.seed)
    model, preprocessor = _new_model(config, preset, info, data)
    num_steps = config.training.epochs * -(-info.counts["windows"] // config.training.batch_size)
    warmup_steps = int(config.optimizer.warmup_fraction * num_steps)
    _compile(model, config, warmup_steps, num_steps)
    checkpoints = Checkpoints(
        os.path.join(output, CHECKPOINTS), model, max_to_keep=config.training.max_checkpoints
    )
    first_step = checkpoints.restore()
    os.makedirs(output, exist_ok=True)
    with open(os.path.join(output, CONFIG_FILE), "w", encoding="utf-8") as file:
        file.write(config.to_yaml())
    if first_step:
        print(f"{output}: going on after step {first_step} of {num_steps}", flush=True)
    log = MetricsLog(
        output,
        first_step,
        every=config.training.log_every,
        schedule=WarmupLinearDecay(config.optimizer.learning_rate, warmup_steps, num_steps),
        tokens_per_step=config.training.batch_size * info.counts["tokens"] / info.counts["windows"],
    )
    try:
        _fit(model, config.training, data, checkpoints, log, range(first_step, num_steps))
    except RunInterrupted as stop:
        print(
            f"{output}: SIGTERM: saved step {stop.step} of {num_steps}; run the same command again "
            "to go on",
            flush=True,
        )
        return None
    model.preprocessor = preprocessor  # only now: `fit` would pack the rows again
    return _finish(model, config, preset, data, output, validation_data)


def _fit(
    model: SpanBertQuestionAnswerer,
    training: FinetuningTrainingConfig,
    data: str,
    checkpoints: Checkpoints,
    log: MetricsLog,
    steps: range,
) -> None:
    """Trains the steps that are left, and saves the last one."""
    first_step = steps.start
    periodic = PeriodicCheckpoint(checkpoints, first_step, every=training.checkpoint_every_steps)
    with StopOnSignal(checkpoints, first_step) as stop:
        if steps:
            model.fit(
                question_answering_dataset(
                    data,
                    batch_size=training.batch_size,
                    training=True,
                    seed=training.seed,
                    first_batch=first_step,
                ),
                steps_per_epoch=len(steps),
                callbacks=[log, periodic, stop],
                shuffle=False,  # the data set is shuffled
                verbose=1 if sys.stdout.isatty() else 2,
            )
        checkpoints.save(steps.stop)


def _check_questions(
    config: QuestionAnsweringConfig, info: QuestionAnsweringInfo, directory: str
) -> None:
    for name, wanted in config.data.as_dict().items():
        if getattr(info, name) != wanted:
            raise MismatchError(
                f"{directory}: data.{name} of these questions is {getattr(info, name)}, of the "
                f"configuration {wanted}; write them again, or --set data.{name}="
                f"{getattr(info, name)}"
            )


def _check_run(config: QuestionAnsweringConfig, output: str) -> None:
    path = os.path.join(output, CONFIG_FILE)
    if not os.path.exists(path):
        if os.path.isdir(output) and os.listdir(output):
            raise BadInputError(f"{output}: exists and is no run; name another --output")
        return
    before = flat_values(load_finetuning_config(path))
    for key, value in flat_values(config).items():
        if value != before[key]:
            raise MismatchError(
                f"{output}: {key} is {before[key]} in this run and {value} now; name another "
                "--output"
            )


def _new_model(
    config: QuestionAnsweringConfig, preset: str, info: QuestionAnsweringInfo, data: str
) -> tuple[SpanBertQuestionAnswerer, SpanBertQuestionAnswererPreprocessor]:
    backbone = load_checked(keras_hub.models.Backbone, preset)
    if not isinstance(backbone, SpanBertBackbone):
        raise MismatchError(
            f"{preset}: no encoder of this project; `spanbert-tf convert` makes one"
        )
    if info.segment_aware != (backbone.position_embeddings != "absolute"):
        reads = "BERT's positions" if info.segment_aware else "SegaBERT's positions"
        raise MismatchError(
            f"{preset}: reads {reads}, which is not what {data} was written for; write the "
            f"questions {'without' if info.segment_aware else 'with'} --segment-aware"
        )
    if backbone.position_embedding and backbone.max_sequence_length < info.sequence_length:
        raise MismatchError(
            f"{preset}: has {backbone.max_sequence_length} positions, the rows in {data} up to "
            f"{info.sequence_length}; write them with --sequence-length"
        )
    tokenizer = checked_tokenizer(preset, data, info)
    precision = choose_precision(config.training.precision)
    if config.training.random_weights or precision != "float32":
        backbone = load_preset(
            SpanBertBackbone,
            preset,
            dtype=precision,
            load_weights=not config.training.random_weights,
        )
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer,
        sequence_length=info.sequence_length,
        question_first=info.question_first,
        segment_aware=info.segment_aware,
    )
    return SpanBertQuestionAnswerer(backbone), preprocessor


def _compile(
    model: SpanBertQuestionAnswerer,
    config: QuestionAnsweringConfig,
    warmup_steps: int,
    num_steps: int,
) -> None:
    optimizer = config.optimizer
    model.compile(
        optimizer=adamw(
            learning_rate=optimizer.learning_rate,
            warmup_steps=warmup_steps,
            total_steps=num_steps,
            weight_decay=optimizer.weight_decay,
            epsilon=optimizer.epsilon,
            global_clipnorm=optimizer.global_clipnorm,
            dynamic_loss_scale=model.backbone.compute_dtype == "float16",
        ),
        auto_scale_loss=False,
        jit_compile=False,  # rows are as long as the longest of their batch
    )
    model.optimizer.build(model.trainable_variables)


def _finish(
    model: SpanBertQuestionAnswerer,
    config: QuestionAnsweringConfig,
    preset: str,
    data: str,
    output: str,
    validation_data: str | None,
) -> dict[str, float]:
    settings = AnsweringSettings(
        max_answer_tokens=config.prediction.max_answer_tokens,
        num_candidates=config.prediction.num_candidates,
        stride=config.data.stride,
        has_unanswerable=config.data.has_unanswerable,
    )
    scores = {}
    if validation_data:
        scores = evaluate(model, validation_data, settings, batch_size=config.prediction.batch_size)
        settings = settings.with_threshold(scores)
        with open(os.path.join(output, SCORES_FILE), "w", encoding="utf-8") as file:
            json.dump(scores, file, indent=1)
        print(f"{validation_data}: {shown_scores(scores)}")

    facts = {
        "Fine-tuned from": f"random weights of the shape of {preset}"
        if config.training.random_weights
        else preset,
        "Data": data,
        "Scores": shown_scores(scores) or "none",
    }
    write_preset(model, os.path.join(output, PRESET), write_more=settings.save, facts=facts)
    print(f"{output}: {PRESET}/, {CHECKPOINTS}/, metrics.jsonl, {CONFIG_FILE}", flush=True)
    return scores
