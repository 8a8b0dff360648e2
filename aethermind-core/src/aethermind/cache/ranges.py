"""Dropping and moving ranges of a sequence's tokens, given by position, among blocks that hold several tokens each.

A block is the smallest thing that a table can leave out: a range is dropped where it begins and ends between blocks, or
reaches the end of the sequence. Blocks of one token drop any range. What cannot be done is an outcome, and nothing
has been done then. The meaning is that of llama.cpp's `llama_memory_seq_rm`, `_seq_keep` (with a range) and `_seq_add`.
"""

from __future__ import annotations

from aethermind.cache.outcome import Outcome
from aethermind.cache.sequence import CachedSequence

__all__ = ["Dropped", "drop_tokens", "keep_tokens", "shift_tokens", "truncate_tokens"]

Dropped = tuple[Outcome, list[int]]
"""How it ended, and the blocks that the sequence holds no more, in the order they had."""

_MAX_POSITION = 2**63 - 1


def truncate_tokens(sequence: CachedSequence, num_tokens: int, block_size: int) -> Dropped:
    """Drop all but the first `num_tokens` tokens; there must be as many."""
    assert 0 <= num_tokens <= sequence.num_tokens, f"cannot truncate {sequence.num_tokens} tokens to {num_tokens}"
    return _drop(sequence, num_tokens, sequence.num_tokens, block_size)


def drop_tokens(sequence: CachedSequence, start: int, end: int | None, block_size: int) -> Dropped:
    """Drop the tokens at positions from `start` up to `end`, or all from there on; those behind stay where they are."""
    return _drop(sequence, *_indices(sequence, start, end), block_size)


def keep_tokens(sequence: CachedSequence, start: int, end: int | None, block_size: int) -> Dropped:
    """Drop all tokens but those at positions from `start` up to `end`, or all from there on."""
    first, last = _indices(sequence, start, end)
    if first % block_size and first < last:
        return Outcome.PARTIAL_BLOCK, []
    _, behind = _drop(sequence, last, sequence.num_tokens, block_size)
    outcome, before = _drop(sequence, 0, first, block_size)
    return outcome, before + behind


def shift_tokens(sequence: CachedSequence, start: int, delta: int, block_size: int) -> Dropped:
    """Move the tokens at positions from `start` on by `delta`. No key is touched (see `shift`), no block dropped."""
    first, last = _indices(sequence, start, None)
    if first == last or delta == 0:
        return Outcome.OK, []
    if first % block_size:
        return Outcome.PARTIAL_BLOCK, []
    positions = sequence.positions
    lowest = positions.position(first - 1) + 1 if first else 0
    if positions.position(first) + delta < lowest or positions.position(last - 1) + delta > _MAX_POSITION:
        return Outcome.OUT_OF_ORDER, []
    sequence.disturb(first, positions.shifted(first, delta))
    return Outcome.OK, []


def _indices(sequence: CachedSequence, start: int, end: int | None) -> tuple[int, int]:
    """The indices of the tokens at positions from `start` up to `end`; of none, one index twice."""
    num_tokens, positions = sequence.num_tokens, sequence.positions
    first = min(positions.index(max(start, 0)), num_tokens)
    last = num_tokens if end is None else min(positions.index(max(end, 0)), num_tokens)
    return first, max(first, last)


def _drop(sequence: CachedSequence, first: int, last: int, block_size: int) -> Dropped:
    if last == sequence.num_tokens:
        sequence.truncate(first)
        begin, end = -(-first // block_size), len(sequence.block_table)
    elif first == last:
        return Outcome.OK, []
    elif first % block_size or last % block_size:
        return Outcome.PARTIAL_BLOCK, []
    else:
        sequence.disturb(first, sequence.positions.without(first, last))
        sequence.num_tokens -= last - first
        begin, end = first // block_size, last // block_size
    dropped = sequence.block_table[begin:end].tolist()
    del sequence.block_table[begin:end]
    return Outcome.OK, dropped
