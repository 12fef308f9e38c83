"""Fine-tuning with values of their own for layers: decay, frozen layers, the task's, adapters."""

import contextlib
import io
import json
import shlex
import shutil

import keras
import numpy as np
import pytest

from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer, SpanBertTokenizer
from spanbert_tf.models.adapters import merge_adapters, read_adapter
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks import finetuning
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.question_answering.files import Answer, Question, QuestionSet
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.training import devices
from spanbert_tf.training.configured_optimizer import finetuning_optimizer

NAMES = ["ann", "bob", "cid", "dan"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, "has", "the", "cat", "who", "?"]
LENGTH, NUM_STEPS = 16, 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("questions")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    questions = [
        Question(str(number), "who has the cat?", number % 4, (Answer(name, 0),), (name,))
        for number, name in enumerate(NAMES * 4)
    ]
    write_questions(
        QuestionSet("made up", [f"{name} has the cat" for name in NAMES], questions),
        str(directory / "train"),
        vocabulary=str(vocabulary),
        lowercase=True,
        options=QuestionOptions(sequence_length=LENGTH),
    )
    keras.utils.set_random_seed(1)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(tiny_backbone(), str(directory / "preset"), tokenizer=tokenizer)
    return directory


def tiny_backbone():
    return SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=LENGTH)


def options(**values):
    values = {
        "data.sequence_length": LENGTH,
        "training.batch_size": 4,
        "training.epochs": 1,
        "optimizer.learning_rate": 0.01,
        **values,
    }
    return load_task_config("squad_v1", [f"{key}={value}" for key, value in values.items()])


def run(directory, output, config):
    arguments = (str(directory / "preset"), str(directory / "train"), str(output))
    return run_finetuning(config, *arguments)


def weights_by_path(backbone):
    return {variable.path: variable.numpy() for variable in backbone.weights}


def moved_paths(before, after):
    assert set(before) == set(after)
    return {path for path in before if not np.array_equal(before[path], after[path])}


def test_layer_factors_by_hand():
    model = SpanBertQuestionAnswerer(tiny_backbone())
    config = options(**{"optimizer.layer_decay": 0.5}).optimizer
    optimizer = finetuning_optimizer(model, config, num_steps=10)
    factors = optimizer.learning_rate_factors
    expected = {
        "token_embedding": 0.125,
        "position_embedding": 0.125,
        "segment_embedding": 0.125,
        "embeddings_layer_norm": 0.125,
        "transformer_layer_0": 0.25,
        "transformer_layer_1": 0.5,
        "span_classifiers": 1.0,
    }
    seen = set()
    for variable in model.trainable_variables:
        layer = variable.path.split("/")[0]
        assert factors.get(variable.path, 1.0) == expected[layer], variable.path
        seen.add(layer)
    assert seen == set(expected)
    assert not {variable.path for variable in model.backbone.pooled_dense.variables} & set(factors)
    plain = finetuning_optimizer(model, options().optimizer, num_steps=10)
    assert plain.learning_rate_factors == {} and plain.groups == ()


def test_the_tasks_layers_have_what_is_given_and_else_the_encoders():
    model = SpanBertQuestionAnswerer(tiny_backbone())
    config = options(
        **{
            "optimizer.task_layers.learning_rate": 0.5,
            "optimizer.task_layers.global_clipnorm": 0.25,
            "optimizer.warmup_fraction": 0.2,
            "optimizer.weight_decay": 0.07,
        }
    ).optimizer
    optimizer = finetuning_optimizer(model, config, num_steps=10)
    (group,) = optimizer.groups
    assert set(group.paths) == {"span_classifiers/kernel", "span_classifiers/bias"}
    schedule = group.learning_rate.get_config()
    assert schedule == {
        "learning_rate": 0.5,
        "warmup_steps": 2,
        "total_steps": 10,
        "first_step": 0,
    }
    assert (group.weight_decay, group.epsilon, group.global_clipnorm) == (0.07, 1e-6, 0.25)
    assert optimizer.schedule.learning_rate == 0.01


@pytest.mark.parametrize(("of_layers", "num_warmup"), [("null", 6), (0.0, 0), (0.5, 15)])
def test_the_tasks_layers_warm_up_by_their_own_share_of_the_steps(of_layers, num_warmup):
    """By hand: lines up to the peaks of 0.2 and 0.5, and down to 0 after step 29."""
    config = options(
        **{
            "optimizer.learning_rate": 0.2,
            "optimizer.warmup_fraction": 0.2,
            "optimizer.task_layers.learning_rate": 0.5,
            "optimizer.task_layers.warmup_fraction": of_layers,
        }
    ).optimizer
    model = SpanBertQuestionAnswerer(tiny_backbone())
    optimizer = finetuning_optimizer(model, config, num_steps=30)

    def line(peak, warmup):
        return [
            peak * ((step + 1) / warmup if step < warmup else (30 - step) / (30 - warmup))
            for step in range(30)
        ]

    (group,) = optimizer.groups
    for schedule, expected in (
        (optimizer.schedule, line(0.2, 6)),
        (group.learning_rate, line(0.5, num_warmup)),
    ):
        found = [float(schedule(step)) for step in range(30)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("is_bert_adam", [False, True])
def test_steps_are_bert_adams_where_the_configuration_says_so(is_bert_adam):
    """By hand: the first moment of one step is a tenth of the gradient, the root of the second
    0.0316 of it, so that a weight moves by 3.16 rates without the correction, and by 1 with it."""
    bert_adam = {
        "optimizer.bias_correction": "false",
        "optimizer.global_clipnorm": "null",
        "optimizer.clipnorm": 1.0,
    }
    values = {"optimizer.weight_decay": 0, "optimizer.warmup_fraction": 0} | {
        "optimizer.epsilon": 1e-30,
        **(bert_adam if is_bert_adam else {}),
    }
    model = SpanBertQuestionAnswerer(tiny_backbone())
    optimizer = finetuning_optimizer(model, options(**values).optimizer, num_steps=10)
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    optimizer.apply([3.0 * keras.ops.ones_like(v) for v in variables], variables)
    for old, variable in zip(before, variables, strict=True):
        moved = (old - variable.numpy()) / 0.01
        np.testing.assert_allclose(moved, 10**0.5 if is_bert_adam else 1.0, rtol=1e-3)
    # Each gradient by itself has the norm 1, or all of them together.
    norms = [np.linalg.norm(10 * np.array(moment)) for moment in optimizer._momentums]
    if is_bert_adam:
        np.testing.assert_allclose(norms, 1.0, rtol=1e-4)
    else:
        assert np.linalg.norm(norms) == pytest.approx(1.0, rel=1e-4)


def test_frozen_layers_do_not_move(directory, tmp_path):
    before = weights_by_path(SpanBertBackbone.from_preset(str(directory / "preset")))
    run(directory, tmp_path / "run", options(**{"optimizer.frozen_layers": 1}))
    after = weights_by_path(SpanBertBackbone.from_preset(str(tmp_path / "run" / "preset")))
    # No question answerer reads the pooler.
    expected = {path for path in before if path.startswith("transformer_layer_1/")}
    assert moved_paths(before, after) == expected


def test_more_frozen_layers_than_there_are_are_refused(directory, tmp_path):
    with pytest.raises(ConfigurationError, match=r"optimizer.frozen_layers.* 3 .* 2 "):
        run(directory, tmp_path / "run", options(**{"optimizer.frozen_layers": 3}))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module", autouse=True)
def given_encoder(directory):
    """The encoder of all adapters, which lies beside none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPANBERT_TF_ENCODER", str(directory / "preset"))
        yield


@pytest.fixture(scope="module")
def adapted(directory, tmp_path_factory):
    """A run with adapters: its directory, and what it had before they are merged, and printed."""
    output = tmp_path_factory.mktemp("runs") / "run"
    seen = {}

    def look(model):
        seen["weights"] = weights_by_path(model.backbone)
        seen["trained"] = {variable.path for variable in model.trainable_variables}
        seen["logits"] = logits(model)
        return merge_adapters(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "merge_adapters", look)
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            run(directory, output, options(**{"optimizer.lora_rank": 3}))
    seen["said"] = stdout.getvalue()
    return output, seen


def logits(model):
    texts = (["who has the cat?"] * len(NAMES), [f"{name} has the cat" for name in NAMES])
    outputs = model(model.preprocessor(x=texts), training=False)
    return {name: np.array(values) for name, values in outputs.items()}


def test_adapters_and_the_head_alone_are_trained(adapted, directory):
    _, seen = adapted
    adapters = {
        f"transformer_layer_{layer}/{name}_adapter/lora_kernel_{part}"
        for layer in (0, 1)
        for name in ("query", "value")
        for part in "ab"
    }
    assert seen["trained"] == adapters | {"span_classifiers/kernel", "span_classifiers/bias"}
    before = weights_by_path(SpanBertBackbone.from_preset(str(directory / "preset")))
    for path, values in before.items():
        np.testing.assert_array_equal(seen["weights"][path], values, err_msg=path)
    for path in adapters:  # of whole matrices (Hu et al., 2021), not of each head
        values = seen["weights"][path]
        assert values.shape == ((3, 32) if path.endswith("_b") else (32, 3)), path
        assert np.any(values), path  # B begins at 0


@pytest.mark.slow
def test_the_preset_of_a_run_with_adapters_holds_their_product(adapted, directory):
    output, seen = adapted
    saved = SpanBertQuestionAnswerer.from_preset(str(output / "preset"))
    for name, expected in logits(saved).items():
        np.testing.assert_allclose(expected, seen["logits"][name], atol=1e-5)
    assert not [weight.path for weight in saved.weights if "lora" in weight.path]
    assert all(layer.trainable for layer in saved.backbone.layers)
    before = weights_by_path(SpanBertBackbone.from_preset(str(directory / "preset")))
    after = weights_by_path(saved.backbone)
    kernels = {path for path in before if path.endswith(("query/kernel", "value/kernel"))}
    assert moved_paths(before, after) == kernels
    for path in kernels:
        place = path.removesuffix("/kernel").replace("self_attention_layer/", "") + "_adapter"
        part_a, part_b = (seen["weights"][f"{place}/lora_kernel_{part}"] for part in "ab")
        merged = before[path] + (part_a @ part_b).reshape(before[path].shape)
        np.testing.assert_allclose(after[path], merged, atol=1e-6)
    card = (output / "preset" / "README.md").read_text()
    assert f"{saved.backbone.count_params():,}" in card


def test_the_command_that_reads_the_adapter_names_its_encoder(adapted, directory):
    output, seen = adapted
    words = shlex.split(seen["said"].splitlines()[-1])
    given = f"SPANBERT_TF_ENCODER={directory}/preset"
    assert words[:5] == ["env", given, "spanbert-tf", "predict", "--preset"]
    assert words[5] == f"{output}/adapter"


def go_on_from_adapter(adapted, directory, output, rank):
    """A run that moves nothing, to be compared with what it began with."""
    config = options(**{"optimizer.learning_rate": 1e-30, "optimizer.lora_rank": rank})
    adapter = str(adapted[0] / "adapter")
    run_finetuning(config, adapter, str(directory / "train"), str(output))


@pytest.mark.slow
def test_a_run_goes_on_from_an_adapter_over_the_same_encoder(adapted, directory, tmp_path):
    go_on_from_adapter(adapted, directory, tmp_path, 3)
    before, after = (read_adapter(str(place / "adapter")) for place in (adapted[0], tmp_path))
    for place in (adapted[0], tmp_path):
        named = json.loads((place / "adapter" / "adapter_config.json").read_text())
        assert named["base_model_name_or_path"] == str(directory / "preset")
    assert after.digest == before.digest
    matrices = {name: values for name, values in after.arrays.items() if "lora" in name}
    assert len(matrices) == 8
    for name, values in matrices.items():
        np.testing.assert_array_equal(values, before.arrays[name], err_msg=name)


@pytest.mark.slow
def test_a_run_of_the_whole_encoder_begins_with_the_products_in_it(adapted, directory, tmp_path):
    go_on_from_adapter(adapted, directory, tmp_path, "null")
    assert not (tmp_path / "adapter").exists()
    merged, whole = (
        weights_by_path(SpanBertBackbone.from_preset(str(place / "preset")))
        for place in (adapted[0], tmp_path)
    )
    for path, values in merged.items():
        np.testing.assert_allclose(whole[path], values, atol=1e-6, err_msg=path)


def test_an_adapter_of_another_rank_is_refused(adapted, directory, tmp_path):
    with pytest.raises(MismatchError, match=r"has rank 3, and optimizer\.lora_rank is 4"):
        go_on_from_adapter(adapted, directory, tmp_path / "run", 4)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_no_damaged_adapter(adapted, directory, tmp_path):
    adapter = tmp_path / "adapter"
    shutil.copytree(adapted[0] / "adapter", adapter)
    path = adapter / "adapter_model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # as whole as before
    with pytest.raises(BadInputError, match=rf"{adapter}: {path.name} is not the file"):
        go_on_from_adapter([tmp_path], directory, tmp_path / "run", 3)


def adapter_arrays(output):
    return read_adapter(str(output / "adapter")).arrays


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_adapter(directory, tmp_path):
    """Its checkpoints hold no weights of the encoder, which come from the preset again."""
    config = options(**{"optimizer.lora_rank": 3, "training.checkpoint_every_steps": 2})
    run(directory, tmp_path, config)
    expected = adapter_arrays(tmp_path)
    for name in ("preset", "adapter", "checkpoints/step-00000004"):
        shutil.rmtree(tmp_path / name)
    run(directory, tmp_path, config)
    for name, values in adapter_arrays(tmp_path).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.slow
def test_replicas_train_the_same_adapter(directory, tmp_path, two_devices, monkeypatch):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(
        len(VOCABULARY), 2, 4, 32, 37, dropout=0, max_sequence_length=LENGTH
    )
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(tmp_path / "preset"), tokenizer=tokenizer)
    values = {"optimizer.lora_rank": 3, "training.precision": "float32"}
    for name in ("one", "two"):
        arguments = (str(tmp_path / "preset"), str(directory / "train"), str(tmp_path / name))
        run_finetuning(options(**values), *arguments)
        monkeypatch.setattr(devices, "make_strategy", lambda *_: two_devices)
    one, two = (adapter_arrays(tmp_path / name) for name in ("one", "two"))
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_run_knows_its_preset_whether_it_has_adapters_or_not(adapted, directory, tmp_path):
    """The digest is of the preset's weights, not of the adapters' random ones."""
    run(directory, tmp_path / "run", options(**{"optimizer.learning_rate": 1e-9}))
    digests = [
        json.loads((output / "inputs.json").read_text())["--preset"]
        for output in (adapted[0], tmp_path / "run")
    ]
    assert digests[0] == digests[1]
