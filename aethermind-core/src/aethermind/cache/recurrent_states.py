"""Recurrent states of sequences, for models with recurrent layers: state slots, and snapshots for the prefix cache.

A state tensor is [num_slots, …], and slot *s* of the cache is row *s* of all state tensors. A sequence has one slot
from its first reservation until it ends, but not always the same one. Blocks of keys can be shared and dropped one by
one, because each token has its own keys. A state stands for all tokens of its sequence and is overwritten by each step:
it can be copied, but not shared. A sequence can drop its last tokens only down to a number of tokens whose state was
copied: 0, those of its *checkpoint*, which is taken before drafts are verified, or those of a *snapshot*. (vLLM: the
state indices of `mamba_cache_params`; llama.cpp: `llama_memory_recurrent`.)

A slot is not cleared: in the step that computes the first token of a sequence, the operators take its initial state as
zero, whatever the slot holds (see `ops.catalog`). No sequence has slot 0, the null slot: padding of steps reads and
writes there. Swapped sequences have slots in host memory, which are numbered after those of the device. Forks,
snapshots and swaps are copies in one list. They are carried out in order before a graph runs next, so a slot can be
reused at once.

A snapshot is a copy of a sequence's state at a block boundary. Each sequence has up to one that is not published, taken
whenever a step ends at a boundary, in place of the one before; the scheduler lets chunks of prompts end there. When the
blocks of the sequence are published, so is its snapshot, under the last block before it. A new sequence continues from
the longest cached prefix that ends at a snapshot. (vLLM: `mamba_cache_mode="align"`; SGLang: `MambaRadixCache`.)

Snapshots are in the last slots of the state tensors. If all are taken, a new one replaces the one whose loss costs
least: few tokens since the snapshot before it, and not used for long (Cao and Irani's GreedyDual-Size, 1997). So a
conversation with many turns loses its intermediate snapshots before its first ones, from which edited and parallel
conversations continue. A snapshot whose block leaves the prefix cache is dropped. A KV store has published snapshots
beside blocks: `listener` receives them, and `add` takes one that was fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from aethermind.cache.prefix_cache import HashedPrefixCache, PrefixCacheListener
    from aethermind.cache.sequence import CachedSequence
    from aethermind.cache.spec import KVCacheSpec

__all__ = [
    "NULL_SLOT",
    "NUM_RESERVED_SLOTS",
    "StateSlots",
    "StateSnapshots",
]

NULL_SLOT = 0
"""The slot of padding, and of a sequence that has none yet."""

NUM_RESERVED_SLOTS = 2
"""Slots besides those of running requests: the null slot, and a scratch slot, which a fork of a request that ends or a
text that is embedded or scored takes temporarily."""


class StateSlots:
    """The state slots of sequences, `1 … end - 1` and those of `on_host`, and the pending copies of states.

    Not thread-safe.
    """

    __slots__ = ("_first_on_host", "_free", "_free_on_host", "copies", "num_moved_in", "num_moved_out")

    def __init__(self, end: int, on_host: range = range(0)) -> None:
        self._free = list(range(end - 1, NULL_SLOT, -1))
        self._free_on_host = list(reversed(on_host))
        self._first_on_host = on_host.start if on_host else end
        self.num_moved_out = self.num_moved_in = 0
        """States swapped out, and back in, so far."""
        self.copies: list[tuple[int, int]] = []
        """`(source, destination)` slots of forks, snapshots, checkpoints and swaps, to copy in order before the next
        run of a graph. Until then no graph has written to a source, even if its sequence has ended since."""

    @classmethod
    def of(cls, spec: KVCacheSpec) -> Self:
        """Return the slots of sequences of a cache; the last slots of the device are those of snapshots."""
        return cls(spec.num_slots - spec.num_snapshots, range(spec.num_slots, spec.num_slots + spec.num_host_slots))

    @property
    def num_free(self) -> int:
        """Slots that no sequence has."""
        return len(self._free)

    @property
    def num_free_on_host(self) -> int:
        """Slots in host memory that no swapped sequence has."""
        return len(self._free_on_host)

    def allocate(self) -> int:
        """Take the slot that was freed last; the null slot if there is none.

        A step in flight may still write to it. Steps and copies run in the order in which they are enqueued, so the
        sequence that gets the slot is computed after that.
        """
        return self._free.pop() if self._free else NULL_SLOT

    def copy(self, slot: int) -> int:
        """Take a slot for a copy of the state in `slot`; the null slot if there is none, or for the null slot."""
        if slot == NULL_SLOT:
            return NULL_SLOT
        destination = self.allocate()
        if destination != NULL_SLOT:
            self.copies.append((slot, destination))
        return destination

    def checkpoint(self, sequence: CachedSequence) -> bool:
        """Copy the state of a sequence to a slot of its own, in place of its last checkpoint; False if none is free."""
        if sequence.checkpoint == NULL_SLOT:
            sequence.checkpoint = self.allocate()
        if sequence.checkpoint == NULL_SLOT:
            return False
        sequence.num_checkpoint_tokens = sequence.num_tokens
        self.copies.append((sequence.state_slot, sequence.checkpoint))
        return True

    def drop_checkpoint(self, sequence: CachedSequence) -> None:
        """Give back the slot of a sequence's checkpoint, if it has one."""
        self.free(sequence.checkpoint)
        sequence.checkpoint, sequence.num_checkpoint_tokens = NULL_SLOT, 0

    def swap_out(self, slot: int) -> int:
        """Exchange a slot for one in host memory, of which one must be free."""
        on_host = self._free_on_host.pop()
        self.copies.append((slot, on_host))
        self.num_moved_out += 1
        self.free(slot)
        return on_host

    def swap_in(self, on_host: int) -> int:
        """Exchange a slot in host memory for one of the device, of which one must be free."""
        slot = self._free.pop()
        self.copies.append((on_host, slot))
        self.num_moved_in += 1
        self.free(on_host)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back. Does nothing for the null slot."""
        if slot != NULL_SLOT:
            free = self._free if slot < self._first_on_host else self._free_on_host
            assert slot not in free, f"state slot {slot} is already free"
            free.append(slot)


@dataclass(slots=True)
class _Snapshot:
    """A published snapshot: its slot, the blocks since the snapshot before it, and the age of its last use."""

    slot: int
    num_blocks: int
    age: int

    @property
    def priority(self) -> int:
        """The snapshot of lowest priority is evicted first."""
        return self.age + self.num_blocks


class StateSnapshots:
    """The snapshots of one cache; the `PrefixCacheListener` of its prefix cache. Not thread-safe.

    `_age` is the priority of the last snapshot that was evicted, so that those which are used later come after it.
    """

    __slots__ = ("_age", "_block_size", "_by_block", "_free", "_prefix_cache", "_slots", "listener")

    def __init__(self, spec: KVCacheSpec, slots: StateSlots, prefix_cache: HashedPrefixCache) -> None:
        self._slots = slots
        self._prefix_cache = prefix_cache
        self._block_size = spec.block_size
        self._free = list(range(spec.num_slots - spec.num_snapshots, spec.num_slots))
        self._by_block: dict[int, _Snapshot] = {}
        self._age = 0
        prefix_cache.listeners.append(self)
        self.listener: PrefixCacheListener | None = None
        """Receives snapshots that are published and dropped, as slots under the keys of their last blocks."""

    def longest_prefix(self, blocks: Sequence[int]) -> int:
        """Return how many of the leading `blocks` of a cached prefix end at the last snapshot among them; 0: none."""
        return next((count for count in range(len(blocks), 0, -1) if blocks[count - 1] in self._by_block), 0)

    def restore(self, block: int) -> int:
        """Take a state slot for a copy of the snapshot at the end of `block`; the null slot if none is free."""
        snapshot = self._by_block[block] = self._by_block.pop(block)  # last among equal priorities
        snapshot.age = self._age
        return self._slots.copy(snapshot.slot)

    def last_of(self, sequence: CachedSequence, num_tokens: int) -> tuple[int, int]:
        """Return the last snapshot among a sequence's first `num_tokens` tokens: how many tokens it stands for, and its
        slot; (0, null slot) if there is none.
        """
        blocks = sequence.block_table[: num_tokens // self._block_size]
        num_blocks = self.longest_prefix(blocks)
        if num_blocks * self._block_size < sequence.num_snapshot_tokens <= num_tokens:
            return sequence.num_snapshot_tokens, sequence.snapshot
        if not num_blocks:
            return 0, NULL_SLOT
        return num_blocks * self._block_size, self._by_block[blocks[num_blocks - 1]].slot

    def take(self, sequence: CachedSequence) -> None:
        """Copy the state of a sequence, whose last block is full, unless all slots hold unpublished snapshots."""
        if sequence.snapshot == NULL_SLOT:
            sequence.snapshot = self._allocate()
        if sequence.snapshot == NULL_SLOT:
            return
        sequence.num_snapshot_tokens = sequence.num_tokens
        self._slots.copies.append((sequence.state_slot, sequence.snapshot))

    def take_missing(self, sequence: CachedSequence) -> None:
        """Take a snapshot of a sequence that ends at a block boundary, unless there is one, published or not."""
        num_tokens = sequence.num_tokens
        if num_tokens % self._block_size or num_tokens in (0, sequence.num_snapshot_tokens):
            return
        if sequence.state_slot != NULL_SLOT and sequence.block_table[-1] not in self._by_block:
            self.take(sequence)

    def publish(self, sequence: CachedSequence, token_ids: Sequence[int]) -> None:
        """Publish the snapshot of a sequence, if it is that of a prefix of `token_ids`, whose blocks are published."""
        num_tokens = sequence.num_snapshot_tokens
        if sequence.snapshot == NULL_SLOT:
            return
        blocks = self._prefix_cache.match(token_ids[:num_tokens], sequence.extra_key)
        if len(blocks) * self._block_size == num_tokens and blocks[-1] not in self._by_block:
            slot = sequence.snapshot
            sequence.snapshot, sequence.num_snapshot_tokens = NULL_SLOT, 0
            self._add(blocks, slot)
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
            self._add(blocks, slot)
        return slot

    def _add(self, blocks: Sequence[int], slot: int) -> None:
        """Add a snapshot at the end of a cached prefix."""
        num_blocks = len(blocks) - self.longest_prefix(blocks[:-1])
        self._by_block[blocks[-1]] = _Snapshot(slot, num_blocks, self._age)

    def _allocate(self) -> int:
        if not self._free and self._by_block:
            self._evict()
        return self._free.pop() if self._free else NULL_SLOT

    def _evict(self) -> None:
        """Evict the snapshot of lowest priority. Priorities grow when snapshots before were evicted."""
        while True:
            block, snapshot = min(self._by_block.items(), key=lambda item: item[1].priority)
            num_blocks = self._num_blocks_since_snapshot(block)
            if num_blocks <= snapshot.num_blocks:
                break
            snapshot.num_blocks = num_blocks
        self._age = snapshot.priority
        self.block_evicted(block)

    def _num_blocks_since_snapshot(self, block: int) -> int:
        """Return how many blocks end at `block` and come after the snapshot before it, or make up its prefix."""
        count = 1
        for parent in self._prefix_cache.ancestors(block):
            if parent in self._by_block:
                break
            count += 1
        return count

    def drop(self, sequence: CachedSequence) -> None:
        """Drop the snapshot of a sequence that is not published."""
        if sequence.snapshot != NULL_SLOT:
            self._free.append(sequence.snapshot)
            sequence.snapshot, sequence.num_snapshot_tokens = NULL_SLOT, 0

    def block_cached(self, key: bytes, block: int) -> None:
        """Do nothing: a block is cached without a snapshot."""

    def block_evicted(self, block: int) -> None:
        """Drop the snapshot at the end of a block that leaves the prefix cache."""
        if (snapshot := self._by_block.pop(block, None)) is not None:
            self._free.append(snapshot.slot)
            if self.listener is not None:
                self.listener.block_evicted(snapshot.slot)
