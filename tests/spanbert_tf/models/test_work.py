"""What a step counts of its work, against counts by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer, SpanBertTextClassifier
from spanbert_tf.training import adamw

ROWS, LENGTH, SLOTS = 4, 13, 5
VOCABULARY, WIDTH, INNER, LAYERS, POSITION_DIM = 41, 32, 37, 3, 7
KERNELS = 4 * WIDTH**2 + 2 * WIDTH * INNER  # weights of a layer's matrices


def _backbone(**options):
    options = {"dropout": 0.0, "max_sequence_length": LENGTH} | options
    return SpanBertBackbone(VOCABULARY, LAYERS, 4, WIDTH, INNER, **options)


def _batch():
    """Rows of 13, 6, 9 and 2 tokens."""
    lengths = np.array([13, 6, 9, 2])
    slots = np.tile(np.arange(1, 1 + SLOTS, dtype="int32"), (ROWS, 1))
    batch = {
        "token_ids": np.ones((ROWS, LENGTH), "int32"),
        "segment_ids": np.zeros((ROWS, LENGTH), "int32"),
        "padding_mask": (np.arange(LENGTH) < lengths[:, np.newaxis]).astype("int32"),
        "next_sentence_labels": np.array([1, 0, 1, 1], "int32"),
    }
    names = ("mask_positions", "mask_ids", "span_left_positions", "span_right_positions")
    batch |= dict.fromkeys((*names, "span_offsets"), slots)
    return batch | dict.fromkeys(("mask_weights", "span_weights"), np.ones_like(slots, "float32"))


def _dataset():
    return tf.data.Dataset.from_tensors(_batch()).repeat()


def _passes(has_gradient, trains_weights):
    return 1 + has_gradient + trains_weights


def _layer(has_gradient=True, trains_weights=True):
    """Products of a layer by its matrices, and of positions by positions, twice."""
    by_matrices = ROWS * LENGTH * KERNELS * _passes(has_gradient, trains_weights)
    of_positions = 2 * ROWS * LENGTH**2 * WIDTH * _passes(has_gradient, has_gradient)
    return by_matrices + of_positions


def _heads(trains_table=True):
    masked_lm = ROWS * SLOTS * (3 * WIDTH**2 + (2 + trains_table) * WIDTH * VOCABULARY)
    boundary = (2 * WIDTH + POSITION_DIM) * WIDTH + WIDTH**2
    span_boundary = ROWS * SLOTS * (3 * boundary + (2 + trains_table) * WIDTH * VOCABULARY)
    next_sentence = 3 * ROWS * (WIDTH**2 + 2 * WIDTH)
    return masked_lm + span_boundary, next_sentence


@pytest.mark.parametrize(
    ("num_devices", "options"),
    [
        (1, {}),
        (1, {"accumulation_steps": 2}),
        (1, {"steps_per_execution": 2}),
        (1, {"jit_compile": True}),
        (2, {}),
    ],
)
def test_work_of_pretraining_is_that_of_all_rows(num_devices, options, two_devices):
    strategy = two_devices if num_devices == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        model = SpanBertPretrainer(
            _backbone(), next_sentence=True, max_span_targets=9, span_position_dim=POSITION_DIM
        )
        model.compile(adamw(1e-3, 2, 100), **{"jit_compile": False, **options})
    history = model.fit(_dataset(), steps_per_epoch=4, verbose=0).history
    work = model.work_done()
    assert work.tokens == 4 * (13 + 6 + 9 + 2)
    assert work.positions == 4 * ROWS * LENGTH
    slots, next_sentence = _heads()
    products = LAYERS * _layer() + slots
    # The pooler's matrix and the classes of next sentences stay below a thousandth.
    assert work.operations == pytest.approx(4 * 2 * (products + next_sentence), rel=1e-5)
    assert not [name for name in history if name.startswith("work")]


def test_frozen_weights_have_no_gradients():
    """First the heads alone, whose gradients end above the encoder; then all."""
    model = SpanBertPretrainer(_backbone(), max_span_targets=9, span_position_dim=POSITION_DIM)
    model.compile(adamw(1e-3, 2, 100), jit_compile=False)
    model.freeze(model.backbone.variables)
    model.fit(_dataset(), steps_per_epoch=1, verbose=0)
    slots, _ = _heads(trains_table=False)
    products = LAYERS * _layer(has_gradient=False, trains_weights=False) + slots
    assert model.work_done().operations == pytest.approx(2 * products, rel=1e-5)
    model.freeze(())
    model.fit(_dataset(), steps_per_epoch=1, verbose=0)
    slots, _ = _heads()
    assert model.work_done().operations == pytest.approx(2 * (LAYERS * _layer() + slots), rel=1e-5)


@pytest.mark.parametrize("kind", ["all", "layers", "adapters"])
def test_work_of_a_task(kind):
    """A row of weight 0 fills a batch up, so it is padding; frozen layers have no gradients."""
    backbone = _backbone(lora_rank=2 if kind == "adapters" else None)
    if kind == "layers":
        for layer in backbone.layers:
            if layer is not backbone.transformer_layers[-1]:
                layer.trainable = False
    model = SpanBertTextClassifier(backbone, num_classes=3)
    model.compile(keras.optimizers.SGD(), jit_compile=False)
    x = {name: _batch()[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    weights = np.array([1, 1, 1, 0], "float32")
    data = tf.data.Dataset.from_tensors((x, np.array([0, 1, 2, 0]), weights))
    model.fit(data, verbose=0)
    work = model.work_done()
    assert (work.tokens, work.positions) == (13 + 6 + 9, ROWS * LENGTH)
    products = {
        "all": LAYERS * _layer(),
        "layers": 2 * _layer(has_gradient=False, trains_weights=False) + _layer(),
        "adapters": LAYERS * _layer(trains_weights=False),
    }
    assert work.operations == pytest.approx(2 * products[kind], rel=1e-5)
