"""`/v1/sessions` and `aethermind sessions`: list, save, load, protect and delete, each key its own sessions only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import serving
from typer.testing import CliRunner

from aethermind import LLM, Runtime
from aethermind.cli.sessions import app
from aethermind.server.access import Tenants

KEYS = ("key-of-one", "key-of-two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def address(runtime: Runtime, folder: Path) -> Iterator[str]:
    options: dict[str, Any] = {"block_size": 4, "swap_space": 0.01, "session_dir": str(folder)}
    llm = LLM("demo", device="cpu", max_model_len=256, runtime=runtime, **options)
    with llm, serving(llm, tenants=Tenants.of_keys(KEYS)) as address:
        yield address


def client_of(address: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60, headers={"Authorization": f"Bearer {key}"})


def take_turn(client: httpx.Client, session_id: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    assert client.post("/v1/chat/completions", json={**body, "session_id": session_id}).status_code == 200


def test_sessions_are_listed_saved_loaded_protected_and_deleted(address: str) -> None:
    with client_of(address, KEYS[0]) as client, client_of(address, KEYS[1]) as other:
        take_turn(client, "a/b")
        take_turn(other, "mine")
        (session,) = client.get("/v1/sessions").json()["data"]
        assert (session["id"], session["state"], session["protected"]) == ("a/b", "standby", False)
        assert session["num_tokens"] > 0
        assert client.post("/v1/sessions/a/b/protect").json()["protected"]
        assert not client.post("/v1/sessions/a/b/unprotect").json()["protected"]
        assert client.post("/v1/sessions/a/b/save", params={"model": "demo"}).json()["saved"]
        assert client.post("/v1/sessions/a/b/load").json()["num_tokens"] == session["num_tokens"]
        for method, path in (("POST", "/v1/sessions/mine/save"), ("DELETE", "/v1/sessions/mine")):
            refused = client.request(method, path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "session_not_found")
        unknown = client.post("/v1/sessions/a/b/foo")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "action")
        assert "'protect'" in unknown.json()["error"]["message"]
        assert client.delete("/v1/sessions/a/b").json()["deleted"]
        assert client.get("/v1/sessions").json()["data"] == []
        assert [each["id"] for each in other.get("/v1/sessions").json()["data"]] == ["mine"]


def test_the_command_does_the_same(address: str, folder: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--url", address, "--api-key", KEYS[0]], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    with client_of(address, KEYS[0]) as client:
        take_turn(client, "chat-7")
    assert "chat-7" in run("list")
    assert run("save", "chat-7").startswith("Saved chat-7: ")
    assert run("protect", "chat-7") == "chat-7 is protected.\n"
    assert run("protect", "chat-7", "--off") == "chat-7 is no longer protected.\n"
    assert run("load", "chat-7").startswith("Loaded chat-7: ")
    saved = CliRunner().invoke(app, ["list", "--dir", str(folder), "--json"])
    assert [session["id"] for session in json.loads(saved.output)["sessions"]] == ["chat-7"]
    assert run("delete", "chat-7") == "Deleted chat-7.\n"
    assert run("list") == "There are no sessions.\n"
    for session_id in (".", "..", "...", "../chat", "a/../b", "a?b#c%2e", "é"):
        with client_of(address, KEYS[0]) as client:
            take_turn(client, session_id)
        assert run("protect", session_id) == f"{session_id} is protected.\n"
        assert run("delete", session_id) == f"Deleted {session_id}.\n"
