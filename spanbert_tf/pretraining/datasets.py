"""The batches of a run, as its configuration asks for."""

import dataclasses
import functools
import os
from typing import Any

import tensorflow as tf

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import RECORD_ID, PretrainingManifest
from spanbert_tf.data.rows import parse_records
from spanbert_tf.data.stream import training_chunks
from spanbert_tf.errors import BadInputError
from spanbert_tf.training.devices import Devices


def configured_dataset(config: PretrainingConfig, data: str, **options: object) -> tf.data.Dataset:
    """The records, batched and masked as a configuration says.

    Held-out records keep the default seed, so that every run is evaluated under the same masks.
    """
    return pretraining_dataset(
        data,
        batch_size=config.training.batch_size,
        masking=config.masking,
        segment_aware=not _is_absolute(config),
        **options,
    )


def check_records(config: PretrainingConfig, manifest: PretrainingManifest, data: str) -> None:
    """Checks that records are what a configuration trains on; `data` is named in errors.

    Raises:
        MismatchError: a field differs, or annotations are missing.
        BadInputError: there are fewer records than one batch, or none to evaluate on.
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
    """The settings that make a configuration fit records, with those that must follow."""
    settings = [f"data.{name}={found}"]
    if name == "sequence_length" and found > config.model.max_sequence_length:
        settings.append(f"model.max_sequence_length={found}")
    if name == "sequences" and found == "single" and config.objectives.next_sentence:
        settings.append("objectives.next_sentence=false")
    if name == "sequences" and found == "pair" and not _is_absolute(config):
        settings.append("model.position_embeddings=absolute")
    return settings


def _is_absolute(config: PretrainingConfig) -> bool:
    return config.model.position_embeddings == "absolute"


def tokens_per_row(manifest: PretrainingManifest) -> float:
    """Tokens of a packed training row on average, special tokens counted, padding not."""
    text = manifest.num_tokens("train") / manifest.num_records("train")
    return text + manifest.num_blocks + 1


@dataclasses.dataclass(frozen=True)
class RunDatasets:
    """The data sets of a run."""

    config: PretrainingConfig  # configuration of the run
    data: str  # directory of the records
    manifest: PretrainingManifest  # description of the records
    devices: Devices  # devices of the run

    def training(self, first_batch: int) -> tf.data.Dataset:
        """The endless training batches, from a given one on."""
        training = self.config.training
        batches = configured_dataset(
            self.config,
            self.data,
            split="train",
            seed=training.seed,
            first_batch=first_batch,
            num_steps=training.schedule_steps,
        )
        return self.devices.for_workers(batches)

    def held_out(self) -> tf.data.Dataset:
        """The batches of an evaluation.

        Their number is stated in the data set. Given as `validation_steps`, Keras 3.15 would run
        past it with `steps_per_execution`, and past the data under a strategy.
        """
        training = self.config.training
        num_batches = -(-self.manifest.num_records("validation") // training.batch_size)
        num_batches = min(num_batches, training.evaluate_batches or num_batches)
        batches = configured_dataset(self.config, self.data, split="validation").take(num_batches)
        stated = batches.apply(tf.data.experimental.assert_cardinality(num_batches))
        return self.devices.for_workers(stated)

    def files_of_batch(self, number: int) -> list[str]:
        """The names of the files that hold a record of a global training batch."""
        manifest, training = self.manifest, self.config.training
        files = manifest.files(self.data, "train")
        first_record = number * training.batch_size
        chunks = training_chunks(files, manifest.num_records("train"), training.seed, first_record)
        ids = chunks.map(
            lambda serialized, _: parse_records(serialized, manifest).scalars[RECORD_ID]
        )
        wanted = set(next(ids.rebatch(training.batch_size).as_numpy_iterator()).tolist())
        return [os.path.basename(path) for path in files if wanted & _record_ids(path)]


def _record_ids(path: str) -> set[int]:
    examples = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    return {example.features.feature[RECORD_ID].int64_list.value[0] for example in examples}
