"""The transformer layer, against KerasHub's with the same weights."""

import operator

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.layers import TransformerEncoder

OPTIONS = {
    "intermediate_dim": 37,
    "num_heads": 4,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-12,
}
WIDTH = 32
LENGTHS = [9, 4, 1, 0]  # the last row is padding alone


def pair_of_layers(dtype="float32", dropout=0.0):
    """Ours and KerasHub's."""
    layers = [
        kind(**OPTIONS, dropout=dropout, dtype=dtype)
        for kind in (TransformerEncoder, keras_hub.layers.TransformerEncoder)
    ]
    random = np.random.default_rng(1)
    for layer in layers:
        layer.build((None, None, WIDTH))
    weights = [random.normal(0, 0.3, weight.shape) for weight in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)
    return layers


def rows():
    random = np.random.default_rng(2)
    inputs = random.normal(size=(len(LENGTHS), max(LENGTHS), WIDTH)).astype("float32")
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, np.newaxis]
    return tf.constant(inputs), tf.constant(mask.astype("int32"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-5), ("mixed_bfloat16", 0.1), ("mixed_float16", 0.02), ("bfloat16", 0.1)],
)
def test_outputs_and_gradients_are_those_of_keras_hub(dtype, tolerance):
    inputs, mask = rows()
    outputs, gradients = [], []
    for layer in pair_of_layers(dtype):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf.cast(layer(inputs, padding_mask=mask, training=True), tf.float32)
            loss = tf.reduce_mean(tf.cast(mask, tf.float32)[:, :, tf.newaxis] * output**3)
        outputs.append(output.numpy())
        gradients.append(tape.gradient(loss, [inputs, *layer.trainable_variables]))
    is_token = mask.numpy().astype(bool)
    np.testing.assert_allclose(
        outputs[0][is_token], outputs[1][is_token], atol=tolerance, rtol=tolerance
    )
    for ours, theirs in zip(*gradients, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=tolerance * max(scale, 1e-3), rtol=0)


@pytest.mark.parametrize(
    ("rate", "of_attention", "is_random"),
    [(0.0, None, False), (0.0, 0.5, True), (0.5, 0.0, True), (0.5, None, True)],
)
def test_attention_has_a_rate_of_its_own(rate, of_attention, is_random):
    layer = TransformerEncoder(**OPTIONS, dropout=rate, attention_dropout=of_attention)
    again = TransformerEncoder.from_config(layer.get_config())
    inputs, mask = rows()
    for each in (layer, again):
        each.build(inputs.shape)
        drawn = [each(inputs, padding_mask=mask, training=True).numpy() for _ in range(2)]
        assert np.array_equal(*drawn) != is_random
        rates = [part.rate for part in each._flatten_layers() if hasattr(part, "rate")]
        assert sorted(rates) == sorted([rate, rate, rate if of_attention is None else of_attention])


@pytest.mark.parametrize("is_quantized", [False, True])
def test_padding_does_not_reach_tokens(is_quantized):
    layer = pair_of_layers()[0]
    if is_quantized:
        for part in layer._flatten_layers(include_self=False):
            if isinstance(part, keras.layers.Dense | keras.layers.EinsumDense):
                part.quantize("int8")
    inputs, mask = rows()
    is_token = mask.numpy().astype(bool)
    noise = tf.where(mask[:, :, tf.newaxis] > 0, inputs, 100.0)
    results = [layer(values, padding_mask=mask).numpy()[is_token] for values in (inputs, noise)]
    np.testing.assert_allclose(*results, atol=1e-5)


PRODUCTS = (
    "_self_attention_layer.query_dense",
    "_self_attention_layer.key_dense",
    "_self_attention_layer.value_dense",
    "_self_attention_layer.output_dense",
    "_feedforward_intermediate_dense",
    "_feedforward_output_dense",
)


@pytest.mark.parametrize("change", ["int8", pytest.param("int4", marks=pytest.mark.slow), "lora"])
def test_one_changed_layer_changes_what_it_changes_in_keras_hubs(change):
    inputs, mask = rows()
    for place in PRODUCTS:
        outputs = []
        for layer in pair_of_layers():
            keras.utils.set_random_seed(1)
            part = operator.attrgetter(place)(layer)
            if change == "lora":
                part.enable_lora(2)
                part.lora_kernel_b.assign(keras.random.normal(part.lora_kernel_b.shape))
            else:
                part.quantize(change)
            outputs.append(layer(inputs, padding_mask=mask, training=True).numpy())
        np.testing.assert_array_equal(*outputs, err_msg=place)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_kernels_are_calibrated_as_keras_hubs(kind):
    """Keras watches the calls of the layers that it quantizes, without a padding mask."""
    kernels = []
    for layer in pair_of_layers():
        keras.utils.set_random_seed(1)
        embedding = keras.layers.Embedding(50, WIDTH)
        ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, layer(embedding(ids)))
        options = {
            "dataset": [np.arange(48) % 50],
            "tokenizer": lambda tokens: tokens,
            "num_samples": 4,
            "sequence_length": 12,
            "group_size": -1,
            "quantization_layer_structure": {
                "pre_block_layers": [embedding],
                "sequential_blocks": [layer],
            },
        }
        config = keras.quantizers.GPTQConfig if kind == "gptq" else keras.quantizers.AWQConfig
        model.quantize(config=config(**options))
        parts = [operator.attrgetter(place)(layer) for place in PRODUCTS]
        assert all(part.quantization_mode == kind for part in parts)
        kernels.append([np.asarray(part.quantized_kernel) for part in parts])
    for ours, theirs in zip(*kernels, strict=True):
        assert np.any(ours)
        np.testing.assert_array_equal(ours, theirs)


def test_dropout_is_where_keras_hub_has_it():
    """Attention's weights, its output and that of the feed-forward layers: three masks."""
    layer = TransformerEncoder(**OPTIONS, dropout=0.5)
    inputs, mask = rows()
    inference = layer(inputs, padding_mask=mask, training=False)
    draws = [layer(inputs, padding_mask=mask, training=True).numpy() for _ in range(2)]
    assert not np.allclose(*draws)
    assert not np.allclose(draws[0], inference)
    np.testing.assert_array_equal(layer(inputs, padding_mask=mask, training=False), inference)
    attention = layer._self_attention_layer
    dropouts = (
        attention._dropout_layer,
        layer._self_attention_dropout,
        layer._feedforward_dropout,
    )
    for alone in dropouts:
        for dropout in dropouts:
            dropout.rate = 0.5 if dropout is alone else 0.0
        assert not np.allclose(layer(inputs, padding_mask=mask, training=True), inference)


def test_length_and_batch_may_be_unknown():
    layer = pair_of_layers()[0]
    inputs, mask = rows()
    signature = [tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([None, None], tf.int32)]
    graph = tf.function(lambda x, m: layer(x, padding_mask=m), input_signature=signature)
    expected = layer(inputs, padding_mask=mask)
    np.testing.assert_allclose(graph(inputs, mask), expected, atol=1e-5)
    np.testing.assert_allclose(graph(inputs[:1, :4], mask[:1, :4]).shape, (1, 4, WIDTH))


def test_adapters_add_a_product_of_matrices_to_the_kernels():
    """KerasHub's layer has W + 5 / 2 A B in its kernels (Hu et al., 2021), and says dL/dW."""
    inputs, mask = rows()
    ours, theirs = pair_of_layers()
    ours.adapt_whole_matrices()
    random, dense, factors = np.random.default_rng(3), {}, {}
    for name in ("query_dense", "value_dense"):
        adapted = getattr(ours._self_attention_layer, name)
        adapted.enable_lora(2, lora_alpha=5)
        assert adapted.lora_kernel_a.shape == (WIDTH, 2)  # of H, and not of a head
        assert adapted.lora_kernel_b.shape == (2, WIDTH) and not np.any(adapted.lora_kernel_b)
        a, b = factors[name] = [
            random.normal(0, 0.2, (WIDTH, 2)),
            random.normal(0, 0.2, (2, WIDTH)),
        ]
        adapted.lora_kernel_a.assign(a)
        adapted.lora_kernel_b.assign(b)
        dense[name] = getattr(theirs._self_attention_layer, name)
        dense[name].kernel.assign_add((2.5 * a @ b).reshape(dense[name].kernel.shape))
        np.testing.assert_allclose(adapted.kernel, dense[name].kernel, atol=1e-6)
    gradients = []
    for layer, variables in (
        (ours, ours.trainable_variables),
        (theirs, [dense[name].kernel for name in dense]),
    ):
        with tf.GradientTape() as tape:
            output = layer(inputs, padding_mask=mask, training=True)
            loss = tf.reduce_sum(tf.cast(mask, tf.float32)[:, :, tf.newaxis] * output**3)
        found = tape.gradient(loss, variables)
        gradients.append({v.path: gradient for v, gradient in zip(variables, found, strict=True)})
        gradients[-1]["loss"] = loss
    np.testing.assert_allclose(gradients[0]["loss"], gradients[1]["loss"], rtol=1e-5)
    for name, (a, b) in factors.items():
        whole = gradients[1][dense[name].kernel.path].numpy().reshape(WIDTH, WIDTH)
        place = getattr(ours._self_attention_layer, name).path
        for part, expected in (("a", 2.5 * whole @ b.T), ("b", 2.5 * a.T @ whole)):
            found = gradients[0][f"{place}/lora_kernel_{part}"]
            np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_an_adapter_goes_on_learning_after_weights_were_loaded(tmp_path):
    """Keras puts both matrices at 0 then, whose gradients are 0 for ever."""
    layer, (inputs, mask) = pair_of_layers()[0], rows()
    layer.adapt_whole_matrices()
    query = layer._self_attention_layer.query_dense
    query.enable_lora(2)
    model = keras.Sequential([keras.Input((None, WIDTH)), layer])
    query.lora_kernel_b.assign(keras.random.normal(query.lora_kernel_b.shape, seed=1))
    expected = layer(inputs, padding_mask=mask)
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(layer(inputs, padding_mask=mask), expected, atol=1e-5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs, padding_mask=mask, training=True) ** 3)
    assert np.abs(tape.gradient(loss, query.lora_kernel_b)).max() > 1e-4


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_steps_of_training_have_the_cheap_operations(dtype):
    """`erfc` and 32 random bits a value are TensorFlow's own; at inference the first is fused."""
    layer = pair_of_layers(dtype, dropout=0.1)[0]
    specification = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in rows()]

    def operations(training):
        function = tf.function(lambda x, mask: layer(x, padding_mask=mask, training=training))
        graph = function.get_concrete_function(*specification).graph.as_graph_def()
        shared = [node.op for each in graph.library.function for node in each.node_def]
        return [*(node.op for node in graph.node), *shared]

    in_training, at_inference = operations(True), operations(False)
    assert "Erf" in in_training and "Erfc" not in in_training
    assert in_training.count("StatelessRandomUniformFullIntV2") == 3  # two of H, one of weights
    assert "StatelessRandomUniformV2" not in in_training
    assert "Erfc" in at_inference and "StatelessRandomUniformFullIntV2" not in at_inference
