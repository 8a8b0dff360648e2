"""Room outside device memory: the contract between the KV cache and a store of swapped sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["NoSwapStore", "SwapStore"]


class SwapStore(Protocol):
    """Keeps the content of blocks under a sequence's name (host memory, a disk, a server)."""

    @property
    def num_blocks(self) -> int:
        """Blocks that it can keep."""
        ...

    @property
    def num_used_blocks(self) -> int:
        """Blocks that it keeps."""
        ...

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Copy the content of `blocks` out; False, and nothing kept, for lack of room."""
        ...

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Copy what `save` kept into `blocks`, as many as were saved, and forget it."""
        ...

    def drop(self, seq_id: str) -> None:
        """Forget what `save` kept."""
        ...


class NoSwapStore:
    """Has no room at all."""

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
