"""`spanbert-tf serve` in a process of its own, asked by `requests`, until SIGTERM."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import urllib.parse

import pytest
import requests
from running_server import wait_for
from tiny_models import SENTENCE

from spanbert_tf.errors import BadInputError
from spanbert_tf.server.application import run_server


@pytest.fixture
def start(tmp_path):
    """Starts a server; returns its process and its URL."""
    children = []

    def begin(*arguments):
        command = [sys.executable, "-m", "spanbert_tf.cli", "serve", *arguments, "--port", "0"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        children.append(child)
        for line in child.stdout:
            if line.startswith("http://"):
                return child, line.strip()
        raise AssertionError(f"ended with {child.wait()}")

    yield begin
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_sigterm_finishes_what_was_begun(exports, start):
    _, version = exports["text_classification"]
    preset, _ = exports["named_entities"]
    child, url = start(version, preset)
    body = {"model": "named_entities", "inputs": SENTENCE}
    assert requests.post(f"{url}answer", json=body, timeout=60).status_code == 200

    def ask(_):
        inputs = {"model": "text_classification", "inputs": [SENTENCE] * 500}
        return requests.post(f"{url}answer", json=inputs, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(4)]
        concurrent.futures.wait(asked, return_when="FIRST_COMPLETED")
        child.send_signal(signal.SIGTERM)
        done = [future.exception() or future.result() for future in asked]
    for response in done:
        # One that came too late finds no server; none ends in the middle.
        assert isinstance(response, requests.ConnectionError) or len(response.json()) == 500
    assert any(isinstance(response, requests.Response) for response in done)
    assert child.wait(60) == 0


@pytest.mark.slow
def test_sigterm_leaves_no_export_behind(exports, tmp_path):
    preset, _ = exports["named_entities"]
    command = [sys.executable, "-m", "spanbert_tf.cli", "serve", preset, "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def has_export():
        # Not `glob`, which fails if a directory is renamed while it looks.
        found = os.walk(tmp_path)
        return any(
            "spanbert_tf-serve-" in path and "pipeline.json" in names for path, _, names in found
        )

    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        try:
            wait_for(has_export)
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 128 + signal.SIGTERM
        finally:
            child.kill()  # a server that is left would be waited for
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_half_closed_and_broken_connections_harm_nobody(exports, start):
    _, version = exports["text_classification"]
    _, url = start(version)
    address = urllib.parse.urlsplit(url)
    head = b"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    for sent in (b"", b"\x00\xff", b"GET / HTTP/9\r\n\r\n", head, b"A" * 100_000):
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
    assert requests.post(f"{url}answer", json={"inputs": SENTENCE}, timeout=60).status_code == 200


def test_a_port_that_is_taken_is_named(exports):
    _, version = exports["text_classification"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = {"api_key_file": None, "max_batch_tokens": 64, "max_body_bytes": 64, "top_k": 2}
        with pytest.raises(BadInputError, match=f"--port {port}"):
            run_server([version], host="127.0.0.1", port=port, **options)
