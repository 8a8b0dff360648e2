"""Suggestions for unknown paths, authorization schemes, hosts and origins."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from aethermind.server.access import Tenants

SAY = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PAGE = "https://chat.example"


@pytest.mark.parametrize(
    ("path", "suggested"),
    [
        ("/chat/completions", "/v1/chat/completions"),  # a base URL without /v1
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/models", "/v1/models"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
    ],
)
def test_a_404_suggests_a_similar_path(http: httpx.Client, path: str, suggested: str) -> None:
    answer = http.post(path, json=SAY)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"There is no {path} here; did you mean {suggested}?"


def test_a_404_suggests_nothing_for_an_unrelated_path(http: httpx.Client) -> None:
    assert http.get("/wp-login.php").json()["error"]["message"] == "There is no /wp-login.php here."


def test_a_trailing_slash_of_the_model_list_is_ignored(http: httpx.Client) -> None:
    found = [http.get(path).json()["data"] for path in ("/v1/models/", "/v1/models")]
    assert [[model["id"] for model in models] for models in found] == [["demo"], ["demo"]]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_the_authorization_scheme_is_case_insensitive(open_server: Callable[..., httpx.Client], scheme: str) -> None:
    http = open_server(tenants=Tenants.of_keys(["open sesame"]))
    assert http.get("/v1/models", headers={"Authorization": f"{scheme} open sesame"}).status_code == 200
    assert http.get("/v1/models", headers={"Authorization": f"{scheme} open"}).status_code == 401


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
def test_cors_allows_the_configured_origins(open_server: Callable[..., httpx.Client], origins: tuple[str, ...]) -> None:
    """Browsers send a preflight request before JSON or a key, and check the headers of responses (Fetch, CORS)."""
    http = open_server(origins=origins, tenants=Tenants.of_keys(["k"]))
    before = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = http.options("/v1/chat/completions", headers={"Origin": PAGE, **before})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "authorization" in answer.headers["access-control-allow-headers"]
    change = {"Origin": PAGE, "Access-Control-Request-Method": "PATCH"}
    assert http.options("/admin/limits", headers=change).status_code == 200
    for stream in (False, True):
        own = {"Origin": PAGE, "Authorization": "Bearer k"}
        answer = http.post("/v1/chat/completions", json={**SAY, "stream": stream}, headers=own)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert http.get("/v1/models", headers={"Origin": PAGE}).status_code == 401
    is_open = "*" in origins
    foreign = {"Origin": "https://evil.example", "Authorization": "Bearer k"}
    assert http.get("/v1/models", headers=foreign).status_code == (200 if is_open else 403)


@pytest.mark.parametrize(
    ("headers", "remedies"),
    [
        ({"Host": "host.docker.internal:8000"}, ("'host.docker.internal'", "--host 0.0.0.0", "--api-key")),
        ({"Host": "chat.example"}, ("'chat.example'", "`Host: localhost`")),
        ({"Origin": PAGE}, (f"'{PAGE}'", "--allowed-origins")),
        ({"Origin": "null"}, ("'null'", "--allowed-origins '*'")),
    ],
)
def test_a_403_names_the_remedy(http: httpx.Client, headers: dict[str, str], remedies: tuple[str, ...]) -> None:
    answer = http.post("/v1/chat/completions", json=SAY, headers=headers)
    assert answer.status_code == 403
    assert [remedy for remedy in remedies if remedy not in answer.json()["error"]["message"]] == []
