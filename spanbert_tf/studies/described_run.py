"""The model and a batch of a run as shapes, for a step that is compiled but never run.

B rows, S positions, K prediction slots, N gold mentions.
"""

import dataclasses
from typing import Any

import jax
import keras
import tensorflow as tf

from spanbert_tf.config import FinetuningConfig, PretrainingConfig
from spanbert_tf.config.positions import has_positions
from spanbert_tf.data.manifest import NUM_BLOCKS
from spanbert_tf.data.records import TaskManifest
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.studies.compiled_step import undrawn
from spanbert_tf.tasks.table import load_task
from spanbert_tf.tasks.task import Task
from spanbert_tf.text.languages import DEFAULT_LANGUAGE
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS
from spanbert_tf.training.configured_optimizer import compile_task, train_new_pooler
from spanbert_tf.training.run_directory import AnyConfig

Described = tuple[keras.Model, tuple]  # the model, and the arguments of its step in `fit`
_VOCABULARY_SIZE = 28_996  # of BERT's cased models
_NUM_STEPS = 1_000  # of the learning-rate schedule; no shape depends on it


def described_pretraining(config: PretrainingConfig) -> Described:
    """Describes the model and a batch of a pre-training run."""
    model = undrawn(lambda: compiled_pretrainer(config, vocabulary_size(config)))
    return model, (pretraining_batch(model, config),)


def vocabulary_size(config: PretrainingConfig) -> int:
    """Returns the vocabulary size of the configuration, or that of BERT's cased models."""
    return config.data.vocabulary_size or _VOCABULARY_SIZE


def pretraining_batch(
    model: SpanBertPretrainer, config: PretrainingConfig
) -> dict[str, jax.ShapeDtypeStruct]:
    """Describes a batch of `spanbert_tf.data.pretraining_dataset`."""
    rows = config.training.batch_size
    length = config.data.sequence_length
    slots = config.masking.num_slots(length, NUM_BLOCKS[config.data.sequences])
    targets = ["mask_positions", "mask_ids", "mask_weights", "span_weights"]
    targets += ["span_left_positions", "span_right_positions", "span_offsets"]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(targets, (rows, slots))
    shapes |= dict.fromkeys(model.backbone.input, (rows, length))
    if config.data.sequences == "pair":
        shapes["next_sentence_labels"] = (rows,)
    return {
        name: jax.ShapeDtypeStruct(shape, "float32" if name.endswith("_weights") else "int32")
        for name, shape in shapes.items()
    }


def described_task(config: FinetuningConfig, encoder: PretrainingConfig) -> Described:
    """Describes the model of a fine-tuning run and its widest batch.

    Args:
        config: configuration of the run.
        encoder: configuration with which the encoder was pre-trained.

    Raises:
        ConfigurationError: the task of another package does not support `plan`, or the encoder
            cannot read the rows of the task.
    """
    task = load_task(config.task)
    size = vocabulary_size(encoder)
    names = [*SPECIAL_TOKENS, *(f"[unused{number}]" for number in range(1, 100))]
    vocabulary = [*names, *(f"piece{number}" for number in range(len(names), size))]
    manifest = described_records(task, config, size)
    _check_encoder(encoder, manifest)

    def build() -> keras.Model:
        backbone = SpanBertBackbone(
            vocabulary_size=size,
            **encoder.model.encoder_options(),
            lora_rank=config.optimizer.lora_rank,
            dtype=config.training.precision,
        )
        model = task.build(backbone, SpanBertTokenizer(vocabulary), manifest, config)
        if config.optimizer.lora_rank is not None:
            train_new_pooler(model, is_pooler_trained=encoder.objectives.next_sentence)
        compile_task(model, config, _NUM_STEPS)
        return model

    return undrawn(build), task_batch(manifest, task, config.training.batch_size)


def _check_encoder(encoder: PretrainingConfig, manifest: TaskManifest) -> None:
    """Checks that an encoder has the positions of a task's rows, and enough of them."""
    model = encoder.model
    length = manifest.sequence_length
    if manifest.segment_aware != model.segment_aware:
        kinds = ("SegaBERT's", "BERT's") if model.segment_aware else ("BERT's", "SegaBERT's")
        raise ConfigurationError(
            f"--encoder: has {kinds[0]} positions, the rows of {manifest.task} have {kinds[1]}; "
            "name one that reads them (of SegaBERT, segabert_base)"
        )
    if not has_positions(model.position_embeddings, model.max_sequence_length, length):
        raise ConfigurationError(
            f"--encoder: has {model.max_sequence_length} positions, rows have {length}; try "
            f"--set data.sequence_length={model.max_sequence_length}"
        )


def positions_of_row(config: AnyConfig) -> int:
    """Returns the positions of a row of a training batch; of a document, those of all segments."""
    if isinstance(config, FinetuningConfig):
        return config.data.num_positions
    return config.data.sequence_length


def described_records(task: Task, config: FinetuningConfig, size: int) -> TaskManifest:
    """Makes the manifest that records for a configuration would have, with the usual labels."""
    manifest_class = task.manifest_class
    values = {
        "vocabulary_hash": "",
        "vocabulary_size": size,
        "lowercase": False,
        "strip_accents": False,
        "language": DEFAULT_LANGUAGE,
        "counts": dict.fromkeys(manifest_class.needed_counts, 1),
        "files": {},
        **config.data.model_dump(),
        **manifest_class.planned_fields(config.data),
    }
    fields = [field.name for field in dataclasses.fields(manifest_class)]
    if missing := [name for name in fields if name not in values and name != "version"]:
        raise ConfigurationError(
            f"task {task.name}: plan does not know what records say of {missing[0]}; it plans the "
            "tasks of this package, and those whose manifest has `planned_fields`"
        )
    return manifest_class(**{name: values[name] for name in fields if name in values})


def task_batch(manifest: TaskManifest, task: Task, rows: int) -> tuple[Any, Any, Any]:
    """Describes the widest training batch of a task, `(x, y, sample_weight)`."""
    specs = (*task.widest_batch(manifest, rows), tf.TensorSpec([rows], tf.float32))
    return tf.nest.map_structure(
        lambda spec: jax.ShapeDtypeStruct(tuple(spec.shape), spec.dtype.name), specs
    )
