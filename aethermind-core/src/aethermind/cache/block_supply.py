"""Blocks for whoever asks: free ones first, then those that only a prefix cache holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.prefix_cache import PrefixCache
from aethermind.cache.sequence import CachedSequence

__all__ = ["BlockSupply"]


class BlockSupply:
    """A pool, and the prefix cache that gives up blocks of it on demand. Lack of room is a returned None."""

    __slots__ = ("pool", "prefix_cache")

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return self.pool.num_free + self.prefix_cache.num_reclaimable

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.pool.num_blocks - self.num_available

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take `num_blocks` blocks, a reference each; None, and nothing taken or given up, if there are fewer."""
        num_lacking = num_blocks - self.pool.num_free
        if num_lacking > 0:
            if num_lacking > self.prefix_cache.num_reclaimable:
                return None
            self.prefix_cache.reclaim(num_lacking)
        return self.pool.allocate(num_blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`."""
        for block in blocks:
            self.pool.acquire(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of `blocks`, from the end: a prefix cache gives up first what was released first."""
        for block in reversed(blocks):
            self.pool.release(block)

    def trim(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Leave a sequence its first `num_blocks` blocks."""
        table = sequence.block_table
        self.release(table[num_blocks:])
        del table[num_blocks:]
