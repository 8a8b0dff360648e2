"""`/admin/limits`: who may change limits, and what changed limits do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import paused_engine, serving

from aethermind import LLM, Runtime
from aethermind.errors import InvalidArgumentError
from aethermind.server.access import Tenants, admin_key_hash

ADMIN = {"Authorization": "Bearer master"}
ASK = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
URL = "/admin/limits"


@pytest.fixture(scope="module")
def own(runtime: Runtime) -> LLM:
    sizes = {"max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return LLM(device="cpu", dtype="float32", runtime=runtime, **sizes)


@pytest.fixture
def admin(own: LLM) -> Iterator[httpx.Client]:
    """A client of a server with an admin key and the API key `user`; the engine's limits are as at its start."""
    before = own.engine.budget
    with (
        serving(own, admin_key="master", tenants=Tenants.of_keys(["user"])) as address,
        httpx.Client(base_url=address, timeout=30, headers=ADMIN) as client,
    ):
        yield client
    own.engine.budget = before


def test_only_the_admin_key_opens_it(admin: httpx.Client, http: httpx.Client) -> None:
    for headers in ({"Authorization": "Bearer user"}, {"Authorization": ""}, {"Authorization": "master2"}):
        for answer in (admin.get(URL, headers=headers), admin.patch(URL, json={"max_num_seqs": 1}, headers=headers)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert admin.post("/v1/completions", json=ASK).status_code == 401, "the admin key is no API key"
    closed = http.get(URL)
    assert (closed.status_code, closed.json()["error"]["code"]) == (403, "no_admin_key")
    assert "--admin-key" in closed.json()["error"]["message"]


def test_an_admin_key_is_a_key_of_its_own() -> None:
    with pytest.raises(InvalidArgumentError, match="is an API key, too"):
        admin_key_hash("user", Tenants.of_keys(["user"]))
    with pytest.raises(InvalidArgumentError, match="The admin key should be a non-empty string"):
        admin_key_hash("", Tenants())


def test_limits_of_the_engine_apply_to_its_next_steps(admin: httpx.Client, own: LLM) -> None:
    sizes: list[int] = []
    own.engine.runner.observer = lambda executor, symbols, _: (sizes.append(symbols[0]), executor.run(symbols))
    user = {"Authorization": "Bearer user"}
    long = {**ASK, "prompt": "The old fox went to the river to drink. " * 9, "max_tokens": 2}

    def longest_step() -> int:
        sizes.clear()
        answer = admin.post("/v1/completions", json={**long, "cache_salt": str(len(seen))}, headers=user)
        assert answer.status_code == 200
        seen.append(answer.json()["choices"][0]["text"])
        return max(sizes)

    seen: list[str] = []
    assert longest_step() == 64
    changed = admin.patch(URL, json={"max_prefill_chunk": 5, "max_num_seqs": 3})
    assert changed.status_code == 200
    assert changed.json()["models"] == {
        "demo": {"max_num_seqs": 3, "max_num_batched_tokens": 64, "max_prefill_chunk": 5}
    }
    assert longest_step() == 5
    assert admin.patch(URL, json={"model": "demo", "max_prefill_chunk": 64}).status_code == 200
    assert longest_step() == 64
    assert len(set(seen)) == 1
    assert admin.get(URL).json()["models"]["demo"]["max_num_seqs"] == 3
    own.engine.runner.observer = None


def test_limits_of_the_server_apply_to_the_next_requests(admin: httpx.Client, own: LLM) -> None:
    user = {"Authorization": "Bearer user"}
    statuses: list[int] = []
    with paused_engine(own, after=0) as resume:
        first = threading.Thread(
            target=lambda: statuses.append(admin.post("/v1/completions", json=ASK, headers=user).status_code)
        )
        first.start()
        while "aethermind_num_open 1.0" not in admin.get("/metrics", headers=user).text:
            pass
        assert admin.patch(URL, json={"max_concurrent_requests": 1}).json()["max_concurrent_requests"] == 1
        refused = admin.post("/v1/completions", json=ASK, headers=user)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        resume.set()
        first.join()
    assert statuses == [200], "an open request continues"
    admin.patch(URL, json={"max_concurrent_requests": 2, "request_timeout": 0.5})
    assert admin.get(URL).json()["request_timeout"] == 0.5


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"max_num_seqs": 9}, 400, "max_num_seqs", "this engine was opened for 8"),
        ({"max_num_batched_tokens": 1, "max_concurrent_requests": 7}, 400, "max_num_batched_tokens", "at least"),
        ({"max_prefill_chunk": 0}, 400, "max_prefill_chunk", "1 or more"),
        ({"max_prefill_chunk": True}, 400, "max_prefill_chunk", "integer"),
        ({"max_queued_tokens": 0}, 400, "max_queued_tokens", "should be more than 0"),
        ({"request_timeout": 0, "max_num_seqs": 2}, 400, "request_timeout", "request_timeout should be more than 0"),
        ({"request_timeout": 10**400, "max_num_seqs": 2}, 400, "request_timeout", "less than"),
        ({"max_queued_requests": 10**400}, 400, "max_queued_requests", "less than"),
        ({"max_prefill_chunk": 10**400}, 400, "max_prefill_chunk", "less than"),
        ({"max_num_sequences": 2}, 400, "max_num_sequences", "not supported"),
        ({"model": "other", "max_num_seqs": 2}, 404, "model", "no model 'other'"),
        ([], 400, None, "object"),
    ],
)
def test_a_wrong_limit_changes_nothing(
    admin: httpx.Client, body: Any, status: int, param: str | None, words: str
) -> None:
    before = admin.get(URL).json()
    answer = admin.patch(URL, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert words in error["message"]
    assert admin.get(URL).json() == before
