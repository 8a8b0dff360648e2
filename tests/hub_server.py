"""A stand-in for the Hugging Face Hub on loopback: the parts of its HTTP API that the real client uses.

Files of weights are redirected to another host with a signed address, as on the Hub; that host answers ranges. It
records all requests, and fails as the Hub does where it is asked to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["HubServer", "Repo"]

_LARGE = (".safetensors", ".gguf", ".bin")
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@lru_cache(maxsize=64)
def _digest_of(contents: bytes) -> str:
    """The SHA-256 of a file's contents, in hexadecimal digits: computed once, because a model's weights are large."""
    return sha256(contents).hexdigest()


@dataclass
class Repo:
    """A repository with one commit. Mutable.

    Attributes:
        files: contents by path.
        token: what a request has to send; None for a public repository.
        is_gated: whether files need a token that this server never accepts, while the list of files does not.
        moved_to: the new name of a renamed repository.
        revisions: the branches and tags of the commit.
        status: the status of every answer, 200 for none but those above.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    token: str | None = None
    is_gated: bool = False
    moved_to: str | None = None
    revisions: tuple[str, ...] = ("main",)
    status: int = 200
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """The commit: 40 hexadecimal digits of the files' contents."""
        described = "".join(path + _digest_of(contents) for path, contents in sorted(self.files.items()))
        return _digest_of(described.encode())[:40]


class HubServer:
    """The server: `repos` by name. `cuts` is how often it cuts a large file's connection, after half of what is left.

    `requests` are (method, path, headers) in order. A large file whose digest is in `held` is sent whole only once its
    event is set; ranges of it are sent at once. Use as a context manager.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.cuts = 0
        self.held: dict[str, Event] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HubServer:
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in self.held.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloads(self) -> list[str]:
        """The paths of the files whose contents were requested, in order; a large file is named by its digest."""
        return [path for method, path, _ in self.requests if method == "GET" and not path.startswith("/api/")]

    def large_file(self, digest: str) -> bytes | None:
        """The contents of a large file by its SHA-256."""
        contents = (data for repo in self.repos.values() for path, data in repo.files.items() if path.endswith(_LARGE))
        return next((data for data in contents if _digest_of(data) == digest), None)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
            if found := _API.fullmatch(path):
                self._list(found[1], found[2] or "main")
            elif path.startswith("/cdn/"):
                self._send_large(path.removeprefix("/cdn/"))
            elif found := _RESOLVE.fullmatch(path):
                self._resolve(*found.groups())
            else:
                self._send(404)

        def _allowed(self, name: str, revision: str, *, is_list: bool) -> Repo | None:
            """The repository, or None after an error was sent."""
            repo = hub.repos.get(name)
            sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if repo is not None and repo.status != 200:
                self._send(repo.status, {"Retry-After": "0"} if repo.status == 429 else {})
            elif sent and sent != "hf_good" and (repo is None or repo.token is not None):
                self._send(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
            elif repo is None or (repo.token is not None and sent != repo.token):
                self._send(404 if sent else 401, {"X-Error-Code": "RepoNotFound"})
            elif repo.is_gated and not is_list:
                self._send(403 if sent else 401, {"X-Error-Code": "GatedRepo"})
            elif revision not in (*repo.revisions, repo.commit):
                self._send(404, {"X-Error-Code": "RevisionNotFound"})
            elif repo.moved_to is not None:
                self._send(307, {"Location": self.path.replace(name, repo.moved_to, 1)})
            else:
                return repo
            return None

        def _list(self, name: str, revision: str) -> None:
            repo = self._allowed(name, revision, is_list=True)
            if repo is not None:
                siblings = [
                    {"rfilename": path, "size": repo.sizes.get(path, len(data))} for path, data in repo.files.items()
                ]
                body = json.dumps({"id": name, "sha": repo.commit, "siblings": siblings, "tags": []}).encode()
                self._send(200, {"Content-Type": "application/json"}, body)

        def _resolve(self, name: str, revision: str, path: str) -> None:
            repo = self._allowed(name, revision, is_list=False)
            if repo is None:
                return
            data = repo.files.get(path)
            commit = {"X-Repo-Commit": repo.commit}
            if data is None:
                self._send(404, commit | {"X-Error-Code": "EntryNotFound"})
                return
            digest = _digest_of(data)
            if path.endswith(_LARGE):
                linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest}"'}
                where = {"Location": f"http://localhost:{hub.port}/cdn/{digest}?Signature=abc"}
                self._send(302, commit | linked | where)
            else:
                self._send(200, commit | {"ETag": f'"{digest[:40]}"'}, data)

        def _send_large(self, digest: str) -> None:
            if digest in hub.held and "Range" not in self.headers:
                hub.held[digest].wait()
            data = hub.large_file(digest)
            if data is None:
                self._send(404)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            end = min(int(wanted[2]) + 1, len(data)) if wanted and wanted[2] else len(data)
            rest = data[start:end]
            ranged = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if wanted else {}
            if hub.cuts > 0:
                hub.cuts -= 1
                self._send(206 if wanted else 200, ranged, rest, num_sent=len(rest) // 2)
                self.close_connection = True
            else:
                self._send(206 if wanted else 200, ranged, rest)

        def _send(
            self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"", num_sent: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:num_sent])

    return Handler
