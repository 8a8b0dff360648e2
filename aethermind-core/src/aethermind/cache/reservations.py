"""Reservations: the blocks of tokens about to be computed, with copies of shared blocks that these tokens write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from aethermind.cache.outcome import CacheOutcome, ReserveResult
from aethermind.cache.positions import IDENTITY_POSITIONS, BlockShift, block_shifts
from aethermind.cache.sequence import CachedSequence
from aethermind.cache.sequence_swapper import SequenceSwapper

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache

__all__ = ["RESERVED", "SlotArray", "reserve_chunk", "reserve_slots", "reserve_slots_in_groups", "slots_of"]

RESERVED = ReserveResult(CacheOutcome.OK)
"""The result OK without copies and shifts, which most reservations have; created once."""


class SlotArray(Protocol):
    """A mutable sequence of integers, such as a list or an integer array, of which a slice can be assigned a list."""

    def __setitem__(self, key: slice, value: list[int], /) -> None: ...


def reserve_slots(
    sequence: CachedSequence, end: int, swapper: SequenceSwapper, block_size: int, max_model_len: int
) -> ReserveResult:
    """Reserve slots for `sequence` from its last computed token up to index `end`; all or nothing.

    A block that is written, or whose keys are rotated, must not be shared: a shared one is replaced by a copy. If too
    few blocks are free for copies, blocks that no other sequence uses are taken out of the prefix cache instead.
    """
    table, pool = sequence.block_table, swapper.pool
    num_tokens = sequence.num_tokens
    shifts: list[BlockShift] = []
    if sequence.positions is not IDENTITY_POSITIONS:
        shifts = list(block_shifts(sequence.positions, range(len(table)), block_size, num_tokens))
    modified = {shift.block for shift in shifts}  # indices into the table
    # Among the blocks to be written only the partly filled one can be shared: sharing drops all reservations.
    if (partial := num_tokens // block_size) < len(table):
        modified.add(partial)
    shared = sorted(index for index in modified if pool.ref_count(table[index]) > 1)
    num_missing = max(-(-end // block_size) - len(table), 0)
    blocks = swapper.allocate(num_missing + len(shared))
    if blocks is None and shifts:
        swapper.uncache(table[index] for index in shared)
        shared = [index for index in shared if pool.ref_count(table[index]) > 1]
        blocks = swapper.allocate(num_missing + len(shared))
    if blocks is None:
        return ReserveResult(CacheOutcome.NO_FREE_BLOCKS)
    copies = []
    for index in shared:
        source, table[index] = table[index], blocks.pop()
        pool.release(source)
        copies.append((source, table[index]))
    table.extend(blocks)
    sequence.num_writable = min(len(table) * block_size, max_model_len)
    if not copies and not shifts:
        return RESERVED
    sequence.positions = sequence.positions.with_keys_shifted() if shifts else sequence.positions
    block_shifts_of_table = tuple(shift._replace(block=table[shift.block]) for shift in shifts)
    return ReserveResult(CacheOutcome.OK, tuple(copies), block_shifts_of_table)


def reserve_slots_in_groups(
    sequence: CachedSequence, end: int, swapper: SequenceSwapper, block_size: int, max_model_len: int
) -> ReserveResult:
    """Reserve slots in every group up to index `end`, after freeing blocks that windows hide; all or nothing.

    The partly filled block of each group, which the sequence writes, is replaced by a copy if it is shared.
    """
    swapper.release_hidden(sequence)
    pool, partial, table_len = swapper.pool, sequence.num_tokens // block_size, len(sequence.block_table)
    shared = [table for table in sequence.tables if partial < table_len and pool.ref_count(table[partial]) > 1]
    num_missing = max(-(-end // block_size) - table_len, 0)
    blocks = swapper.allocate(num_missing * len(sequence.tables) + len(shared))
    if blocks is None:
        return ReserveResult(CacheOutcome.NO_FREE_BLOCKS)
    copies = []
    for table in shared:
        source, table[partial] = table[partial], blocks.pop()
        pool.release(source)
        copies.append((source, table[partial]))
    for index, table in enumerate(sequence.tables):
        table.extend(blocks[index * num_missing : (index + 1) * num_missing])
    sequence.num_writable = min(len(sequence.block_table) * block_size, max_model_len)
    return ReserveResult(CacheOutcome.OK, tuple(copies)) if copies else RESERVED


def reserve_chunk(cache: KVCache, seq_id: str, num_new_tokens: int) -> tuple[ReserveResult, int]:
    """Reserve slots for a chunk of a prompt: `num_new_tokens`, or fewer if too few blocks are free.

    With several groups, a chunk holds blocks in each of them until windows free as many, so a shorter chunk needs fewer
    blocks. The chunk has at least `spec.max_new_tokens` tokens, which `spec.num_blocks_for` counts. Returns the result,
    and the number of tokens of the chunk.
    """
    while True:
        result = cache.reserve(seq_id, num_new_tokens)
        is_shortest = cache.num_groups == 1 or num_new_tokens <= cache.spec.max_new_tokens
        if is_shortest or result.outcome is not CacheOutcome.NO_FREE_BLOCKS:
            return result, num_new_tokens
        end = cache.num_tokens(seq_id) + num_new_tokens // 2
        num_new_tokens = max(num_new_tokens // 2 - end % cache.spec.block_size, cache.spec.max_new_tokens)


def slots_of(block_table: Sequence[int], start: int, count: int, block_size: int) -> list[int]:
    """Return the slots of `count` tokens from index `start` on, block by block."""
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
