"""Swap space for KV blocks: the contract between the KV cache and a store of swapped sequences, and a store in host
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aethermind.cache.block_pool import BlockPool

__all__ = ["BlockMover", "HostSwapStore", "NoSwapStore", "SwapStore"]


class SwapStore(Protocol):
    """Stores the content of blocks under a sequence's id (in host memory, on a disk, on a server)."""

    @property
    def num_blocks(self) -> int:
        """Blocks that it can keep."""
        ...

    @property
    def num_used_blocks(self) -> int:
        """Blocks that it keeps."""
        ...

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Copy the content of `blocks` to the store; False, and nothing stored, if too few of its blocks are free."""
        ...

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Copy the saved content into `blocks`, as many as were saved, and drop it from the store."""
        ...

    def drop(self, seq_id: str) -> None:
        """Drop the saved content."""
        ...


class NoSwapStore:
    """A swap store without blocks."""

    __slots__ = ()

    num_blocks = num_used_blocks = 0

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Refuse."""
        return False

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Raise `AssertionError`: nothing was ever saved."""
        raise AssertionError(f"sequence {seq_id} was never saved")

    def drop(self, seq_id: str) -> None:
        """Do nothing."""


class BlockMover(Protocol):
    """Copies blocks, with the keys and values of all layers, between device memory and a store in host memory."""

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done on return."""
        ...

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done on return."""
        ...


class HostSwapStore:
    """A `SwapStore` of `num_blocks` blocks in host memory. Not thread-safe."""

    __slots__ = ("_host_blocks", "_mover", "_pool", "num_moved_in", "num_moved_out")

    def __init__(self, mover: BlockMover, num_blocks: int) -> None:
        """Make the bookkeeping of a store of `num_blocks` blocks, 1 or more."""
        self._mover = mover
        self._pool = BlockPool(num_blocks)
        self._host_blocks: dict[str, list[int]] = {}
        self.num_moved_out = 0
        """Blocks copied out since the store was made."""
        self.num_moved_in = 0
        """Blocks copied back since the store was made."""

    @property
    def num_blocks(self) -> int:
        """Blocks that it can keep."""
        return self._pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that it keeps."""
        return self._pool.num_used

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Copy the content of `blocks` to host memory; False, and nothing copied, if too few host blocks are free."""
        assert seq_id not in self._host_blocks, f"sequence {seq_id} is already saved"
        host_blocks = self._pool.allocate(len(blocks))
        if host_blocks is None:
            return False
        self._host_blocks[seq_id] = host_blocks
        self._mover.move_out(blocks, host_blocks)
        self.num_moved_out += len(blocks)
        return True

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Copy the saved content into `blocks`, as many as were saved, and drop it."""
        host_blocks = self._host_blocks[seq_id]
        assert len(host_blocks) == len(blocks), f"{len(host_blocks)} blocks were saved, not {len(blocks)}"
        self._mover.move_in(host_blocks, blocks)
        self.num_moved_in += len(blocks)
        self.drop(seq_id)

    def drop(self, seq_id: str) -> None:
        """Drop the saved content."""
        for block in reversed(self._host_blocks.pop(seq_id)):
            self._pool.release(block)
