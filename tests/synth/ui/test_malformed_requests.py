"""Malformed requests: each gets one line, and none a traceback."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from synth.ui.limits import LOCAL, public
from tests.synth.ui_pages import SETTING, TOKEN, Client, served

POSTED = ("draw", "explain", "export", "open", "solve", "curve", "what-if")

BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"42",
    b'"text"',
    b"\xff\xfe\x00",
    b"{" * 5000,
    b"[" * 100_000,
    b'{"setting": 1e999}',
    b'{"setting": ' + b"9" * 500 + b"}",
    b'{"setting": {}, "setting": {}}',
    b'{"setting": {"ranks": "many"}}',
    b'{"unknown": 1}',
    b'{"text": {"a": 1}}',
    b'{"text": "\\ud800"}',
)

SETTINGS: tuple[dict[str, Any], ...] = (
    {"ranks": -1},
    {"ranks": 0},
    {"ranks": 10**9},
    {"ranks": 1.5},
    {"micro_batches": 0},
    {"micro_batches": 10**30},
    {"model": ""},
    {"model": "../../etc/passwd"},
    {"model": "/dev/stdin"},
    {"model": "a\0b"},
    {"model": "x" * 10_000},
    {"model": "\ud800"},
    {"model": "llama3-70b-h100-tp999999999"},
    {"placement": "spiral"},
    {"placement": "looped:99999"},
    {"placement": "wave:0"},
    {"mem_limit": "-1GB"},
    {"mem_limit": "lots"},
    {"mem_limit": "1GB,2GB"},
    {"mem_limit": "auto:3"},
    {"mem_limit": "min"},
    {"link": "fast"},
    {"link": "-1us,0GB/s"},
    {"link": ";;"},
    {"objective": "beauty"},
    {"objective": "iterations:0"},
    {"recompute": "7-3"},
    {"recompute": "layers:999"},
    {"partition": [0, 0, 0, 24]},
    {"partition": [-1, 9, 8, 8]},
    {"partition": []},
    {"partition": [10**12] * 4},
    {"time_limit": 0},
    {"time_limit": -5},
    {"sliders": {"layers": 0}},
    {"sliders": {"forward_ms": -1}},
    {"sliders": {"forward_ms": 0}},
    {"sliders": {"saved_mb": 1e300}},
    {"sliders": []},
    {"tp": 0},
)

SOURCES: tuple[dict[str, Any], ...] = (
    {},
    {"schedule": "1f1b", "plan": "x"},
    {"schedule": "best"},
    {"schedule": "interleaved:0"},
    {"schedule": "interleaved:x=y"},
    {"schedule": ":"},
    {"schedule": "chimera", "programs": ["F0.0"]},
    {"plan": "../plan.json"},
    {"plan": "found-0000"},
    {"schedule": "1f1b", "programs": []},
    {"schedule": "1f1b", "programs": [""] * 4},
    {"schedule": "1f1b", "programs": ["F0.0"] * 4},
    {"schedule": "1f1b", "programs": ["X9.9"] * 4},
    {"schedule": "1f1b", "programs": ["F0.0 " * 9] * 4},
    {"schedule": "1f1b", "programs": ["[F0.0]*999999999+1/1"] * 4},
    {"schedule": "1f1b", "programs": ["F99999999999999999999.0"] * 4},
    {"schedule": "1f1b", "programs": ["F-1.0"] * 4},
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(tmp_path_factory.mktemp("empty"))


def requests() -> Iterator[tuple[str, bytes]]:
    """All malformed requests: a path and a body."""
    for path in POSTED:
        yield from ((path, body) for body in BODIES)
    one = {"schedule": "1f1b"}
    for setting in SETTINGS:
        given = {**SETTING, **setting}
        yield "draw", json.dumps({"setting": given, "sources": [one]}).encode()
        yield "explain", json.dumps({"setting": given, "source": one}).encode()
    for source in SOURCES:
        yield "draw", json.dumps({"setting": SETTING, "sources": [source]}).encode()
        body = {"setting": SETTING, "source": source}
        yield "explain", json.dumps(body).encode()
        yield "export", json.dumps({**body, "kind": "plan"}).encode()
    unknown = {"setting": SETTING, "source": one, "kind": "exe"}
    yield "export", json.dumps(unknown).encode()


def test_more_than_a_hundred_malformed_requests_get_one_line_each(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(list(requests())) > 100
    for path, body in requests():
        answered = client.http.post(f"{client.root}/{path}", content=body)
        told = answered.json()
        assert answered.status_code in (200, 400, 413), (path, body[:200], answered.text)
        if answered.status_code == 200:
            told = told["drawn"][0] if "drawn" in told else told
        if "error" in told:
            assert told["error"] and "\n" not in told["error"], (path, body[:200])
            assert "Traceback" not in told["error"]
        else:
            assert told, (path, body[:200])
    assert "Traceback" not in capfd.readouterr().err


def test_bodies_are_read_up_to_a_size(tmp_path: Path) -> None:
    client = Client(tmp_path, public(), token="")
    large = b'{"text": "' + b"x" * (2 << 20) + b'"}'
    assert client.http.post("/open", content=large).status_code == 413

    def in_parts() -> Iterator[bytes]:  # without a length
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    assert client.http.post("/open", content=in_parts()).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "testserver.evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_other_hosts_and_other_sites_are_refused(client: Client, headers: dict[str, str]) -> None:
    answered = client.http.get(f"{client.root}/start", headers=headers)
    assert answered.status_code == 403
    assert set(answered.json()) == {"error"}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    assert client.http.request(method, f"{client.root}/draw").status_code == 405


@pytest.mark.parametrize(
    "path", ["/draw", "/nothing", "/jobs/none", "/static/", "/%00", "/..", "/" + "x" * 3000]
)
def test_other_addresses_are_answered_with_one_line(client: Client, path: str) -> None:
    answered = client.http.get(f"{client.root}{path}")
    assert answered.status_code in (403, 404, 405, 414)
    assert set(answered.json()) == {"error"}


def test_the_address_without_its_last_slash_leads_to_the_page(client: Client) -> None:
    answered = client.http.get(client.root, follow_redirects=False)
    assert (answered.status_code, answered.headers["location"]) == (307, f"{client.root}/")


def test_a_client_that_leaves_while_it_sends_is_no_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as url:
        address = urlsplit(url)
        assert address.hostname is not None
        head = f"POST {address.path}draw HTTP/1.1\r\nHost: {address.netloc}\r\n"
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(f"{head}Content-Length: 99\r\n\r\n{{".encode())
        with urlopen(url, timeout=120) as answered:
            assert answered.status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_public_server_has_neither_a_token_nor_files(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"format": "synth-profile"}')
    client = Client(tmp_path, public(), token="")
    models = client.http.get("/start").json()["models"]
    assert models["profile"] == []
    setting = {**SETTING, "model": "secret.json"}
    assert client.post("draw", {"setting": setting}).status_code == 400
    assert TOKEN not in client.http.get("/").text


def test_a_visitor_gets_a_limited_amount_of_work(tmp_path: Path) -> None:
    client = Client(tmp_path, public(work_s=1e-9), token="")
    assert client.http.get("/start").status_code == 200
    refused = client.post("draw", {"setting": SETTING})
    assert refused.status_code == 429
    assert "try again in" in refused.json()["error"]


@pytest.mark.parametrize("path", ["solve", "curve"])
def test_searches_that_are_too_large_are_refused(tmp_path: Path, path: str) -> None:
    client = Client(tmp_path, public(), token="")
    refused = client.post(path, {"setting": {**SETTING, "micro_batches": 10_000}})
    assert refused.status_code == 400
    assert "are too many for a schedule here" in refused.json()["error"]


def test_limits_of_visitors_are_smaller() -> None:
    visitors = public()
    assert visitors.most_ops < LOCAL.most_ops
    assert visitors.most_body_bytes < LOCAL.most_body_bytes
    assert visitors.search_s < LOCAL.search_s
