"""Presets of `gs://`, from a server of this machine that speaks as Google Cloud Storage does."""

import pathlib
import shutil
import sys

import pytest
import storage_server
from hosts import network_of, outcomes
from small_runs import assert_equal_weights, command_line, weights_of

pytestmark = pytest.mark.cluster

UPLOAD = """
import os, sys
import tensorflow as tf
source, bucket = sys.argv[1:]
for directory, _, files in os.walk(source):
    for name in files:
        path = os.path.join(directory, name)
        target = bucket + path.removeprefix(source)
        tf.io.gfile.copy(path, target)
        assert tf.io.gfile.stat(target).length == os.path.getsize(path)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a program on the host that has the bucket."""
    if not shutil.which("openssl"):
        pytest.skip("openssl, which makes the server's certificate, is not installed")
    certificate = tmp_path / "certificate.pem"
    storage_server.make_certificate(certificate)
    (tmp_path / "home").mkdir()  # KerasHub's copies of presets
    environment = {
        "CURL_CA_BUNDLE": str(certificate),
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
        "HOME": str(tmp_path / "home"),
    }
    with network_of(1, aliases=storage_server.NAMES) as (host,):
        server = host.start([sys.executable, storage_server.__file__, certificate])
        assert server.stdout.readline() == "serves\n", server.communicate()
        yield lambda *command: host.start([sys.executable, *map(str, command)], **environment)


def test_presets_of_a_bucket(start, place, tmp_path):
    bucket = f"gs://{storage_server.BUCKET}"

    def run(*words, status=0):
        ((found, printed, errors),) = outcomes([start("-m", "spanbert_tf.cli", *words)])
        assert found == status, errors
        return printed + errors

    ((status, _, errors),) = outcomes([start("-c", UPLOAD, place / "encoder", f"{bucket}/encoder")])
    assert status == 0, errors
    here, there = (command_line("finetune", place, tmp_path / name, 4) for name in ("1", "2"))
    run(*here)
    run(*(f"{bucket}/encoder" if word == str(place / "encoder") else word for word in there))
    expected, found = (weights_of("finetune", tmp_path / name) for name in ("1", "2"))
    assert_equal_weights(found, expected)
    copies = tmp_path / "home" / ".keras" / "models"
    assert [path.name for path in copies.iterdir()] == ["gs_bucket_encoder"]

    words = ["export", "--embeddings", "--output", tmp_path / "served", "--preset"]
    for preset in (f"{bucket}/nothing", "gs://other/encoder"):
        line = run(*words, preset, status=2).splitlines()[-1]
        assert f"{preset}: no preset (config.json is not there); check the name and" in line
    run(*words, f"{bucket}/encoder")
    assert pathlib.Path(tmp_path / "served" / "1" / "saved_model.pb").is_file()
