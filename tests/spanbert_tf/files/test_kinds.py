"""What was given for a preset or for records is recognised, by every command and class alike."""

import gzip
import io
import json
import os
import pathlib
import tarfile
import tempfile
import zipfile

import pytest
import tensorflow as tf

from spanbert_tf.cli import main
from spanbert_tf.config import load_run_config
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.keras_presets import read_keras
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import refuse_no_preset, refuse_other_records
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertPretrainer,
    SpanBertTokenClassifier,
    SpanBertTokenizer,
)
from spanbert_tf.presets.preset import Preset
from spanbert_tf.tasks.lookup import task_of_records
from spanbert_tf.tasks.named_entities.records import NamedEntitiesManifest
from spanbert_tf.tasks.prediction import Predictor
from spanbert_tf.text.chosen_vocabulary import load_vocabulary_of_preset

HUGGING_FACE = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8}
OLD_HUGGING_FACE = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}  # SpanBERT's own
PRESET = {"module": "spanbert_tf", "class_name": "SpanBertBackbone", "config": {}}


def tar_gz():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add(__file__, "config.json")
    return file.getvalue()


def zip_file():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("bert_config.json", "{}")
    return file.getvalue()


MASKED = "a TFRecord of BERT's or the Model Garden's masked examples"


def masked_records():
    """As the Model Garden's `create_pretraining_data.py` writes them, 512 positions wide."""
    names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
    features = {name: tf.train.Int64List(value=range(512)) for name in (*names, "masked_lm_ids")}
    features = {name: tf.train.Feature(int64_list=values) for name, values in features.items()}
    features["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    with tempfile.NamedTemporaryFile() as file:
        with tf.io.TFRecordWriter(file.name) as writer:
            writer.write(example.SerializeToString())
        return pathlib.Path(file.name).read_bytes()


# Files → what to name of them, what they are, what to do.
KINDS = {
    "hugging face": (
        {"config.json": HUGGING_FACE, "model.safetensors": "", "vocab.txt": ""},
        *(
            "",
            "is a BERT model of Hugging Face, no preset",
            "--from huggingface --to keras {path} ",
        ),
    ),
    "old hugging face": (
        {"config.json": OLD_HUGGING_FACE, "pytorch_model.bin": ""},
        *("", "is a BERT model of Hugging Face", "--from huggingface --to keras {path} PRESET"),
    ),
    "roberta": (
        {"config.json": HUGGING_FACE | {"model_type": "roberta"}},
        *("", "is a roberta model of Hugging Face", "only BERT models can be converted"),
    ),
    "no config": (
        {"model.safetensors": ""},
        *("", "is a model of Hugging Face without its config.json", "copy that, too"),
    ),
    "peft": (
        {"adapter_config.json": {}, "adapter_model.safetensors": ""},
        *("", "is an adapter of peft without the files of a preset", "`merge_and_unload`"),
    ),
    "tf1": (
        {"bert_config.json": {}, "bert_model.ckpt.index": "", "vocab.txt": ""},
        *("", "is a checkpoint of TensorFlow 1", "--from tf1 --to keras {path} PRESET"),
    ),
    "tf1 by its prefix": (
        {"bert_model.ckpt.index": ""},
        *("bert_model.ckpt", "is a checkpoint of TensorFlow 1", "--from tf1 --to keras {parent} "),
    ),
    "fairseq": (
        {"checkpoint_best.pt": "", "dict.txt": ""},
        *("", "is a checkpoint of fairseq", "--from fairseq --to keras {path} PRESET"),
    ),
    "archive": (
        {"spanbert_hf_base.tar.gz": tar_gz()},
        *("spanbert_hf_base.tar.gz", "is an archive", "--from huggingface --to keras {path} "),
    ),
    "zip": (
        {"cased_L-12_H-768_A-12.zip": zip_file()},
        *("cased_L-12_H-768_A-12.zip", "is a ZIP archive", "unzip it"),
    ),
    "run": (
        {"config.yaml": "", "preset/config.json": PRESET},
        *("", "is the directory of a run", "name {path}/preset"),
    ),
    "unfinished run": (
        {"config.yaml": "", "dataset_info.json": {}, "checkpoints/x": ""},
        *("", "is the directory of a run that has not ended", "go on with it"),
    ),
    "export": (
        {"1/saved_model.pb": ""},
        *("", "is a SavedModel, as `export` writes it", "name the preset that it was made of"),
    ),
    "saved model": ({"saved_model.pb": ""}, "", "is a SavedModel", "name the preset"),
    "records": (
        {"dataset_info.json": {}, "vocab.txt": ""},
        *("", "holds pre-training records, no preset", "records are what --data takes"),
    ),
    "records of a task": (
        {"text_classification_info.json": {}, "vocab.txt": ""},
        *("", "holds records of text classification, no preset", "what --data takes"),
    ),
    "data set": (
        {"dataset_info.json": {}, "state.json": {}, "data-00000-of-00001.arrow": ""},
        *("", "is a data set of Hugging Face's `datasets`", "name the directory of a preset"),
    ),
    "masked records": (
        {"wiki.tfrecord": masked_records()},
        *("", f"is a directory with {MASKED}, no preset", "name the directory of a preset"),
    ),
    "several": (
        {"a/config.json": PRESET, "b/config.json": PRESET},
        *("", "is a directory of presets", "name one of them, such as {path}/a"),
    ),
    "file of a preset": (
        {"config.json": PRESET, "model.weights.h5": ""},
        *("model.weights.h5", "is a file of a preset", "name its directory, {parent}"),
    ),
    "file of a model": (
        {"config.json": HUGGING_FACE, "model.safetensors": ""},
        *("model.safetensors", "is a file in a BERT model of Hugging Face", "keras {parent} "),
    ),
    "texts": (
        {"a.txt": "Some words.", "b.txt.gz": gzip.compress("Some words, é.".encode())},
        *("", "is a folder of text, no preset", "prepare vocabulary --input '{path}/*' --vocab"),
    ),
    "a file of text": (
        {"a.txt": "Some words."},
        *("a.txt", "is a file in a folder of text, no preset", "--input '{parent}/*' --vocabular"),
    ),
    "part of a preset": (
        {"tokenizer.json": {}, "metadata.json": {}},
        *("", "no preset: config.json is missing", "name the directory of a preset"),
    ),
    "nothing": ({}, "", "is an empty directory", "name the directory of a preset"),
    "something": ({"notes.md": ""}, "", "no preset: config.json is missing", "name the directory"),
}


def written(directory, files):
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_preset_is_named(tmp_path, kind):
    files, name, what, advice = KINDS[kind]
    written(tmp_path, files)
    path = str(tmp_path / name) if name else str(tmp_path)
    with pytest.raises(BadInputError) as error:
        refuse_no_preset(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {what}") and "\n" not in message
    assert advice.format(path=path, parent=tmp_path) in message


@pytest.mark.parametrize(
    "use",
    [
        lambda path: load_run_config("continue", (), preset=path, run=f"{path}-run"),
        SpanBertBackbone.from_preset,
        SpanBertTokenizer.from_preset,
        SpanBertMaskedLMPreprocessor.from_preset,
        SpanBertMaskedLM.from_preset,
        SpanBertPretrainer.from_preset,
        lambda path: SpanBertTokenClassifier.from_preset(path, labels=["O", "B-X"]),
        lambda path: Preset(path).encoder(),
        Predictor,
        lambda path: read_keras(path).__enter__(),
    ],
)
def test_every_door_says_the_same(tmp_path, use):
    """A folder that `transformers` saved, where KerasHub has words of its own."""
    written(tmp_path, KINDS["hugging face"][0])
    with pytest.raises(BadInputError) as error:
        refuse_no_preset(str(tmp_path))
    with pytest.raises(BadInputError) as of_use:
        use(str(tmp_path))
    assert str(of_use.value) == str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        "pretrain --config continue --data {records} --output {output} --initial-preset {path}",
        "finetune --config mnli --data {records} --output {output} --preset {path}",
        "export --preset {path} --output {output}",
        "predict --preset {path} --input {path}/dict.txt --output {output}",
        "evaluate --preset {path} --data {records}",
        "convert --from keras --to huggingface {path} {output}",
    ],
)
def test_every_command_says_the_same(tmp_path, capsys, arguments):
    path, records = tmp_path / "model", tmp_path / "records"
    written(path, KINDS["fairseq"][0])
    records.mkdir()
    command = arguments.format(path=path, records=records, output=tmp_path / "output")
    with pytest.raises(SystemExit) as end:
        main(command.split())
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert f"{path}: is a checkpoint of fairseq, no preset" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"text_classification_info.json": {}},
            "holds records of text classification, not records of named entities; `spanbert-tf "
            "finetune` reads them with a configuration of text_classification, or write them with "
            "`spanbert-tf prepare named_entities`",
        ),
        (
            {"dataset_info.json": {}},
            "holds pre-training records, not records of named entities; `spanbert-tf pretrain` "
            "reads them, or ",
        ),
        ({"config.yaml": "", "named_entities_info.json": {}}, "is the directory of a run that"),
        ({"config.json": PRESET}, "is a preset, not records of named entities; write them"),
        ({"train.txt": ""}, "holds no records of named entities (named_entities_info.json is miss"),
        (
            {"train.txt": "ann B-PER"},
            "is a folder of text, not records of named entities; write them with `spanbert-tf "
            "prepare named_entities --preset PRESET --input {path}/train.txt --output RECORDS` ",
        ),
    ],
)
def test_other_records_are_named(tmp_path, files, message):
    written(tmp_path, files)
    with pytest.raises(BadInputError) as error:
        NamedEntitiesManifest.load(str(tmp_path))
    expected = f"{tmp_path}: {message.replace('{path}', str(tmp_path))}"
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_file_in_place_of_records_is_named(is_pipe, tmp_path, capsys):
    path = tmp_path / "train.jsonl"
    if is_pipe:
        os.mkfifo(path)
    else:
        path.write_text("{}")
    words = f"finetune --config mnli --preset p --data {path} --output {tmp_path / 'run'}"
    for command, task in (
        (words, "classification"),
        (f"evaluate --baseline --data {path}", "TASK"),
    ):
        with pytest.raises(SystemExit) as end:
            main(command.split())
        assert end.value.code == 2
        advice = f"`spanbert-tf prepare {task} --preset PRESET --input {path} --output RECORDS`"
        error = capsys.readouterr().err
        assert f"{path}: is a file, not records of " in error
        assert advice in error


@pytest.mark.parametrize("name", ["bert-base-cased", "google-bert/bert-base-cased"])
def test_a_name_of_the_hub_leads_to_its_download(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = (
        f"`hf download {name} --local-dir bert-base-cased`, then convert it with `spanbert-tf "
        "convert --from huggingface --to keras bert-base-cased PRESET`"
    )
    for use in (
        load_vocabulary_of_preset,
        Predictor,
        lambda name: convert_checkpoint("huggingface", "keras", name, "preset"),
    ):
        with pytest.raises(BadInputError) as error:
            use(name)
        assert str(error.value).startswith(f"{name}: no ")
        assert steps in str(error.value)


def test_where_any_task_will_do_other_records_are_named(tmp_path):
    written(tmp_path, {"dataset_info.json": {}})
    with pytest.raises(BadInputError, match="holds pre-training records, not records of a task; "):
        task_of_records(str(tmp_path))


def test_records_of_a_task_are_no_pretraining_records(tmp_path):
    written(tmp_path, {"question_answering_info.json": {}})
    with pytest.raises(BadInputError, match="holds records of question answering, not pre-train"):
        PretrainingManifest.load(tmp_path)


def test_masked_records_are_named_for_records_and_for_text(tmp_path):
    written(tmp_path, {"wiki.tfrecord": masked_records()})
    with pytest.raises(BadInputError) as error:
        refuse_other_records(str(tmp_path), "pretraining")
    assert str(error.value) == (
        f"{tmp_path}: is a directory with {MASKED}, not pre-training records; write them with "
        "`spanbert-tf prepare pretraining`"
    )
    path = str(tmp_path / "wiki.tfrecord")
    with pytest.raises(BadInputError) as error:
        read_text_file(path)
    assert str(error.value) == (
        f"{path}: is {MASKED} and not read here; masks are drawn while training here: name the "
        "text they were of"
    )
