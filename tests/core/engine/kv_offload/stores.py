"""Stores that behave in some way, for engines under test."""

from __future__ import annotations

import threading
from collections.abc import Sequence

__all__ = ["Store"]


class Store:
    """A store in memory that can fail, hang, or return other values."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.error: Exception | None = None
        self.gate = threading.Event()
        """Calls wait for it."""
        self.gate.set()
        self.calls: list[tuple[str, int]] = []
        self.is_closed = False

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._begin("get", len(keys))
        return [self.values.get(key) for key in keys]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._begin("put", len(entries))
        self.values.update(entries)

    def remove(self, keys: Sequence[bytes]) -> None:
        self._begin("remove", len(keys))
        for key in keys:
            self.values.pop(key, None)

    def close(self) -> None:
        self.is_closed = True

    def _begin(self, verb: str, num_keys: int) -> None:
        self.calls.append((verb, num_keys))
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
