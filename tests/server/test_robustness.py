"""Valid JSON beyond any limit: rejected with an error, without much memory or time."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_abuse import COMPLETIONS, GOOD, HOSTILE

CHAT = "/v1/chat/completions"
MANY = 100_000
SAY = [{"role": "user", "content": "Hi"}]


def schema(schema: Any) -> dict[str, Any]:
    return {**GOOD, "structured_outputs": {"json": schema}}


TOO_MUCH: dict[str, Any] = {
    "answers": {**GOOD, "n": 2**31},
    "tokens": {**GOOD, "max_tokens": 2**31},
    "tokens and more": {**GOOD, "max_tokens": 2**63},
    "logprobs": {**GOOD, "logprobs": 10**6},
    "seed": {**GOOD, "seed": 2**64},
    "schema that is itself": schema({"$ref": "#"}),
    "schemas that are each other": schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "schema that branches for ever": schema({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "schema from elsewhere": schema({"$ref": "file:///etc/passwd"}),
    "schema of many members": schema({"properties": {f"p{i}": {} for i in range(MANY)}}),
    "schema of many values": schema({"enum": [f"v{i}" for i in range(MANY)]}),
    "schema of many branches": schema({"anyOf": [{"const": i} for i in range(MANY)]}),
    "choices": {**GOOD, "structured_outputs": {"choice": [f"c{i}" for i in range(MANY)]}},
    "biases": {**GOOD, "logit_bias": {str(i): 1 for i in range(MANY)}},
    "stop ids": {**GOOD, "stop_token_ids": list(range(MANY))},
    "allowed ids": {**GOOD, "allowed_token_ids": list(range(MANY))},
    "bad words": {**GOOD, "bad_words": ["a"] * MANY},
    "a long bad word": {**GOOD, "bad_words": ["a b c d " * 50_000]},
    "a long stop": {**GOOD, "stop": "x" * 1_000_000},
    "a prompt of megabytes": {**GOOD, "prompt": "The old fox " * 250_000},
    "prompts of many": {**GOOD, "prompt": [[5]] * MANY},
    "an id of many digits": {**GOOD, "prompt": [10**30]},
}
ODD_CHATS: dict[str, Any] = {
    "no role": [{"content": "Hi"}],
    "an unknown role": [{"role": "root", "content": "Hi"}],
    "a content of numbers": [{"role": "user", "content": 5}],
    "a part of no kind": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}]}],
    "an answer to no call": [{"role": "tool", "content": 3}],
    "an object": {"role": "user"},
    "many": [{"role": "user", "content": "a " * 100}] * 200,
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_requests_beyond_any_limit_are_a_400(http: httpx.Client, name: str) -> None:
    answer = http.post(COMPLETIONS, json=TOO_MUCH[name])
    assert answer.status_code == 400, answer.text
    assert 10 < len(answer.json()["error"]["message"]) < 700
    assert http.post(COMPLETIONS, json=GOOD).status_code == 200


@pytest.mark.parametrize("name", ODD_CHATS)
def test_invalid_conversations_are_a_400(http: httpx.Client, name: str) -> None:
    answer = http.post(CHAT, json={"model": "demo", "messages": ODD_CHATS[name], "max_tokens": 3})
    assert answer.status_code == 400, answer.text
    assert http.post(CHAT, json={"model": "demo", "messages": SAY, "max_tokens": 3}).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/detokenize"])
def test_hostile_bodies_are_400_everywhere(open_server: Callable[..., httpx.Client], path: str) -> None:
    """The server is strict, because some of these bodies are invalid only by fields that /tokenize does not have."""
    http = open_server(strict_requests=True)
    for name, content in HOSTILE.items():
        if (path, name) != ("/tokenize", "empty prompt"):  # an empty text is valid there
            assert http.post(path, content=content).status_code == 400
    assert http.get("/ready").status_code == 200


def test_a_context_overflow_has_both_numbers(http: httpx.Client) -> None:
    for prompt in ("word " * 600, "word " * 100_000):
        error = http.post(COMPLETIONS, json={**GOOD, "prompt": prompt}).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]


def resident_bytes() -> int:
    """Resident memory of this process, in which the server runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("has_length", [True, False])
def test_200_megabytes_are_rejected_without_being_buffered(http: httpx.Client, has_length: bool) -> None:
    size, piece = 200 << 20, b" " * (1 << 16)
    framing = f"Content-Length: {size}" if has_length else "Transfer-Encoding: chunked"
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    chunk = piece if has_length else b"%x\r\n%s\r\n" % (len(piece), piece)
    before = resident_bytes()
    with socket.create_connection((http.base_url.host, http.base_url.port), timeout=20) as connection:
        connection.sendall(head.encode())
        answer, is_closed = b"", False
        try:
            for _ in range(size // len(piece)):
                connection.sendall(chunk)
        except OSError:  # the server has closed the connection
            is_closed = True
        with suppress(ConnectionError):
            answer = connection.recv(1 << 16)
    assert is_closed
    assert not answer or b" 413 " in answer.split(b"\r\n")[0]
    assert resident_bytes() - before < 32 << 20
    assert http.post(COMPLETIONS, json=GOOD).status_code == 200


def test_many_rejected_requests_leak_no_memory(http: httpx.Client) -> None:
    def flood() -> Iterator[int]:
        for _ in range(10):
            for name in ("NaN", "deep list", "fraction", "token id out of range"):
                yield http.post(COMPLETIONS, content=HOSTILE[name]).status_code

    assert set(flood()) == {400}
    before = resident_bytes()
    assert set(flood()) == {400}
    assert resident_bytes() - before < 16 << 20


def test_long_fields_are_truncated_in_the_log(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "aethermind.request"):
        http.post(COMPLETIONS, json={**GOOD, "user": "u" * 1_000_000})
        http.get("/x" * 20_000)
        while len(caplog.records) < 2:
            http.get("/health")
    assert all(len(json.dumps(record.fields)) < 2000 for record in caplog.records)
