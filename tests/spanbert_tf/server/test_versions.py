"""Which models are served, and which of their versions."""

import asyncio
import os
import shutil

import pytest
from running_server import wait_for
from tiny_models import SENTENCE
from torch_models import save_torch_model, torch_model

from spanbert_tf.errors import BadInputError
from spanbert_tf.server import versions
from spanbert_tf.server.versions import Source, find_sources
from spanbert_tf.serving.description import read_description
from spanbert_tf.serving.loading import load_export

NAME = "text_classification"
URL = f"/v1/models/{NAME}:predict"


@pytest.fixture
def export(exports, tmp_path):
    """A copy of an export, which may be changed."""
    _, version = exports[NAME]
    return shutil.copytree(os.path.dirname(version), tmp_path / NAME)


def find(*paths, workspace="", top_k=2):
    return find_sources([str(path) for path in paths], str(workspace), top_k)


def test_an_export_a_version_and_a_models_config(export):
    assert find(export) == [Source(NAME, str(export))]
    assert find(export / "1") == [Source(NAME, str(export), version="1")]
    assert find(export / "models.config") == [Source(NAME, str(export))]


def test_a_models_config_of_directories_that_are_there(export, tmp_path):
    path = tmp_path / "models.config"
    path.write_text(f'model_config_list {{ config {{ name: "a" base_path: "{export}" }} }}')
    assert find(path) == [Source("a", str(export))]


def write_config(path, *entries):
    """Writes a `models.config`; an entry is a name, a path and a policy."""
    models = "".join(
        f'config {{ name: "{name}" base_path: "{base}" {policy} }} '
        for name, base, policy in entries
    )
    path.write_text(f"model_config_list {{ {models} }}")
    return path


def test_a_model_that_is_not_there_is_not_taken_for_another(export):
    path = write_config(
        export / "models.config", (NAME, f"/models/{NAME}", ""), ("other", "/models/other", "")
    )
    with pytest.raises(BadInputError, match="/models/other: is no directory"):
        find(path)


@pytest.mark.parametrize(
    ("policy", "version"),
    [("latest { num_versions: 1 }", None), ("specific { versions: 1 }", "1")],
)
def test_a_models_config_says_which_version_is_served(policy, version, export, tmp_path):
    shutil.copytree(export / "1", export / "2")
    entry = (NAME, export, f"model_version_policy {{ {policy} }}")
    path = write_config(tmp_path / "models.config", entry)
    assert find(path) == [Source(NAME, str(export), version)]


@pytest.mark.parametrize(
    "policy", ["all {}", "latest { num_versions: 2 }", "specific { versions: 1 versions: 2 }"]
)
def test_several_versions_of_a_models_config_are_refused(policy, export, tmp_path):
    entry = (NAME, export, f"model_version_policy {{ {policy} }}")
    with pytest.raises(BadInputError, match="several versions"):
        find(write_config(tmp_path / "models.config", entry))


@pytest.mark.parametrize("content", ["", "{", 'model_config_list { config { name: "a" } }', "\x00"])
def test_a_wrong_models_config_is_named(content, tmp_path):
    path = tmp_path / "models.config"
    path.write_text(content)
    with pytest.raises(BadInputError, match=r"models\.config"):
        find(path)


def test_two_models_of_one_name_are_refused(export):
    with pytest.raises(BadInputError, match="two models have this name"):
        find(export, export / "1")


def test_presets_of_one_name_are_refused_before_any_is_exported(tmp_path):
    runs = [tmp_path / parent / "run" / "preset" for parent in "ab"]
    for preset in runs:
        preset.mkdir(parents=True)
    with pytest.raises(BadInputError, match="run: two models have this name"):
        find(*runs, workspace=tmp_path / "workspace")


def test_a_preset_is_exported(exports, tmp_path):
    preset, _ = exports[NAME]
    (source,) = find(preset, workspace=tmp_path)
    assert source == Source(NAME, str(tmp_path / NAME))
    assert (tmp_path / NAME / "1" / "saved_model.pb").exists()


@pytest.mark.slow
def test_a_directory_of_hugging_face_is_converted_and_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    model = save_torch_model(torch_model(), tmp_path / "my-encoder")
    (source,) = find(model, workspace=tmp_path / "workspace")
    assert source == Source("my-encoder", str(tmp_path / "workspace" / "my-encoder"))
    assert read_description(f"{source.directory}/1").task == "fill_mask"


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(BadInputError):
        find(tmp_path, workspace=tmp_path)


def version_of(client):
    found = client.get(f"/v1/models/{NAME}").json()
    return found["model_version_status"][0]["version"]


def answers(client):
    return client.post(URL, json={"instances": [SENTENCE]}).status_code == 200


def test_a_new_version_is_taken_up_and_a_deleted_one_goes_on(
    export, make_client, monkeypatch, capsys
):
    monkeypatch.setattr(versions, "POLL_SECONDS", 0.05)
    client = make_client([Source(NAME, str(export))])
    assert version_of(client) == "1" and answers(client)
    (export / "3").mkdir()  # an unfinished copy
    (export / "3" / "saved_model.pb").write_bytes(b"\x00")
    wait_for(lambda: "goes on as it is" in capsys.readouterr().out)
    assert version_of(client) == "1" and answers(client)
    shutil.rmtree(export / "3")
    shutil.copytree(export / "1", export / "aside")
    (export / "aside").rename(export / "12")
    wait_for(lambda: version_of(client) == "12")
    assert answers(client)
    assert client.get(f"/v1/models/{NAME}/versions/1").status_code == 404
    shutil.rmtree(export)
    wait_for(lambda: "goes on as it is" in capsys.readouterr().out)
    assert version_of(client) == "12" and answers(client)


def test_a_version_that_is_exported_anew_is_taken_up(export, make_client, monkeypatch, capsys):
    monkeypatch.setattr(versions, "POLL_SECONDS", 0.05)
    client = make_client([Source(NAME, str(export))])
    capsys.readouterr()
    (export / "1").rename(export / "old")
    shutil.copytree(export / "old", export / "aside")
    (export / "aside").rename(export / "1")
    wait_for(lambda: f"{NAME}: serves version 1" in capsys.readouterr().out)
    assert answers(client)


def test_a_version_is_closed_after_its_last_request():
    class Thread:
        is_closed = False

        async def close(self):
            self.is_closed = True

    async def steps():
        thread = Thread()
        version = versions.Version(None, thread)
        with version.used():
            closing = asyncio.create_task(version.close())
            await asyncio.sleep(0)
            assert not thread.is_closed
        await closing
        assert thread.is_closed

    asyncio.run(steps())


def test_an_export_with_an_unknown_operation_is_named(export):
    graph = export / "1" / "saved_model.pb"
    content = graph.read_bytes()
    assert b"ReadVariableOp" in content
    graph.write_bytes(content.replace(b"ReadVariableOp", b"ReadVariableOq"))
    with pytest.raises(BadInputError, match="1: cannot be loaded"):
        load_export(str(export / "1"))
