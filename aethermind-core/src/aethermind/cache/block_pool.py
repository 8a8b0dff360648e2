"""Physical blocks, counted by reference. A block is a number; what it holds is not this module's business."""

from __future__ import annotations

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks `0 … num_blocks - 1`, each either free or referenced one or more times.

    The block freed last is handed out first, and a fresh pool hands out ascending numbers: the memory in use
    stays small and dense, which matters where a device commits memory only when it is touched. Not
    thread-safe.
    """

    __slots__ = ("_free", "_ref_counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, f"a pool needs a block, got num_blocks={num_blocks}"
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

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

    def ref_count(self, block: int) -> int:
        """References to `block`; 0 means free."""
        return self._ref_counts[block]

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
        if self._ref_counts[block] == 0:
            raise AssertionError(f"block {block} is free and cannot be shared")
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block. Raises `AssertionError` if it is already free."""
        count = self._ref_counts[block] - 1
        if count < 0:
            raise AssertionError(f"block {block} is already free")
        self._ref_counts[block] = count
        if count == 0:
            self._free.append(block)
