"""Figures on held-out records do not depend on the size of the batches."""

import keras
import pytest

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.pretraining.datasets import RunDatasets
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.training.devices import Devices


@pytest.fixture(scope="module")
def measured(tiny_overrides, tiny_pair_records):
    """Batch size → metrics of all three objectives on 10 records; 7 and 64 fill a batch up."""
    results, model = {}, None
    for batch_size in (1, 7, 64):
        overrides = [f"training.batch_size={batch_size}", "objectives.span_boundary=true"]
        config = load_config("bert_2seq_nsp", [*tiny_overrides, *overrides])
        manifest = PretrainingManifest.load(tiny_pair_records)
        devices = Devices(config.training)
        held_out = RunDatasets(config, tiny_pair_records, manifest, devices).held_out()
        if model is None:
            keras.utils.set_random_seed(3)
            model = compiled_pretrainer(config, manifest.vocabulary_size)
        results[batch_size] = model.evaluate(held_out, return_dict=True, verbose=0)
    return results


def test_batch_size_does_not_matter(measured):
    objectives = ("masked_lm", "span_boundary", "next_sentence")
    names = {f"{name}_{kind}" for name in objectives for kind in ("loss", "accuracy")}
    assert set(measured[1]) == {"loss", *names}
    for batch_size in (7, 64):
        assert measured[batch_size] == pytest.approx(measured[1], rel=1e-5)
