"""Who may ask: pages of other sites may not, and nobody without the key where there is one."""

import pytest
from tiny_models import SENTENCE

from spanbert_tf.errors import BadInputError
from spanbert_tf.server.security import read_key

KEY = "0123456789abcdef"
URL = "/v1/models/text_classification:predict"
BODY = {"instances": [SENTENCE]}


def ask(client, **headers):
    return client.post(URL, json=BODY, headers=headers).status_code


@pytest.mark.parametrize("host", ["127.0.0.1:8501", "localhost", "localhost:80", "[::1]:8501"])
def test_names_of_this_machine(host, client):
    assert ask(client, host=host) == 200
    assert ask(client, host=host, origin=f"http://{host}") == 200


@pytest.mark.parametrize(
    "host",
    ["example.com", "localhost.example.com", "127.0.0.1.nip.io", "10.0.0.1", "", "[::1", "@"],
)
def test_a_foreign_host_is_refused(host, client):
    assert ask(client, host=host) == 403
    assert client.get("/metrics", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://example.com", "null", "", "file://", "http://127.0.0.1:9", "http://["]
)
def test_a_foreign_origin_is_refused(origin, client):
    assert ask(client, origin=origin) == 403


def test_without_a_key_addresses_are_own_names_but_sites_are_not(sources, make_client):
    client = make_client(sources[2:3], host="0.0.0.0")
    assert ask(client, host="10.1.2.3:8501") == 200
    assert ask(client, host="example.com") == 403


def test_the_key(sources, make_client):
    client = make_client(sources[2:3], host="0.0.0.0", key=KEY)
    for wrong in ("", KEY, f"Bearer {KEY}x", f"Basic {KEY}", "Bearer", "Bearer \xe9"):
        response = client.post(URL, json=BODY, headers={"authorization": wrong.encode("latin-1")})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert KEY not in response.text
    assert ask(client) == 401
    assert client.get("/metrics").status_code == 401
    for path in ("/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200, path
    assert ask(client, authorization=f"Bearer {KEY}") == 200
    assert ask(client, authorization=f"bearer {KEY}", host="models.example.com") == 200
    assert ask(client, authorization=f"Bearer {KEY}", origin="http://example.com") == 403


def test_a_key_is_read_from_its_own_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    assert read_key(str(path)) == KEY
    path.chmod(0o644)
    with pytest.raises(BadInputError, match="chmod 600"):
        read_key(str(path))


@pytest.mark.parametrize("content", ["", "short", f"{KEY}\n{KEY}", f"{KEY} {KEY}", "é" * 20])
def test_wrong_keys_are_refused(content, tmp_path):
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(BadInputError, match="key"):
        read_key(str(path))


def test_nothing_of_a_request_is_printed(client, capfd):
    secret = "a-secret-text"
    client.post(URL, json={"instances": [secret]})
    client.post(URL, json={"instances": [{secret: secret}]})
    client.post("/answer", content=f"{{{secret}")
    client.get(f"/{secret}")
    printed = capfd.readouterr()
    assert secret not in printed.out + printed.err
