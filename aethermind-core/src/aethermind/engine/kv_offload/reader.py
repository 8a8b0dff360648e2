"""Fetches blocks from a store in a thread of its own, a few at a time, in the order of a prompt."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from aethermind.cache.container import StoredBlocks
from aethermind.cache.stores.kv_store import KVStore
from aethermind.engine.kv_offload.health import Complaints, StoreHealth, StoreUnavailableError

__all__ = ["Fetch", "StoreReader"]

_LAST_CALL_S = 2.0
"""How long the end of an engine waits for a call on a store."""


class Fetch:
    """Blocks on their way. Read and written under the reader's lock, except `keys`."""

    __slots__ = ("arrived", "is_cancelled", "is_done", "keys")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self.arrived: deque[StoredBlocks] = deque()
        self.is_done = False
        self.is_cancelled = False


class StoreReader:
    """Reads leading blocks until one is missing or cannot be believed."""

    def __init__(
        self,
        store: KVStore,
        unpack: Callable[[bytes, bytes], StoredBlocks],
        health: StoreHealth,
        complaints: Complaints,
        *,
        batch_blocks: int,
        most_arrived: int,
        on_missing: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`batch_blocks` are asked for at a time, at most `most_arrived` wait to be taken. `on_missing` learns which
        keys the store has no value for, or had a bad one, in the reader's thread.
        """
        self._store = store
        self._unpack = unpack
        self._health = health
        self._complaints = complaints
        self._batch_blocks = batch_blocks
        self._most_arrived = most_arrived
        self._on_missing = on_missing
        self._changed = threading.Condition()
        self._queue: deque[Fetch] = deque()
        self._num_news = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="aethermind-kv-reader", daemon=True)
        self._thread.start()

    # -- by the engine's thread ------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether the store is worth asking now."""
        return not self._health.seconds_to_wait and not self._health.is_stuck

    def start(self, keys: Sequence[bytes]) -> Fetch:
        """Begin to fetch the values of `keys`, after those that were asked for before."""
        fetch = Fetch(keys)
        with self._changed:
            self._queue.append(fetch)
            self._changed.notify_all()
        return fetch

    def take(self, fetch: Fetch, at_least: int) -> tuple[list[StoredBlocks], bool]:
        """What has arrived, if it is `at_least` so many blocks or the last of them; and whether it is the last."""
        with self._changed:
            if not fetch.is_done and len(fetch.arrived) < at_least:
                return [], False
            taken = list(fetch.arrived)
            fetch.arrived.clear()
            self._changed.notify_all()
            return taken, fetch.is_done

    def give_up(self, fetch: Fetch) -> list[StoredBlocks]:
        """Stop fetching, and return what has arrived."""
        with self._changed:
            fetch.is_cancelled = True
            self._changed.notify_all()
            taken = list(fetch.arrived)
            fetch.arrived.clear()
        if self._health.is_stuck:
            self._complaints.failed(TimeoutError("it does not answer"))
        return taken

    def wait(self, seconds: float) -> None:
        """Return when something arrives or a fetch ends, or after `seconds`."""
        with self._changed:
            if not self._num_news:
                self._changed.wait_for(lambda: self._num_news, seconds)
            self._num_news = 0

    def close(self) -> None:
        """End all fetches and the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_LAST_CALL_S)

    # -- by its own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (fetch := self._next()) is not None:
            for begin in range(0, len(fetch.keys), self._batch_blocks):
                if not self._has_room(fetch) or not self._read(fetch, fetch.keys[begin : begin + self._batch_blocks]):
                    break
            with self._changed:
                fetch.is_done = True
                self._tell()

    def _next(self) -> Fetch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            return None if self._is_closing else self._queue.popleft()

    def _has_room(self, fetch: Fetch) -> bool:
        """Wait until the engine has taken enough of what arrived; False when nobody wants more."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(fetch.arrived) < self._most_arrived or fetch.is_cancelled or self._is_closing
            )
            return not (fetch.is_cancelled or self._is_closing)

    def _read(self, fetch: Fetch, keys: Sequence[bytes]) -> bool:
        """Fetch some blocks; whether all of them were there and more may follow."""
        if self._health.seconds_to_wait:
            return False
        try:
            values = self._health.call(lambda: self._get(keys))
        except StoreUnavailableError:
            return False
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self._on_missing([key for key, value in zip(keys, values, strict=True) if value is None])
                return False
            try:
                content = self._unpack(key, value)
            except Exception as error:  # bytes from anywhere: whatever is wrong with them, they are not used
                self._complaints.refused(error)
                self._on_missing([key])
                self._remove(key)
                return False
            with self._changed:
                fetch.arrived.append(content)
                self._tell()
        return True

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._store.get(keys)
        if len(values) != len(keys):
            raise ValueError(f"asked for {len(keys)} values, it returned {len(values)}")
        return values

    def _remove(self, key: bytes) -> None:
        try:
            self._health.call(lambda: self._store.remove([key]))
        except StoreUnavailableError:
            return

    def _tell(self) -> None:
        self._num_news += 1
        self._changed.notify_all()
