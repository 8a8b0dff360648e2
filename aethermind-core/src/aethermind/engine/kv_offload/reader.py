"""The reader of a KV store: a thread that fetches the blocks of prompts, a few at a time, in their order.

For a model with recurrent layers it first fetches the last stored state of a prompt, and then the blocks before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from aethermind.cache.serialization import StoredBlocks
from aethermind.cache.stores.kv_store import KVStore
from aethermind.engine.kv_offload.health import CircuitBreaker, StoreUnavailableError, WarnOnce
from aethermind.engine.kv_offload.states import StateOffload, state_key

__all__ = ["Fetch", "StoreReader"]

_JOIN_TIMEOUT_S = 2.0
"""How long closing waits for a call on the store that is in progress."""


class FetchedState(NamedTuple):
    """A recurrent state after the first `num_blocks` blocks of a fetch."""

    num_blocks: int
    content: StoredBlocks


class Fetch:
    """Blocks being fetched. Guarded by the reader's lock, except `keys`."""

    __slots__ = ("arrived", "is_cancelled", "is_done", "keys", "state")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self.arrived: deque[StoredBlocks] = deque()
        self.is_done = False
        self.is_cancelled = False
        self.state: FetchedState | None = None
        """The recurrent state at the end of the last of its blocks; read once it is done."""


class StoreReader:
    """Fetches the leading blocks of prompts, up to the first that is missing or invalid."""

    def __init__(
        self,
        store: KVStore,
        unpack: Callable[[bytes, bytes], StoredBlocks],
        breaker: CircuitBreaker,
        warnings: WarnOnce,
        *,
        batch_blocks: int,
        max_arrived: int,
        on_missing: Callable[[Sequence[bytes]], None],
        states: StateOffload | None = None,
        has_blocks: bool = True,
    ) -> None:
        """Fetch `batch_blocks` blocks per call; at most `max_arrived` blocks wait to be taken (backpressure).

        `on_missing` is called with the keys that have no value, or had an invalid one, in the reader's thread.
        `states` is for a model with recurrent layers; without `has_blocks` the model has no other layers.
        """
        self._store = store
        self._unpack = unpack
        self._breaker = breaker
        self._warnings = warnings
        self._batch_blocks = batch_blocks
        self._max_arrived = max_arrived
        self._on_missing = on_missing
        self._states = states
        self._has_blocks = has_blocks
        self._changed = threading.Condition()
        self._queue: deque[Fetch] = deque()
        self._num_events = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="aethermind-kv-reader", daemon=True)
        self._thread.start()

    # -- by the engine's thread ------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether a call on the store may be made now."""
        return not self._breaker.retry_after_s and not self._breaker.is_stuck

    def start(self, keys: Sequence[bytes]) -> Fetch:
        """Queue a fetch of the values of `keys`."""
        fetch = Fetch(keys)
        with self._changed:
            self._queue.append(fetch)
            self._changed.notify_all()
        return fetch

    def take(self, fetch: Fetch, min_blocks: int) -> tuple[list[StoredBlocks], bool]:
        """Take the blocks that have arrived, and whether the fetch is done.

        No block is taken before there are `min_blocks`, unless the fetch is done.
        """
        with self._changed:
            if not fetch.is_done and len(fetch.arrived) < min_blocks:
                return [], False
            contents = list(fetch.arrived)
            fetch.arrived.clear()
            self._changed.notify_all()
            return contents, fetch.is_done

    def cancel(self, fetch: Fetch) -> list[StoredBlocks]:
        """Cancel a fetch, and return the blocks that have arrived."""
        with self._changed:
            fetch.is_cancelled = True
            self._changed.notify_all()
            contents = list(fetch.arrived)
            fetch.arrived.clear()
        if self._breaker.is_stuck:
            self._warnings.failed(TimeoutError("it does not answer"))
        return contents

    def wait(self, seconds: float) -> None:
        """Wait until a block arrives or a fetch ends, at most `seconds`."""
        with self._changed:
            if not self._num_events:
                self._changed.wait_for(lambda: self._num_events, seconds)
            self._num_events = 0

    def close(self) -> None:
        """End all fetches and the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_JOIN_TIMEOUT_S)

    # -- by its own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (fetch := self._next()) is not None:
            if self._states is not None:
                fetch.state = self._read_state(fetch, self._states)
            keys = fetch.keys if self._states is None else fetch.keys[: fetch.state.num_blocks if fetch.state else 0]
            for begin in range(0, len(keys), self._batch_blocks):
                if not self._wait_for_space(fetch) or not self._read(fetch, keys[begin : begin + self._batch_blocks]):
                    break
            with self._changed:
                fetch.is_done = True
                self._notify()

    def _next(self) -> Fetch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            return None if self._is_closing else self._queue.popleft()

    def _wait_for_space(self, fetch: Fetch) -> bool:
        """Wait until the engine has taken enough blocks (backpressure); False if the fetch was cancelled."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(fetch.arrived) < self._max_arrived or fetch.is_cancelled or self._is_closing
            )
            return not (fetch.is_cancelled or self._is_closing)

    def _read(self, fetch: Fetch, keys: Sequence[bytes]) -> bool:
        """Fetch the blocks of some keys; returns whether all were there and valid."""
        if not self._has_blocks:  # a model without attention stores nothing in blocks
            with self._changed:
                fetch.arrived.extend(StoredBlocks("", key.hex(), 0, {}) for key in keys)
                self._notify()
            return True
        if self._breaker.retry_after_s:
            return False
        try:
            values = self._breaker.call(lambda: self._get(keys))
        except StoreUnavailableError:
            return False
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self._on_missing([key for key, value in zip(keys, values, strict=True) if value is None])
                return False
            try:
                content = self._unpack(key, value)
            except Exception as error:  # the bytes are not trusted: after any error they are not used
                self._warnings.refused(error)
                self._on_missing([key])
                self._remove(key)
                return False
            with self._changed:
                fetch.arrived.append(content)
                self._notify()
        return True

    def _read_state(self, fetch: Fetch, states: StateOffload) -> FetchedState | None:
        """Fetch the last stored state of a prompt; None if there is none.

        States are large and far apart, and most prompts end shortly after one. So the last key is asked for first, then
        the two before it, then four, and so on.
        """
        end, size = len(fetch.keys), 1
        while end and not (fetch.is_cancelled or self._is_closing or self._breaker.retry_after_s):
            begin = max(end - size, 0)
            keys = [state_key(key) for key in fetch.keys[begin:end]]
            try:
                values = self._breaker.call(partial(self._get, keys))
            except StoreUnavailableError:
                return None
            states.mark_missing([key for key, value in zip(keys, values, strict=True) if value is None])
            for index in reversed(range(len(keys))):
                value = values[index]
                if value is None:
                    continue
                try:
                    return FetchedState(begin + index + 1, states.unpack(keys[index], value))
                except Exception as error:  # not trusted, like those of blocks
                    self._warnings.refused(error)
                    states.mark_missing([keys[index]])
                    self._remove(keys[index])
            end, size = begin, 2 * size
        return None

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._store.get(keys)
        if len(values) != len(keys):
            raise ValueError(f"asked for {len(keys)} values, it returned {len(values)}")
        return values

    def _remove(self, key: bytes) -> None:
        try:
            self._breaker.call(lambda: self._store.remove([key]))
        except StoreUnavailableError:
            return

    def _notify(self) -> None:
        self._num_events += 1
        self._changed.notify_all()
