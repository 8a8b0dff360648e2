"""The chat page at `/`: static files that are built from `webui/` and shipped in the package."""

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
"""Path prefix of the files whose names contain a hash of their contents."""

_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",  # no requests to other origins
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # the page inserts sanitised HTML only
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
_CACHE_FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The page. Browsers revalidate it on each visit and download it if it has changed."""
    return _file_response(request, "index.html", "no-cache")


@router.api_route(ASSETS + "{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    """A script, a style or an icon of the page."""
    return _file_response(request, f"assets/{name}", _CACHE_FOREVER)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    gzipped: bytes
    media_type: str
    etag: str


@cache
def _bundled_files() -> dict[str, _File]:
    """The files of the page by their paths. They are few and small; no path is looked up in the file system."""
    root = files("aethermind.server") / "web"
    found = {f"assets/{item.name}": item.read_bytes() for item in (root / "assets").iterdir()}
    found["index.html"] = (root / "index.html").read_bytes()
    return {path: _compressed_file(path, content) for path, content in found.items()}


def _compressed_file(path: str, content: bytes) -> _File:
    types = {".js": "text/javascript", ".svg": "image/svg+xml"}  # `mimetypes` depends on the machine's configuration
    media_type = types.get(PurePosixPath(path).suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'  # weak: the same for both encodings
    return _File(content, gzip.compress(content, mtime=0), media_type, etag)


def _file_response(request: Request, path: str, cache_control: str) -> Response:
    file = _bundled_files().get(path)
    if file is None:
        raise ApiError(404, f"There is no {request.url.path:.100} here.")
    headers = {**_HEADERS, "Cache-Control": cache_control, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, headers=headers, media_type=file.media_type)
    return Response(file.gzipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type)
