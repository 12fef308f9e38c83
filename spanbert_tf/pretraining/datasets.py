"""Makes the data sets of a pre-training run from its configuration."""

import dataclasses
import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import RECORD_ID, PretrainingManifest
from spanbert_tf.data.pretraining import LengthPlan
from spanbert_tf.data.rows import parse_records
from spanbert_tf.data.stream import training_chunks
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.training.devices import Devices


def configured_dataset(config: PretrainingConfig, data: str, **options: object) -> tf.data.Dataset:
    """Makes a data set of the batched and masked records of a configuration.

    Args:
        config: configuration of the run.
        data: directory of the records.
        **options: further arguments of `pretraining_dataset`. Held-out records keep its default
            seed, so all runs are evaluated with the same masks.
    """
    return pretraining_dataset(
        data,
        batch_size=config.training.batch_size,
        masking=config.masking,
        segment_aware=config.model.segment_aware,
        **options,
    )


def check_records(config: PretrainingConfig, manifest: PretrainingManifest, data: str) -> None:
    """Checks that the records fit the configuration.

    Args:
        config: configuration of the run.
        manifest: manifest of the records.
        data: directory of the records, for error messages.

    Raises:
        MismatchError: the records have another length, kind of sequences or vocabulary size.
        BadInputError: there are fewer training records than rows in a batch, or no held-out
            records.
    """
    names = ("sequence_length", "sequences", "vocabulary_size")
    wanted = {name: getattr(config.data, name) for name in names}
    manifest.check_values(wanted, data, functools.partial(_fitting, config))
    num_records = manifest.num_records("train")
    if num_records < config.training.batch_size:
        raise BadInputError(
            f"{data}: {num_records} training records are fewer than one batch; write more records, "
            f"or --set training.batch_size={max(num_records, 1)}"
        )
    if not manifest.num_records("validation"):
        raise BadInputError(
            f"{data}: no held-out records to evaluate on; write the records again with a larger "
            "--validation-fraction"
        )


def _fitting(config: PretrainingConfig, name: str, found: Any) -> list[str]:
    """Returns the settings that make a configuration fit the records."""
    settings = [f"data.{name}={found}"]
    if name == "sequence_length" and found > config.model.max_sequence_length:
        settings.append(f"model.max_sequence_length={found}")
    if name == "sequences" and found == "single" and config.objectives.next_sentence:
        settings.append("objectives.next_sentence=false")
    if name == "sequences" and found == "pair" and config.model.segment_aware:
        settings.append("model.position_embeddings=absolute")
    return settings


def tokens_per_row(manifest: PretrainingManifest) -> float:
    """Returns the mean number of tokens of a training row, with special tokens, without padding."""
    text_tokens = manifest.num_tokens("train") / manifest.num_records("train")
    special_tokens = 1 + manifest.num_blocks  # [CLS], and a [SEP] after each block
    return text_tokens + special_tokens


def steps_per_epoch(config: PretrainingConfig, manifest: PretrainingManifest, data: str) -> float:
    """Returns the number of batches of an epoch. Without `batch_by_length` it may be a fraction."""
    plan = _length_plan(config, manifest, data)
    if plan is not None:
        return plan.num_batches
    return manifest.num_records("train") / config.training.batch_size


def tokens_per_step(config: PretrainingConfig, manifest: PretrainingManifest, data: str) -> float:
    """Returns the mean number of tokens of a batch, with special tokens, without padding."""
    num_tokens = tokens_per_row(manifest) * manifest.num_records("train")
    return num_tokens / steps_per_epoch(config, manifest, data)


def _length_plan(
    config: PretrainingConfig, manifest: PretrainingManifest, data: str
) -> LengthPlan | None:
    """Returns how the training records are batched by length; `None` if they are not."""
    training = config.training
    if not training.batch_by_length:
        return None
    return LengthPlan.of(data, manifest, training.batch_size)


@dataclasses.dataclass(frozen=True)
class RunDatasets:
    """The data sets of a run.

    Attributes:
        config: configuration of the run.
        data: directory of the records.
        manifest: manifest of the records.
        devices: devices of the run.
    """

    config: PretrainingConfig
    data: str
    manifest: PretrainingManifest
    devices: Devices

    def check_batches(self) -> None:
        """Checks that the devices can share the rows of each batch of `training.batch_by_length`.

        Raises:
            BadInputError: the files of lengths are missing or damaged.
            ConfigurationError: the devices cannot share the rows of a batch equally, or TensorFlow
                trains on a TPU.
        """
        plan = _length_plan(self.config, self.manifest, self.data)
        if plan is None:
            return
        setting = "training.batch_by_length"
        if self.devices.are_tpu:
            raise ConfigurationError(
                f"{setting}: TensorFlow on a TPU needs batches of one shape; set {setting}=false, "
                "or train on JAX"
            )
        num_replicas = self.devices.num_replicas
        if np.any(plan.buckets.sizes % num_replicas):
            advice = "train on a power of two of them"
            if num_replicas.bit_count() == 1:
                # Then `row_multiple` is a multiple of the number of devices.
                parts = 4 * num_replicas
                fitting = -(-self.config.training.batch_size // parts) * parts
                advice = f"set training.batch_size={fitting}"
            raise ConfigurationError(
                f"{setting}: batches of {', '.join(map(str, plan.buckets.sizes))} rows cannot be "
                f"shared equally by {num_replicas} devices; {advice}, or set {setting}=false"
            )

    def training(self, first_batch: int) -> tf.data.Dataset:
        """Returns the endless training batches from the batch of index `first_batch` on."""
        training = self.config.training
        batches = configured_dataset(
            self.config,
            self.data,
            split="train",
            seed=training.seed,
            first_batch=first_batch,
            schedule_steps=training.schedule_steps,
            batch_by_length=training.batch_by_length,
        )
        return self.devices.for_workers(batches)

    def held_out(self) -> tf.data.Dataset:
        """Returns the batches of an evaluation.

        The data set states the number of its batches. If this number were passed to Keras 3.15 as
        `validation_steps`, Keras would evaluate more batches with `steps_per_execution`, and would
        read beyond the data under a strategy.
        """
        training = self.config.training
        num_batches = -(-self.manifest.num_records("validation") // training.batch_size)
        num_batches = min(num_batches, training.evaluate_batches or num_batches)
        batches = configured_dataset(self.config, self.data, split="validation").take(num_batches)
        stated = batches.apply(tf.data.experimental.assert_cardinality(num_batches))
        return self.devices.for_workers(stated)

    def files_of_batch(self, index: int) -> list[str]:
        """Names the files that hold the records of the global training batch of this index."""
        manifest = self.manifest
        training = self.config.training
        files = manifest.files(self.data, "train")
        plan = _length_plan(self.config, manifest, self.data)
        if plan is not None:
            batches = plan.batches(training.seed, index).map(lambda _, serialized, __: serialized)
        else:
            first_record = index * training.batch_size
            num_records = manifest.num_records("train")
            chunks = training_chunks(files, num_records, training.seed, first_record)
            batches = chunks.map(lambda serialized, _: serialized).rebatch(training.batch_size)
        ids = parse_records(next(iter(batches)), manifest).scalars[RECORD_ID]
        batch_ids = set(ids.numpy().tolist())
        return [os.path.basename(path) for path in files if batch_ids & _record_ids(path)]


def _record_ids(path: str) -> set[int]:
    """Reads the ids of all records of a file."""
    examples = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    return {example.features.feature[RECORD_ID].int64_list.value[0] for example in examples}
