"""Clients that are slow, go away or are too many harm no other; over connections of a network."""

import asyncio
import concurrent.futures
import contextlib
import http.client as http_client
import json
import os
import shutil
import socket
import threading
import time
import types

import pytest
import requests
from running_server import MAX_BODY, WAIT, wait_for
from tiny_models import SENTENCE

from spanbert_tf.server import connections, http, security, versions
from spanbert_tf.server.model import Model
from spanbert_tf.server.versions import Source

NAME = "text_classification"
SHORT = 1.0  # seconds; what takes longer is cut


def head_of(body_size, path="/answer"):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {body_size}", "", ""]
    return "\r\n".join(lines).encode()


def whole(content, path="/answer"):
    body = json.dumps(content).encode()
    return head_of(len(body), path) + body


def drip(connection, byte=b"x"):
    """Sends a byte now and then until the other side closes; returns what it sent before."""
    answer = b""
    connection.settimeout(SHORT / 10)
    end = time.monotonic() + WAIT
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            connection.sendall(byte)
            with contextlib.suppress(TimeoutError):
                part = connection.recv(1 << 16)
                if not part:
                    return answer
                answer += part
    assert time.monotonic() < end, "the connection stays open"
    return answer


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"", None),
        (b"POST /answer HTTP/1.1\r\nX: ", None),
        (head_of(100_000), b"408"),
        (head_of(50_000_000), b"413"),
        (whole({"model": NAME, "inputs": SENTENCE}) + b"POST / HTTP/1.1\r\nX: ", b"200"),
    ],
    ids=["silent", "head", "body", "refused", "second"],
)
def test_slow_clients_are_cut_off_and_others_are_served(begun, status, running, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", SHORT)
    monkeypatch.setattr(http, "BODY_SECONDS", SHORT)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, running.connect() as slow:
        slow.sendall(begun)
        answer = pool.submit(drip, slow)
        assert running.ask(NAME, SENTENCE).status_code == 200
        head = answer.result().split(b"\r\n")[0]
    assert head == b"" if status is None else head.startswith(b"HTTP/1.1 " + status)


def test_silent_connections_are_closed(running, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", SHORT)
    many = [running.connect() for _ in range(20)]
    assert running.ask(NAME, SENTENCE).status_code == 200
    for connection in many:
        with connection:
            assert connection.recv(1) == b""


@pytest.mark.slow
def test_a_connection_may_rest_between_two_requests(running):
    """For longer than the five seconds of uvicorn, which pools of connections do not know."""
    connection = http_client.HTTPConnection(*running.address)
    body = json.dumps({"model": NAME, "inputs": SENTENCE})
    with contextlib.closing(connection):
        for rest in (6, 0):
            connection.request("POST", "/answer", body)
            assert json.loads(connection.getresponse().read())["label"]
            time.sleep(rest)


def test_a_client_that_reads_nothing_is_cut_off(running, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", SHORT)
    asked = whole({"instances": [SENTENCE] * 1_000}, "/v1/models/text_embedding:predict")
    with running.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(20):  # answers of 3 MB each
                deaf.sendall(asked)
        assert running.ask(NAME, SENTENCE).status_code == 200
        deaf.settimeout(WAIT)
        wait_for(lambda: len(running.server.server_state.connections) == 0)


def test_a_body_of_50_mb_is_refused(running):
    answer = requests.post(f"{running.url}/answer", data=b" " * 50_000_000, timeout=WAIT)
    assert answer.status_code == 413
    parts = (b" " * 100_000 for _ in range(500))
    with contextlib.suppress(requests.ConnectionError):  # or it sees the end of the connection
        answer = requests.post(f"{running.url}/answer", data=parts, timeout=WAIT)
        assert answer.status_code == 413
    assert running.ask(NAME, SENTENCE).status_code == 200


@pytest.mark.parametrize("path", ["/answer", "/none"])
def test_a_client_that_closes_gets_the_answer_to_what_was_not_read(path, running):
    with running.connect() as connection:
        head = head_of(MAX_BODY + 1, path).replace(b"Host", b"Connection: close\r\nHost")
        connection.sendall(head + b" " * (MAX_BODY + 1))
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.split(b" ")[1] in (b"413", b"404")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_bodies_that_wait_are_bounded(running, monkeypatch):
    bodies = http.Bodies(MAX_BODY)
    monkeypatch.setattr(bodies, "_free_bytes", 150_000)
    monkeypatch.setattr(running.server.config.loaded_app.app.state, "bodies", bodies)
    with running.connect() as first:
        first.sendall(head_of(100_001) + b" " * 100_000)
        wait_for(lambda: bodies._free_bytes == 50_000)
        answer = requests.post(f"{running.url}/answer", data=b" " * 60_000, timeout=WAIT)
        assert answer.status_code == 429 and "Retry-After" in answer.headers
        assert running.ask(NAME, SENTENCE).status_code == 200
    wait_for(lambda: bodies._free_bytes == 150_000)


def test_too_many_connections_are_told(running, monkeypatch):
    monkeypatch.setattr(security, "_MAX_CONNECTIONS", 2)
    wait_for(lambda: len(running.server.server_state.connections) == 0)
    with running.connect(), running.connect():
        wait_for(lambda: len(running.server.server_state.connections) == 2)
        answer = running.ask(NAME, SENTENCE)
    assert answer.status_code == 503 and answer.json()["error"]
    assert answer.headers["Retry-After"].isdecimal()


def test_a_busy_server_is_alive(running, monkeypatch):
    wait_for(lambda: len(running.server.server_state.connections) == 0)
    monkeypatch.setattr(security, "_MAX_CONNECTIONS", 0)
    assert requests.get(f"{running.url}/v2/health/live", timeout=WAIT).status_code == 200
    assert requests.get(f"{running.url}/v2", timeout=WAIT).status_code == 503


def test_answers_do_not_wait_for_acknowledgements(running):
    """The system would hold the second piece of an answer back for 40 ms."""
    with requests.Session() as session:
        session.get(f"{running.url}/v2/health/live", timeout=WAIT)
        (connection,) = running.server.server_state.connections
        opened = connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(("num_unread", "goes_on"), [(9, True), (10, False)])
def test_a_client_that_reads_slowly_goes_on(num_unread, goes_on):
    """It has read one of ten bytes since the last look, or none."""
    done = []
    transport = types.SimpleNamespace(
        get_write_buffer_size=lambda: num_unread, abort=lambda: done.append("aborted")
    )
    connection = types.SimpleNamespace(
        transport=transport, cycle=None, _unread_bytes=10, _wait=lambda: done.append("waits")
    )
    connections.Connection._look(connection)
    assert done == ["waits" if goes_on else "aborted"]


@pytest.mark.parametrize("is_large", [False, True])
def test_large_bodies_are_read_beside_the_event_loop(is_large):
    found = asyncio.run(http.beside(http._LARGE + is_large, threading.get_ident))
    assert (found != threading.get_ident()) == is_large


@pytest.fixture
def gate(monkeypatch):
    """Holds all batches until it is set; the texts that were computed are in `gate.texts`."""
    event = threading.Event()
    event.texts = []
    compute = Model.compute

    def gated(self, signature, inputs):
        event.wait(WAIT)
        event.texts += inputs["text"].tolist()
        return compute(self, signature, inputs)

    monkeypatch.setattr(Model, "compute", gated)
    yield event
    event.set()


def test_what_nobody_waits_for_is_not_computed(run, sources, gate):
    gate.set()
    running = run([source for source in sources if source.name == NAME], max_batch_tokens=8)
    gate.clear()
    gate.texts.clear()
    worker = running.worker(NAME)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(running.ask, NAME, "ann ann ann ann")  # one batch each
        wait_for(lambda: worker.waiting_tokens == 6)
        with running.connect() as gone:
            gone.sendall(whole({"inputs": "bob bob bob bob"}))
            wait_for(lambda: worker.waiting_tokens == 12)
            last = pool.submit(running.ask, NAME, "cat cat cat cat")
            wait_for(lambda: worker.waiting_tokens == 18)
        wait_for(lambda: worker.waiting_tokens == 12)
        gate.set()
        assert first.result().status_code == last.result().status_code == 200
    assert gate.texts == [b"ann ann ann ann", b"cat cat cat cat"]


def test_a_request_ends_with_the_version_that_it_began_with(
    run, exports, gate, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(versions, "POLL_SECONDS", 0.05)
    _, version = exports[NAME]
    export = shutil.copytree(os.path.dirname(version), tmp_path / NAME)
    gate.set()
    running = run([Source(NAME, str(export))])
    old = running.worker(NAME)
    gate.clear()
    asked = [{"instances": [SENTENCE]}, {"instances": [SENTENCE + " " * 100_000]}]
    path = f"{running.url}/v1/models/{NAME}:predict"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(requests.post, path, json=body, timeout=WAIT) for body in asked]
        wait_for(lambda: old.waiting_tokens == 14)
        shutil.copytree(export / "1", tmp_path / "aside")
        (tmp_path / "aside").rename(export / "2")
        gate.texts.clear()
        gate.set()
        wait_for(lambda: running.worker(NAME) is not old)
        shutil.rmtree(export / "1")
        assert [answer.result().status_code for answer in answers] == [200, 200]
    assert running.ask(NAME, SENTENCE).status_code == 200
    assert "serves version 2" in capsys.readouterr().out


def test_under_overload_each_request_is_answered(run, sources):
    running = run([source for source in sources if source.name == NAME], max_batch_tokens=64)
    inputs = [SENTENCE] * 500  # 7 tokens each; 4,096 may wait
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(running.ask, [NAME] * 20, [inputs] * 20))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.headers["Retry-After"].isdecimal() and answer.json()["error"]
        else:
            assert len(answer.json()) == 500
    assert running.worker(NAME).waiting_tokens == 0
    assert running.ask(NAME, SENTENCE).status_code == 200
