"""From tokens of a sequence to the slots of device memory that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["SlotArray", "slots_of"]


class SlotArray(Protocol):
    """Anything that takes a list of integers at a slice: an integer vector, a list."""

    def __setitem__(self, key: slice, value: list[int], /) -> None: ...


def slots_of(block_table: Sequence[int], start: int, count: int, block_size: int) -> list[int]:
    """The slots of `count` tokens from index `start` on, block by block."""
    end = start + count
    assert 0 <= start <= end <= len(block_table) * block_size, f"tokens {start} to {end} are not reserved"
    slots: list[int] = []
    while start < end:
        index, offset = divmod(start, block_size)
        length = min(block_size - offset, end - start)
        first = block_table[index] * block_size + offset
        slots.extend(range(first, first + length))
        start += length
    return slots
