"""Access checks that every request passes before its body is read: host, origin, header size, API key, capacity."""

from __future__ import annotations

from collections.abc import Set
from ipaddress import ip_address
from typing import TYPE_CHECKING

from aethermind.server.openai.errors import ApiError
from aethermind.server.web_ui import ASSETS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aethermind.server.admission import AdmissionController
    from aethermind.server.tenants import Tenant, Tenants

__all__ = ["AccessMiddleware", "header_of", "is_loopback"]

_PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/version"})
"""Paths that need no API key. The chat page is public because it asks for the key; its API calls need the key."""

_WRONG_HOST = (
    "This server accepts requests to this machine only, as localhost or 127.0.0.1, and the request is for {name!r}. To "
    "be reached by other names, start it with --host 0.0.0.0 and a key (--api-key); a proxy on this machine can send "
    "`Host: localhost`."
)
_WRONG_ORIGIN = (
    "This server accepts requests from its own web page only, and the request is from {origin!r}. Start it with "
    "--allowed-origins and that address, or with --allowed-origins '*' for every page."
)


class AccessMiddleware:
    """ASGI middleware that authenticates and admits requests.

    `state.tenant` of a request is the owner of its API key; a request without a key of one of `tenants` gets a 401.

    With `only_local` the Host header has to name this machine, and the Origin header, if there is one, the server's own
    page or one of `origins`. The first check defeats DNS rebinding, the second cross-site requests.

    A POST to one of the paths `admitted`, which the engine would answer, gets a 429 or 503 before its body is read if
    `admission` has no capacity for one more answer, so that an overloaded server rejects at the least cost.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        admission: AdmissionController,
        *,
        admitted: Set[str],
        max_header_bytes: int,
        only_local: bool,
        origins: Set[str],
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._admission = admission
        self._admitted = admitted
        self._max_header_bytes = max_header_bytes
        self._only_local = only_local
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._rejection(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["record"].error_code = error.code
        await error.response()(scope, receive, send)

    def _rejection(self, scope: Scope) -> ApiError | None:
        """The error that rejects a request; None if the request may pass."""
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:  # ambiguous behind proxies (RFC 9112, 3.2)
            return ApiError(400, "The request has more than one Host header.", code="host")
        if self._only_local and not (_may_omit_host(scope) or is_loopback(_bare(name := _host_name(scope)))):
            return ApiError(403, _WRONG_HOST.format(name=name[:100]), code="host")
        if self._only_local and not ("*" in self._origins or _is_allowed_origin(scope, self._origins)):
            return ApiError(403, _WRONG_ORIGIN.format(origin=(header_of(scope, b"origin") or "")[:100]), code="origin")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_header_bytes:
            return ApiError(431, f"Headers are longer than {self._max_header_bytes} bytes.", code="headers_too_large")
        is_public = scope["path"] in _PUBLIC_PATHS or scope["path"].startswith(ASSETS)
        tenant = _tenant(scope, self._tenants)
        scope["state"]["tenant"] = tenant
        if tenant is not None and tenant.id:
            scope["state"]["record"].tenant = tenant.name
        if not is_public and tenant is None:
            return ApiError(
                401, "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        if scope["method"] == "POST" and scope["path"] in self._admitted:
            scope["state"]["record"].route = scope["path"]
            try:
                self._admission.check_capacity()
            except ApiError as error:
                return error
        return None


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of a request with this lower-case name; None if there is none. Parses no other header."""
    for one, value in scope["headers"]:
        if one == name:
            text: str = value.decode("latin-1")
            return text
    return None


def is_loopback(host: str) -> bool:
    """Whether `host`, in lower case and without the brackets of URLs, is a loopback address or `localhost`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(scope: Scope) -> str:
    """The host of the request's Host header, without its port."""
    host = header_of(scope, b"host") or ""
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host


def _may_omit_host(scope: Scope) -> bool:
    """Whether an HTTP/1.0 request has no Host header. HAProxy's health checks omit it; browsers always send it."""
    return scope["http_version"] == "1.0" and header_of(scope, b"host") is None


def _bare(name: str) -> str:
    """A host name in lower case, and an IPv6 address without its brackets."""
    return name.removeprefix("[").removesuffix("]").lower()


def _is_allowed_origin(scope: Scope, others: Set[str]) -> bool:
    """Whether a request comes from no web page, from the server's own page or from one of `others`."""
    origin = header_of(scope, b"origin")
    return origin is None or origin.partition("://")[2] == header_of(scope, b"host") or origin in others


def _tenant(scope: Scope, tenants: Tenants) -> Tenant | None:
    """The owner of the request's API key; None for a wrong key. The scheme is case-insensitive (RFC 9110, 11.1)."""
    given = header_of(scope, b"authorization") or ""
    scheme, _, key = given.partition(" ")
    return tenants.find(key.strip() if scheme.lower() == "bearer" else given)
