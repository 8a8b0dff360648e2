"""API keys, key files, and the separation of tenants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.server.access import ANONYMOUS, Quota, Tenant, Tenants, key_hash, read_tenants

ASK = {"model": "demo", "prompt": "Once upon a time there was an old fox who lived in the deep forest", "max_tokens": 2}


def cached_tokens(http: httpx.Client, key: str, **extra: object) -> int:
    answer = http.post("/v1/completions", json={**ASK, **extra}, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_tenants_do_not_share_prefix_cache_hits(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["first", "second"]), block_size=4)
    assert [cached_tokens(http, "first") for _ in range(2)] == [0, 12]
    assert [cached_tokens(http, "second") for _ in range(2)] == [0, 12]
    assert [cached_tokens(http, "first", cache_salt="a") for _ in range(2)] == [0, 12]
    assert cached_tokens(http, "first", cache_salt="b") == 0
    assert cached_tokens(http, "second", cache_salt="a") == 0


def test_sessions_are_separate_for_each_tenant(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["first", "second"]), block_size=4)
    assert [cached_tokens(http, "first", session_id="tale") for _ in range(2)] == [0, 12]
    assert cached_tokens(http, "second", session_id="tale") == 0
    sessions = http.get("/metrics", headers={"Authorization": "Bearer first"}).text
    assert 'aethermind_num_sessions{model_name="demo"} 2.0' in sessions


def test_key_files_are_read_as_json_yaml_and_toml(tmp_path: Path) -> None:
    entries = [
        {"key": "open sesame", "name": "ali", "max_concurrency": 2, "priority": 3},
        {"key_sha256": key_hash("hidden"), "requests_per_minute": 5},
    ]
    texts = {
        "keys.json": json.dumps({"keys": entries}),
        "keys.yaml": f"keys: {json.dumps(entries)}",
        "keys.toml": f"""
            [[keys]]
            key = "open sesame"
            name = "ali"
            max_concurrency = 2
            priority = 3
            [[keys]]
            key_sha256 = "{key_hash("hidden")}"
            requests_per_minute = 5
        """,
    }
    for name, text in texts.items():
        file = tmp_path / name
        file.write_text(text)
        tenants = read_tenants(["third"], file, Quota(tokens_per_minute=9))
        ali, hidden, third = (tenants.find(key) for key in ("open sesame", "hidden", "third"))
        assert ali is not None
        assert hidden is not None
        assert third is not None
        assert (ali.name, ali.priority, ali.quota) == ("ali", 3, Quota(2, None, 9))
        assert hidden.quota == Quota(None, 5, 9)
        assert third.quota == Quota(None, None, 9)
        assert len({ali.id, hidden.id, third.id, key_hash("hidden")}) == 4
        assert tenants.find("") is tenants.find("open") is tenants.find("é") is None


@pytest.mark.parametrize(
    "entry",
    [
        "top-secret",
        {},
        {"key": "top-secret", "key_sha256": key_hash("top-secret")},
        {"key": ""},
        {"key": "top-secrét"},
        {"key_sha256": "top-secret"},
        {"key": "top-secret", "max_concurrency": 0},
        {"key": "top-secret", "tokens_per_minute": True},
        {"key": "top-secret", "priority": "high"},
        {"key": "top-secret", "name": 5},
        {"key": "top-secret", "quota": 5},
    ],
)
def test_an_error_names_the_entry_but_not_its_key(tmp_path: Path, entry: object) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [entry]}))
    with pytest.raises(SettingsError, match="entry 1 of keys") as caught:
        read_tenants([], file, Quota())
    assert "top-secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["keys: [{key: top-secret", "[]", "keys: 5", "keys: []\nmore: 1", "top-secret"])
def test_an_invalid_key_file_is_an_error_that_does_not_quote_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_tenants([], file, Quota())
    assert "top-secret" not in str(caught.value)
    with pytest.raises(SettingsError, match="is not a file"):
        read_tenants([], tmp_path / "missing.yaml", Quota())


def test_duplicate_and_empty_keys_are_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="given twice"):
        Tenants.of_keys(["same", "same"])
    with pytest.raises(InvalidArgumentError, match="non-empty"):
        Tenants.of_keys([""])


def test_prefix_cache_salts_differ_by_tenant_and_by_request() -> None:
    one, two = Tenant("one", "1"), Tenant("two", "2")
    salts = {tenant.prefix_cache_salt(salt) for tenant in (ANONYMOUS, one, two) for salt in (None, "a", "b")}
    assert len(salts) == 9
    assert ANONYMOUS.prefix_cache_salt(None) == b""


def test_the_priority_of_a_tenant_bounds_that_of_its_requests() -> None:
    assert [Tenant("batch", "1", priority=5).bounded_priority(requested) for requested in (None, -9, 7)] == [5, 5, 7]
    assert [ANONYMOUS.bounded_priority(requested) for requested in (None, -9)] == [0, -9]
