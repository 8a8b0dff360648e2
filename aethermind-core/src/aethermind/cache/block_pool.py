"""Physical KV blocks: reference counts, allocation with eviction from the prefix cache, and the state of each block.

A block is a number here; its memory is the executor's (see `engine.kv_memory`).
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.cache.groups import FREED, live_blocks, num_freeable_blocks
from aethermind.cache.sequence import CachedSequence, CacheState

if TYPE_CHECKING:
    from aethermind.cache.prefix_cache import PrefixCache

__all__ = [
    "BlockAllocator",
    "BlockInfo",
    "BlockPool",
    "count_states",
    "inspect_blocks",
]


class BlockPool:
    """Blocks `0 … num_blocks - 1`, each either free or referenced one or more times.

    The block freed last is allocated first, and a new pool allocates ascending numbers: the memory in use is small and
    dense, which matters where a device commits memory only when it is touched. A prefix cache may keep a block by a
    reference of its own; while that is the only one, the block is idle and can be evicted. Not thread-safe.
    """

    __slots__ = ("_demoted", "_free", "_idle", "_kept", "_ref_counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, f"a pool needs a block, got num_blocks={num_blocks}"
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._demoted: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks without a reference."""
        return len(self._free)

    def free_blocks(self) -> list[int]:
        """Return the blocks without a reference, in ascending order."""
        return sorted(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with one reference or more."""
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of the blocks in use, from 0 to 1."""
        return self.num_used / self.num_blocks

    @property
    def num_idle(self) -> int:
        """Blocks that only the prefix cache references."""
        return len(self._idle) + len(self._demoted)

    def is_idle(self, block: int) -> bool:
        """Whether only the prefix cache references `block`."""
        return block in self._idle or block in self._demoted

    def eviction_candidate(self) -> int:
        """The block to evict next: the one that has been idle for longest, a demoted one only if there is no other.

        Raises `StopIteration` if none is idle.
        """
        return next(iter(self._idle or self._demoted))

    def demote(self, block: int) -> bool:
        """Evict `block`, the oldest idle one, after all others; False if it was demoted before."""
        if block in self._demoted:
            return False
        del self._idle[block]
        self._demoted[block] = None
        return True

    def promote(self, block: int) -> None:
        """Undo `demote`: make `block` the oldest idle one again."""
        if block in self._demoted:
            del self._demoted[block]
            self._idle[block] = None
            self._idle.move_to_end(block, last=False)

    def ref_count(self, block: int) -> int:
        """References to `block`; 0 means free."""
        return self._ref_counts[block]

    def num_users(self, block: int) -> int:
        """References to `block` besides the prefix cache's."""
        return self._ref_counts[block] - (block in self._kept)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take `num_blocks` free blocks with one reference each; None if fewer are free, and then none is taken."""
        assert num_blocks >= 0, f"cannot allocate {num_blocks} blocks"
        free = self._free
        num_left = len(free) - num_blocks
        if num_left < 0:
            return None
        blocks = free[num_left:]
        blocks.reverse()
        del free[num_left:]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def acquire(self, block: int) -> None:
        """Add a reference to a block in use. Raises `AssertionError` if it is free."""
        count = self._ref_counts[block]
        if count == 0:
            raise AssertionError(f"block {block} is free and cannot be shared")
        if count == 1:
            self._remove_from_idle(block)
        self._ref_counts[block] = count + 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block. Raises `AssertionError` if it is already free."""
        count = self._ref_counts[block] - 1
        if count < 0:
            raise AssertionError(f"block {block} is already free")
        self._ref_counts[block] = count
        if count == 0:
            self._free.append(block)
        elif count == 1 and block in self._kept:
            self._idle[block] = None

    def keep(self, block: int) -> None:
        """Add the prefix cache's reference, which keeps a block after its last user, until `drop`."""
        assert block not in self._kept, f"block {block} is already kept"
        self.acquire(block)
        self._kept.add(block)

    def drop(self, block: int) -> None:
        """Remove the reference of `keep`; an idle block becomes free."""
        self._kept.remove(block)
        self._remove_from_idle(block)
        self.release(block)

    def _remove_from_idle(self, block: int) -> None:
        self._idle.pop(block, None)
        self._demoted.pop(block, None)


class BlockAllocator:
    """Allocates blocks of a pool, and evicts idle blocks from the prefix cache when too few are free."""

    __slots__ = ("pool", "prefix_cache")

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can return: free ones and those that can be evicted."""
        return self.pool.num_free + self.prefix_cache.num_evictable

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.pool.num_blocks - self.num_available

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take `num_blocks` blocks with one reference each; None if there are fewer, and then none is evicted."""
        num_short = num_blocks - self.pool.num_free
        if num_short > 0:
            if num_short > self.prefix_cache.num_evictable:
                return None
            self.prefix_cache.evict(num_short)
        return self.pool.allocate(num_blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`."""
        for block in blocks:
            self.pool.acquire(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of `blocks`, last block first, so that the end of a prefix is evicted first."""
        for block in reversed(blocks):
            self.pool.release(block)

    def trim(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Release all but the first `num_blocks` blocks of each table of a sequence."""
        table = sequence.block_table
        self.release(table[num_blocks:])
        del table[num_blocks:]
        for table in sequence.window_tables:
            self.release(live_blocks(table[num_blocks:]))
            del table[num_blocks:]

    def release_hidden(self, sequence: CachedSequence, block_size: int) -> None:
        """Release the blocks of a sequence that its windows hide from all further queries (see `groups`)."""
        for group, (window, table) in enumerate(zip(sequence.windows, sequence.window_tables, strict=True)):
            first, end = sequence.num_freed[group], num_freeable_blocks(sequence.num_tokens, window, block_size)
            if first < end:
                self.release(table[first:end])
                table[first:end] = array("i", [FREED]) * (end - first)
                sequence.num_freed[group] = end


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """The state of one block at one moment, and the sequences that hold it.

    Attributes:
        state: Active if a running sequence holds it, else Standby if an idle one does (a session between turns), else
            Warm if it is kept for reuse, else Free.
        is_protected: whether a pinned sequence holds it.
        holders: for each sequence that holds the block, the position of the block's first token.
    """

    state: CacheState
    is_protected: bool
    holders: Mapping[str, int]


def inspect_blocks(pool: BlockPool, sequences: Mapping[str, CachedSequence], block_size: int) -> list[BlockInfo]:
    """Return the state of each block of `pool`, by number. Takes time linear in the blocks of all sequences."""
    holders: list[dict[str, int]] = [{} for _ in range(pool.num_blocks)]
    for seq_id, sequence in sequences.items():
        for table in sequence.tables:
            for index, block in enumerate(table):
                if block != FREED:
                    holders[block][seq_id] = sequence.positions.position(index * block_size)
    return [_inspect_block(pool, block, sequences, by_sequence) for block, by_sequence in enumerate(holders)]


def count_states(blocks: list[BlockInfo], num_swapped: int) -> dict[CacheState, int]:
    """Count blocks by state. Swapped blocks are in the swap store, all others add up to the pool."""
    counts = Counter(block.state for block in blocks)
    return {state: counts[state] for state in CacheState} | {CacheState.SWAPPED: num_swapped}


def _inspect_block(
    pool: BlockPool, block: int, sequences: Mapping[str, CachedSequence], holders: Mapping[str, int]
) -> BlockInfo:
    states = {sequences[seq_id].state for seq_id in holders}
    if CacheState.ACTIVE in states:
        state = CacheState.ACTIVE
    elif states:
        state = CacheState.STANDBY
    else:
        state = CacheState.WARM if pool.ref_count(block) else CacheState.FREE
    return BlockInfo(state, any(sequences[seq_id].is_pinned for seq_id in holders), holders)
