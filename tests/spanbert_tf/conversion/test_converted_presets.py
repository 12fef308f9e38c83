"""A directory of Hugging Face in place of a preset: converted once, in a process of its own."""

import contextlib
import io
import json
import os
import shutil

import numpy as np
import pytest
import torch
from torch_models import VOCABULARY, save_torch_model, torch_model

from data_prep.beam.writing import write_pretraining_records
from spanbert_tf.cli import main
from spanbert_tf.conversion import converted_presets
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.contents import code_digest
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.text.chosen_vocabulary import load_vocabulary_of_preset


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_torch_model(torch_model(), tmp_path_factory.mktemp("models") / "my-encoder")


@pytest.fixture
def keras_home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    return tmp_path / "keras"


@pytest.fixture
def conversions(keras_home, monkeypatch):
    """The commands that convert, which this process runs in place of another."""
    commands = []

    def run(command, stderr):
        commands.append(command)
        said = io.StringIO()
        with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(said):
            main(command[command.index("spanbert_tf.cli") + 1 :])
        stderr.write(said.getvalue().encode())
        return end.value.code

    monkeypatch.setattr(converted_presets, "run_child", run)
    return commands


def test_it_is_what_convert_makes_of_it(model, conversions, keras_home, tmp_path, capsys):
    preset = converted_preset(f"{model}/")
    assert preset.startswith(str(keras_home))
    assert os.path.basename(preset) == "my-encoder"  # the name that model cards tell
    printed = capsys.readouterr().out
    assert "masked_lm_head" in printed  # the table
    assert "Next:" not in printed
    convert_checkpoint("huggingface", "keras", str(model), str(tmp_path / "preset"))
    ours, expected = (
        SpanBertBackbone.from_preset(str(path)).get_weights()
        for path in (preset, tmp_path / "preset")
    )
    for values, wanted in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(values, wanted)


def test_it_is_converted_once_and_again_if_a_file_changes(model, conversions, tmp_path):
    source = shutil.copytree(model, tmp_path / "model")
    first = converted_preset(str(source))
    assert converted_preset(str(source)) == first
    assert converted_preset(str(shutil.copytree(source, tmp_path / "again" / "model"))) == first
    assert len(conversions) == 1
    (source / "README.md").write_text("no part of the model")
    assert converted_preset(str(source)) == first
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    second = converted_preset(str(source))
    assert len(conversions) == 2
    _, rules = load_vocabulary_of_preset(first)
    _, others = load_vocabulary_of_preset(second)
    assert (rules.lowercase, others.lowercase) == (True, False)


def test_other_code_converts_anew_in_the_same_folder(model, conversions, tmp_path, monkeypatch):
    first = converted_preset(str(model))
    package = shutil.copytree(converted_presets._PACKAGE, tmp_path / "package")
    own_digest = code_digest([converted_presets._PACKAGE])
    assert code_digest([package]) == own_digest
    (package / "conversion" / "convert.py").write_text("mended = True\n")
    changed = code_digest([package])
    assert changed != own_digest
    monkeypatch.setattr(converted_presets, "code_digest", lambda _: changed)
    for _ in range(2):
        assert converted_preset(str(model)) == first
        assert len(conversions) == 2


def language_of(preset):
    _, text_rules = load_vocabulary_of_preset(preset)
    return text_rules.language


def test_each_language_has_a_preset_of_its_own(model, conversions):
    codes = ["de", None, "zh", "en"]
    presets = [converted_preset(str(model), language=code) for code in codes]
    assert [language_of(preset) for preset in presets] == ["de", "en", "zh", "en"]
    assert presets[1] == presets[3]
    assert len(conversions) == 3
    with pytest.raises(ConfigurationError, match="--language tlh: is not known; the nearest"):
        converted_preset(str(model), language="tlh")
    assert converted_preset(presets[0], language="de") == presets[0]
    with pytest.raises(MismatchError, match="states the language de, not fr; leave out --lang"):
        converted_preset(presets[0], language="fr")
    assert len(conversions) == 3


def test_convert_keeps_the_language(model, tmp_path):
    preset = str(tmp_path / "preset")
    convert_checkpoint("huggingface", "keras", str(model), preset, language="ja")
    assert language_of(preset) == "ja"
    with pytest.raises(ConfigurationError, match="--language: tf1 has no place for it; leave it"):
        convert_checkpoint("huggingface", "tf1", str(model), str(tmp_path / "tf1"), language="ja")
    assert not (tmp_path / "tf1").exists()
    with pytest.raises(ConfigurationError, match="--language tlh: is not known"):
        convert_checkpoint("huggingface", "keras", str(model), preset, language="tlh")


def test_records_tell_the_language(model, conversions, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cats sat on a mat. " * 20)
    records = tmp_path / "records"
    write_pretraining_records(text, preset=str(model), output=records, language="de")
    assert language_of(converted_preset(str(model), records=records)) == "de"
    assert len(conversions) == 1
    nothing = tmp_path / "nothing"
    assert language_of(converted_preset(str(model), records=nothing)) == "en"


def test_one_that_was_killed_is_made_again(model, conversions):
    preset = converted_preset(str(model))
    os.remove(os.path.join(preset, "config.json"))
    assert converted_preset(str(model)) == preset
    assert os.path.exists(os.path.join(preset, "config.json"))


@pytest.mark.parametrize("config", [None, {"class_name": "SpanBertBackbone"}, {"model_type": "t5"}])
def test_all_else_is_left_to_what_reads_presets(config, conversions, tmp_path):
    directory = tmp_path / "directory"
    if config:
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
    for name in (str(directory), "hf://owner/name"):
        assert converted_preset(name) == name
    assert not conversions


def no_vocabulary(directory):
    (directory / "vocab.txt").unlink()


def no_casing(directory):
    (directory / "tokenizer_config.json").unlink()


def no_weights(directory):
    (directory / "model.safetensors").unlink()


def missing_shard(directory):
    no_weights(directory)
    model = torch_model()
    model.save_pretrained(directory, max_shard_size="4kB")
    next(directory.glob("model-00002*")).unlink()


def untied_head(directory):
    no_weights(directory)
    tensors = torch_model().state_dict()
    tensors["cls.predictions.decoder.weight"] = tensors["cls.predictions.decoder.weight"] + 1
    torch.save(tensors, directory / "pytorch_model.bin")


CONVERT = "to `spanbert-tf convert --from huggingface --to keras {path} PRESET`"
FAULTS = {
    no_vocabulary: f"holds no vocabulary; give it with --vocabulary vocab.txt {CONVERT}",
    no_casing: f"does not state whether it is cased; give --cased or --lowercase {CONVERT}",
    no_weights: "holds no model.safetensors or pytorch_model.bin",
    missing_shard: "model-00002",
    untied_head: "only tied heads can be converted",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_told_in_a_line_and_leave_nothing(
    fault, model, conversions, keras_home, tmp_path
):
    source = shutil.copytree(model, tmp_path / "model")
    fault(source)
    with pytest.raises(BadInputError) as error:
        converted_preset(str(source))
    message = str(error.value)
    assert message.startswith(f"{source}: ")
    assert FAULTS[fault].format(path=source) in message
    assert len(message.splitlines()) == 1
    assert not list(keras_home.rglob("*.json"))


def test_a_home_that_cannot_be_written_is_named(model, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "file"))
    with pytest.raises(BadInputError, match=r"file/models.*cannot be written .*KERAS_HOME"):
        converted_preset(str(model))


def test_a_conversion_that_dies_is_an_error(model, keras_home, monkeypatch):
    def run(command, stderr):
        stderr.write(b"out of memory\n")
        return -9

    monkeypatch.setattr(converted_presets, "run_child", run)
    with pytest.raises(BadInputError, match=r"failed with status -9 \(out of memory\)"):
        converted_preset(str(model))


def test_words_are_added_and_records_written_with_it(model, conversions, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cats sat on a mat. " * 20)
    larger = tmp_path / "larger"
    for command in (
        f"prepare pretraining --input {text} --preset {model} --output {tmp_path / 'records'}",
        f"vocabulary extend --input {text} --preset {model} --size 1 --output {larger}",
    ):
        with pytest.raises(SystemExit) as end:
            main(command.split())
        assert end.value.code == 0, capsys.readouterr().err
    assert (tmp_path / "records" / "vocab.txt").read_text().splitlines() == VOCABULARY
    pieces, _ = load_vocabulary_of_preset(larger)
    assert pieces == [*VOCABULARY, "cats"]
    # The command that is printed names what the user named.
    assert f"--initial-preset {model} " in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_begins_with_it_and_resumes_with_no_other(model, keras_home, tmp_path, capsys):
    """The conversion is in another process here, as for users."""
    records = tmp_path / "records"
    text = tmp_path / "text.txt"
    text.write_text("the cats sat on a mat. " * 60)
    write_pretraining_records(text, preset=str(model), output=records, sequence_length=16)
    other = save_torch_model(torch_model(seed=1), tmp_path / "other")

    def pretrain(preset, steps):
        settings = f"training.steps={steps} training.schedule_steps=4 training.head_steps=1"
        settings += " data.sequence_length=16 training.batch_size=2 optimizer.warmup_steps=1"
        command = f"pretrain --config continue --data {records} --output {tmp_path / 'run'}"
        with pytest.raises(SystemExit) as end:
            main([*command.split(), "--initial-preset", str(preset), "--set", *settings.split()])
        return end.value.code, capsys.readouterr()

    code, printed = pretrain(model, 2)
    assert code == 0, printed.err
    code, printed = pretrain(other, 4)
    assert code == 2
    assert "--initial-preset" in printed.err
    code, printed = pretrain(model, 4)
    assert code == 0, printed.err
