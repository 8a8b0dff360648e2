"""What every request passes on its way in: it comes from where it may, is no giant, shows whose it is, finds room."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from aethermind.server.headers import header_of
from aethermind.server.loopback import is_loopback
from aethermind.server.openai.errors import ApiError
from aethermind.server.web_ui import ASSETS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aethermind.server.limits import Admission
    from aethermind.server.tenants import Tenant, Tenants

__all__ = ["Door"]

_OPEN_TO_ALL = frozenset({"/", "/health", "/ready", "/version"})
"""The page is open, so that it can ask for the key; what it does then needs the key."""

_NOT_A_NAME = (
    "This server listens to its own machine only, as localhost or 127.0.0.1, and the request is for {name!r}. To be "
    "reached by other names, start it with --host 0.0.0.0 and a key (--api-key); a proxy on this machine can send "
    "`Host: localhost`."
)
_NOT_A_PAGE = (
    "This server lets no web page but its own use it, and the request is from {origin!r}. Start it with "
    "--allowed-origins and that address, or with --allowed-origins '*' for every page."
)


class Door:
    """ASGI middleware. `state.tenant` of a request is the one whose key it has; with none of `tenants` it is a 401.

    With `only_local` the server must be called by a name of this machine, and by no web page but its own and those of
    `origins`: one whose name was made to lead here ("DNS rebinding"), and one that posts to strangers, are turned
    away. What would be answered by the engine, at one of the paths `admitted`, is refused before its body is read where
    `admission` has no room for one more answer: a server that has too much to do spends as little as it can on saying
    so.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        admission: Admission,
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
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["record"].error_code = refusal.code
        await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:  # RFC 9112, 3.2: who knows which one others read
            return ApiError(400, "The request has more than one Host header.", code="host")
        if self._only_local and not (_is_nameless(scope) or is_loopback(_bare(name := _host_name(scope)))):
            return ApiError(403, _NOT_A_NAME.format(name=name[:100]), code="host")
        if self._only_local and not ("*" in self._origins or _is_own_page(scope, self._origins)):
            return ApiError(403, _NOT_A_PAGE.format(origin=(header_of(scope, b"origin") or "")[:100]), code="origin")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_header_bytes:
            return ApiError(431, f"Headers are longer than {self._max_header_bytes} bytes.", code="headers_too_large")
        is_open = scope["path"] in _OPEN_TO_ALL or scope["path"].startswith(ASSETS)
        tenant = _tenant(scope, self._tenants)
        scope["state"]["tenant"] = tenant
        if tenant is not None and tenant.id:
            scope["state"]["record"].tenant = tenant.name
        if not is_open and tenant is None:
            return ApiError(
                401, "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        if scope["method"] == "POST" and scope["path"] in self._admitted:
            scope["state"]["record"].route = scope["path"]
            try:
                self._admission.check_room()
            except ApiError as refusal:
                return refusal
        return None


def _host_name(scope: Scope) -> str:
    """The host of the request's Host header, without its port."""
    host = header_of(scope, b"host") or ""
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host


def _is_nameless(scope: Scope) -> bool:
    """Whether a request may go without a Host header and does, which no browser's does: HAProxy's checks, for one."""
    return scope["http_version"] == "1.0" and header_of(scope, b"host") is None


def _bare(name: str) -> str:
    """A name as `is_loopback` takes it: clients write it in any case, and an IPv6 address in brackets."""
    return name.removeprefix("[").removesuffix("]").lower()


def _is_own_page(scope: Scope, others: Set[str]) -> bool:
    """Whether a request comes from the server's own page, one of `others` or no page: browsers say which in Origin."""
    origin = header_of(scope, b"origin")
    return origin is None or origin.partition("://")[2] == header_of(scope, b"host") or origin in others


def _tenant(scope: Scope, tenants: Tenants) -> Tenant | None:
    """Whose key the request has; None for a wrong one. The scheme before it is in any case (RFC 9110, 11.1)."""
    given = header_of(scope, b"authorization") or ""
    scheme, _, key = given.partition(" ")
    return tenants.find(key.strip() if scheme.lower() == "bearer" else given)
