"""The request log: one line for each request, without prompts unless enabled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import await_idle, paused_engine

from aethermind import LLM
from aethermind.server.access import Tenants

COMPLETIONS = "/v1/completions"
ASK = {"model": "demo", "prompt": "The secret is a heron", "max_tokens": 5, "ignore_eos": True}


class Records(logging.Handler):
    """Collects all log lines as they would be formatted."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.lines.append(f"{logging.Formatter().format(record)} {fields}")
        if fields.get("path") == COMPLETIONS:
            self.fields.append(fields)


@pytest.fixture
def records() -> Iterator[Records]:
    """All log lines of the process from level debug on."""
    handler, root = Records(), logging.getLogger()
    ours, level = logging.getLogger("aethermind"), logging.getLogger("aethermind").level
    root.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.setLevel(level)
    root.removeHandler(handler)


def test_a_log_line_has_the_usage_and_times_of_a_request(http: httpx.Client, records: Records) -> None:
    answer = http.post(COMPLETIONS, json={**ASK, "user": "mary"}, headers={"X-Request-ID": "order-7"})
    await_idle(http)
    (fields,) = records.fields
    usage = answer.json()["usage"]
    assert answer.headers["X-Client-Request-Id"] == "order-7"
    assert 0 < fields.pop("ttft_ms") <= fields.pop("duration_ms")
    assert fields == {
        "request_id": answer.headers["X-Request-Id"],
        "client_request_id": "order-7",
        "client": "127.0.0.1",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "user": "mary",
        "model": "demo",
        "stream": False,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "output_tokens": 5,
        "preemptions": 0,
        "finish_reason": "length",
    }


def test_a_log_line_has_the_outcome_of_a_request(llm: LLM, http: httpx.Client, records: Records) -> None:
    http.post(COMPLETIONS, json={**ASK, "model": "gpt-9"})
    http.post(COMPLETIONS, json={**ASK, "prompt": "word " * 2000})
    with paused_engine(llm):
        with http.stream("POST", COMPLETIONS, json={**ASK, "max_tokens": 400, "stream": True}) as answer:
            next(answer.iter_lines())
        while len(records.fields) < 3:
            http.get("/health")
    unknown, too_long, left = records.fields
    assert (unknown["status"], unknown["error"]) == (404, "model_not_found")
    assert (too_long["status"], too_long["error"]) == (400, "context_length_exceeded")
    assert (left["status"], left["finish_reason"], left["stream"]) == (200, "abort", True)


def test_a_log_line_of_an_embedding_request_has_its_tokens(http: httpx.Client, records: Records) -> None:
    http.post("/v1/embeddings", json={"model": "demo", "input": [[5] * 7, [6] * 4]})
    while not (lines := [line for line in records.lines if "/v1/embeddings" in line]):
        http.get("/health")
    assert "'model': 'demo', 'prompt_tokens': 11" in lines[0]


def test_the_log_contains_no_prompts(http: httpx.Client, records: Records) -> None:
    http.post(COMPLETIONS, json=ASK)
    http.post(COMPLETIONS, json={**ASK, "bird": "heron"})
    http.post(COMPLETIONS, json={**ASK, "guided_regex": "heron"})
    http.post(COMPLETIONS, json={**ASK, "temperature": "heron"})
    http.post(COMPLETIONS, content=b'{"prompt": "heron"')
    http.post("/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": "heron"}]})
    http.post("/tokenize", json={"model": "demo", "prompt": "heron"})
    await_idle(http)
    assert len(records.lines) >= 6
    assert not [line for line in records.lines if "heron" in line]


def test_prompts_are_logged_with_log_prompts(open_server: Callable[..., httpx.Client], records: Records) -> None:
    http = open_server(log_prompts=True, tenants=Tenants.of_keys(["open sesame"]))
    http.post(COMPLETIONS, json=ASK, headers={"Authorization": "Bearer open sesame"})
    assert http.post(COMPLETIONS, json=ASK).status_code == 401
    http.get("/health")  # the line of a request is written before the next is answered
    accepted, rejected = records.fields
    assert accepted["prompts"] == [ASK["prompt"]]
    assert accepted["tenant"] == "key 1"
    assert rejected["error"] == "invalid_api_key"
    assert "prompts" not in rejected
    assert not [line for line in records.lines if "sesame" in line]


def test_an_unsafe_client_id_is_not_logged(http: httpx.Client, records: Records) -> None:
    for name in ("\x1b[31mred", "x\tforged=1", "ünï"):
        answer = http.post(COMPLETIONS, json=ASK, headers=[(b"X-Request-ID", name.encode())])
        assert "X-Client-Request-Id" not in answer.headers
    assert len(http.get("/health", headers={"X-Request-ID": "x" * 5000}).headers["X-Client-Request-Id"]) == 128
    assert all("client_request_id" not in fields for fields in records.fields)


def test_probes_are_logged_as_debug(http: httpx.Client, records: Records) -> None:
    logging.getLogger("aethermind").setLevel(logging.INFO)
    for path in ("/health", "/ready", "/metrics", "/version"):
        http.get(path)
    assert records.lines == []
    http.get("/v1/models")
    http.get("/nowhere")
    while len(records.lines) < 2:  # a line may be written shortly after its response
        pass
    assert ["127.0.0.1 GET /v1/models 200" in line for line in records.lines] == [True, False]
    assert "127.0.0.1 GET /nowhere 404" in records.lines[1]


def test_a_path_cannot_inject_a_log_line(http: httpx.Client, records: Records) -> None:
    http.get("/x%0A127.0.0.1 GET /v1/models 200")
    while not (lines := [line for line in records.lines if "404" in line]):
        http.get("/health")
    assert len(lines) == 1
    assert "\n" not in lines[0]
