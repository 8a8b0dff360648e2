"""Making room behind a sequence's last token: new blocks, copies of shared ones, and keys to turn in them."""

from __future__ import annotations

from aethermind.cache.outcome import Outcome, ReserveResult
from aethermind.cache.positions import PLAIN
from aethermind.cache.residency import Residency
from aethermind.cache.sequence import CachedSequence
from aethermind.cache.shift import BlockShift, block_shifts

__all__ = ["grow"]

_RESERVED = ReserveResult(Outcome.OK)


def grow(
    sequence: CachedSequence, end: int, residency: Residency, block_size: int, max_model_len: int
) -> ReserveResult:
    """Let `sequence` write its tokens from the last computed one up to index `end`; all or nothing.

    What it writes next to, and what it turns the keys of, must be its alone: it gets copies of blocks that others use.
    """
    table, pool = sequence.block_table, residency.pool
    num_tokens = sequence.num_tokens
    shifts: list[BlockShift] = []
    if sequence.positions is not PLAIN:
        shifts = list(block_shifts(sequence.positions, range(len(table)), block_size, num_tokens))
    changed = {shift.block for shift in shifts}
    # Only the partly filled block can be shared and about to be written: sharing drops all reservations.
    if (partial := num_tokens // block_size) < len(table):
        changed.add(partial)
    shared = sorted(index for index in changed if pool.ref_count(table[index]) > 1)
    num_missing = max(-(-end // block_size) - len(table), 0)
    blocks = residency.allocate(num_missing + len(shared))
    if blocks is None:
        return ReserveResult(Outcome.NO_ROOM)
    copies = []
    for index in shared:
        source, table[index] = table[index], blocks.pop()
        pool.release(source)
        copies.append((source, table[index]))
    table.extend(blocks)
    sequence.num_writable = min(len(table) * block_size, max_model_len)
    if not copies and not shifts:
        return _RESERVED
    sequence.positions = sequence.positions.turned() if shifts else sequence.positions
    in_place = tuple(shift._replace(block=table[shift.block]) for shift in shifts)
    return ReserveResult(Outcome.OK, tuple(copies), in_place)
