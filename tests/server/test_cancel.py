"""`DELETE /v1/requests/{id}` cancels requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

import httpx
import pytest
from tests.server.conftest import paused_engine, unread

from aethermind import LLM
from aethermind.server.access import Tenants

LONG = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


def events(lines: Iterator[str]) -> Iterator[dict[str, object]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"prompt": ["The old fox", "A small hen"]}])
def test_a_cancelled_stream_ends_with_finish_reason_abort(
    llm: LLM, http: httpx.Client, extra: dict[str, object]
) -> None:
    with paused_engine(llm) as resume, http.stream("POST", "/v1/completions", json={**LONG, **extra}) as answer:
        lines = answer.iter_lines()
        first = next(events(lines))
        cancelled = http.delete(f"/v1/requests/{first['id']}")
        assert cancelled.json() == {"id": first["id"], "object": "request", "cancelled": True}
        resume.set()
        *_, last = (event["choices"][0]["finish_reason"] for event in events(lines))
        assert last == "abort"
    assert http.delete(f"/v1/requests/{first['id']}").status_code == 404


def test_a_request_is_cancelled_by_the_id_of_its_header(llm: LLM, http: httpx.Client) -> None:
    with paused_engine(llm) as resume, http.stream("POST", "/v1/completions", json=LONG) as answer:
        assert http.delete(f"/v1/requests/{answer.headers['X-Request-Id']}").status_code == 200
        resume.set()
        assert list(answer.iter_lines())[-2] == "data: [DONE]"
    assert http.delete("/v1/requests/req_00").json()["error"]["code"] == "request_not_found"


def test_a_tenant_cannot_cancel_requests_of_another(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["first", "second"]))
    first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
    with unread(http, headers=first) as answer:
        url = f"/v1/requests/{answer.headers['X-Request-Id']}"
        assert http.delete(url, headers=second).status_code == 404
        assert http.delete(url).status_code == 401
        assert http.delete(url, headers=first).status_code == 200


@pytest.mark.parametrize("name", ["order-7", "a/b c", "x" * 128])
def test_the_client_s_own_id_cancels_all_its_requests(
    llm: LLM, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The headers of a stream without a first token are sent after this time.
    monkeypatch.setattr("aethermind.server.openai.serving.KEEP_ALIVE_S", 0.05)
    headers = {"X-Request-Id": name}
    url = f"/v1/requests/{quote(name, safe='')}"
    with (
        paused_engine(llm) as resume,
        http.stream("POST", "/v1/completions", json=LONG, headers=headers) as first,
        http.stream("POST", "/v1/completions", json=LONG, headers=headers) as second,
        http.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 8}) as other,
    ):
        assert http.delete(url).json() == {"id": name, "object": "request", "cancelled": True}
        resume.set()
        *_, one = (event["choices"][0]["finish_reason"] for event in events(first.iter_lines()))
        *_, two = (event["choices"][0]["finish_reason"] for event in events(second.iter_lines()))
        *_, three = (event["choices"][0]["finish_reason"] for event in events(other.iter_lines()))
    assert (one, two, three) == ("abort", "abort", "length")
    assert http.delete(url).status_code == 404


def test_client_ids_are_separate_for_each_tenant(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["first", "second"]))
    first, second = ({"Authorization": f"Bearer {key}", "X-Request-Id": "mine"} for key in ("first", "second"))
    with unread(http, headers=first):
        assert http.delete("/v1/requests/mine", headers=second).status_code == 404
        assert http.delete("/v1/requests/mine", headers=first).status_code == 200
