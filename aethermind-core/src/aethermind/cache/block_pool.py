"""Physical blocks, counted by reference. A block is a number; what it holds is not this module's business."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks `0 … num_blocks - 1`, each either free or referenced one or more times.

    The block freed last is handed out first, and a fresh pool hands out ascending numbers: the memory in use
    stays small and dense, which matters where a device commits memory only when it is touched. A block may be kept:
    one of its references belongs to a memory of past content, and while that is the only one the block is idle. Not
    thread-safe.
    """

    __slots__ = ("_free", "_idle", "_kept", "_passed_over", "_ref_counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, f"a pool needs a block, got num_blocks={num_blocks}"
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._passed_over: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks nobody references."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks somebody references."""
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of the blocks in use, from 0 to 1."""
        return self.num_used / self.num_blocks

    @property
    def num_idle(self) -> int:
        """Blocks that are kept and that nobody else references."""
        return len(self._idle) + len(self._passed_over)

    def is_idle(self, block: int) -> bool:
        """Whether `block` is kept and nobody else references it."""
        return block in self._idle or block in self._passed_over

    def oldest_idle(self) -> int:
        """The block that has been idle for longest, of those passed over only where there is no other. Raises
        `StopIteration` if none is idle.
        """
        return next(iter(self._idle or self._passed_over))

    def pass_over(self, block: int) -> bool:
        """Have the oldest idle block stand behind all others; False where it does already."""
        if block in self._passed_over:
            return False
        del self._idle[block]
        self._passed_over[block] = None
        return True

    def recall(self, block: int) -> None:
        """If `block` was passed over, make it the oldest again."""
        if block in self._passed_over:
            del self._passed_over[block]
            self._idle[block] = None
            self._idle.move_to_end(block, last=False)

    def ref_count(self, block: int) -> int:
        """References to `block`; 0 means free."""
        return self._ref_counts[block]

    def num_users(self, block: int) -> int:
        """References to `block` besides the one that keeps it."""
        return self._ref_counts[block] - (block in self._kept)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take `num_blocks` free blocks, a reference each; None, and nothing taken, if too few are free."""
        assert num_blocks >= 0, f"cannot allocate {num_blocks} blocks"
        free = self._free
        num_left = len(free) - num_blocks
        if num_left < 0:
            return None
        taken = free[num_left:]
        taken.reverse()
        del free[num_left:]
        for block in taken:
            self._ref_counts[block] = 1
        return taken

    def acquire(self, block: int) -> None:
        """Add a reference to a block in use. Raises `AssertionError` if it is free."""
        count = self._ref_counts[block]
        if count == 0:
            raise AssertionError(f"block {block} is free and cannot be shared")
        if count == 1:
            self._busy(block)
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
        """Add the one reference that keeps a block in use beyond its users, until `drop`."""
        assert block not in self._kept, f"block {block} is already kept"
        self.acquire(block)
        self._kept.add(block)

    def drop(self, block: int) -> None:
        """Take back the reference of `keep`; an idle block becomes free."""
        self._kept.remove(block)
        self._busy(block)
        self.release(block)

    def _busy(self, block: int) -> None:
        self._idle.pop(block, None)
        self._passed_over.pop(block, None)
