"""What a preset says of itself, and that the commands notice when it is not true."""

import functools
import json
import os
import shutil

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend import random

from spanbert_tf.config.continuing import shape_values
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files import preset as files_of_presets
from spanbert_tf.files.output import Output, OutputKind
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertPretrainer,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets import preset as opening
from spanbert_tf.presets.golden import check_outputs, encode_rows
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.lookup import task_of_preset
from spanbert_tf.tasks.prediction import Predictor

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "span", "a", "."]


@pytest.fixture(scope="module")
def backbone():
    keras.utils.set_random_seed(1)
    return SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=40)


def write(backbone, directory, **options):
    write_preset(backbone, str(directory), tokenizer=SpanBertTokenizer(VOCABULARY), **options)
    return str(directory)


def check_same_weights(preset, backbone):
    for loaded in (
        Preset(preset).encoder(),
        keras_hub.models.Backbone.from_preset(preset),
    ):
        for expected, actual in zip(backbone.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_sharded_weights_load_and_are_checked(backbone, tmp_path, monkeypatch):
    save = functools.partialmethod(SpanBertBackbone.save_to_preset, max_shard_size=50e3 / 2**30)
    monkeypatch.setattr(SpanBertBackbone, "save_to_preset", save)
    preset = write(backbone, tmp_path / "preset")
    shards = sorted(name for name in os.listdir(preset) if name.endswith(".weights.h5"))
    assert len(shards) > 1
    check_same_weights(preset, backbone)
    os.remove(os.path.join(preset, shards[1]))
    with pytest.raises(BadInputError, match=rf"{shards[1]} is missing"):
        Preset(preset).encoder()


def test_every_file_of_weights_has_its_checksum(backbone, tmp_path):
    preset = write(backbone, tmp_path / "preset")
    with open(os.path.join(preset, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    assert set(golden["weights"]) == {"model.weights.h5"}
    assert len(golden["sentences"]) == 3
    check_same_weights(preset, backbone)
    # Without it nothing is checked: KerasHub writes none.
    os.remove(os.path.join(preset, "golden.json"))
    check_same_weights(preset, backbone)


@pytest.mark.parametrize("change", ["token_ids", "first_and_last_output"])
def test_other_results_are_noticed(change, backbone, tmp_path):
    preset = write(backbone, tmp_path / "preset")
    path = os.path.join(preset, "golden.json")
    with open(path, encoding="utf-8") as file:
        golden = json.load(file)
    first = golden["sentences"][2]
    if change == "token_ids":
        first["token_ids"][1] += 1
    else:
        first["first_and_last_output"][1][7] += 0.1
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file)
    if change != "token_ids":  # of a load they are no part
        Preset(preset).encoder()
    with pytest.raises(BadInputError, match="Short") as caught:
        opened = Preset(preset)
        check_outputs(opened, opened.encoder(), opened.tokenizer)
    assert "\n" not in str(caught.value)


def test_what_computes_something_else_than_was_saved_is_not_written(backbone, tmp_path):
    def change(directory):
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert "1e-12" in text
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("1e-12", "0.1"))

    with pytest.raises(BadInputError, match=r"is [\d.]+% off golden.json"):
        write(backbone, tmp_path / "preset", write_more=change)
    assert os.listdir(tmp_path) == []


def test_the_tokenizer_that_a_task_reads_with_is_checked(backbone, tmp_path):
    """It is described in `task.json`; an encoder's alone in `tokenizer.json`."""
    pretrainer = SpanBertPretrainer(backbone, max_span_targets=4, span_position_dim=8)
    preset = tmp_path / "preset"
    tokenizer = SpanBertTokenizer(VOCABULARY)
    save_pretraining_preset(pretrainer, tokenizer, str(preset), sequence_length=40)
    text = (preset / "task.json").read_text()
    assert text.count('"lowercase": false') == 1
    (preset / "task.json").write_text(text.replace('"lowercase": false', '"lowercase": true'))
    with pytest.raises(BadInputError, match="other token ids"):
        Preset(str(preset)).task(SpanBertMaskedLM)


@pytest.mark.parametrize("content", ["", "{", "[1, 2", "[1, 2]"])
def test_damaged_description_of_a_task_is_named(content, tmp_path):
    (tmp_path / "config.json").write_text('{"class_name": "SpanBertBackbone"}')
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(
        BadInputError, match=r"task\.json is damaged: .*copy the preset again"
    ) as found:
        Preset(str(tmp_path)).holds(SpanBertMaskedLM)
    assert "\n" not in str(found.value)


def test_segabert_is_checked_too(tmp_path):
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=40, position_embeddings="segment_aware"
    )
    check_same_weights(write(backbone, tmp_path / "preset"), backbone)


def as_before_0_2_0(preset):
    """Takes out of a preset's descriptions what commit e8ac957 did not write."""
    for path in (os.path.join(preset, name) for name in ("config.json", "task.json")):
        with open(path, encoding="utf-8") as file:
            description = json.load(file)
        encoder = description["config"].get("backbone", description)["config"]
        for name in ("num_paragraphs", "num_sentences", "max_sentence_length"):
            del encoder[name]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(description, file)


@pytest.mark.parametrize(
    "positions", ["segment_aware", "absolute_with_paragraph_and_sentence", "absolute"]
)
def test_segabert_of_before_is_refused(positions, tmp_path):
    """What was trained on other positions; BERT's have not changed."""
    preset, config = str(tmp_path / "preset"), {"max_sequence_length": 40}
    encoder = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, position_embeddings=positions, **config)
    is_aware = positions != "absolute"
    tokenizer = SpanBertTokenizer(VOCABULARY)
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 16, segment_aware=is_aware)
    classifier = SpanBertTextClassifier(encoder, 2, preprocessor)
    classifier.is_head_trained = True
    write_preset(classifier, preset)
    as_before_0_2_0(preset)
    loads = [
        lambda preset: Preset(preset).encoder(),
        lambda preset: Preset(preset).trained_task(SpanBertTextClassifier),
        lambda preset: Preset(preset).encoder_and_masked_lm_head(),  # `pretrain` and `convert`
        SpanBertMaskedLM.from_preset,
        keras_hub.models.Backbone.from_preset,
    ]
    for load in loads:
        if not is_aware:
            load(preset)
            continue
        with pytest.raises(MismatchError, match=r"from before 0\.2\.0.*train it again") as caught:
            load(preset)
        assert "\n" not in str(caught.value)
        assert "preset: config.json lacks num_paragraphs" in str(caught.value) or load in loads[3:]


@pytest.fixture
def drawn(monkeypatch):
    """The shapes of all first values that are drawn."""
    shapes, draw = [], random.truncated_normal

    def draw_and_note(shape, *arguments, **options):
        shapes.append(tuple(shape))
        return draw(shape, *arguments, **options)

    monkeypatch.setattr(random, "truncated_normal", draw_and_note)
    return shapes


def test_weights_that_are_loaded_are_not_drawn_first(backbone, drawn, tmp_path):
    encoder = write(backbone, tmp_path / "encoder")
    drawn.clear()
    loaded = Preset(encoder).encoder()
    assert drawn == []
    for expected, actual in zip(backbone.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    pretrainer = SpanBertPretrainer(backbone, max_span_targets=4, span_position_dim=8)
    task = str(tmp_path / "task")
    save_pretraining_preset(pretrainer, SpanBertTokenizer(VOCABULARY), task, sequence_length=40)
    drawn.clear()
    loaded = Preset(task).task(SpanBertMaskedLM)
    assert drawn == []
    expected = pretrainer.masked_lm_head.get_weights()
    for one, other in zip(expected, loaded.masked_lm_head.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_masked_lm_of_keras_hub_without_its_heads_weights_is_an_encoder(tmp_path):
    backbone = keras_hub.models.BertBackbone(len(VOCABULARY), 1, 2, 8, 16, max_sequence_length=8)
    preset = str(tmp_path / "preset")
    tokenizer = keras_hub.models.BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=8)
    keras_hub.models.BertMaskedLM(backbone, preprocessor).save_to_preset(preset)
    assert Preset(preset).encoder_and_masked_lm_head()[1] is not None
    os.remove(tmp_path / "preset" / "task.weights.h5")
    encoder, head = Preset(preset).encoder_and_masked_lm_head()
    assert head is None
    for expected, actual in zip(backbone.get_weights(), encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_weights_that_are_not_loaded_are_drawn(backbone, drawn, tmp_path):
    encoder = write(backbone, tmp_path / "encoder")
    task = Preset(encoder).task(SpanBertMaskedLM)
    assert not task.is_head_trained
    (kernel,) = (w for w in task.masked_lm_head.get_weights() if w.shape == (32, 32))
    assert kernel.shape in drawn
    assert kernel.std() == pytest.approx(0.0176, abs=0.003)  # of a normal cut at two deviations
    drawn.clear()
    new = Preset(encoder).encoder(load_weights=False)
    assert new.token_embedding.embeddings.shape in drawn
    assert np.all(np.std(new.token_embedding.embeddings, axis=1) > 0)


def test_rows_together_are_encoded_as_if_alone(backbone):
    rows = [[2, 5, 6, 3], [2, 3], [2, *[7, 8] * 30, 3]]  # the last one is cut
    together = encode_rows(backbone, rows)
    assert [output.shape for output in together] == [(4, 32), (2, 32), (40, 32)]
    for row, output in zip(rows, together, strict=True):
        np.testing.assert_allclose(output, encode_rows(backbone, [row])[0], atol=1e-5)


def test_model_card_says_what_it_was_told(backbone, tmp_path):
    preset = write(backbone, tmp_path / "preset", facts={"Data": "40 records"})
    with open(os.path.join(preset, "README.md"), encoding="utf-8") as file:
        card = file.read()
    assert card.startswith("---\nlibrary_name: keras-hub\nlicense: ")
    assert "| Data | 40 records |" in card
    assert "| num_layers | 2 |" in card
    assert f"{backbone.count_params():,}" in card


def test_what_is_no_preset_is_named(backbone, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        with pytest.raises(BadInputError, match=name) as caught:
            Preset(str(tmp_path / name)).encoder()
        assert "\n" not in str(caught.value)


def test_failure_leaves_the_earlier_directory(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").touch()

    target = Output(tmp_path / "target", OutputKind("a target", "old"), overwrite=True)
    with (
        pytest.raises(BadInputError, match=r"target: cannot be written \(No space left"),
        target.written() as directory,
    ):
        with open(os.path.join(directory, "new"), "w"):
            pass
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "old"]


def test_presets_of_other_file_systems(backbone, tmp_path, monkeypatch):
    """As gs://; TensorFlow's ram:// is on every machine."""
    # KerasHub keeps what it has copied, and reads that the next time.
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "keras").mkdir()
    local = str(tmp_path / "preset")
    pretrainer = SpanBertPretrainer(backbone, max_span_targets=4, span_position_dim=8)
    pretrainer.is_head_trained = True
    save_pretraining_preset(pretrainer, SpanBertTokenizer(VOCABULARY), local, sequence_length=40)
    remote = "ram://presets/test_presets_of_other_file_systems"
    for directory, _, names in os.walk(local):
        for name in names:
            path = os.path.join(directory, name)
            target = f"{remote}/{os.path.relpath(path, local)}"
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(path, target)
    check_same_weights(remote, backbone)
    loaded = SpanBertPretrainer.from_preset(remote)
    for expected, actual in zip(pretrainer.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_configuration_without_a_key_is_named(backbone, tmp_path):
    preset = write(backbone, tmp_path / "preset")
    path = os.path.join(preset, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    del config["config"]["hidden_dim"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    with pytest.raises(BadInputError, match=r"no preset of a Backbone .*hidden_dim") as caught:
        Preset(preset).encoder()
    assert "\n" not in str(caught.value)


def test_weights_of_another_shape_are_named(backbone, tmp_path):
    preset = write(backbone, tmp_path / "preset")
    path = os.path.join(preset, "config.json")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('"intermediate_dim": 37', '"intermediate_dim": 36'))
    with pytest.raises(BadInputError, match="preset: no preset of a Backbone") as caught:
        Preset(preset).encoder()
    assert "\n" not in str(caught.value)


def edit(preset, name, place, value):
    """Puts a value into a description, at keys that are separated by dots."""
    path = os.path.join(preset, name)
    with open(path, encoding="utf-8") as file:
        description = inner = json.load(file)
    *above, key = place.split(".")
    for step in above:
        inner = inner[step]
    inner[key] = value
    with open(path, "w", encoding="utf-8") as file:
        json.dump(description, file)


@pytest.fixture(scope="module")
def whole_classifier(backbone, tmp_path_factory):
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    classifier = SpanBertTextClassifier(backbone, 2, preprocessor)
    classifier.is_head_trained = True
    write_preset(classifier, str(path := tmp_path_factory.mktemp("classifier") / "preset"))
    return path


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("vocabulary_size", 10**400, "config.vocabulary_size is a number of 1,329 bits"),
        ("num_layers", -(10**400), "config.num_layers is a number of 1,329 bits"),
        ("layer_norm_epsilon", float("nan"), "config.layer_norm_epsilon is nan, no finite number"),
        ("dropout", float("inf"), "config.dropout is inf, no finite number"),
        ("num_heads", 0, "config.num_heads is 0, no number from 1 to 2,147,483,647"),
        ("vocabulary_size", 2**40, "config.vocabulary_size is 1099511627776, no number from"),
        ("name", "a\ud800", "config.name has half of a surrogate pair"),
        ("intermediate_dim", [37], "no preset of a Backbone ("),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_numbers_that_no_encoder_has_are_one_line(
    place, value, message, whole_classifier, tmp_path
):
    preset = shutil.copytree(whole_classifier, tmp_path / "preset")
    edit(preset, "config.json", f"config.{place}", value)
    with pytest.raises(BadInputError) as caught:
        Preset(str(preset)).encoder()
    assert message in str(caught.value) and str(preset) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("config.labels", ["a", "b\udfff"], "task.json: config.labels has half of a surrogate"),
        ("config.dropout", float("nan"), "task.json: config.dropout is nan"),
        ("config.num_classes", 10**400, "task.json: config.num_classes is a number of"),
        ("config.backbone.config.num_heads", 0, "config.num_heads is 0, no number from 1"),
        ("config.preprocessor.config.sequence_length", -3, "sequence_length is -3, no number"),
        ("config.preprocessor.config.sequence_length", 2**40, "is 1099511627776, no number"),
        ("config.backbone.config.vocabulary_size", 10**9, "are those of another model"),
        ("config.backbone.config.num_layers", 10**8, "are those of another model"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_numbers_that_no_task_has_are_one_line(place, value, message, whole_classifier, tmp_path):
    """Its description has the encoder's sizes once more, by which it is built."""
    preset = shutil.copytree(whole_classifier, tmp_path / "preset")
    edit(preset, "task.json", place, value)
    for use in (Predictor, lambda preset: Preset(preset).task(SpanBertTextClassifier)):
        with pytest.raises(BadInputError) as caught:
            use(str(preset))
        assert message in str(caught.value) and str(preset) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(4, "f4"), r"embeddings has shape \[4\], not \[rows, columns\]"),
        (np.zeros((4, 8, 2), "f4"), r"embeddings has shape \[4, 8, 2\]"),
        (np.zeros((0, 8), "f4"), r"embeddings has shape \[0, 8\]"),
        (np.full((4, 8), np.nan, "f4"), "is not of finite floating-point numbers"),
        (np.zeros((4, 8), "i1"), "is not of finite floating-point numbers"),
        (np.full((4, 8), "x"), "is not of finite floating-point numbers"),
    ],
)
def test_heads_of_other_axes_and_numbers_are_named(table, message, whole_classifier, tmp_path):
    preset = str(shutil.copytree(whole_classifier, tmp_path / "preset"))
    name = "span_boundary_head/position_embedding/embeddings"
    np.savez(os.path.join(preset, "pretraining_heads.npz"), **{name: table})
    for use in (SpanBertPretrainer.from_preset, shape_values):
        with pytest.raises(BadInputError, match=message) as caught:
            use(preset)
        assert "pretraining_heads.npz is damaged (" in str(caught.value)


@pytest.mark.parametrize("is_run", [True, False])
def test_a_directory_that_holds_a_preset_is_told_from_one(is_run, backbone, tmp_path):
    found, advice = "an empty directory", "name the directory of a preset"
    if is_run:
        found, advice = "the directory of a run", f"name {write(backbone, tmp_path / 'preset')}"
    message = f"^{tmp_path}: is {found}, no preset; {advice}$"
    for use in (
        lambda preset: Preset(preset).encoder(),
        lambda preset: Preset(preset).tokenizer,
        lambda preset: Preset(preset).trained_task(SpanBertMaskedLM),
        Predictor,
        task_of_preset,
    ):
        with pytest.raises(BadInputError, match=message):
            use(str(tmp_path))


@pytest.mark.parametrize(("precision", "chosen"), [("bfloat16", None), ("auto", "mixed_bfloat16")])
def test_a_task_is_loaded_once_in_bfloat16(precision, chosen, backbone, tmp_path, monkeypatch):
    preset, loads = str(tmp_path / "preset"), []
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    classifier = SpanBertTextClassifier(backbone, 3, preprocessor)
    classifier.is_head_trained = True
    write_preset(classifier, preset)
    if chosen:
        monkeypatch.setattr(
            opening, "choose_precision", lambda precision, width: chosen if width == 32 else None
        )
    exact = classifier.backbone.get_weights() + classifier.output_dense.get_weights()
    expected = SpanBertTextClassifier.from_preset(preset, dtype="bfloat16")
    load = SpanBertTextClassifier.from_preset

    def count(*args, **options):
        loads.append(options)
        return load(*args, **options)

    monkeypatch.setattr(SpanBertTextClassifier, "from_preset", count)
    loaded = Preset(preset).trained_task(SpanBertTextClassifier, precision)
    assert loads == [{"dtype": "bfloat16"}]
    weights = loaded.backbone.weights + loaded.output_dense.weights
    for weight, values in zip(weights, exact, strict=True):
        assert weight.dtype == "bfloat16"
        np.testing.assert_array_equal(weight.numpy(), values.astype(weight.numpy().dtype))
    texts = ["the span", "a span a the ."]
    found, as_before = (model.predict(texts, verbose=0) for model in (loaded, expected))
    assert found.tobytes() == as_before.tobytes()


def test_a_preset_that_is_open_is_read_and_checked_once(whole_classifier, monkeypatch):
    """KerasHub reads the descriptions again; it takes names alone."""
    opens, layouts, read, check = [], [], open, files_of_presets.check_layout

    def open_and_note(path, *args, **options):
        opens.append(os.path.basename(path) if isinstance(path, str) else path)
        return read(path, *args, **options)

    def check_and_note(path, where):
        layouts.append(os.path.basename(path))
        return check(path, where)

    monkeypatch.setattr("builtins.open", open_and_note)
    monkeypatch.setattr(files_of_presets, "check_layout", check_and_note)
    preset = Preset(whole_classifier)
    for _ in range(2):
        assert preset.holds(SpanBertTextClassifier) and preset.hidden_dim == 32
        assert len(preset.golden.sentences) == 3
    assert sorted(opens) == ["config.json", "config.json", "golden.json", "task.json"]
    preset.trained_task(SpanBertTextClassifier)
    assert opens.count("golden.json") == 1
    assert sorted(layouts) == ["model.weights.h5", "task.weights.h5"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_presets_of_mixed_precision_are_checked_in_float32(policy, tmp_path):
    keras.utils.set_random_seed(1)
    mixed = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=40, dtype=policy)
    preset = write(mixed, tmp_path / "preset")
    check_same_weights(preset, mixed)
    rows = [[2, 5, 6, 3], [2, 3]]
    before = encode_rows(mixed, rows)
    exact = Preset(preset).encoder()
    checked = Preset(preset).encoder(policy)
    assert not np.array_equal(encode_rows(exact, rows)[0], before[0])
    for expected, actual in zip(before, encode_rows(checked, rows), strict=True):
        np.testing.assert_array_equal(actual, expected)  # the check leaves it as it was


@pytest.mark.parametrize("name", ["bert-base-cased", "google/bert_uncased_L-2_H-128_A-2"])
def test_names_of_the_hub_say_what_comes_first(name):
    for load in (
        lambda: Preset(name).encoder(),
        lambda: Preset(name).holds(SpanBertMaskedLM),
    ):
        with pytest.raises(BadInputError, match="convert --from huggingface") as caught:
            load()
        assert "\n" not in str(caught.value)


def test_a_new_head_on_a_preset_of_the_class_is_drawn(backbone, tmp_path):
    preprocessor = SpanBertTokenClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 40)
    classifier = SpanBertTokenClassifier(backbone, ["O", "B-A", "I-A"], preprocessor)
    classifier.is_head_trained = True
    write_preset(classifier, str(tmp_path / "preset"))
    other = SpanBertTokenClassifier.from_preset(
        str(tmp_path / "preset"), labels=["O", "B-X", "I-X"]
    )
    assert np.all(np.std(other.output_dense.kernel, axis=0) > 0)
