"""Access control: API keys and their owners, and the checks that each request passes before its body is read.

The checks are: host, origin, header size, API key, capacity. Keys are stored as hashes. A key's owner, a tenant, has a
quota and a priority.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.config.file import read_file
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.server.openai.errors import ApiError
from aethermind.server.web_ui import ASSETS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aethermind.server.admission import AdmissionController

__all__ = [
    "ANONYMOUS",
    "AccessMiddleware",
    "LOAD_ADAPTER",
    "Quota",
    "Tenant",
    "Tenants",
    "UNLOAD_ADAPTER",
    "admin_key_hash",
    "header_of",
    "is_loopback",
    "key_hash",
    "read_tenants",
]


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one tenant; None means no limit. Rates are measured over the last 60 seconds.

    Raises InvalidArgumentError if a limit is not a positive integer.
    """

    max_concurrency: int | None = None
    """Maximum number of completions that are queued or being generated at the same time."""
    requests_per_minute: int | None = None
    """Maximum number of requests admitted per minute."""
    tokens_per_minute: int | None = None
    """Maximum number of prompt and output tokens per minute."""

    def __post_init__(self) -> None:
        for name in ("max_concurrency", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(f"{name} should be a positive integer, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of an API key. `name` is for logs; `id` identifies the key without revealing it."""

    name: str
    id: str = ""
    quota: Quota = Quota()
    priority: int | None = None
    """Default priority of its requests, and the most urgent that they may ask for; None means neither."""

    def prefix_cache_salt(self, cache_salt: str | None) -> bytes:
        """The salt of its prefix cache keys: 16 bytes, or empty if all requests may share a cached prefix.

        `cache_salt` is the request's own salt, which separates requests of one tenant.
        """
        if not self.id and not cache_salt:
            return b""
        return hashlib.blake2b((cache_salt or "").encode(), key=self.id.encode()[:64], digest_size=16).digest()

    def session_name(self, session_id: str) -> str:
        """The engine's name for one of its sessions. With an empty `session_id`, the common prefix of all of them."""
        return f"{self.id}/{session_id}"

    def bounded_priority(self, requested: int | None) -> int:
        """The priority of a request that asks for `requested`; smaller is more urgent."""
        if self.priority is None:
            return requested or 0
        return self.priority if requested is None else max(self.priority, requested)


ANONYMOUS = Tenant("anonymous")
"""The tenant of all requests to a server without API keys."""


def key_hash(key: str) -> str:
    """The SHA-256 of a key in hexadecimal, which a key file may hold instead of the key.

    Random keys have too much entropy to be guessed, so a fast hash without salt is enough.
    """
    return hashlib.sha256(key.encode()).hexdigest()


class Tenants:
    """Finds the tenant of an API key by the key's hash. Without keys, every request is `ANONYMOUS`."""

    def __init__(self, by_hash: Iterable[tuple[str, Tenant]] = ()) -> None:
        self._by_hash = [(bytes.fromhex(hashed), tenant) for hashed, tenant in by_hash]
        hashes = {hashed for hashed, _ in self._by_hash}
        if len(hashes) < len(self._by_hash):
            raise InvalidArgumentError("An API key is given twice; give each tenant a key of its own.")

    def __len__(self) -> int:
        return len(self._by_hash)

    @classmethod
    def of_keys(cls, keys: Sequence[str]) -> Tenants:
        """Create one tenant without quota per key."""
        return cls(_tenants_of_keys(keys))

    def find(self, key: str) -> Tenant | None:
        """The owner of a key; None for an unknown key. The time it takes does not depend on the key."""
        if not self._by_hash:
            return ANONYMOUS
        sent, found = hashlib.sha256(key.encode()).digest(), None
        for known, tenant in self._by_hash:
            if hmac.compare_digest(sent, known):
                found = tenant
        return found


def read_tenants(keys: Sequence[str], file: Path | None, quota: Quota) -> Tenants:
    """The tenants whose keys `--api-key` and a key file give. `quota` holds the default limits.

    The file is YAML, TOML or JSON: `keys` is a list of mappings with `key` or `key_sha256`, and optionally `name`,
    `priority` and the fields of `Quota`. The message of a SettingsError names the wrong entry but never contains a key.
    """
    tenants = [(hashed, Tenant(tenant.name, tenant.id, quota)) for hashed, tenant in _tenants_of_keys(keys)]
    if file is not None:
        tenants += _read_key_file(file, quota)
    return Tenants(tenants)


def admin_key_hash(key: str, tenants: Tenants) -> str:
    """The hash of an admin key. InvalidArgumentError for an unusable key, and for one that is an API key, too."""
    _check_key(key, "The admin key")
    if len(tenants) and tenants.find(key) is not None:
        raise InvalidArgumentError("The admin key is an API key, too; give it a value of its own.")
    return key_hash(key)


def _check_key(key: str, what: str) -> None:
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidArgumentError(f"{what} should be a non-empty string of printable ASCII characters.")


def _tenants_of_keys(keys: Sequence[str]) -> Iterator[tuple[str, Tenant]]:
    for number, key in enumerate(keys, 1):
        _check_key(key, "An API key")
        hashed = key_hash(key)
        yield hashed, Tenant(f"key {number}", _id_of(hashed))


def _id_of(hashed: str) -> str:
    """An identifier of a key from which its hash cannot be recovered."""
    return hashlib.blake2b(bytes.fromhex(hashed), digest_size=16, person=b"aethermind").hexdigest()


_QUOTA_FIELDS = tuple(item.name for item in fields(Quota))
_KEY_FILE_FIELDS = ("name", "key", "key_sha256", "priority", *_QUOTA_FIELDS)


def _read_key_file(file: Path, quota: Quota) -> Iterator[tuple[str, Tenant]]:
    content = _parse_key_file(file)
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or len(content) > 1:
        raise SettingsError(f"{file} should have one field, `keys`, with a list of API keys.")
    for number, entry in enumerate(entries, 1):
        where = f"{file}: entry {number} of keys"
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} should be a mapping with {', '.join(_KEY_FILE_FIELDS)}.")
        if unknown := sorted(map(str, set(entry) - set(_KEY_FILE_FIELDS))):
            raise SettingsError(
                f"{where} has an unknown field {unknown[0]!r}; the fields are {', '.join(_KEY_FILE_FIELDS)}."
            )
        yield _read_entry(entry, number, where, quota)


def _parse_key_file(file: Path) -> Any:
    if not file.is_file():
        raise SettingsError(f"{file} is not a file. Give the path of one with --api-keys-file.")
    try:
        return read_file(file)
    except SettingsError:
        # The parsers' own messages quote the wrong line, which may contain a key.
        raise SettingsError(
            f"{file} cannot be read as YAML, TOML or JSON, as its extension says. Correct it."
        ) from None


def _read_entry(entry: dict[str, Any], number: int, where: str, quota: Quota) -> tuple[str, Tenant]:
    hashed = _read_hash(entry, where)
    name, priority = entry.get("name", f"entry {number}"), entry.get("priority")
    if not isinstance(name, str) or not name:
        raise SettingsError(f"{where}: name should be a non-empty string.")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise SettingsError(f"{where}: priority should be an integer; smaller is more urgent.")
    try:
        entry_quota = Quota(**{limit: entry.get(limit, getattr(quota, limit)) for limit in _QUOTA_FIELDS})
    except InvalidArgumentError as error:
        raise SettingsError(f"{where}: {error}") from None
    return hashed, Tenant(name, _id_of(hashed), entry_quota, priority)


def _read_hash(entry: dict[str, Any], where: str) -> str:
    key, hashed = entry.get("key"), entry.get("key_sha256")
    if (key is None) == (hashed is None):
        raise SettingsError(f"{where} should have either key or key_sha256.")
    if hashed is None:
        if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable():
            raise SettingsError(f"{where}: key should be a non-empty string of printable ASCII.")
        return key_hash(key)
    if (
        not isinstance(hashed, str)
        or len(hashed) != 64
        or not all(digit in "0123456789abcdefABCDEF" for digit in hashed)
    ):
        raise SettingsError(f"{where}: key_sha256 should be the 64 hexadecimal digits of the key's SHA-256.")
    return hashed


_PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/version"})
"""Paths that need no API key. The chat page is public because it asks for the key; its API calls need the key."""

_ADMIN_PATHS = "/admin/"
"""Prefix of the paths that need the admin key instead of an API key."""

LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
"""Paths outside of `/admin/` that also need the admin key."""

_NO_ADMIN_KEY = "This server was started without an admin key. Start it with --admin-key to use {path}."
_WRONG_ADMIN_KEY = "The admin key is missing or wrong; send it as `Authorization: Bearer KEY`."
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

    Paths below `/admin/` need the key whose hash is `admin_key_hash`; API keys are not accepted there. If
    `admin_key_hash` is None, these paths get a 403.

    A POST to a path in `admission_paths` (completions and embeddings) gets a 429 or 503 before its body is read if
    `admission` has no capacity for one more completion, so that an overloaded server rejects at the least cost.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        admission: AdmissionController,
        *,
        admission_paths: Set[str],
        max_header_bytes: int,
        only_local: bool,
        origins: Set[str],
        admin_key_hash: str | None,
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._admission = admission
        self._admission_paths = admission_paths
        self._max_header_bytes = max_header_bytes
        self._only_local = only_local
        self._origins = origins
        self._admin_key_hash = admin_key_hash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._rejection(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["record"].error_code = error.code
        await error.response(scope["path"], scope["state"]["request_id"])(scope, receive, send)

    def _rejection(self, scope: Scope) -> ApiError | None:
        """The error that rejects a request; None if the request may pass."""
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:  # ambiguous behind proxies (RFC 9112, 3.2)
            return ApiError(400, "The request has more than one Host header.", code="host")
        if self._only_local and not (_may_omit_host(scope) or is_loopback(_normalized_host(name := _host_name(scope)))):
            return ApiError(403, _WRONG_HOST.format(name=name[:100]), code="host")
        if self._only_local and not ("*" in self._origins or _is_allowed_origin(scope, self._origins)):
            return ApiError(403, _WRONG_ORIGIN.format(origin=(header_of(scope, b"origin") or "")[:100]), code="origin")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_header_bytes:
            return ApiError(431, f"Headers are longer than {self._max_header_bytes} bytes.", code="headers_too_large")
        if scope["path"].startswith(_ADMIN_PATHS) or scope["path"] in (LOAD_ADAPTER, UNLOAD_ADAPTER):
            return self._admin_rejection(scope)
        is_public = scope["path"] in _PUBLIC_PATHS or scope["path"].startswith(ASSETS)
        tenant = _tenant(scope, self._tenants)
        scope["state"]["tenant"] = tenant
        if tenant is not None and tenant.id:
            scope["state"]["record"].tenant = tenant.name
        if not is_public and tenant is None:
            return ApiError(
                401, "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        if scope["method"] == "POST" and scope["path"] in self._admission_paths:
            scope["state"]["record"].route = scope["path"]
            try:
                self._admission.check_capacity()
            except ApiError as error:
                return error
        return None

    def _admin_rejection(self, scope: Scope) -> ApiError | None:
        if self._admin_key_hash is None:
            return ApiError(403, _NO_ADMIN_KEY.format(path=scope["path"][:100]), code="no_admin_key")
        if not hmac.compare_digest(key_hash(_key_of(scope)), self._admin_key_hash):
            return ApiError(401, _WRONG_ADMIN_KEY, code="invalid_api_key")
        return None


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of a request with this lower-case name; None if there is none. Parses no other header."""
    for header, value in scope["headers"]:
        if header == name:
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


def _normalized_host(name: str) -> str:
    """A host name in lower case, and an IPv6 address without its brackets."""
    return name.removeprefix("[").removesuffix("]").lower()


def _is_allowed_origin(scope: Scope, others: Set[str]) -> bool:
    """Whether a request has no Origin header, or its origin is the server itself or one of `others`."""
    origin = header_of(scope, b"origin")
    return origin is None or origin.partition("://")[2] == header_of(scope, b"host") or origin in others


def _tenant(scope: Scope, tenants: Tenants) -> Tenant | None:
    """The owner of the request's API key; None for a wrong key."""
    return tenants.find(_key_of(scope))


def _key_of(scope: Scope) -> str:
    """The key that a request sends, empty for none. The scheme is case-insensitive (RFC 9110, 11.1).

    Anthropic's clients send an API key as `X-Api-Key`, and a token as others do.
    """
    sent = header_of(scope, b"authorization") or header_of(scope, b"x-api-key") or ""
    scheme, _, key = sent.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else sent
