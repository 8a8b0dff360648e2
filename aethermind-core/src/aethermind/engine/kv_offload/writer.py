"""The writer of a KV store: a thread that stores computed blocks. No step waits for it.

No step overwrites a full block in the prefix cache until it is evicted, so its content can be copied at any time
before. The queue of pending blocks is therefore limited by the size of the cache, and takes no memory for contents. A
block that is evicted before the writer reaches it is dropped from the queue, and is computed again when it is needed.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from aethermind.cache.stores.kv_store import KVStore
from aethermind.engine.kv_offload.block_bytes import BlockStager
from aethermind.engine.kv_offload.health import CircuitBreaker, KVStoreStats, StoreUnavailableError
from aethermind.errors import AetherMindError
from aethermind.log import get_logger

__all__ = ["StoreWriter"]

_log = get_logger(__name__)

_MAX_STORED_KEYS = 1 << 16
"""Number of keys that the writer remembers as stored."""
_JOIN_TIMEOUT_S = 2.0
"""How long closing waits for a call on the store that is in progress."""


class StoreWriter:
    """A `PrefixCacheListener` that writes cached blocks to a store."""

    def __init__(
        self, store: KVStore, source: BlockStager, block_size: int, breaker: CircuitBreaker, stats: KVStoreStats
    ) -> None:
        self._store = store
        self._source = source
        self._block_size = block_size
        self._breaker = breaker
        self._stats = stats
        self._changed = threading.Condition()
        self._pending: OrderedDict[int, bytes] = (
            OrderedDict()
        )  # keys by block; `_changed` guards this and the following attributes
        self._stored_keys: OrderedDict[bytes, None] = OrderedDict()
        self._is_busy = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="aethermind-kv-writer", daemon=True)
        self._thread.start()

    # -- by the engine's thread ------------------------------------------------------------------------------

    def block_cached(self, key: bytes, block: int) -> None:
        """Queue a block of the prefix cache, unless the store has it."""
        with self._changed:
            if key in self._stored_keys:
                self._stored_keys.move_to_end(key)
            elif self._is_closing:
                self._stats.num_dropped += 1
            else:
                self._pending[block] = key
                self._changed.notify_all()

    def block_evicted(self, block: int) -> None:
        """Drop a block from the queue before it is reused. Waits while it is being copied."""
        with self._changed:
            if self._pending.pop(block, None) is not None:
                self._stats.num_dropped += 1

    def mark_stored(self, keys: Iterable[bytes]) -> None:
        """Record that the store has these keys."""
        with self._changed:
            self._remember(keys)

    def mark_missing(self, keys: Iterable[bytes]) -> None:
        """Record that the store no longer has these keys, so that their blocks are written again."""
        with self._changed:
            for key in keys:
                self._stored_keys.pop(key, None)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all pending blocks are written; False on timeout or if the store is failing."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending or self._is_busy:
                left = deadline - time.monotonic()
                if left <= 0 or self._breaker.retry_after_s or not self._thread.is_alive():
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Stop after the batch in progress; device memory is not read after that."""
        with self._changed:
            self._stop()
        self._thread.join(_JOIN_TIMEOUT_S)

    # -- by its own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (keys := self._take()) is not None:
            entries = [(key, self._source.pack(index, key, self._block_size)) for index, key in enumerate(keys)]
            is_stored = self._put(entries)
            with self._changed:
                self._is_busy = False
                if is_stored:
                    self._stats.num_stored += len(keys)
                    self._remember(keys)
                else:
                    self._stats.num_dropped += len(keys)
                self._changed.notify_all()

    def _take(self) -> list[bytes] | None:
        """Copy the next blocks to host memory and return their keys; None when closing."""
        with self._changed:
            while not self._is_closing:
                pause_s = self._breaker.retry_after_s
                if self._pending and not pause_s:
                    batch = list(islice(self._pending.items(), self._source.max_blocks))
                    try:
                        self._source.take([block for block, _ in batch])
                    except (
                        AetherMindError
                    ) as error:  # of the device or a rank; the next step of the engine raises it too
                        _log.info("Blocks are not written to a KV store any more: %s", error)
                        self._stop()
                        return None
                    for block, _ in batch:
                        del self._pending[block]
                    self._is_busy = True
                    return [key for _, key in batch]
                self._changed.wait(pause_s or None)
            return None

    def _stop(self) -> None:
        """Drop pending blocks and write no more; called under the lock."""
        self._is_closing = True
        self._stats.num_dropped += len(self._pending)
        self._pending.clear()
        self._changed.notify_all()

    def _put(self, entries: list[tuple[bytes, bytes]]) -> bool:
        try:
            self._breaker.call(lambda: self._store.put(entries))
        except StoreUnavailableError:
            return False
        return True

    def _remember(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._stored_keys[key] = None
            self._stored_keys.move_to_end(key)
        while len(self._stored_keys) > _MAX_STORED_KEYS:
            self._stored_keys.popitem(last=False)
