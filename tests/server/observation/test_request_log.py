"""The request log: one line for each request, without prompts unless enabled."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import await_idle, paused_engine

from aethermind import LLM
from aethermind.server.access import Tenants
from aethermind.server.observation.observer import RecentPrompts

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


def test_the_log_says_where_a_prompt_first_differs(open_server: Callable[..., httpx.Client], records: Records) -> None:
    """With `log_prefixes`: the earlier request, the words there, and tokens that were computed but are not cached."""
    http = open_server(log_prefixes=True, tenants=Tenants.of_keys(["one", "two"]))
    begin = "Once upon a time there was a little fox who lived by the sea. " * 4

    def ask(prompt: str, key: str = "one", **fields: Any) -> str:
        answer = http.post(COMPLETIONS, json={**ASK, **fields, "prompt": prompt}, headers={"X-Api-Key": key})
        http.get("/health")  # the line of a request is written before the next is answered
        return str(answer.headers["X-Request-Id"])

    first = ask(f"{begin}The fox slept.")
    ask(f"{begin}The hen sang.")
    ask(f"{begin}The hen sang. And then")
    ask(begin, key="two")
    ask(begin, cache_salt="other")
    notes = [fields["prefix"] for fields in records.fields]
    assert notes[0] == notes[3] == notes[4] == "no recent prompt begins with the same tokens"
    assert re.match(f"the first \\d+ tokens are those of {first}, then ' fox slept.+' became ' hen sang", notes[1])
    assert re.fullmatch(r"the first \d+ tokens are those of req_\w+", notes[2])
    assert "not cached" not in " ".join(notes)


def test_the_log_says_that_common_tokens_were_not_cached() -> None:
    """They are counted in whole blocks."""
    prompts = RecentPrompts()
    assert prompts.add("req_1", ("m",), [1, 2, 3, 4, 5, 6, 7, 8]).num_tokens == 0
    common = prompts.add("req_2", ("m",), [1, 2, 3, 4, 5, 6, 9, 8])
    assert common == (6, "req_1", [7, 8], [9, 8])
    assert "; 6 of them were not cached" in common.describe(0, 2, str)
    assert common.describe(4, 2, str) == "the first 6 tokens are those of req_1, then '[7, 8]' became '[9, 8]'"
    assert prompts.add("req_3", ("other",), [1, 2]).num_tokens == 0


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
