"""The batches of a run: as its configuration wants them, for the devices of its strategy."""

import dataclasses

import tensorflow as tf

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.packing import parse_records
from spanbert_tf.data.records import training_windows
from spanbert_tf.data.schema import RECORD_ID, DatasetInfo


def configured_dataset(config: PretrainingConfig, data: str, **options: object) -> tf.data.Dataset:
    """The records as a configuration wants them batched and masked.

    Args:
        config: of the run.
        data: directory of the records.
        **options: `split`, `seed`, `first_batch` and `shard` of `pretraining_dataset`. Held-out
            records keep its default seed, so that every run is evaluated under the same masks.
    """
    return pretraining_dataset(
        data,
        batch_size=config.training.batch_size,
        masking=config.masking_options(),
        segment_aware=config.model.position_embeddings != "absolute",
        **options,
    )


@dataclasses.dataclass(frozen=True)
class RunDatasets:
    """The data sets of a run.

    Attributes:
        config: of the run.
        data: directory of the records.
        info: description of the records.
        strategy: of the run.
    """

    config: PretrainingConfig
    data: str
    info: DatasetInfo
    strategy: tf.distribute.Strategy

    def training(self, first_batch: int) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """The endless training batches from one on."""
        seed = self.config.training.seed
        return self._for_devices(split="train", seed=seed, first_batch=first_batch)

    def held_out(self) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """The batches of an evaluation.

        Their number is stated in the data set. Given as `validation_steps`, Keras 3.15 would run
        past it with `steps_per_execution`, and past the data under a strategy.
        """
        training = self.config.training
        num_batches = -(-self.info.num_records("validation") // training.batch_size)
        num_batches = min(num_batches, training.evaluate_batches or num_batches)
        return self._for_devices(num_batches, split="validation")

    def record_ids(self, first_batch: int) -> tf.data.Dataset:
        """The record ids of the global training batches from one on, int64 [B]."""
        info, training = self.info, self.config.training
        windows = training_windows(
            info.files(self.data, "train"),
            info.num_records("train"),
            training.seed,
            first_batch * training.batch_size,
        )
        ids = windows.map(lambda serialized, _: parse_records(serialized, info).scalars[RECORD_ID])
        return ids.rebatch(training.batch_size)

    def _for_devices(
        self, num_batches: int | None = None, **options: object
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        if not isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return _take(configured_dataset(self.config, self.data, **options), num_batches)

        def rows_of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
            shard = (context.input_pipeline_id, context.num_input_pipelines)
            batches = configured_dataset(self.config, self.data, shard=shard, **options)
            num_rows = context.get_per_replica_batch_size(self.config.training.batch_size)
            return _take(batches, num_batches).rebatch(num_rows)

        return self.strategy.distribute_datasets_from_function(rows_of_worker)


def _take(batches: tf.data.Dataset, num_batches: int | None) -> tf.data.Dataset:
    if num_batches is None:
        return batches
    return batches.take(num_batches).apply(tf.data.experimental.assert_cardinality(num_batches))
