"""The contract of a KV store, which maps keys to bytes; the address by which a store is opened; a store in memory."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "HostStore",
    "KVStore",
    "StoreAddress",
    "open_host_store",
    "parse_size",
]


class KVStore(Protocol):
    """A key-value store shared by engines, in this process or elsewhere. It may evict any value at any time.

    A key is a 16-byte hash of all that a value depends on (model, tokens, tenant), so the value of a key never changes
    and writers need no coordination. The caller adds and verifies a checksum, so a store need not detect damage.

    Any exception means that the store cannot be used at the moment. The caller stops using it for a while and then
    tries again, so a store should connect at the first call and not before. Calls come from two threads, one that reads
    and one that writes, and may take long.
    """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None for a key without one."""
        ...

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Store (key, value) pairs, and evict the least recently used values beyond the store's limit."""
        ...

    def remove(self, keys: Sequence[bytes]) -> None:
        """Delete values; keys without one are ignored."""
        ...

    def close(self) -> None:
        """Close connections and files. Values remain for other engines."""
        ...


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The parsed address of a KV store: `name:location?option=value&…`.

    Examples: `disk:/var/cache/kv?size=20GiB`, `redis://server:6379/0`, `host:2GiB` (host memory), or a name alone.
    """

    name: str
    """The kind of store; kinds are registered by name."""
    location: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> StoreAddress:
        """Parse an address. InvalidArgumentError if it has no name or repeats an option."""
        name, _, rest = text.partition(":")
        name, _, bare_options = name.partition("?")
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{text!r} is no address of a KV store; write disk:/path, redis://server:6379/0, host:2GiB (host "
                "memory), or a name."
            )
        location, _, options = rest.partition("?")
        pairs = parse_qsl(options or bare_options, keep_blank_values=True)
        if len(dict(pairs)) != len(pairs):
            raise InvalidArgumentError(f"{text!r} has one option of a KV store twice; keep one of them.")
        return cls(name, location, MappingProxyType(dict(pairs)))

    def __str__(self) -> str:
        """Return the address for messages: without options, user name and password."""
        location = re.sub(r"//[^@/]*@", "//", self.location)
        return f"{self.name}:{location}" if location else self.name

    def check_options(self, known: Iterable[str]) -> None:
        """Raise InvalidArgumentError for an option that is not in `known`."""
        unknown = sorted(self.options.keys() - set(known))
        if unknown:
            raise InvalidArgumentError(
                f"KV store {self} has no option {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}."
            )

    def size_option(self, name: str, default: int) -> int:
        """Return an option's size in bytes, or `default`; InvalidArgumentError for a value that is not a size."""
        return parse_size(self.options[name]) if name in self.options else default


def parse_size(text: str) -> int:
    """Parse a size in bytes such as `512MiB`, `10GB` or `4096`: powers of 1024 with an i, of 1000 without.

    InvalidArgumentError for anything else, and for less than a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"{text!r} is no size; write one such as 10GiB, 512MiB or a number of bytes.")
    number, unit = match.groups()
    exponent = " KMGT".index(unit[0].upper()) if unit else 0
    num_bytes = int(float(number) * (1024 if unit and len(unit) == 2 else 1000) ** exponent)
    if num_bytes < 1:
        raise InvalidArgumentError(f"{text} is less than a byte; give more.")
    return num_bytes


_DEFAULT_BYTES = 2**30


class HostStore:
    """A `KVStore` of up to `max_bytes` of values with LRU eviction. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of the values kept."""
        return self._num_bytes

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KVStore`."""
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
            return [self._values.get(key) for key in keys]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """See `KVStore`."""
        with self._lock:
            for key, value in entries:
                self._drop(key)
                self._values[key] = value
                self._num_bytes += len(value)
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._values)))

    def remove(self, keys: Sequence[bytes]) -> None:
        """See `KVStore`."""
        with self._lock:
            for key in keys:
                self._drop(key)

    def close(self) -> None:
        """See `KVStore`. The memory is freed with the last engine that uses the store."""

    def _drop(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._num_bytes -= len(value)


def open_host_store(address: StoreAddress) -> HostStore:
    """Open `host:SIZE`; the size of a bare `host` is 1 GiB."""
    address.check_options(())
    return HostStore(parse_size(address.location) if address.location else _DEFAULT_BYTES)
