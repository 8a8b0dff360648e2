"""Snapshots of recurrent states, so that a prefix in the prefix cache can be reused: blocks have the keys and values of
each token, but a state is that of one number of tokens.

A snapshot is a copy of a sequence's state at a block boundary. Each sequence has up to one of its own, taken whenever a
step ends at a boundary, in place of the one before; the scheduler lets chunks of prompts end there. When the blocks of
the sequence are published, so is its snapshot, under the last block before it. A new sequence continues from the
longest cached prefix that ends at a snapshot. (vLLM: `mamba_cache_mode="align"`; SGLang: `MambaRadixCache`.)

Snapshots are in the last slots of the state tensors. A new one replaces the least recently used one, and one
whose block leaves the prefix cache is dropped. A KV store has published snapshots beside blocks: `listener` receives
them, and `add` takes one that was fetched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from aethermind.cache.prefix_cache import HashedPrefixCache, PrefixCacheListener
from aethermind.cache.sequence import CachedSequence
from aethermind.cache.spec import KVCacheSpec
from aethermind.cache.state_slots import NULL_SLOT, StateSlots

__all__ = ["StateSnapshots"]


class StateSnapshots:
    """The snapshots of one cache; the `PrefixCacheListener` of its prefix cache. Not thread-safe."""

    __slots__ = ("_block_size", "_by_block", "_free", "_prefix_cache", "_slots", "listener")

    def __init__(self, spec: KVCacheSpec, slots: StateSlots, prefix_cache: HashedPrefixCache) -> None:
        self._slots = slots
        self._prefix_cache = prefix_cache
        self._block_size = spec.block_size
        self._free = list(range(spec.num_slots - spec.num_snapshots, spec.num_slots))
        self._by_block: OrderedDict[int, int] = OrderedDict()
        prefix_cache.listeners.append(self)
        self.listener: PrefixCacheListener | None = None
        """Receives snapshots that are published and dropped, as slots under the keys of their last blocks."""

    def longest_prefix(self, blocks: Sequence[int]) -> int:
        """Return how many of the leading `blocks` of a cached prefix end at the last snapshot among them; 0: none."""
        return next((count for count in range(len(blocks), 0, -1) if blocks[count - 1] in self._by_block), 0)

    def restore(self, block: int) -> int:
        """Take a state slot for a copy of the snapshot at the end of `block`; the null slot if none is free."""
        self._by_block.move_to_end(block)
        return self._slots.copy(self._by_block[block])

    def last_of(self, sequence: CachedSequence, num_tokens: int) -> tuple[int, int]:
        """Return the last snapshot of a sequence's first `num_tokens` tokens or fewer: how many, and its slot; (0, null
        slot) if there is none.
        """
        blocks = sequence.block_table[: num_tokens // self._block_size]
        num_blocks = self.longest_prefix(blocks)
        if num_blocks * self._block_size < sequence.num_snapshot_tokens <= num_tokens:
            return sequence.num_snapshot_tokens, sequence.snapshot
        return (num_blocks * self._block_size, self._by_block[blocks[num_blocks - 1]]) if num_blocks else (0, NULL_SLOT)

    def take(self, sequence: CachedSequence) -> None:
        """Copy the state of a sequence, whose last block is full, unless all snapshots are other sequences' own."""
        if sequence.snapshot == NULL_SLOT:
            sequence.snapshot = self._allocate()
        if sequence.snapshot == NULL_SLOT:
            return
        sequence.num_snapshot_tokens = sequence.num_tokens
        self._slots.copies.append((sequence.state_slot, sequence.snapshot))

    def take_missing(self, sequence: CachedSequence) -> None:
        """Take a snapshot of a sequence that ends at a block boundary, unless there is one, its own or published."""
        num_tokens = sequence.num_tokens
        if num_tokens % self._block_size or num_tokens in (0, sequence.num_snapshot_tokens):
            return
        if sequence.state_slot != NULL_SLOT and sequence.block_table[-1] not in self._by_block:
            self.take(sequence)

    def publish(self, sequence: CachedSequence, token_ids: Sequence[int]) -> None:
        """Offer the snapshot of a sequence to others, if it is that of a prefix of `token_ids`, which are published."""
        num_tokens = sequence.num_snapshot_tokens
        if sequence.snapshot == NULL_SLOT:
            return
        blocks = self._prefix_cache.match(token_ids[:num_tokens], sequence.extra_key)
        if len(blocks) * self._block_size == num_tokens and blocks[-1] not in self._by_block:
            self._by_block[blocks[-1]] = slot = sequence.snapshot
            sequence.snapshot, sequence.num_snapshot_tokens = NULL_SLOT, 0
            if self.listener is not None:
                self.listener.block_cached(self._prefix_cache.key_of(blocks[-1]), slot)

    def add(self, token_ids: Sequence[int], extra_key: bytes) -> int:
        """Return the slot of a new snapshot after `token_ids`, which the caller writes at once.

        The null slot if there is none, or if their blocks are not cached.
        """
        blocks = self._prefix_cache.match(token_ids, extra_key)
        if not blocks or len(blocks) * self._block_size != len(token_ids) or blocks[-1] in self._by_block:
            return NULL_SLOT
        if (slot := self._allocate()) != NULL_SLOT:
            self._by_block[blocks[-1]] = slot
        return slot

    def _allocate(self) -> int:
        if not self._free and self._by_block:
            self.block_evicted(next(iter(self._by_block)))
        return self._free.pop() if self._free else NULL_SLOT

    def drop(self, sequence: CachedSequence) -> None:
        """Drop the snapshot that is a sequence's own."""
        if sequence.snapshot != NULL_SLOT:
            self._free.append(sequence.snapshot)
            sequence.snapshot, sequence.num_snapshot_tokens = NULL_SLOT, 0

    def block_cached(self, key: bytes, block: int) -> None:
        """Do nothing: a block is cached without a snapshot."""

    def block_evicted(self, block: int) -> None:
        """Drop the snapshot at the end of a block that leaves the prefix cache."""
        if (slot := self._by_block.pop(block, None)) is not None:
            self._free.append(slot)
            if self.listener is not None:
                self.listener.block_evicted(slot)
