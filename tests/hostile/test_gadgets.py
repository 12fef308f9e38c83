"""What a preset's JSON names is ours, KerasHub's or refused: nothing in it is run, and no other
file is read."""

import base64
import contextlib
import json
import marshal
import os
import pathlib
import pickle
import shutil
import sys

import keras
import keras_hub
import numpy as np
import pytest
from keras.src.saving import serialization_lib

from spanbert_tf.errors import SpanBertError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.prediction import Predictor

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "."]
SHELL = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen")
_seen = None  # the events of interest while a test looks, else `None`
_opened = None  # likewise, the files that are opened


def _note(event, arguments):
    if _seen is not None and event in (*SHELL, "pickle.find_class"):
        _seen.append(event)
    if _opened is not None and event == "open":
        _opened.append(arguments[0])


sys.addaudithook(_note)  # of Python itself; it stays for the process, and is idle


@contextlib.contextmanager
def events():
    """The events of Python's audit that run something."""
    global _seen
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


class Intruder:
    """Writes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def instance(module, name, config, registered=None):
    return {"module": module, "class_name": name, "config": config, "registered_name": registered}


def function(module, name):
    return {**instance(module, "function", name), "registered_name": name}


def _lambda(marker):
    code = compile(f"open({marker!r}, 'w')", "", "eval")
    text = base64.b64encode(marshal.dumps(code)).decode()
    return {"class_name": "__lambda__", "config": {"code": text, "defaults": None, "closure": None}}


def _inner(layer):
    """A sequential model of one layer."""
    layers = [instance("keras.layers", "InputLayer", {"batch_shape": [None, 4]}), layer]
    return instance("keras", "Sequential", {"name": "s", "layers": layers})


def _torch_module(marker):
    module = base64.b64encode(pickle.dumps(Intruder(marker))).decode()
    return instance("keras.layers", "TorchModuleWrapper", {"module": module})


GADGETS = {
    "os.system": lambda marker: function("os", "system"),
    "os.system called": lambda marker: instance("os", "system", f"touch {marker}"),
    "posix.system": lambda marker: instance("posix", "system", {"command": f"touch {marker}"}),
    "subprocess": lambda marker: instance("subprocess", "Popen", {"args": ["touch", marker]}),
    "eval": lambda marker: instance("builtins", "eval", f"open({marker!r}, 'w')"),
    "eval as a function": lambda marker: function("builtins", "eval"),
    "lambda": lambda marker: instance("keras.layers", "Lambda", {"function": _lambda(marker)}),
    "lambda inside": lambda marker: _inner(
        instance("keras.layers", "Lambda", {"function": _lambda(marker)})
    ),
    "lambda alone": _lambda,
    "TFSMLayer": lambda marker: instance(
        "keras.layers", "TFSMLayer", {"filepath": os.path.dirname(marker)}
    ),
    "TorchModuleWrapper": _torch_module,
    "unsafe deserialization": lambda marker: function(
        "keras.config", "enable_unsafe_deserialization"
    ),
    "unsafe deserialization called": lambda marker: instance(
        "keras.config", "enable_unsafe_deserialization", {}
    ),
    "StringLookup": lambda marker: _inner(
        instance("keras.layers", "StringLookup", {"vocabulary": "/etc/passwd"})
    ),
    "get_file": lambda marker: instance(
        "keras.utils", "get_file", {"fname": marker, "origin": "file:///etc/passwd"}
    ),
    "load_model": lambda marker: instance(
        "keras.models", "load_model", {"filepath": marker, "safe_mode": False}
    ),
    "pickle": lambda marker: instance("pickle", "loads", {"data": "x"}),
    "numpy": lambda marker: instance("numpy", "fromfile", {"file": "/etc/passwd"}),
}


# Classes that are registered or of this project, and that are not meant where they stand.
MISPLACED = {
    "a tokenizer of KerasHub's that opens paths": lambda path: instance(
        "keras_hub.src.models.parseq.parseq_tokenizer",
        "PARSeqTokenizer",
        {"vocabulary": path},
        "keras_hub>PARSeqTokenizer",
    ),
    "the same by its old name": lambda path: instance(
        "keras_nlp.tokenizers", "PARSeqTokenizer", {"vocabulary": path}, "keras_nlp>PARSeqTokenizer"
    ),
    "the same by the class's name alone": lambda path: {
        "class_name": "keras_hub>PARSeqTokenizer",
        "config": {"vocabulary": path},
    },
    "the same by its module": lambda path: instance(
        "keras_hub.tokenizers", "PARSeqTokenizer", {"vocabulary": path}
    ),
    "another encoder of KerasHub's": lambda path: instance(
        "keras_hub.models", "RobertaBackbone", {}, "keras_hub>RobertaBackbone"
    ),
    "a layer of this project": lambda path: instance(
        "spanbert_tf.layers", "TransformerEncoder", {}, "spanbert_tf>TransformerEncoder"
    ),
    "a layer of Keras": lambda path: instance("keras.layers", "Dense", {"units": 10**12}),
    "a policy of Keras": lambda path: instance("keras", "DTypePolicy", {"name": "float32"}),
    "a function": lambda path: function("builtins", "relu"),
}


def set_root(preset, gadget):
    for name in ("config.json", "task.json"):
        (preset / name).write_text(json.dumps(gadget))


def set_value(preset, gadget):
    """Where a policy stands, which Keras makes of its description."""
    for name in ("config.json", "task.json"):
        description = json.loads((preset / name).read_text())
        encoder = description["config"].get("backbone", description)
        encoder["config"]["dtype"] = gadget
        (preset / name).write_text(json.dumps(description))


def set_part(name):
    def change(preset, gadget):
        description = json.loads((preset / "task.json").read_text())
        description["config"][name] = gadget
        (preset / "task.json").write_text(json.dumps(description))

    return change


def set_beside(name):
    def change(preset, gadget):
        for file in ("config.json", "task.json"):
            description = json.loads((preset / file).read_text())
            description[name] = {"input_shape": [None, 4], "loss": gadget, "optimizer": gadget}
            (preset / file).write_text(json.dumps(description))

    return change


def set_tokenizer(preset, gadget):
    (preset / "tokenizer.json").write_text(json.dumps(gadget))


PLACES = {
    "root": set_root,
    "dtype": set_value,
    "backbone": set_part("backbone"),
    "preprocessor": set_part("preprocessor"),
    "labels": set_part("labels"),
    "compile_config": set_beside("compile_config"),
    "build_config": set_beside("build_config"),
    "tokenizer": set_tokenizer,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    classifier = SpanBertTextClassifier(backbone, 2, preprocessor)
    classifier.is_head_trained = True
    directory = tmp_path_factory.mktemp("presets") / "classifier"
    write_preset(classifier, str(directory))
    return directory


@pytest.fixture
def preset(whole, tmp_path):
    return pathlib.Path(shutil.copytree(whole, tmp_path / "preset"))


DOORS = {
    "task": Predictor,
    "encoder": lambda preset: Preset(preset).encoder(),
    "tokenizer": lambda preset: Preset(preset).tokenizer,
}


def check_that_nothing_runs(door, preset, tmp_path):
    """Opens a preset, and returns whether it was taken."""
    before = sorted(os.listdir(tmp_path))
    is_taken = False
    with events() as seen:
        try:
            DOORS[door](str(preset))
            is_taken = True
        except SpanBertError as error:
            assert "\n" not in str(error) and str(preset) in str(error)
    assert not seen
    assert serialization_lib.in_safe_mode() in (None, True)
    assert sorted(os.listdir(tmp_path)) == before
    return is_taken


@pytest.mark.parametrize(
    "place, door",
    [
        ("root", "task"),
        ("root", "encoder"),
        ("backbone", "task"),
        ("preprocessor", "task"),
        ("tokenizer", "tokenizer"),
    ],
)
def test_what_is_no_part_of_a_model_is_refused(place, door, preset, tmp_path):
    for gadget in GADGETS.values():
        PLACES[place](preset, gadget(str(tmp_path / "marker")))
        assert not check_that_nothing_runs(door, preset, tmp_path)


@pytest.fixture
def opened(tmp_path):
    """The path of a private vocabulary, and the paths that were opened while a test looks."""
    global _opened
    path = tmp_path / "private.txt"
    path.write_text("\n".join(VOCABULARY))
    _opened = []
    yield str(path), _opened
    _opened = None


@pytest.mark.parametrize("gadget", MISPLACED)
def test_classes_are_allowed_by_name_before_anything_is_made(gadget, preset, opened):
    path, opens = opened
    gadget = MISPLACED[gadget](path)
    for place, name, use in (
        ("tokenizer", "tokenizer.json", SpanBertTokenizer.from_preset),
        ("tokenizer", "tokenizer.json", lambda preset: Preset(preset).tokenizer),
        ("preprocessor", "task.json", SpanBertTextClassifier.from_preset),
        ("preprocessor", "task.json", Predictor),
        ("backbone", "task.json", Predictor),
        ("root", "config.json", SpanBertBackbone.from_preset),
    ):
        before = {file: file.read_text() for file in preset.glob("*.json")}
        PLACES[place](preset, gadget)
        with pytest.raises(SpanBertError, match=f"{name} names '.*") as caught:
            use(str(preset))
        assert str(preset) in str(caught.value) and "\n" not in str(caught.value)
        for file, text in before.items():
            file.write_text(text)
    assert path not in opens


@pytest.mark.parametrize("place", ["dtype", "labels", "tokenizer"])
def test_a_model_stands_where_one_is_meant(place, preset):
    """Elsewhere nothing compares its sizes with the weights before it is built."""
    encoder = json.loads((preset / "config.json").read_text())
    encoder["config"] |= {"vocabulary_size": 10**9}
    PLACES[place](preset, encoder)
    use = SpanBertTokenizer.from_preset if place == "tokenizer" else Predictor
    with pytest.raises(SpanBertError, match=r"names '.*SpanBertBackbone' where"):
        use(str(preset))


@pytest.mark.parametrize("name", ["tokenizer", "preprocessor"])
def test_what_is_saved_again_is_written_into_its_directory(name, preset, tmp_path):
    """KerasHub writes to the path that a description names as its own."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for file in (f"{name}.json", "task.json"):
        description = json.loads((preset / file).read_text())
        part = description
        if file == "task.json":
            part = description["config"]["preprocessor"]
            part = part if name == "preprocessor" else part["config"]["tokenizer"]
        part["config"]["config_file"] = str(victim)
        (preset / file).write_text(json.dumps(description))
        with pytest.raises(SpanBertError, match=rf"{name}\.json|task\.json: .*config_file is '"):
            SpanBertTextClassifier.from_preset(str(preset)).save_to_preset(str(tmp_path / "copy"))
    assert victim.read_text() == "mine"


@keras.saving.register_keras_serializable(package="gadgets")
class OwnClassifier(SpanBertTextClassifier):
    """A user's, with Keras' objects of numbers among its arguments."""

    def __init__(self, *args, initializer="zeros", squash="tanh", **kwargs):
        super().__init__(*args, **kwargs)
        self.initializer = keras.initializers.get(initializer)
        self.squash = keras.activations.get(squash)

    def get_config(self):
        return super().get_config() | {
            "initializer": keras.initializers.serialize(self.initializer),
            "squash": keras.saving.serialize_keras_object(self.squash),
            "pair": keras.saving.serialize_keras_object((1, 2)),
        }

    @classmethod
    def from_config(cls, config):
        return super().from_config({k: v for k, v in config.items() if k != "pair"})


def test_classes_that_a_user_registers_are_loaded(tmp_path):
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    initializer = keras.initializers.RandomNormal(stddev=0.5)
    model = OwnClassifier(backbone, 2, preprocessor, initializer=initializer)
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    loaded = Preset(str(tmp_path / "preset")).task(OwnClassifier)
    assert loaded.initializer.stddev == 0.5 and loaded.squash is keras.activations.tanh


def test_keras_hubs_own_bert_is_loaded(tmp_path):
    backbone = keras_hub.models.BertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    tokenizer = keras_hub.models.BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    model = keras_hub.models.BertTextClassifier(backbone, 2, preprocessor)
    preset = str(tmp_path / "preset")
    model.save_to_preset(preset)
    for old, new in (("", ""), ("keras_hub>Bert", "keras_nlp>Bert")):
        for file in (tmp_path / "preset").glob("*.json"):
            file.write_text(file.read_text().replace(old, new) if old else file.read_text())
        loaded = Preset(preset).task(keras_hub.models.BertTextClassifier)
        np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
        assert Preset(preset).tokenizer.get_vocabulary() == VOCABULARY


@pytest.mark.slow  # a model is built and run each time for those that are taken
@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_a_description_names_is_run(place, preset, tmp_path):
    for gadget in GADGETS.values():
        PLACES[place](preset, gadget(str(tmp_path / "marker")))
        for door in DOORS:
            check_that_nothing_runs(door, preset, tmp_path)


def test_the_audit_sees_what_the_gadgets_would_do(tmp_path):
    """Unguarded, a marker is written: the tests above look at the right thing."""
    marker = str(tmp_path / "marker")
    with events() as seen:
        pickle.loads(pickle.dumps(Intruder(marker)))
    assert seen == ["pickle.find_class", "os.system"]
    os.remove(marker)
    eval(marshal.loads(base64.b64decode(_lambda(marker)["config"]["code"])))
    assert os.path.exists(marker)
