"""Offers what an engine computes to a store, in a thread of its own that no step waits for.

A full block is remembered by the prefix cache, and nobody writes to it until it is forgotten; so long its content can
be copied at leisure. What waits to be written is therefore at most what the cache holds, and takes no memory. A block
that is wanted for something else before its turn came is dropped: the store lacks it, and somebody computes it again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from aethermind.cache.stores.kv_store import KVStore
from aethermind.engine.kv_offload.block_bytes import BlockBytes
from aethermind.engine.kv_offload.health import StoreHealth, StoreUnavailableError
from aethermind.engine.kv_offload.stats import KVStoreStats
from aethermind.errors import AetherMindError
from aethermind.log import get_logger

__all__ = ["StoreWriter"]

_log = get_logger(__name__)

_NUM_KNOWN_KEYS = 1 << 16
_LAST_CALL_S = 2.0
"""How long the end of an engine waits for a call on a store."""


class StoreWriter:
    """Listens to a prefix cache (`KeptBlocks`) and writes what it keeps."""

    def __init__(
        self, store: KVStore, source: BlockBytes, block_size: int, health: StoreHealth, stats: KVStoreStats
    ) -> None:
        self._store = store
        self._source = source
        self._block_size = block_size
        self._health = health
        self._stats = stats
        self._changed = threading.Condition()
        self._pending: OrderedDict[int, bytes] = OrderedDict()  # by block, guarded by `_changed` like all that follows
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._is_busy = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="aethermind-kv-writer", daemon=True)
        self._thread.start()

    # -- by the engine's thread ------------------------------------------------------------------------------

    def kept(self, key: bytes, block: int) -> None:
        """A block is remembered: write it some time, unless the store has it."""
        with self._changed:
            if key in self._known:
                self._known.move_to_end(key)
            elif self._is_closing:
                self._stats.num_dropped += 1
            else:
                self._pending[block] = key
                self._changed.notify_all()

    def dropped(self, block: int) -> None:
        """A block is about to be used for something else. Waits while it is being copied."""
        with self._changed:
            if self._pending.pop(block, None) is not None:
                self._stats.num_dropped += 1

    def learn(self, keys: Iterable[bytes]) -> None:
        """The store has these."""
        with self._changed:
            self._remember(keys)

    def unlearn(self, keys: Iterable[bytes]) -> None:
        """The store does not have these any more, so they are written when they come up again."""
        with self._changed:
            for key in keys:
                self._known.pop(key, None)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that is kept now is written; False if that takes longer or the store is failing."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending or self._is_busy:
                left = deadline - time.monotonic()
                if left <= 0 or self._health.seconds_to_wait or not self._thread.is_alive():
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Stop after the batch under way; device memory is not read any more."""
        with self._changed:
            self._stop()
        self._thread.join(_LAST_CALL_S)

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
        """Copy the next blocks to host memory and return their keys; None when it is time to stop."""
        with self._changed:
            while not self._is_closing:
                pause_s = self._health.seconds_to_wait
                if self._pending and not pause_s:
                    batch = list(islice(self._pending.items(), self._source.max_blocks))
                    try:
                        self._source.take([block for block, _ in batch])
                    except AetherMindError as error:  # of the device or a rank, which the engine's next step meets too
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
        """Write nothing from now on; under the lock."""
        self._is_closing = True
        self._stats.num_dropped += len(self._pending)
        self._pending.clear()
        self._changed.notify_all()

    def _put(self, entries: list[tuple[bytes, bytes]]) -> bool:
        try:
            self._health.call(lambda: self._store.put(entries))
        except StoreUnavailableError:
            return False
        return True

    def _remember(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > _NUM_KNOWN_KEYS:
            self._known.popitem(last=False)
