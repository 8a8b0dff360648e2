"""The chat page: its files, caching, compression, security headers and access without a key."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from aethermind.server.access import Tenants

MAX_GZIPPED_BYTES = 120_000

WEB = Path(str(files("aethermind.server"))) / "web"
ASSETS = sorted(f"/assets/{path.name}" for path in (WEB / "assets").iterdir())


def test_the_page_links_only_existing_files(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) >= 3
    assert {urljoin("/", name) for name in named} <= set(ASSETS)
    assert not any(name.startswith("/") for name in named)  # a proxy may serve the page below another path


@pytest.mark.parametrize("path", ASSETS)
def test_assets_are_immutable_and_compressed(http: httpx.Client, path: str) -> None:
    packed, plain = http.get(path), http.get(path, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content == (WEB / path[1:]).read_bytes()
    assert "immutable" in packed.headers["cache-control"]
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert packed.headers["content-type"].split(";")[0] == types[Path(path).suffix]


def test_an_unchanged_page_is_a_304(http: httpx.Client) -> None:
    etag = http.get("/").headers["etag"]
    again = http.get("/", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert http.head("/").content == b""


@pytest.mark.parametrize("path", ["/", *ASSETS])
def test_the_content_security_policy_forbids_other_origins(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path", ["/assets/none.js", "/assets/..%2Findex.html", "/assets/%2e%2e/web_ui.py", "/index.html"]
)
def test_other_paths_are_a_404(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_the_page_needs_no_key_but_its_api_calls_do(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["sesame"]))
    assert [http.get(path).status_code for path in ("/", *ASSETS)] == [200] * (1 + len(ASSETS))
    assert http.get("/v1/models").status_code == 401
    assert http.get("/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_the_size_of_the_page_is_limited() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in WEB.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MAX_GZIPPED_BYTES, sizes
