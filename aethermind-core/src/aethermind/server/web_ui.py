"""The chat page at `/`: files that were built from `webui/` and came with the package."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter, Request, Response

from aethermind.server.openai.errors import ApiError

__all__ = ["ASSETS", "router"]

ASSETS = "/assets/"
"""Below this are files whose names change with their contents."""

_POLICY = "; ".join(
    (
        "default-src 'self'",  # nothing is loaded from elsewhere, and nothing is sent there
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # HTML enters the page through the sanitiser or not at all
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
_FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The page. It is asked for anew each time, and sent again when it has changed."""
    return _answer(request, "index.html", "no-cache")


@router.api_route(ASSETS + "{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    """A script, a style or an icon of the page."""
    return _answer(request, f"assets/{name}", _FOREVER)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes
    media_type: str
    etag: str


@cache
def _bundle() -> dict[str, _File]:
    """Every file of the page by its path: they are few and small, and a path that is none of them leads nowhere."""
    root = files("aethermind.server") / "web"
    found = {f"assets/{item.name}": item.read_bytes() for item in (root / "assets").iterdir()}
    found["index.html"] = (root / "index.html").read_bytes()
    return {path: _described(path, content) for path, content in found.items()}


def _described(path: str, content: bytes) -> _File:
    types = {".js": "text/javascript", ".svg": "image/svg+xml"}  # the machine's own table may say otherwise
    media_type = types.get(PurePosixPath(path).suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'  # weak: it stands for the file packed and plain
    return _File(content, gzip.compress(content, mtime=0), media_type, etag)


def _answer(request: Request, path: str, cache_control: str) -> Response:
    file = _bundle().get(path)
    if file is None:
        raise ApiError(404, f"There is no {request.url.path:.100} here.")
    headers = {**_HEADERS, "Cache-Control": cache_control, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, headers=headers, media_type=file.media_type)
    return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type)
