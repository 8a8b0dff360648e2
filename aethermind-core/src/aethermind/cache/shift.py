"""Keys that were rotated for one position and are wanted at another: what a device has to rotate, and by how much.

A rotary embedding turns the key of a token by an angle proportional to its position, so rotations add up: a key that
was computed at position p is made one at p + delta by turning it by the angle of delta, with the same frequencies.
Values know no position. `KVCache.shift` moves positions without touching a key; the next `reserve` of the sequence
names the blocks whose keys are to be turned before the step, each once however often the sequence was shifted since.

Source: Su et al., RoFormer, 2021 (https://arxiv.org/abs/2104.09864), section 3.2.2: R(m) R(n) = R(m + n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aethermind.cache.positions import TokenPositions

__all__ = ["BlockShift", "block_shifts"]


class BlockShift(NamedTuple):
    """Keys of one block to be turned in place, in every layer: after the step's copies of blocks, before its writes."""

    block: int
    num_tokens: int
    """Leading slots of the block that are filled; what is in the others means nothing."""
    delta: int
    """Position now less position when computed: the same for all of them, of 64 bits with sign, never 0."""


def block_shifts(
    positions: TokenPositions, block_table: Sequence[int], block_size: int, num_tokens: int
) -> Iterator[BlockShift]:
    """The blocks of a sequence of `num_tokens` tokens whose keys are not where they were computed, in its order."""
    ends = [run.first for run in positions.runs[1:]]
    for run, end in zip(positions.runs, [*ends, num_tokens], strict=True):
        delta = run.position - run.computed_at
        if delta == 0:
            continue
        assert run.first % block_size == 0, f"a shift begins inside a block of {block_size} tokens, at {run.first}"
        for start in range(run.first, end, block_size):
            yield BlockShift(block_table[start // block_size], min(block_size, end - start), delta)
