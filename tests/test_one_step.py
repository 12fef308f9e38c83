"""The page `one_step.md`: it names the files that a batch passes, in their order, and no others."""

import pathlib
import re
import sys

import keras
import pytest
import tensorflow as tf

import spanbert_tf
from spanbert_tf.config import load_config
from spanbert_tf.pretraining.job import PretrainingJob
from spanbert_tf.training.devices import Devices

ROOT = pathlib.Path(spanbert_tf.__file__).parents[1]


@pytest.fixture(scope="module")
def named_files():
    """The files that are the headings of the page, in their order."""
    page = pathlib.Path(__file__).parents[1] / "docs" / "one_step.md"
    return re.findall(r"^## `(spanbert_tf/\S+\.py)`$", page.read_text(), re.MULTILINE)


def _holds_tensor(values):
    """Whether something in arguments is part of a graph that is being built."""
    leaves = tf.nest.flatten(list(values.values()))
    return any(isinstance(leaf, tf.Tensor | tf.RaggedTensor) for leaf in leaves)


def _passed_files(job):
    """Files whose functions are given tensors while the graphs of rows and step are built.

    What is built before, from configuration and records, no batch passes.
    """
    found, package = {}, str(ROOT / "spanbert_tf")

    def note(frame, event, argument):
        file = frame.f_code.co_filename  # of millions of calls: nothing slow before it is ours
        is_ours = event == "call" and file.startswith(package)
        if is_ours and tf.inside_function() and _holds_tensor(frame.f_locals):
            found.setdefault(str(pathlib.Path(file).relative_to(ROOT)))

    model = job.build(Devices(job.config.training))
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        keras.Model.fit(model, job.batches(0), steps_per_epoch=1, verbose=0)
    finally:
        sys.setprofile(before)
    return list(found)


def test_page_names_what_a_batch_passes(named_files, tiny_overrides, tiny_records):
    config = load_config(
        "spanbert_base", [*tiny_overrides, "model.num_layers=1", "model.dropout=0.1"]
    )
    job = PretrainingJob(config, str(tiny_records), None, show_next_steps=False)
    assert named_files == _passed_files(job)
