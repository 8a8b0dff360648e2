"""One sequence in the KV cache: its state, its blocks and positions, and changes to ranges of its tokens.

    FREE ──open──▶ ACTIVE ◀──park/resume──▶ STANDBY
                     │  ▲                      │
          swap out/in│  │reuse       idle, kept│for reuse
                     ▼  │                      ▼
                   SWAPPED ◀──────────────── WARM ──evict──▶ FREE

Protected is an overlay, not a state: the blocks of a pinned sequence are kept in device memory. A sequence is Active,
Standby or Swapped; a block has the state of its sequences, Warm if only a prefix cache holds it, else Free.

A block is the smallest unit that a block table can leave out, so a range of tokens is dropped only where it begins and
ends between blocks or reaches the end of the sequence. Blocks of one token allow any range. A change that is impossible
is an outcome, and leaves the sequence as it was. Ranges mean what they mean in llama.cpp's `llama_memory_seq_rm`,
`_seq_keep` (with a range) and `_seq_add`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from types import MappingProxyType

from aethermind.cache.groups import FREED, live_blocks, num_hidden_blocks
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.positions import IDENTITY_POSITIONS, TokenPositions
from aethermind.cache.recurrent_states import NULL_SLOT

__all__ = [
    "CacheState",
    "CachedSequence",
    "LEGAL_TRANSITIONS",
    "RangeResult",
    "drop_tokens",
    "is_legal_transition",
    "keep_tokens",
    "restart_tokens",
    "shift_tokens",
    "truncate_tokens",
]


class CacheState(Enum):
    """Where content is, and how it may be used."""

    FREE = "free"
    """Nothing is stored."""
    ACTIVE = "active"
    """A running sequence reads and writes it."""
    STANDBY = "standby"
    """An idle sequence holds it (a session between two turns); it may be read and shared, not written."""
    WARM = "warm"
    """No sequence holds it; a prefix cache keeps it for reuse until it is evicted."""
    SWAPPED = "swapped"
    """It is in a swap store outside device memory."""


LEGAL_TRANSITIONS = MappingProxyType(
    {
        CacheState.FREE: frozenset({CacheState.ACTIVE}),
        CacheState.ACTIVE: frozenset({CacheState.STANDBY, CacheState.WARM, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.STANDBY: frozenset({CacheState.ACTIVE, CacheState.WARM, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.WARM: frozenset({CacheState.ACTIVE, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.SWAPPED: frozenset({CacheState.ACTIVE, CacheState.FREE}),
    }
)
"""For each state, the states that may follow it."""

_STATES_IN_DEVICE_MEMORY = frozenset({CacheState.ACTIVE, CacheState.STANDBY})


def is_legal_transition(state: CacheState, target: CacheState, *, is_protected: bool = False) -> bool:
    """Whether a sequence may go from `state` to `target`; a protected one keeps its blocks in device memory."""
    return target in LEGAL_TRANSITIONS[state] and (not is_protected or target in _STATES_IN_DEVICE_MEMORY)


class CachedSequence:
    """One sequence: tokens at indices below `num_tokens` are computed, slots up to `num_writable` are reserved.

    Mutable: the modules of this package change its attributes.
    """

    __slots__ = (
        "block_table",
        "checkpoint",
        "extra_key",
        "is_loading",
        "is_pinned",
        "may_drop",
        "num_checkpoint_tokens",
        "num_freed",
        "num_original",
        "num_snapshot_tokens",
        "num_tokens",
        "num_writable",
        "positions",
        "snapshot",
        "state",
        "state_slot",
        "window_tables",
        "windows",
    )

    def __init__(
        self,
        blocks: Iterable[int],
        num_tokens: int = 0,
        extra_key: bytes = b"",
        windows: tuple[int, ...] = (),
        window_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        """`windows` and `window_blocks` are the windows and the blocks of the groups after group 0 (see `groups`)."""
        self.block_table = array("i", blocks)
        """The sequence's blocks in group 0, in the order of their tokens. An array, because a step copies the tables of
        all its requests."""
        self.windows = windows
        self.window_tables = tuple(array("i", blocks) for blocks in window_blocks or ((),) * len(windows))
        """The blocks in each further group: as many entries as in group 0, the leading ones `FREED`."""
        self.num_freed = [sum(block == FREED for block in table) for table in self.window_tables]
        """How many entries of each of `window_tables` are `FREED`."""
        self.extra_key = extra_key
        self.num_tokens = num_tokens
        self.num_writable = num_tokens
        self.num_original = sys.maxsize
        """Leading tokens whose keys and values depend only on the tokens before them, because they were computed before
        any token was dropped or shifted. Only these may be published to the prefix cache."""
        self.positions: TokenPositions = IDENTITY_POSITIONS
        self.state = CacheState.ACTIVE
        self.state_slot = NULL_SLOT
        """The slot of the sequence's recurrent state; the null slot without tokens, or without recurrent layers."""
        self.snapshot = NULL_SLOT
        """The slot of a copy of the state after the first `num_snapshot_tokens` tokens, not published yet."""
        self.num_snapshot_tokens = 0
        self.checkpoint = NULL_SLOT
        """The slot of a copy of the state after the first `num_checkpoint_tokens` tokens, to which `truncate` can
        return. There is no copy if that number is 0."""
        self.num_checkpoint_tokens = 0
        self.is_pinned = False
        self.is_loading = False
        """Whether the blocks are filled with stored keys and values, without a recurrent state."""
        self.may_drop = False
        """Whether the sequence may be released while it is parked, see `KVCache.park`."""

    def fork(self, state_slot: int) -> CachedSequence:
        """Return a sequence with the same blocks and tokens, and its own state slot. The caller adds references."""
        child = CachedSequence(self.block_table, self.num_tokens, self.extra_key, self.windows, self.window_tables)
        child.num_original = self.num_original
        child.positions = self.positions
        child.state_slot = state_slot
        return child

    @property
    def tables(self) -> tuple[array[int], ...]:
        """The block tables of all groups."""
        return self.block_table, *self.window_tables

    def held_blocks(self, num_blocks: int | None = None) -> list[int]:
        """Return the blocks of all groups that are not freed, of the first `num_blocks` entries of each table."""
        blocks = self.block_table[:num_blocks].tolist()
        for table, num_freed in zip(self.window_tables, self.num_freed, strict=True):
            blocks += table[num_freed:num_blocks].tolist()
        return blocks

    def num_held(self, num_blocks: int) -> int:
        """Return how many blocks `held_blocks` returns for tables of `num_blocks` entries, also while swapped out."""
        return num_blocks + sum(num_blocks - num_freed for num_freed in self.num_freed)

    def attach(self, blocks: Sequence[int], num_blocks: int) -> None:
        """Fill empty tables with `blocks`, new blocks for those that `held_blocks(num_blocks)` returned."""
        self.block_table.extend(blocks[:num_blocks])
        position = num_blocks
        for table, num_freed in zip(self.window_tables, self.num_freed, strict=True):
            table.extend([FREED] * num_freed)
            table.extend(blocks[position : position + num_blocks - num_freed])
            position += num_blocks - num_freed

    def may_truncate(self, num_tokens: int, block_size: int) -> bool:
        """Whether the sequence can drop all tokens from index `num_tokens` on: `sees_all` and `has_state_of` hold."""
        return self.has_state_of(num_tokens) and self.sees_all(num_tokens, block_size)

    def sees_all(self, num_tokens: int, block_size: int) -> bool:
        """Whether every window still has the keys that a token at index `num_tokens` sees."""
        return num_tokens == 0 or all(
            num_freed <= num_hidden_blocks(num_tokens, window, block_size)
            for window, num_freed in zip(self.windows, self.num_freed, strict=True)
        )

    def has_state_of(self, num_tokens: int) -> bool:
        """Whether the recurrent state after `num_tokens` tokens exists, or the sequence has no recurrent state."""
        return self.state_slot == NULL_SLOT or num_tokens in (0, self.num_checkpoint_tokens, self.num_tokens)

    def slot_of(self, num_tokens: int) -> int:
        """The slot of the recurrent state after `num_tokens` tokens, which exists if `has_state_of`."""
        return self.checkpoint if 0 < num_tokens == self.num_checkpoint_tokens < self.num_tokens else self.state_slot

    def truncate(self, num_tokens: int) -> None:
        """Drop the tokens from index `num_tokens` on; the block table is unchanged."""
        if self.slot_of(num_tokens) != self.state_slot:
            self.state_slot, self.checkpoint = self.checkpoint, self.state_slot
        if num_tokens <= self.num_checkpoint_tokens:
            self.num_checkpoint_tokens = 0
        self.num_tokens = self.num_writable = num_tokens
        if self.positions is not IDENTITY_POSITIONS:
            self.positions = self.positions.truncated(num_tokens)
        if num_tokens <= self.num_original:
            self.num_original = sys.maxsize

    def set_positions(self, index: int, positions: TokenPositions) -> None:
        """Set `positions`, which equal the old ones for the tokens before `index`."""
        self.num_original = min(self.num_original, index)
        self.positions = IDENTITY_POSITIONS if positions == IDENTITY_POSITIONS else positions


RangeResult = tuple[CacheOutcome, list[int]]
"""The outcome, and the blocks that the sequence no longer holds, in the order of its block table."""

_MAX_POSITION = 2**63 - 1


def truncate_tokens(sequence: CachedSequence, num_tokens: int, block_size: int) -> RangeResult:
    """Drop all but the first `num_tokens` tokens; the sequence must have that many."""
    assert 0 <= num_tokens <= sequence.num_tokens, f"cannot truncate {sequence.num_tokens} tokens to {num_tokens}"
    return _drop_range(sequence, num_tokens, sequence.num_tokens, block_size)


def restart_tokens(sequence: CachedSequence, num_tokens: int, block_size: int) -> RangeResult:
    """Drop all but the first `num_tokens` tokens; the caller then copies their recurrent state to the state slot."""
    return _drop_end(sequence, num_tokens, block_size)


def drop_tokens(sequence: CachedSequence, start: int, end: int | None, block_size: int) -> RangeResult:
    """Drop the tokens at positions from `start` up to `end`, or to the last; later tokens keep their positions."""
    return _drop_range(sequence, *_indices(sequence, start, end), block_size)


def keep_tokens(sequence: CachedSequence, start: int, end: int | None, block_size: int) -> RangeResult:
    """Drop all tokens except those at positions from `start` up to `end`, or to the last."""
    first, last = _indices(sequence, start, end)
    if sequence.state_slot != NULL_SLOT and last - first not in (0, sequence.num_tokens):
        return CacheOutcome.RECURRENT_STATE, []
    if sequence.windows:
        if first == last:
            return _drop_range(sequence, 0, sequence.num_tokens, block_size)
        if first:
            return CacheOutcome.WINDOWS_FREED, []
        return _drop_range(sequence, last, sequence.num_tokens, block_size)
    if first % block_size and first < last:
        return CacheOutcome.PARTIAL_BLOCK, []
    _, blocks_after = _drop_range(sequence, last, sequence.num_tokens, block_size)
    outcome, blocks_before = _drop_range(sequence, 0, first, block_size)
    return outcome, blocks_before + blocks_after


def shift_tokens(sequence: CachedSequence, start: int, delta: int, block_size: int) -> RangeResult:
    """Shift the tokens at positions from `start` on by `delta`. Keys (see `positions`) and blocks are unchanged."""
    first, last = _indices(sequence, start, None)
    if first == last or delta == 0:
        return CacheOutcome.OK, []
    if sequence.state_slot != NULL_SLOT:
        return CacheOutcome.RECURRENT_STATE, []
    if sequence.windows:
        return CacheOutcome.WINDOWS_FREED, []
    if first % block_size:
        return CacheOutcome.PARTIAL_BLOCK, []
    positions = sequence.positions
    lowest = positions.position(first - 1) + 1 if first else 0
    if positions.position(first) + delta < lowest or positions.position(last - 1) + delta > _MAX_POSITION:
        return CacheOutcome.OUT_OF_ORDER, []
    sequence.set_positions(first, positions.shifted(first, delta))
    return CacheOutcome.OK, []


def _indices(sequence: CachedSequence, start: int, end: int | None) -> tuple[int, int]:
    """Return the indices of the tokens at positions from `start` up to `end`; for an empty range, one index twice."""
    num_tokens, positions = sequence.num_tokens, sequence.positions
    first = min(positions.index(max(start, 0)), num_tokens)
    last = num_tokens if end is None else min(positions.index(max(end, 0)), num_tokens)
    return first, max(first, last)


def _drop_range(sequence: CachedSequence, first: int, last: int, block_size: int) -> RangeResult:
    """Drop the tokens at indices from `first` up to `last`, if states, windows and block boundaries allow it."""
    is_end = last == sequence.num_tokens
    if sequence.state_slot != NULL_SLOT and first < last and not (is_end and sequence.has_state_of(first)):
        return CacheOutcome.RECURRENT_STATE, []
    if is_end:
        return _drop_end(sequence, first, block_size)
    if first == last:
        return CacheOutcome.OK, []
    if sequence.windows:
        return CacheOutcome.WINDOWS_FREED, []
    if first % block_size or last % block_size:
        return CacheOutcome.PARTIAL_BLOCK, []
    sequence.set_positions(first, sequence.positions.without(first, last))
    sequence.num_tokens -= last - first
    return CacheOutcome.OK, _drop_entries(sequence, first // block_size, last // block_size)


def _drop_end(sequence: CachedSequence, first: int, block_size: int) -> RangeResult:
    """Drop the tokens from index `first` on, if no window has freed what a token at that index sees."""
    if not sequence.sees_all(first, block_size):
        return CacheOutcome.BEHIND_WINDOW, []
    sequence.truncate(first)
    return CacheOutcome.OK, _drop_entries(sequence, -(-first // block_size), len(sequence.block_table))


def _drop_entries(sequence: CachedSequence, begin: int, end: int) -> list[int]:
    """Delete entries of all block tables; returns the blocks that were there."""
    dropped = []
    for table in sequence.tables:
        dropped += live_blocks(table[begin:end])
        del table[begin:end]
    if begin == 0:
        sequence.num_freed = [0] * len(sequence.windows)
    return dropped
