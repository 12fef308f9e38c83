"""The encoder against PyTorch's BERT, its parameters against arithmetic, SegaBERT against numpy."""

import keras
import numpy as np
import pytest
import record_files
import tensorflow as tf
import torch
import transformers

from spanbert_tf.config.positions import POSITION_EMBEDDINGS
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.layers import SegmentAwareEmbedding, weights_are_loaded
from spanbert_tf.models import SpanBertBackbone, SpanBertMaskedLM

TINY = {
    "vocabulary_size": 99,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
    "intermediate_dim": 37,
    "max_sequence_length": 23,
}
INDICES = ("paragraph_indices", "sentence_indices", "token_indices")


def torch_bert(sizes):
    config = transformers.BertConfig(
        vocab_size=sizes["vocabulary_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        hidden_size=sizes["hidden_dim"],
        intermediate_size=sizes["intermediate_dim"],
        max_position_embeddings=sizes["max_sequence_length"],
        attn_implementation="eager",
    )
    model = transformers.BertForMaskedLM(config).eval()
    for parameter in model.parameters():  # LayerNorms and biases would be 1 and 0
        torch.nn.init.normal_(parameter, std=0.05)
    pooler = torch.nn.Linear(sizes["hidden_dim"], sizes["hidden_dim"])
    return model, pooler


def copy_weights(masked_lm, model, pooler):
    """Gives the Keras model PyTorch's weights, variable by variable."""
    backbone, heads = masked_lm.backbone, masked_lm.backbone.num_heads
    width = backbone.hidden_dim

    def numpy(tensor):
        return tensor.detach().numpy()

    def dense(layer, linear, kernel_shape=None, bias_shape=None):
        kernel, bias = numpy(linear.weight).T, numpy(linear.bias)
        layer.set_weights([kernel.reshape(kernel_shape or kernel.shape),
                           bias.reshape(bias_shape or bias.shape)])  # fmt: skip

    def norm(layer, source):
        layer.set_weights([numpy(source.weight), numpy(source.bias)])

    embeddings = model.bert.embeddings
    backbone.token_embedding.set_weights([numpy(embeddings.word_embeddings.weight)])
    backbone.position_embedding.set_weights([numpy(embeddings.position_embeddings.weight)])
    backbone.segment_embedding.set_weights([numpy(embeddings.token_type_embeddings.weight)])
    norm(backbone.embeddings_layer_norm, embeddings.LayerNorm)
    per_head = (heads, width // heads)
    for ours, theirs in zip(backbone.transformer_layers, model.bert.encoder.layer, strict=True):
        attention = ours._self_attention_layer
        for name in ("query", "key", "value"):
            source = getattr(theirs.attention.self, name)
            dense(getattr(attention, f"_{name}_dense"), source, (width, *per_head), per_head)
        dense(attention._output_dense, theirs.attention.output.dense, (*per_head, width))
        norm(ours._self_attention_layer_norm, theirs.attention.output.LayerNorm)
        dense(ours._feedforward_intermediate_dense, theirs.intermediate.dense)
        dense(ours._feedforward_output_dense, theirs.output.dense)
        norm(ours._feedforward_layer_norm, theirs.output.LayerNorm)
    dense(backbone.pooled_dense, pooler)
    transform, head = model.cls.predictions.transform, masked_lm.masked_lm_head
    dense(head._intermediate_dense, transform.dense)
    norm(head._intermediate_layer_norm, transform.LayerNorm)
    head._bias.assign(numpy(model.cls.predictions.bias))


def example(sizes, batch, length, seed=0):
    random = np.random.default_rng(seed)
    lengths = random.integers(length // 2, length + 1, batch)
    lengths[0] = length
    return {
        "token_ids": random.integers(0, sizes["vocabulary_size"], (batch, length)).astype("int32"),
        "segment_ids": random.integers(0, 2, (batch, length)).astype("int32"),
        "padding_mask": (np.arange(length) < lengths[:, None]).astype("int32"),
    }


BASE = {
    "vocabulary_size": 28_996,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "intermediate_dim": 3072,
    "max_sequence_length": 512,
}


@pytest.mark.parametrize(
    "sizes, batch, length",
    [
        pytest.param(TINY, 5, 13, id="tiny"),
        pytest.param(BASE, 2, 37, id="base", marks=pytest.mark.slow),
    ],
)
def test_outputs_equal_those_of_transformers(sizes, batch, length):
    torch.manual_seed(0)
    model, pooler = torch_bert(sizes)
    masked_lm = SpanBertMaskedLM(SpanBertBackbone(**sizes))
    copy_weights(masked_lm, model, pooler)
    inputs = example(sizes, batch, length)
    positions = np.random.default_rng(1).integers(0, length, (batch, 7)).astype("int32")
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]),
            output_hidden_states=True,
        )
        hidden = output.hidden_states[-1]
        pooled = torch.tanh(pooler(hidden[:, 0])).numpy()
    encoded = masked_lm.backbone(inputs)
    is_text = inputs["padding_mask"] == 1
    ours = np.array(encoded["sequence_output"])
    difference = np.abs(ours - hidden.numpy())[is_text].max()
    print(f"largest difference of the encoder's output: {difference:.1e}")
    assert difference < 2e-5
    assert np.abs(np.array(encoded["pooled_output"]) - pooled).max() < 2e-5
    logits = np.array(masked_lm({**inputs, "mask_positions": positions}))
    wanted = np.take_along_axis(output.logits.numpy(), positions[:, :, None], axis=1)
    in_text = np.take_along_axis(is_text, positions, axis=1)
    assert np.abs(logits - wanted)[in_text].max() < 1e-4


def encoder_parameters(layers, width, inner, vocabulary=28_996, positions=512 + 2):
    embeddings = (vocabulary + positions) * width + 2 * width
    attention = 4 * (width * width + width) + 2 * width
    feed_forward = width * inner + inner + inner * width + width + 2 * width
    pooler = width * width + width
    return embeddings + layers * (attention + feed_forward) + pooler


@pytest.mark.parametrize(
    "layers, heads, width, inner, embeddings, positions",
    [
        (12, 12, 768, 3072, "absolute", 512 + 2),
        pytest.param(24, 16, 1024, 4096, "absolute", 512 + 2, marks=pytest.mark.slow),
        (12, 12, 768, 3072, "segment_aware", 50 + 100 + 256),
        (12, 12, 768, 3072, "segment_aware_with_segments", 2 + 50 + 100 + 256),
        (12, 12, 768, 3072, "absolute_with_paragraph_and_sentence", 512 + 2 + 50 + 100),
    ],
)
def test_number_of_parameters(layers, heads, width, inner, embeddings, positions):
    with weights_are_loaded():  # drawing them takes most of the time
        backbone = SpanBertBackbone(
            28_996, layers, heads, width, inner, position_embeddings=embeddings
        )
    expected = encoder_parameters(layers, width, inner, positions=positions)
    assert backbone.count_params() == expected


def test_padding_does_not_change_the_text():
    backbone = SpanBertBackbone(**TINY)
    inputs = example(TINY, 1, 11)
    padded = {name: np.pad(values, [(0, 0), (0, 6)]) for name, values in inputs.items()}
    padded["token_ids"][:, 11:] = 42
    short, long = backbone(inputs)["sequence_output"], backbone(padded)["sequence_output"]
    np.testing.assert_allclose(np.array(long)[:, :11], np.array(short), atol=1e-5)


@pytest.mark.parametrize("kind", POSITION_EMBEDDINGS)
def test_every_weight_gets_a_gradient_in_the_graph_of_a_step(kind):
    """Also what a kind of positions adds to the layers, whose operations have own gradients."""
    backbone = SpanBertBackbone(**TINY | {"num_layers": 1}, position_embeddings=kind)
    backbone.transformer_layers[0].gradient_checkpointing = True
    inputs = example(TINY, 3, 13)
    inputs |= dict.fromkeys(POSITION_EMBEDDINGS[kind].indices, inputs["segment_ids"])

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            outputs = backbone(inputs, training=True)
            losses = [tf.reduce_sum(values**3) for values in outputs.values()]
        return tape.gradient(losses, [weight.value for weight in backbone.trainable_weights])

    without = [
        weight.path
        for weight, gradient in zip(backbone.trainable_weights, gradients(), strict=True)
        if gradient is None or not np.any(tf.convert_to_tensor(gradient))
    ]
    assert not without


def as_the_authors_load_a_row(paragraphs, table_size):
    """Their loop over one row of paragraph indices, which begins with [CLS]."""
    paragraphs = list(paragraphs)
    while max(paragraphs) >= table_size:
        if paragraphs[0] == 0:
            paragraphs = [min(index, table_size - 1) for index in paragraphs]
        else:
            paragraphs = [index - 1 for index in paragraphs]
    return paragraphs


@pytest.mark.parametrize(
    "kind, used",
    [
        ("segment_aware", INDICES),
        ("segment_aware_with_segments", INDICES),
        ("absolute_with_paragraph_and_sentence", INDICES[:2]),
    ],
)
@pytest.mark.parametrize("sizes", [(50, 100, 256), (7, 3, 19)])
def test_segment_aware_embeddings_are_summed_and_clipped(kind, used, sizes):
    names = ("num_paragraphs", "num_sentences", "max_sentence_length")
    backbone = SpanBertBackbone(
        **TINY, position_embeddings=kind, **dict(zip(names, sizes, strict=True))
    )
    inputs = example(TINY, 5, 13)
    inputs["padding_mask"][:] = 1
    random = np.random.default_rng(4)
    inputs |= {name: random.integers(0, 400, (5, 13)).astype("int32") for name in used}
    inputs["paragraph_indices"].sort(axis=1)
    inputs["paragraph_indices"][1] -= inputs["paragraph_indices"][1, 0]  # from the first one
    inputs["paragraph_indices"][2] = 60 + np.arange(13) // 4
    inputs["paragraph_indices"][3] = 77  # one paragraph
    inputs["paragraph_indices"][4] = np.arange(13) // 2  # all are in the table
    rows = dict(inputs) | {
        "paragraph_indices": np.array(
            [as_the_authors_load_a_row(row, sizes[0]) for row in inputs["paragraph_indices"]]
        )
    }
    embedded = keras.Model(backbone.input, backbone.embeddings_add.output)(inputs)

    tables = {weight.path: np.array(weight) for weight in backbone.weights}
    expected = tables["token_embedding/embeddings"][inputs["token_ids"]]
    if kind == "absolute_with_paragraph_and_sentence":
        expected = expected + tables["position_embedding/embeddings"][:13]
    if kind != "segment_aware":
        expected = expected + tables["segment_embedding/embeddings"][inputs["segment_ids"]]
    for name, size in zip(INDICES, sizes, strict=True):
        if name in used:
            path = f"segment_aware_embedding/{name.removesuffix('_indices')}_embedding/embeddings"
            assert tables[path].shape == (size, 32)
            expected = expected + tables[path][np.minimum(rows[name], size - 1)]
    np.testing.assert_allclose(np.array(embedded), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("paragraphs", "in_table"),
    [
        ([60, 60, 61, 62, 63], [46, 46, 47, 48, 49]),
        ([77, 77, 77, 77, 77], [49, 49, 49, 49, 49]),
        ([3, 3, 51, 52, 53], [0, 0, 48, 49, 49]),  # by 3 at most
        ([0, 0, 60, 61, 0], [0, 0, 49, 49, 0]),  # a question, a passage and padding
        ([12, 13, 60, 61, 0], [0, 1, 48, 49, 0]),  # padding
        ([0, 1, 48, 49, 49], [0, 1, 48, 49, 49]),
    ],
)
def test_paragraphs_of_a_row_are_lowered_into_the_table(paragraphs, in_table):
    layer = SegmentAwareEmbedding({"paragraph_indices": 50}, hidden_dim=1)
    layer.build({"paragraph_indices": (None, None)})
    layer.set_weights([np.arange(50.0)[:, np.newaxis]])  # each row holds its number
    # Not lowered by the row beside it.
    batch = np.array([paragraphs, [5, 6, 7, 8, 9]], "int32")
    embedded = np.array(layer({"paragraph_indices": batch}))[..., 0]
    np.testing.assert_array_equal(embedded, [in_table, [5, 6, 7, 8, 9]])


def test_late_paragraphs_of_a_record_are_told_apart(tmp_path):
    """Paragraphs 60 to 63 of a document, and 0 to 3: two blocks that otherwise are alike."""

    def record(first):
        return {
            "token_ids": [7] * 8,
            "record_id": first,
            "first_token_index": 0,
            "sentence_starts": [0, 2, 4, 6],
            "sentence_indices": [0] * 4,
            "paragraph_starts": [0, 2, 4, 6],
            "paragraph_indices": list(range(first, first + 4)),
        }

    records = [record(60), record(0)]
    directory = record_files.write_records(tmp_path, records, sequence_length=12)
    data = pretraining_dataset(directory, batch_size=2, segment_aware=True)
    batch = next(data.as_numpy_iterator())
    backbone = SpanBertBackbone(**TINY, position_embeddings="segment_aware")
    inputs = {name: batch[name] for name in backbone.input}
    inputs["token_ids"] = np.full_like(batch["token_ids"], 7)  # without masks
    embedded = np.array(keras.Model(backbone.input, backbone.embeddings_add.output)(inputs))
    for row in embedded:
        assert len(np.unique(row[1:9:2].round(5), axis=0)) == 4  # the first token of each


def test_tables_of_one_model_begin_different():
    backbone = SpanBertBackbone(**TINY, position_embeddings="segment_aware")
    tables = [np.array(weight)[:50] for weight in backbone.segment_aware_embedding.weights]
    assert not np.array_equal(tables[0], tables[1]) and not np.array_equal(tables[1], tables[2])


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_heads must divide hidden_dim"):
        SpanBertBackbone(99, 1, 24, 1024, 64)  # SegaBERT large as the paper prints it
    with pytest.raises(ValueError, match="position_embeddings must be one of"):
        SpanBertBackbone(99, 1, 2, 32, 64, position_embeddings="relative")


@pytest.mark.parametrize("kind", POSITION_EMBEDDINGS)
def test_the_layout_splits_heads_and_inner_units_of_every_weight(kind):
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    layout_map = SpanBertBackbone.get_layout_map(mesh)
    backbone = SpanBertBackbone(**TINY, position_embeddings=kind)
    sizes = (backbone.num_heads, backbone.intermediate_dim)  # no other axis has one of them
    for weight in backbone.weights:
        layout = layout_map[weight.path]
        axes = layout.axes if layout is not None else (None,) * len(weight.shape)
        if weight is not backbone.token_embedding.embeddings:
            assert list(axes) == ["model" if size in sizes else None for size in weight.shape]


def test_configuration_makes_an_equal_model():
    backbone = SpanBertBackbone(
        **TINY, dropout=0.3, attention_dropout=0.0, position_embeddings="segment_aware"
    )
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(backbone))
    assert again.get_config() == backbone.get_config()
    assert [weight.path for weight in again.weights] == [weight.path for weight in backbone.weights]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_that_are_to_be_loaded_are_zeros_that_can_be_written(dtype):
    with weights_are_loaded():
        backbone = SpanBertBackbone(7, 1, 2, 6, 10, max_sequence_length=5, dtype=dtype)
    table, other = backbone.token_embedding.embeddings, backbone.segment_embedding.embeddings
    assert keras.ops.convert_to_numpy(table).astype("float32").tolist() == [[0] * 6] * 7
    table.assign_add(keras.ops.ones(table.shape, dtype))
    assert keras.ops.convert_to_numpy(table).astype("float32").tolist() == [[1] * 6] * 7
    assert not np.any(keras.ops.convert_to_numpy(other).astype("float32"))
    assert keras.backend.standardize_dtype(table.value.dtype) == dtype
