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
    "layer_norm_epsilon": 1e-12,
}
WIDTH = 32
LENGTHS = [9, 4, 1, 0]  # the last row is padding alone


def pair_of_layers(dtype="float32", dropout=0.0):
    """Ours and KerasHub's."""
    options = {**OPTIONS, "dropout": dropout, "dtype": dtype}
    layers = [
        TransformerEncoder(**options),
        keras_hub.layers.TransformerEncoder(**options, activation="gelu"),
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


def test_padding_does_not_reach_tokens():
    layer = pair_of_layers()[0]
    inputs, mask = rows()
    is_token = mask.numpy().astype(bool)
    noise = tf.where(mask[:, :, tf.newaxis] > 0, inputs, 100.0)
    results = [layer(values, padding_mask=mask).numpy()[is_token] for values in (inputs, noise)]
    np.testing.assert_allclose(*results, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_without_a_mask_there_is_no_padding(training):
    inputs, _ = rows()
    ours, theirs = (layer(inputs, training=training) for layer in pair_of_layers())
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("ours_first", [True, False])
def test_files_of_weights_are_kerashubs(ours_first, tmp_path):
    paths = []
    layers = pair_of_layers()
    inputs, mask = rows()
    expected = layers[0](inputs, padding_mask=mask)
    models = [keras.Sequential([keras.Input((None, WIDTH)), layer]) for layer in layers]
    source, target = models if ours_first else reversed(models)
    source.save_weights(tmp_path / "model.weights.h5")
    target.set_weights([0 * weight for weight in target.get_weights()])
    target.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(target.layers[0](inputs, padding_mask=mask), expected, atol=1e-5)
    for layer in layers:
        paths.append([weight.path.partition("/")[2] for weight in layer.weights])
    assert paths[0] == paths[1]


PRODUCTS = (
    "_self_attention_layer.query_dense",
    "_self_attention_layer.output_dense",
    "_feedforward_intermediate_dense",
    "_feedforward_output_dense",
)


@pytest.mark.parametrize("change", ["quantize", "enable_lora"])
@pytest.mark.parametrize("place", PRODUCTS)
def test_what_keras_changes_after_build_is_refused(place, change):
    layer, (inputs, mask) = pair_of_layers()[0], rows()
    part = operator.attrgetter(place)(layer)
    getattr(part, change)({"quantize": "int8", "enable_lora": 2}[change])
    for training in (False, True):
        with pytest.raises(ValueError, match=rf"{part.path}: .* give lora_rank"):
            layer(inputs, padding_mask=mask, training=training)


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


def adapted_layer(**options):
    """Ours with KerasHub's weights of `pair_of_layers`, and random adapters."""
    layer = TransformerEncoder(**OPTIONS, **options)
    layer.build((None, None, WIDTH))
    random = np.random.default_rng(3)
    weights = iter(pair_of_layers()[0].get_weights())
    for weight in layer.weights:
        is_adapter = "lora" in weight.path
        weight.assign(random.normal(0, 0.2, weight.shape) if is_adapter else next(weights))
    return layer


@pytest.mark.parametrize("targets", [("query", "value"), ("key",)])
def test_adapters_add_a_product_of_matrices_to_the_kernels(targets):
    """KerasHub's layer has W + 5 / 2 A B in its kernels (Hu et al., 2021), and says dL/dW."""
    inputs, mask = rows()
    ours = adapted_layer(lora_rank=2, lora_alpha=5, lora_targets=targets)
    theirs = pair_of_layers()[1]
    factors, kernels = {}, {}
    for name in targets:
        adapter = ours.adapters[name]
        a, b = factors[name] = adapter.kernel_a.numpy(), adapter.kernel_b.numpy()
        assert a.shape == (WIDTH, 2) and b.shape == (2, WIDTH)  # of H, and not of a head
        kernels[name] = getattr(theirs._self_attention_layer, f"{name}_dense").kernel
        kernels[name].assign_add((2.5 * a @ b).reshape(kernels[name].shape))
    assert len(ours.trainable_variables) == 2 * len(targets)
    gradients = []
    for layer, variables in ((ours, ours.trainable_variables), (theirs, list(kernels.values()))):
        with tf.GradientTape() as tape:
            output = layer(inputs, padding_mask=mask, training=True)
            loss = tf.reduce_sum(tf.cast(mask, tf.float32)[:, :, tf.newaxis] * output**3)
        found = tape.gradient(loss, variables)
        gradients.append({v.path: gradient for v, gradient in zip(variables, found, strict=True)})
        gradients[-1]["loss"] = loss
    np.testing.assert_allclose(gradients[0]["loss"], gradients[1]["loss"], rtol=1e-5)
    for name, (a, b) in factors.items():
        whole = gradients[1][kernels[name].path].numpy().reshape(WIDTH, WIDTH)
        adapter = ours.adapters[name]
        for factor, expected in (
            (adapter.kernel_a, 2.5 * whole @ b.T),
            (adapter.kernel_b, 2.5 * a.T @ whole),
        ):
            found = gradients[0][factor.path]
            np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_new_adapters_change_nothing_and_can_learn():
    inputs, mask = rows()
    expected = pair_of_layers()[0](inputs, padding_mask=mask)
    layer = TransformerEncoder(**OPTIONS, lora_rank=2)
    layer.build((None, None, WIDTH))
    kernels = [weight for weight in layer.weights if "lora" not in weight.path]
    for weight, values in zip(kernels, pair_of_layers()[0].get_weights(), strict=True):
        weight.assign(values)
    with tf.GradientTape() as tape:
        output = layer(inputs, padding_mask=mask, training=True)
        loss = tf.reduce_sum(output**3)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    factors = [adapter.kernel_b.value for adapter in layer.adapters.values()]
    for gradient in tape.gradient(loss, factors):
        assert np.abs(gradient).max() > 1e-4


def test_adapters_are_saved_and_new_ones_read_the_file_of_an_encoder_without(tmp_path):
    inputs, mask = rows()
    plain, adapted = pair_of_layers()[0], adapted_layer(lora_rank=2)
    for number, source in enumerate((plain, adapted)):
        path = tmp_path / f"{number}.weights.h5"
        keras.Sequential([keras.Input((None, WIDTH)), source]).save_weights(path)
        layer = TransformerEncoder.from_config(adapted.get_config())
        keras.Sequential([keras.Input((None, WIDTH)), layer]).load_weights(path)
        expected = source(inputs, padding_mask=mask)
        np.testing.assert_allclose(layer(inputs, padding_mask=mask), expected, atol=1e-5)
        assert any(np.any(adapter.kernel_a) for adapter in layer.adapters.values())


def test_adapters_of_other_projections_are_refused():
    with pytest.raises(ValueError, match="lora_targets must be of"):
        TransformerEncoder(**OPTIONS, lora_rank=2, lora_targets=["output"])


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


def test_inputs_of_unknown_width_are_refused():
    with pytest.raises(ValueError, match="inputs of width None"):
        TransformerEncoder(64, 2).build((None, None, None))
