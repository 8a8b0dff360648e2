"""Snapshots of recurrent states in a KV store, beside the blocks of their prefix.

A prefix of a model with recurrent layers can be reused only up to a snapshot (see `cache.recurrent_states`). The key of
a stored snapshot is derived from the key of the last block before it, which depends on all tokens. A snapshot is queued
when it is published to the prefix cache, and written by a thread, like blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aethermind.cache.prefix_cache import chain_hash
from aethermind.cache.recurrent_states import NULL_SLOT
from aethermind.engine.kv_offload.block_bytes import BlockStager
from aethermind.engine.kv_offload.health import CircuitBreaker, KVStoreStats
from aethermind.engine.kv_offload.writer import StoreWriter

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.cache.recurrent_states import StateSnapshots
    from aethermind.cache.serialization import StoredBlocks
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.engine.kv_memory.memory import KVMemory

__all__ = ["StateOffload", "state_key"]


def state_key(block_key: bytes) -> bytes:
    """Return the key of the snapshot at the end of a block."""
    return chain_hash(block_key, b"recurrent state")


class StateOffload:
    """Writes published snapshots to a store, and adds fetched ones to the prefix cache.

    A `PrefixCacheListener` of `StateSnapshots`, whose blocks are state slots. The reader's thread calls `unpack` and
    `mark_missing`, the engine's thread the other methods.
    """

    def __init__(
        self,
        store: KVStore,
        cache: KVCache,
        snapshots: StateSnapshots,
        memory: KVMemory,
        fingerprint: str,
        breaker: CircuitBreaker,
    ) -> None:
        """`snapshots` are those of `cache`; `breaker` is the circuit breaker of writes."""
        self._cache = cache
        self._snapshots = snapshots
        self._memory = memory
        self._incoming = BlockStager.of_states(memory, fingerprint, is_concurrent=False)
        outgoing = BlockStager.of_states(memory, fingerprint, is_concurrent=True)
        self.unpack = self._incoming.unpack
        self.stats = KVStoreStats()
        self._writer = StoreWriter(store, outgoing, cache.spec.block_size, breaker, self.stats)
        self.mark_missing = self._writer.mark_missing
        snapshots.listener = self

    def block_cached(self, key: bytes, slot: int) -> None:
        """Queue a snapshot that was published under the key of its last block."""
        self._memory.copy_states(self._cache.state_copies)  # the snapshot may be a copy that is still pending
        self._writer.block_cached(state_key(key), slot)

    def block_evicted(self, slot: int) -> None:
        """Drop a snapshot from the queue before its slot is reused. Waits while it is being copied."""
        self._writer.block_evicted(slot)

    def load(self, token_ids: Sequence[int], extra_key: bytes, state: StoredBlocks) -> None:
        """Add a fetched state after `token_ids`, whose blocks are in the prefix cache."""
        slot = self._snapshots.add(token_ids, extra_key)
        if slot != NULL_SLOT:
            self._memory.copy_states(self._cache.state_copies)
            self._incoming.put([state], [slot])
            self._writer.mark_stored([bytes.fromhex(state.token_hash)])

    def flush(self, timeout_s: float) -> bool:
        """Wait until all snapshots queued so far are in the store; False on timeout or if the store is failing."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write pending snapshots for at most `timeout_s` seconds."""
        self._writer.flush(timeout_s)
        self._writer.close()
        self._snapshots.listener = None
