"""Limits of the HTTP protocol: slow clients, large headers, invalid data and clients that do not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.server.conftest import paused_engine

from aethermind import LLM
from aethermind.server.admission import Limits

LONG = b'{"model":"demo","prompt":"x","max_tokens":400,"ignore_eos":true,"n":16,"logprobs":20,"stream":true}'
GOOD = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 4}


@contextmanager
def wire(http: httpx.Client, **options: int) -> Iterator[socket.socket]:
    """A plain connection."""
    with socket.socket() as connection:
        for name, value in options.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.settimeout(30)
        connection.connect((http.base_url.host, http.base_url.port))
        yield connection


def everything(connection: socket.socket) -> bytes:
    """All data until the server closes the connection."""
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionError:
        pass
    return received


def rejections(http: httpx.Client, reason: str) -> float:
    name = f'aethermind_requests_rejected_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(name)) for line in http.get("/metrics").text.splitlines() if name in line)


def test_headers_beyond_the_limit_are_a_431(http: httpx.Client) -> None:
    before = rejections(http, "headers_too_large")
    with wire(http) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        for _ in range(32):
            connection.sendall(b"x" * (1 << 16))
        assert everything(connection).startswith(b"HTTP/1.1 431 ")
    assert http.get("/health", headers={"X-Long": "x" * 70_000}).status_code == 431
    assert rejections(http, "headers_too_large") == before + 2
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("data", [b"HELLO\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_data_that_is_not_http_is_a_400(http: httpx.Client, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with wire(http) as connection:
        connection.sendall(data)
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert json.loads(body)["error"]["message"].startswith("This is no HTTP request.")
    assert not caplog.records


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_error_is_sent_behind_the_answers_to_earlier_requests(http: httpx.Client, is_stream: bool) -> None:
    body = json.dumps({**GOOD, "stream": is_stream}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with wire(http) as connection:
        connection.sendall(request * 2 + b"HELLO\r\n\r\n")
        received = everything(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.count(b'"finish_reason":"length"') == 2
    assert received.count(b"HTTP/1.1 400 ") == 1
    assert received.rpartition(b"HTTP/1.1 ")[2].startswith(b"400 Bad Request")


def test_invalid_data_during_an_answer_does_not_truncate_it(http: httpx.Client, llm: LLM) -> None:
    body = json.dumps({**GOOD, "max_tokens": 40, "ignore_eos": True, "stream": True}).encode()
    with wire(http) as connection, paused_engine(llm) as resume:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
        received = connection.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 200")
        connection.sendall(b"HELLO\r\n\r\n")
        resume.set()
        received += everything(connection)
    answer, _, refusal = received.partition(b"HTTP/1.1 400 ")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"This is no HTTP request." in refusal


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_body_with_an_invalid_chunk_size_is_a_400(http: httpx.Client, before: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with wire(http) as connection:
        connection.sendall(before + head + b"5\r\n12345\r\n")
        connection.sendall(b"zz\r\n12345\r\n")
        received = everything(connection)
    assert received.count(b"HTTP/1.1 ") == 1 + bool(before)
    head, _, body = received.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
    assert head.startswith(b"400 ")
    assert json.loads(body)["error"]["message"].startswith("The request body is not as its headers say")


def test_a_request_answered_without_its_body_is_not_answered_twice(http: httpx.Client) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: elsewhere\r\nTransfer-Encoding: chunked\r\n\r\n"
    with wire(http) as connection:
        connection.sendall(head)
        received = connection.recv(1 << 16)
        connection.sendall(b"zz\r\n12345\r\n")
        received += everything(connection)
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("following", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_url_beyond_the_limit_is_a_431(http: httpx.Client, following: bytes) -> None:
    with wire(http) as connection:
        connection.sendall(b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 70_000) + following)
        received = everything(connection)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b'"headers_too_large"' in received


@pytest.mark.parametrize("size", [1 << 16, 1, 7])
@pytest.mark.parametrize("other", [b"h2c", b"websocket"])
def test_an_upgrade_header_is_ignored(http: httpx.Client, other: bytes, size: int) -> None:
    """Java's HttpClient asks for an upgrade to HTTP/2 in its first request, which may have a body."""
    body = json.dumps(GOOD).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n"
        b"Host: localhost\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: %s\r\n\r\n"
    )
    next_request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sent = head % (len(body), other) + body + next_request
    with wire(http) as connection:
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
        answers = everything(connection)
    assert answers.startswith(b"HTTP/1.1 200 OK")
    assert b'"text_completion"' in answers
    assert answers.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(("version", "connection"), [(b"1.1", b"Upgrade, close"), (b"1.0", b"Upgrade")])
def test_an_upgrade_header_is_ignored_on_a_connection_to_be_closed(
    http: httpx.Client, version: bytes, connection: bytes
) -> None:
    body = json.dumps({**GOOD, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/%s\r\nHost: localhost\r\nConnection: %s\r\n" % (version, connection)
    head += b"Upgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    with wire(http) as plug:
        plug.settimeout(5)
        plug.sendall(head + body)
        answer = everything(plug)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"data: [DONE]" in answer
    assert (b"transfer-encoding: chunked" in answer) == (version == b"1.1")


def test_an_http_1_0_answer_has_no_chunks_and_closes_the_connection(http: httpx.Client) -> None:
    """`ab`, HAProxy's health checks and older proxies use HTTP/1.0 without a Host header."""
    whole = http.post("/v1/completions", json={**GOOD, "temperature": 0}).json()["choices"][0]["text"]
    for extra, kind in (({}, b"application/json"), ({"stream": True}, b"text/event-stream")):
        body = json.dumps({**GOOD, "temperature": 0, **extra}).encode()
        with wire(http) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            head, _, answer = everything(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert kind in head
        assert b"transfer-encoding" not in head.lower()
        if not extra:
            assert json.loads(answer)["choices"][0]["text"] == whole
            continue
        *events, end = [event.removeprefix(b"data: ") for event in answer.strip().split(b"\n\n")]
        assert end == b"[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == whole
    with wire(http) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("other", [b"localhost", b"elsewhere"])
def test_two_host_headers_are_a_400(http: httpx.Client, other: bytes) -> None:
    with wire(http) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: %s\r\nConnection: close\r\n\r\n" % other)
        assert everything(connection).startswith(b"HTTP/1.1 400 ")


def test_a_connect_request_is_a_400(http: httpx.Client) -> None:
    with wire(http) as connection:
        connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 400 ")


def test_an_idle_connection_is_a_408(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(keep_alive_timeout_s=0.3))
    for beginning in (
        b"",
        b"GET /health HTTP/1.1\r\nHost: loc",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
    ):
        with wire(http) as connection:
            connection.sendall(beginning)
            answer = everything(connection)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"idle"' in answer.replace(b" ", b"")
    assert rejections(http, "idle") == 3


def test_a_client_that_does_not_read_is_disconnected_and_frees_its_blocks(
    open_server: Callable[..., httpx.Client], caplog: pytest.LogCaptureFixture
) -> None:
    http = open_server(limits=Limits(send_timeout_s=0.05))
    with wire(http, SO_RCVBUF=4096) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(LONG) + LONG)
        while not rejections(http, "slow_reader"):
            assert http.post("/v1/completions", json=GOOD).status_code == 200  # other requests are served
        received = everything(connection)
        assert received.startswith(b"HTTP/1.1 200 ")
        assert not received.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    usage = 'aethermind_kv_cache_usage_ratio{model_name="demo"} '
    while f"{usage}0.0" not in http.get("/metrics").text:
        pass
    assert not caplog.records


@pytest.mark.parametrize("depth", [64, 65])
def test_the_nesting_depth_of_a_body_is_limited(http: httpx.Client, depth: int) -> None:
    prompt = "[" * (depth - 1) + "]" * (depth - 1)
    answer = http.post("/v1/completions", content=f'{{"model":"demo","prompt":{prompt}}}')
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"] == "nested_too_deeply") == (depth > 64)
