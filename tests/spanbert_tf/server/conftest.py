"""Exports of tiny models, and a client of a server that has them all."""

import contextlib

import pytest
from running_server import RunningServer
from starlette.testclient import TestClient
from tiny_models import ALL_INPUTS, export_tiny_model

from spanbert_tf.server.application import create_application
from spanbert_tf.server.metrics import Metrics
from spanbert_tf.server.versions import Models, Source

NAMES = ("named_entities", "question_answering", "text_classification", "text_embedding")
HOST = "http://127.0.0.1:8501"
MAX_BODY = 20_000


@pytest.fixture(scope="session")
def exports(tmp_path_factory):
    """Name of a task → its preset and the version of its export."""
    directory = tmp_path_factory.mktemp("exports")
    found = {}
    for name in NAMES:
        version = export_tiny_model(name, directory)
        found[name] = (str(directory / "presets" / name), version)
    return found


@pytest.fixture(scope="session")
def sources(exports):
    return [Source(name, version.removesuffix("/1")) for name, (_, version) in exports.items()]


@pytest.fixture(scope="session")
def sources_of_all_tasks(sources, tmp_path_factory):
    directory = tmp_path_factory.mktemp("others")
    found = list(sources)
    for name in ALL_INPUTS.keys() - set(NAMES):
        version = export_tiny_model(name, directory)
        found.append(Source(name, version.removesuffix("/1")))
    return found


@pytest.fixture(scope="module")
def make_client():
    """Makes clients of servers in this process; each is closed at the end of the module."""
    clients = []

    def make(sources, host="127.0.0.1", key=None, max_batch_tokens=64):
        models = Models(sources, max_batch_tokens, Metrics())
        application = create_application(models, host, key, MAX_BODY)
        client = TestClient(application, base_url=HOST)
        client.__enter__()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def client(sources, make_client):
    return make_client(sources)


@pytest.fixture(scope="module")
def run():
    """Starts servers on ports of this machine; each ends with the module."""
    with contextlib.ExitStack() as stack:

        def begin(sources, max_batch_tokens=16_384, key=None):
            running = RunningServer(sources, max_batch_tokens, key)
            stack.callback(running.close)
            return running

        yield begin


@pytest.fixture(scope="module")
def running(run, sources):
    return run(sources)
