"""What optimizer and models compute on Keras' current backend; also a program, for any backend.

`python backend_program.py DIRECTORY RESULTS CHECK ...` reads the material that the tests wrote on
TensorFlow into a directory, and writes the results of each check as arrays.
"""

import os
import pathlib
import sys
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import spanbert_tf.data
import spanbert_tf.models
from spanbert_tf.models import SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.models.adapters import merge_adapters, write_adapter
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.lookup import task_dataset
from spanbert_tf.training import adamw
from spanbert_tf.training.optimizer import AdamW, VariableGroup, WarmupLinearDecay

IS_ORACLE = keras.backend.backend() == "tensorflow"
BATCH_SIZE, NUM_BATCHES = 4, 4
# Preset → class, and how its batches come to be.
TASKS = {
    "pretrainer": ("SpanBertPretrainer", "records"),
    "segment_aware_pretrainer": ("SpanBertPretrainer", "records"),
    "masked_lm": ("SpanBertMaskedLM", "masked rows"),
    "question_answerer": ("SpanBertQuestionAnswerer", "questions"),
    "text_classifier": ("SpanBertTextClassifier", "texts"),
    "regression": ("SpanBertTextClassifier", "scores"),
    "token_classifier": ("SpanBertTokenClassifier", "raw words"),
    "relation_classifier": ("SpanBertRelationClassifier", "raw relations"),
    "coreference_resolver": ("SpanBertCoreferenceResolver", "raw documents"),
}
TEXTS = ["ann has the cat. bob has the owl.", "ann has the dog.", "bob has the owl.", "the cat has"]
DOCUMENTS = ["ann has the cat. the cat has ann.", "bob has the owl. who has the owl? bob."]
CLUSTERS = [[[(0, 3), (29, 32)], [(8, 15), (17, 24)]], [[(0, 3), (34, 37)], [(8, 15), (25, 32)]]]
GROUPS = [
    VariableGroup(("head/kernel", "head/bias"), WarmupLinearDecay(0.3, 1, 9), 0.2, 1e-3, 0.5),
    VariableGroup(("encoder/kernel",), WarmupLinearDecay(0.2, 0, 5), 0.3, 1e-2),
]
# Options of the optimizer that each take another way through the update.
OPTIONS = {
    "defaults": {},
    "no clip": {"global_clipnorm": None},
    "clips of each": {"global_clipnorm": None, "clipnorm": 0.1},
    "loss scale": {"dynamic_loss_scale": True},
    "averages": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    "groups": {"groups": GROUPS},
    "groups and loss scale": {"groups": GROUPS, "dynamic_loss_scale": True},
    "no bias correction": {"bias_correction": False, "exclude_from_weight_decay": ()},
    "clips of each beside groups": {
        "groups": GROUPS,
        "global_clipnorm": None,
        "clipnorm": 0.1,
        "bias_correction": False,
        "dynamic_loss_scale": True,
    },
}


def optimizer_steps(options):
    """Variables, moments and counters after each of seven given gradients, two not finite."""
    random = np.random.default_rng(0)
    layers = [
        keras.layers.Embedding(5, 3, name="table"),
        keras.layers.Dense(4, name="encoder"),
        keras.layers.LayerNormalization(name="norm"),
        keras.layers.Dense(2, name="head"),
    ]
    for layer, width in zip(layers, (5, 3, 4, 4), strict=True):
        layer.build((None, width))
        layer.set_weights([random.normal(size=w.shape) for w in layer.weights])
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    optimizer = AdamW(
        WarmupLinearDecay(0.1, 2, 9),
        weight_decay=0.1,
        epsilon=1e-8,
        learning_rate_factors={"table/embeddings": 0.5},
        **{"global_clipnorm": 1.0, **options},
    )
    optimizer.build(variables)
    state = [*variables, *optimizer.variables]
    steps = []
    for scale in (1.0, 0.05, np.nan, 30.0, 1e30, 0.01, 3.0):
        loss_scale = float(optimizer.scale_loss(keras.ops.ones(())))
        gradients = [scale * loss_scale * random.normal(size=v.shape) for v in variables]
        gradients = [keras.ops.convert_to_tensor(each, "float32") for each in gradients]
        optimizer.apply([*gradients[:-1], None], variables)  # the last one has none
        steps.append([as_array(variable) for variable in state])
    return {
        f"{number} {variable.name}": np.stack(values)
        for number, (variable, *values) in enumerate(zip(state, *steps, strict=True))
    }


def optimizer_results(directory):
    """The steps for all options."""
    return {
        f"{name}: {key}": values
        for name, options in OPTIONS.items()
        for key, values in optimizer_steps(options).items()
    }


def as_array(values):
    return keras.ops.convert_to_numpy(values)


def batches_of(directory, kind):
    """A data set of `NUM_BATCHES` batches, from the project's pipelines or made of raw inputs."""
    directory = pathlib.Path(directory)
    if kind in ("records", "masked rows"):
        data = spanbert_tf.data.pretraining_dataset(
            directory / "records", batch_size=BATCH_SIZE, seed=1, segment_aware=kind == "records"
        )
        if kind == "masked rows":
            data = data.map(lambda batch: (batch, batch["mask_ids"], batch["mask_weights"]))
    elif kind == "questions":
        data = task_dataset(directory / "questions", batch_size=BATCH_SIZE, training=True)
    elif kind in ("texts", "scores"):
        data = task_dataset(directory / kind, batch_size=BATCH_SIZE, training=True)
    else:
        data = raw_batches(kind)
    return data.take(NUM_BATCHES)


def raw_batches(kind):
    """Raw inputs and labels, for a preprocessor."""
    if kind == "raw words":
        words = tf.ragged.constant([text.replace(".", " .").split() for text in TEXTS])
        labels = tf.ragged.map_flat_values(lambda w: tf.strings.length(w) % 3, words)
        data = tf.data.Dataset.from_tensor_slices((words, labels)).batch(2)
    elif kind == "raw relations":
        x = {"text": TEXTS, "subject": [[0, 3]] * 4, "object": [[4, 7]] * 4}
        x |= {"subject_type": ["", "ANN", "", ""], "object_type": [""] * 4}
        data = tf.data.Dataset.from_tensor_slices((x, [2, 0, 1, 0])).batch(2)
    else:
        clusters = spanbert_tf.models.SpanBertCoreferenceResolverPreprocessor.clusters_tensor(
            CLUSTERS
        )
        data = tf.data.Dataset.from_tensor_slices((DOCUMENTS, clusters)).batch(1)
    return data.repeat()


def load(directory, name, preset=None, **options):
    """A task from its preset, with a preprocessor if its batches are raw."""
    class_name, kind = TASKS[name]
    kind_of_model = getattr(spanbert_tf.models, class_name)
    if not ("raw" in kind or kind == "records"):
        options["preprocessor"] = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no trained head")
        return kind_of_model.from_preset(preset or f"{directory}/presets/{name}", **options)


def first_inputs(batches):
    """The inputs of the first batch; making an iterator takes as long as the outputs."""
    first = next(iter(batches))
    return first[0] if isinstance(first, tuple) else first


def outputs_of(task, x):
    """The outputs for inputs, in one list."""
    if not IS_ORACLE:
        outputs = task.predict_on_batch(x)  # preprocesses
    else:  # without a graph, whose tracing would take most of the time
        outputs = task(task.preprocessor(x) if task.preprocessor is not None else x)
    return [as_array(values) for values in keras.tree.flatten(outputs)]


class _Losses(keras.callbacks.Callback):
    """The loss of each batch; a model's own metrics are means since the epoch began."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def fit(task, batches, **options):
    """Trains on each batch once; the losses that `fit` reports after each."""
    task.compile(**({"run_eagerly": True} if IS_ORACLE else {}), **options)
    losses = _Losses()
    task.fit(batches, verbose=0, callbacks=[losses])
    return np.array(losses.values)


def task_results(directory, name):
    """Outputs before and after `fit`, and those of the preset after it.

    Keras' own Adam, which `compile()` has, squares the gradients of a token's occurrences one by
    one on TensorFlow, and their sum on JAX; `adamw` does the same on both.
    """
    batches, task = batches_of(directory, TASKS[name][1]), load(directory, name)
    x = first_inputs(batches)
    task.is_head_trained = True  # some are new, and `predict_on_batch` warns of those
    results = {"before": outputs_of(task, x)}
    task.is_head_trained = False  # `fit` will tell
    optimizer = adamw(1e-3, warmup_steps=2, total_steps=20, epsilon=1e-6)
    results["losses"] = [fit(task, batches, optimizer=optimizer)]
    results["after"] = outputs_of(task, x)
    saved = f"{directory}/saved_on_{keras.backend.backend()}/{name}"
    if isinstance(task, SpanBertPretrainer):
        tokenizer = SpanBertTokenizer.from_preset(f"{directory}/presets/{name}")
        task.save_to_preset(saved, tokenizer=tokenizer)
    else:
        task.save_to_preset(saved)
    loaded = load(directory, name, saved)
    results["is trained"] = [np.array(loaded.is_head_trained)]
    results["loaded"] = outputs_of(loaded, x)
    return flat(results)


def flat(results):
    return {
        f"{name} {n}": array for name, arrays in results.items() for n, array in enumerate(arrays)
    }


def spoilt(number, batch):
    """The batch; of number 2 the loss is no number."""
    bad = tf.where(number == 2, np.float32(np.nan), 1.0)
    return batch | {"mask_weights": tf.cast(batch["mask_weights"], tf.float32) * bad}


def adamw_results(directory):
    """`fit` of the pretrainer with `adamw`, one batch of which gives no finite gradients."""
    batches = batches_of(directory, "records").enumerate().map(spoilt)
    task = load(directory, "pretrainer")
    optimizer = adamw(1e-3, warmup_steps=2, total_steps=20, global_clipnorm=0.5)
    losses = fit(task, batches, optimizer=optimizer)
    counters = [optimizer.iterations, optimizer.skipped_in_a_row, optimizer.gradient_norm]
    return flat(
        {
            "losses": [losses[:2]],  # the mean of all is no number from the third on
            "counters": [as_array(each) for each in counters],
            "after": outputs_of(task, first_inputs(batches)),
        }
    )


def data_parallel_results(directory):
    """As `adamw_results`, each batch on two devices."""
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        results = adamw_results(directory)
        variable = load(directory, "pretrainer").trainable_variables[0]
        return results | {"devices": np.array(len(variable.value.devices()))}
    finally:
        keras.distribution.set_distribution(None)


def adapter_results(directory):
    """`fit` of adapters and the head alone, and what the adapter is as a preset of its own."""
    name, backend = "text_classifier", keras.backend.backend()
    batches, encoder = batches_of(directory, "texts"), f"{directory}/presets/{name}"
    backbone = spanbert_tf.models.SpanBertBackbone.from_preset(encoder, lora_rank=2)
    task = load(directory, name, backbone=backbone)
    digest, random = weights_digest(task.backbone), np.random.default_rng(3)
    for variable in task.backbone.trainable_variables:
        variable.assign(random.normal(0, 0.1, variable.shape))
    fit(task, batches, optimizer=adamw(1e-2, warmup_steps=0, total_steps=20, epsilon=1e-6))
    x = first_inputs(batches)
    results = {"after": outputs_of(task, x)}
    results["trained"] = [as_array(variable) for variable in task.trainable_variables]
    preset = f"{directory}/saved_on_{backend}/adapted"
    task.preprocessor = type(task).from_preset(encoder).preprocessor
    write_preset(merge_adapters(task), preset)
    write_adapter(task, f"{preset}_alone", preset=preset, encoder=encoder, digest=digest)
    with mock.patch.dict(os.environ, SPANBERT_TF_ENCODER=encoder):
        results["loaded"] = outputs_of(load(directory, name, f"{preset}_alone"), x)
    return flat(results)


def accumulation_results(directory):
    """What `fit` in two parts, the last batch of odd size, and `evaluate` report."""
    task, (_, kind) = load(directory, "text_classifier"), TASKS["text_classifier"]
    task.backbone.token_embedding.embeddings.regularizer = keras.regularizers.L2(1e-3)
    options = {"run_eagerly": True} if IS_ORACLE else {}
    batches = batches_of(directory, kind).unbatch().take(2 * BATCH_SIZE - 1).batch(BATCH_SIZE)
    optimizer = adamw(1e-3, warmup_steps=2, total_steps=20, epsilon=1e-6)
    task.compile(optimizer, metrics=["accuracy"], accumulation_steps=2, **options)
    logs = {f"fit {name}": x for name, x in task.fit(batches, verbose=0).history.items()}
    held_out = task.evaluate(batches, return_dict=True, verbose=0)
    logs |= {f"evaluate {name}": [value] for name, value in held_out.items()}
    return flat({**logs, "after": outputs_of(task, first_inputs(batches))})


def frozen_results(directory):
    """All weights after `fit` with a frozen layer, whose own come first, by two optimizers."""
    name, results = "text_classifier", {}
    options = {"run_eagerly": True} if IS_ORACLE else {}
    ours = adamw(1e-2, warmup_steps=0, total_steps=20, epsilon=1e-6)
    for kind, optimizer in (("ours", ours), ("keras", keras.optimizers.SGD(0.1))):
        task = load(directory, name)
        layer = task.backbone.transformer_layers[0]
        begun = [as_array(weight) for weight in layer.weights]
        task.compile(optimizer, **options)
        task.freeze(layer.weights)
        task.fit(batches_of(directory, TASKS[name][1]), verbose=0)
        results[kind] = [as_array(weight) for weight in (*layer.weights, *task.weights)]
        for before, after in zip(begun, results[kind], strict=False):
            np.testing.assert_array_equal(after, before)
    return flat(results)


CHECKS = {
    "accumulation": accumulation_results,
    "frozen": frozen_results,
    "adapter": adapter_results,
    "optimizer": optimizer_results,
    "adamw": adamw_results,
    "data_parallel": data_parallel_results,
    **{name: lambda directory, name=name: task_results(directory, name) for name in TASKS},
}


def main(directory, results, *checks):
    for check in checks:
        np.savez(f"{results}/{check}.npz", **CHECKS[check](directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
