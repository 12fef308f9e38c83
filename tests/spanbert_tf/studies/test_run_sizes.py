"""The configurations of a comparison."""

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.studies.comparison import small_version


def test_ways_of_continuing_can_be_compared_from_random_weights(tiny_records):
    """There is nothing then to take a share of or to be careful with; all begin alike."""
    way, tiny = load_config("continue"), load_config("spanbert_tiny")
    small = small_version("continue", PretrainingManifest.load(tiny_records), 10, [])
    for section, name in (
        ("training", "initial_encoder_share"),
        ("training", "head_steps"),
        ("optimizer", "encoder_learning_rate"),
        ("optimizer", "layer_decay"),
    ):
        expected = getattr(getattr(tiny, section), name)
        assert getattr(getattr(way, section), name) != expected
        assert getattr(getattr(small, section), name) == expected
