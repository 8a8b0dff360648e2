"""A KV store in this process's memory, for all engines that share the store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from aethermind.cache.stores.kv_store import StoreAddress, parse_size

__all__ = ["HostStore", "open_host_store"]

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
