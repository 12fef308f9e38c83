"""The configurations of a comparison."""

from spanbert_tf.config import load_config
from spanbert_tf.data.records import load_dataset_info
from spanbert_tf.studies.run_sizes import small_version


def test_ways_of_continuing_can_be_compared_from_random_weights(tiny_records):
    """There is nothing then to take a share of, and no run would begin."""
    assert load_config("continue").training.initial_encoder_share > 0
    small = small_version("continue", load_dataset_info(tiny_records), 10, [])
    assert small.training.initial_encoder_share == 0
