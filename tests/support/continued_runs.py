"""Short runs that continue from an encoder: its preset, and the configuration."""

import keras
from record_files import VOCABULARY

from spanbert_tf.config import load_run_config
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.pretraining.job import run_pretraining

HEAD_STEPS = 5
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 48}
SETTINGS = {
    "optimizer.learning_rate": 0.01,
    "optimizer.encoder_learning_rate": 0.001,
    "optimizer.warmup_steps": 2,
    "training.batch_size": 4,
    "training.steps": 12,
    "training.schedule_steps": 20,
    "training.head_steps": HEAD_STEPS,
    "training.log_every": 2,
    "training.evaluate_every": 6,
    "training.checkpoint_every_steps": 4,
    "training.max_checkpoints": 4,
    "data.sequence_length": 24,
}


def save_encoder(directory, seed=7, **options):
    """A preset of an encoder alone, as `convert` writes it of one that has no heads."""
    keras.utils.set_random_seed(seed)
    shape = SIZES | {"dropout": 0.1, "max_sequence_length": 30} | options
    backbone = SpanBertBackbone(vocabulary_size=len(VOCABULARY), **shape)
    backbone.save_to_preset(str(directory))
    SpanBertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


def configured(preset, run, **changed):
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changed.items()}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return load_run_config("continue", overrides, preset=preset, run=str(run))


def continue_run(preset, data, run, **changed):
    return run_pretraining(configured(preset, run, **changed), data, str(run), preset)
