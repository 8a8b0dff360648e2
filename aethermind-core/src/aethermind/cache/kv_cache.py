"""A paged KV cache: block tables of sequences, sharing of blocks, and reservations.

A slot is `block * block_size + offset`. `reserve` allocates slots for tokens about to be computed, `commit` records
that they have been. Blocks are shared by `fork` and by prefix caching; a shared block is never written, a sequence that
writes gets a copy first (copy on write). The cache does not know the content or the address of a slot.

Where layers with a sliding window are groups of their own (see `groups`), a sequence has a block table for each group,
and a group with a window frees the blocks that the window no longer covers. In a model with recurrent layers a sequence
also has a state slot, and prefixes are shared up to a snapshot (see `recurrent_states`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

from aethermind.cache.block_pool import BlockAllocator, BlockInfo, BlockPool, count_states, inspect_blocks
from aethermind.cache.layers import has_latent
from aethermind.cache.outcome import CacheOutcome, OpenResult, ReserveResult, SaveResult
from aethermind.cache.positions import IDENTITY_POSITIONS
from aethermind.cache.prefix_cache import HashedPrefixCache, NoPrefixCache, PrefixCache
from aethermind.cache.recurrent_states import NULL_SLOT, StateSlots, StateSnapshots
from aethermind.cache.reservations import RESERVED, SlotArray, reserve_slots, reserve_slots_in_groups, slots_of
from aethermind.cache.sequence import (
    CachedSequence,
    CacheState,
    RangeResult,
    drop_tokens,
    is_legal_transition,
    keep_tokens,
    restart_tokens,
    shift_tokens,
    truncate_tokens,
)
from aethermind.cache.sequence_swapper import SequenceSwapper
from aethermind.cache.serialization import BlockContents, pack_sequence, unpack_sequence
from aethermind.cache.spec import CacheLayout, KVCacheSpec, spec_for_layout
from aethermind.cache.swap_store import NoSwapStore, SwapStore
from aethermind.errors import InvalidArgumentError

__all__ = ["KVCache"]

_UNKNOWN = ReserveResult(CacheOutcome.UNKNOWN_SEQUENCE)


class KVCache:
    """All sequences of one model over one pool of blocks.

    A lack of free blocks is returned as a `CacheOutcome`, not raised. Calls for a sequence that is not open return
    `CacheOutcome.UNKNOWN_SEQUENCE`; accessors, which return no outcome, raise `KeyError`. Tokens are counted by
    index, 0 up to `num_tokens`; ranges to drop or shift are given by position (see `positions`). Not thread-safe.
    """

    __slots__ = (
        "_allocator",
        "_block_size",
        "_close",
        "_sequences",
        "_slots",
        "_snapshots",
        "_swapper",
        "_windows",
        "capacity_tokens",
        "has_moved_positions",
        "max_model_len",
        "spec",
    )

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        max_model_len: int,
        layout: CacheLayout = "paged",
        *,
        prefix_cache: PrefixCache | None = None,
        swap_store: SwapStore | None = None,
        swap_threshold: float = 1.0,
        pool: BlockPool | None = None,
    ) -> None:
        """Manage a cache of `num_blocks` blocks. `pool` is the prefix cache's pool, if there is a prefix cache.

        `swap_threshold` is the fraction of the blocks that sequences may hold before parked ones are swapped out, the
        least recently used first. Raises `InvalidArgumentError` for sizes below 1, an unknown layout, or a threshold
        outside [0, 1].
        """
        if num_blocks < 1 or max_model_len < 1:
            raise InvalidArgumentError(
                f"A KV cache of {num_blocks} blocks for {max_model_len} tokens holds nothing; "
                "num_blocks and max_model_len must be integers of 1 or more."
            )
        self.spec = spec_for_layout(spec, layout, max_model_len)
        self.max_model_len = max_model_len
        self._block_size = self.spec.block_size
        self._windows = self.spec.windows
        self.capacity_tokens = min(max_model_len, self.spec.num_tokens_in(num_blocks))
        """The length of the longest sequence that fits when no other holds blocks."""
        self._allocator = BlockAllocator(
            BlockPool(num_blocks) if pool is None else pool, NoPrefixCache() if prefix_cache is None else prefix_cache
        )
        self._sequences: dict[str, CachedSequence] = {}
        self._slots = StateSlots.of(self.spec) if self.spec.is_recurrent else None
        self._snapshots: StateSnapshots | None = None
        if self._slots is not None and self.spec.num_snapshots and isinstance(prefix_cache, HashedPrefixCache):
            self._snapshots = StateSnapshots(self.spec, self._slots, prefix_cache)
        # Not a method: a reference to the cache itself would keep the memory of a dropped one until a collection.
        self._close = partial(_close_sequence, self._sequences, self._snapshots)
        self._swapper = SequenceSwapper(
            self._allocator,
            self._block_size,
            NoSwapStore() if swap_store is None else swap_store,
            swap_threshold,
            self._slots,
            self._close,
        )
        self.has_moved_positions = False
        """Whether positions may differ from indices in some sequence; False saves a lookup for each token."""

    # -- accessors -------------------------------------------------------------------------------------------

    @property
    def pool(self) -> BlockPool:
        """All blocks with their reference counts."""
        return self._allocator.pool

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.pool.num_free

    @property
    def num_available_blocks(self) -> int:
        """Blocks that a reservation can get: free ones, and those that can be evicted from the prefix cache."""
        return self._allocator.num_available

    @property
    def num_swapped_blocks(self) -> int:
        """Blocks of the swap store that sequences hold."""
        return self._swapper.num_swapped

    @property
    def num_sequences(self) -> int:
        """Sequences that are open, swapped ones among them."""
        return len(self._sequences)

    @property
    def usage(self) -> float:
        """Fraction of the blocks that sequences hold, from 0 to 1."""
        return self._allocator.num_held / self.pool.num_blocks

    @property
    def memory_pressure(self) -> float:
        """Fraction of all blocks, those of the swap store included, that sequences hold, from 0 to 1."""
        return self._swapper.memory_pressure

    @property
    def is_recurrent(self) -> bool:
        """Whether sequences have a recurrent state, in a state slot of their own."""
        return self._slots is not None

    @property
    def num_free_slots(self) -> int:
        """State slots that no sequence has; 0 for a model without recurrent layers."""
        return 0 if self._slots is None else self._slots.num_free

    @property
    def num_moved_states(self) -> tuple[int, int]:
        """Recurrent states swapped out, and back in, since the cache was made."""
        return (0, 0) if self._slots is None else (self._slots.num_moved_out, self._slots.num_moved_in)

    @property
    def chunk_alignment(self) -> int:
        """The number of tokens at whose multiples prompt chunks should end, to take snapshots; 1 without snapshots."""
        return 1 if self._snapshots is None else self._block_size

    @property
    def state_copies(self) -> list[tuple[int, int]]:
        """`(source, destination)` state slots to copy before a graph runs next; the caller clears the list then."""
        return [] if self._slots is None else self._slots.copies

    def blocks(self) -> list[BlockInfo]:
        """Return the state of every block. Takes time linear in the blocks of all sequences."""
        return inspect_blocks(self.pool, self._sequences, self._block_size)

    def count_states(self) -> dict[CacheState, int]:
        """Count blocks by state, like `blocks`. Swapped blocks are in the store, all others add up to the pool."""
        return count_states(self.blocks(), self._swapper.num_swapped)

    def query(self, token_ids: Sequence[int], extra_key: bytes = b"") -> int:
        """Return how many leading tokens `open` with these ids would reuse."""
        return len(self.match(token_ids, extra_key)) * self._block_size

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        """Return the blocks of group 0 that `open` with these ids would reuse, idle or in use."""
        return list(self._match_tables(token_ids, extra_key)[0])

    def _match_tables(self, token_ids: Sequence[int], extra_key: bytes) -> Sequence[Sequence[int]]:
        """Return the blocks of each group that `open` would reuse: with recurrent layers, those up to a snapshot."""
        token_ids = token_ids[: max(len(token_ids) - 1, 0)]
        if self._slots is None:
            return self._cached_tables(token_ids, extra_key)
        if self._snapshots is not None:
            blocks = self._allocator.prefix_cache.match(token_ids, extra_key)
            while count := self._snapshots.longest_prefix(blocks):
                tables = self._cached_tables(token_ids[: count * self._block_size], extra_key)
                if len(tables[0]) == count:
                    return tables
                blocks = tables[0]  # shorter: blocks that the windows need are not cached
        return ((),) * self.num_groups

    def _cached_tables(self, token_ids: Sequence[int], extra_key: bytes) -> Sequence[Sequence[int]]:
        if not self._windows:
            return (self._allocator.prefix_cache.match(token_ids, extra_key),)
        return self._allocator.prefix_cache.match_groups(token_ids, extra_key) or ((),) * self.num_groups

    @property
    def num_groups(self) -> int:
        """Groups of layers, each with block tables of its own; 1 unless windows free blocks."""
        return 1 + len(self._windows)

    def num_tokens(self, seq_id: str) -> int:
        """Return how many tokens of the sequence are committed."""
        return self._sequences[seq_id].num_tokens

    def state(self, seq_id: str) -> CacheState:
        """Return the sequence's state; `FREE` if it is not open."""
        sequence = self._sequences.get(seq_id)
        return CacheState.FREE if sequence is None else sequence.state

    def position(self, seq_id: str, index: int) -> int:
        """Return the position of the token at an index; for an index past the last, the position it will have."""
        return self._sequences[seq_id].positions.position(index)

    def block_table(self, seq_id: str, group: int = 0) -> array[int]:
        """Return the sequence's blocks in a group, in order: the table itself, which callers must not change.

        In a group with a window the leading entries may be `groups.FREED`.
        """
        sequence = self._sequences[seq_id]
        return sequence.window_tables[group - 1] if group else sequence.block_table

    def held_blocks(self, seq_id: str) -> Sequence[int]:
        """Return all blocks that the sequence holds, those of group 0 first."""
        sequence = self._sequences[seq_id]
        return sequence.held_blocks() if self._windows else sequence.block_table

    def state_slot(self, seq_id: str) -> int:
        """Return the slot of the sequence's recurrent state; the null slot before its first reservation."""
        return self._sequences[seq_id].state_slot

    def slot(self, seq_id: str, index: int, group: int = 0) -> int:
        """Return the slot of a reserved or committed token that the group's window does not hide."""
        block_size = self._block_size
        return self.block_table(seq_id, group)[index // block_size] * block_size + index % block_size

    def fill_slots(
        self, seq_id: str, start: int, count: int, out: SlotArray, out_offset: int = 0, group: int = 0
    ) -> None:
        """Write the slots of `count` tokens from index `start` on to `out[out_offset : out_offset + count]`."""
        table = self.block_table(seq_id, group)
        out[out_offset : out_offset + count] = slots_of(table, start, count, self._block_size)

    # -- lifecycle of a sequence -----------------------------------------------------------------------------

    def open(self, seq_id: str, token_ids: Sequence[int] = (), extra_key: bytes = b"") -> OpenResult:
        """Start a sequence with the longest cached prefix of `token_ids`, whose tokens count as committed.

        At least one token is left to compute, because its logits are needed. Blocks are shared only between sequences
        of one `extra_key`.
        """
        if seq_id in self._sequences:
            return OpenResult(CacheOutcome.ALREADY_OPEN)
        if len(token_ids) > self.max_model_len:
            return OpenResult(CacheOutcome.TOO_LONG)
        tables = self._match_tables(token_ids, extra_key)
        state_slot = NULL_SLOT
        if self._snapshots is not None and tables[0]:
            if self._swapper.has_free_slot():
                state_slot = self._snapshots.restore(tables[0][-1])
            else:  # its first reservation fails for lack of a slot, too
                tables = ((),) * self.num_groups
        blocks, *window_blocks = tables
        num_cached_tokens = len(blocks) * self._block_size
        sequence = CachedSequence(blocks, num_cached_tokens, extra_key, self._windows, window_blocks)
        sequence.state_slot = state_slot
        self._allocator.acquire(sequence.held_blocks())
        self._sequences[seq_id] = sequence
        return OpenResult(CacheOutcome.OK, num_cached_tokens)

    def open_to_load(self, seq_id: str, token_ids: Sequence[int], extra_key: bytes) -> OpenResult:
        """Start a sequence whose further blocks the caller fills with stored keys and values, up to its release.

        It begins with all cached blocks, also after the last snapshot, without a state: see `StateSnapshots.add`.
        """
        if self._snapshots is None:
            return self.open(seq_id, token_ids, extra_key)
        tables = self._cached_tables(token_ids[:-1], extra_key)
        sequence = CachedSequence(tables[0], len(tables[0]) * self._block_size, extra_key, self._windows, tables[1:])
        sequence.is_loading = True
        self._allocator.acquire(sequence.held_blocks())
        self._sequences[seq_id] = sequence
        return OpenResult(CacheOutcome.OK, sequence.num_tokens)

    @property
    def snapshots(self) -> StateSnapshots | None:
        """The snapshots of recurrent states for prefix caching; None if there are none."""
        return self._snapshots

    def reserve(self, seq_id: str, num_new_tokens: int) -> ReserveResult:
        """Make the next `num_new_tokens` slots after the committed ones writable; all or nothing.

        A partly filled block that is shared is copied before its first write. Blocks whose positions were shifted have
        their keys rotated, in a copy if the block is shared. Both are in the result: `copies` and `shifts`.
        Before blocks are allocated, those of the sequence that windows hide from the new tokens are freed. The first
        reservation takes a state slot, if the model has recurrent layers.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return _UNKNOWN
        if sequence.num_tokens + num_new_tokens <= sequence.num_writable:
            return RESERVED
        end = sequence.num_tokens + num_new_tokens
        if sequence.state is not CacheState.ACTIVE:
            return ReserveResult(CacheOutcome.ILLEGAL_STATE)
        if end > self.max_model_len:
            return ReserveResult(CacheOutcome.TOO_LONG)
        needs_slot = self._slots is not None and sequence.state_slot == NULL_SLOT and not sequence.is_loading
        if needs_slot and not self._swapper.has_free_slot():
            return ReserveResult(CacheOutcome.NO_FREE_BLOCKS)
        reserve = reserve_slots_in_groups if self._windows else reserve_slots
        result = reserve(sequence, end, self._swapper, self._block_size, self.max_model_len)
        if needs_slot and self._slots is not None and result.outcome is CacheOutcome.OK:
            sequence.state_slot = self._slots.allocate()
        return result

    def commit(self, seq_id: str, num_new_tokens: int) -> CacheOutcome:
        """Record that the next `num_new_tokens` reserved slots hold computed tokens."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return CacheOutcome.UNKNOWN_SEQUENCE
        num_tokens = sequence.num_tokens + num_new_tokens
        assert num_tokens <= sequence.num_writable, f"{num_tokens} tokens committed, {sequence.num_writable} reserved"
        sequence.num_tokens = num_tokens
        if self._snapshots is not None and num_tokens % self._block_size == 0 and not sequence.is_loading:
            self._snapshots.take(sequence)
        return CacheOutcome.OK

    def fork(self, parent_id: str, child_id: str, num_tokens: int | None = None) -> CacheOutcome:
        """Start `child_id` with the first `num_tokens` of the parent's tokens (None: all), if `may_truncate`.

        It gets a copy of their recurrent state, if any: see `state_copies`. The parent's reservations are dropped.
        """
        parent = self._sequences.get(parent_id)
        if parent is None or child_id in self._sequences:
            return CacheOutcome.UNKNOWN_SEQUENCE if parent is None else CacheOutcome.ALREADY_OPEN
        if parent.state is CacheState.SWAPPED:
            return CacheOutcome.ILLEGAL_STATE
        count = parent.num_tokens if num_tokens is None else num_tokens
        if not parent.may_truncate(count, self._block_size):
            return CacheOutcome.BEHIND_WINDOW if parent.has_state_of(count) else CacheOutcome.RECURRENT_STATE
        state_slot = NULL_SLOT if self._slots is None else self._slots.copy(parent.slot_of(count))
        if state_slot == NULL_SLOT != parent.state_slot:
            return CacheOutcome.NO_FREE_BLOCKS
        self._swapper.drop_reservation(parent)
        self._allocator.acquire(parent.held_blocks() if self._windows else parent.block_table)
        self._sequences[child_id] = parent.fork(state_slot)
        self._swapper.touch(parent_id)
        return self._change(child_id, lambda child: restart_tokens(child, count, self._block_size))

    def publish(self, seq_id: str, token_ids: Sequence[int]) -> CacheOutcome:
        """Publish the full blocks of an open sequence, whose first tokens are given, as `release` does at its end."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return CacheOutcome.UNKNOWN_SEQUENCE
        if sequence.state is CacheState.SWAPPED:
            return CacheOutcome.ILLEGAL_STATE
        if self._snapshots is not None:
            self._snapshots.take_missing(sequence)
        self._publish_blocks(sequence, token_ids)
        return CacheOutcome.OK

    def release(self, seq_id: str, token_ids: Sequence[int] = ()) -> CacheOutcome:
        """End a sequence and publish its full blocks to the prefix cache, if its `token_ids` are given.

        Of a sequence with dropped or shifted tokens, only the blocks before these are published.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return CacheOutcome.UNKNOWN_SEQUENCE
        if not is_legal_transition(sequence.state, CacheState.FREE, is_protected=sequence.is_pinned):
            return CacheOutcome.ILLEGAL_STATE
        if sequence.state is not CacheState.SWAPPED:
            self._publish_blocks(sequence, token_ids)
        self._allocator.trim(sequence, 0)
        self._swapper.forget(seq_id, sequence)
        self._close(seq_id)
        return CacheOutcome.OK

    def _publish_blocks(self, sequence: CachedSequence, token_ids: Sequence[int]) -> None:
        """Publish the full blocks of the tokens that are given and were computed before any token was moved."""
        num_publishable = min(sequence.num_tokens, sequence.num_original, len(token_ids))
        if num_full := num_publishable // self._block_size:
            token_ids, blocks = token_ids[: num_full * self._block_size], sequence.block_table[:num_full]
            window_blocks = ([table[:num_full] for table in sequence.window_tables],) if self._windows else ()
            self._allocator.prefix_cache.publish(token_ids, blocks, sequence.extra_key, *window_blocks)
            if self._snapshots is not None:
                self._snapshots.publish(sequence, token_ids)

    # -- parts of a sequence ---------------------------------------------------------------------------------

    def truncate(self, seq_id: str, num_tokens: int) -> CacheOutcome:
        """Drop all but the first `num_tokens` committed tokens, and every reservation.

        `BEHIND_WINDOW` if blocks were freed that a window of the next token sees; `RECURRENT_STATE` if the model has
        recurrent layers, unless all tokens are dropped, or none, or exactly those after the last `checkpoint`.
        """
        return self._change(seq_id, lambda sequence: truncate_tokens(sequence, num_tokens, self._block_size))

    def may_truncate(self, seq_id: str, num_tokens: int) -> bool:
        """Whether `truncate` to `num_tokens` would be OK; `fork` needs a free state slot as well."""
        return self._sequences[seq_id].may_truncate(num_tokens, self._block_size)

    def truncate_or_reset(self, seq_id: str, num_tokens: int) -> int:
        """Truncate a sequence to `num_tokens`, or to fewer if the recurrent state is that of more tokens (`restart`) or
        windows freed what the next token sees. Returns the number of tokens that are left.

        The caller computes the tokens from that index on again.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is not None and not sequence.has_state_of(num_tokens):
            return self.restart(seq_id, num_tokens)
        if self.truncate(seq_id, num_tokens) is CacheOutcome.BEHIND_WINDOW:
            num_tokens = 0
            self.truncate(seq_id, 0)
        return num_tokens

    def checkpoint(self, seq_id: str) -> CacheOutcome:
        """Copy the recurrent state of a sequence, if there is one, before tokens that `truncate_or_reset` may drop.

        The copy replaces the sequence's last one. `NO_FREE_BLOCKS` if no state slot is free for it.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return CacheOutcome.UNKNOWN_SEQUENCE
        is_saved = sequence.state_slot == NULL_SLOT or self._slots is None or self._slots.checkpoint(sequence)
        return CacheOutcome.OK if is_saved else CacheOutcome.NO_FREE_BLOCKS

    def restart(self, seq_id: str, num_tokens: int | None = None) -> int:
        """Truncate a sequence to the last copy of its recurrent state, a checkpoint or snapshot, among its first
        `num_tokens` tokens (None: all), or to 0 without one; returns the tokens that are left.

        The state is copied back: see `state_copies`. For a step that failed, which may have advanced the state.
        """
        sequence = self._sequences[seq_id]
        limit = sequence.num_tokens if num_tokens is None else num_tokens
        num_left, copy = (0, NULL_SLOT) if self._snapshots is None else self._snapshots.last_of(sequence, limit)
        if num_left < sequence.num_checkpoint_tokens <= limit:
            num_left, copy = sequence.num_checkpoint_tokens, sequence.checkpoint
        if not sequence.sees_all(num_left, self._block_size):
            num_left = 0
        self._change(seq_id, lambda sequence: restart_tokens(sequence, num_left, self._block_size))
        if num_left and copy != sequence.state_slot:
            self.state_copies.append((copy, sequence.state_slot))
        return num_left

    def remove(self, seq_id: str, start: int = 0, end: int | None = None) -> CacheOutcome:
        """Drop the tokens at positions from `start` up to `end` (None: to the last), and every reservation.

        Tokens after the range keep their positions. `PARTIAL_BLOCK` if the range covers part of a block and tokens
        follow; `WINDOWS_FREED` with several groups if tokens follow; else see `truncate`. `RECURRENT_STATE` if the
        model has recurrent layers and other tokens remain.
        """
        return self._change(seq_id, lambda sequence: drop_tokens(sequence, start, end, self._block_size))

    def keep(self, seq_id: str, start: int, end: int | None = None) -> CacheOutcome:
        """Drop all tokens except those at positions from `start` up to `end`; see `remove`."""
        return self._change(seq_id, lambda sequence: keep_tokens(sequence, start, end, self._block_size))

    def shift(self, seq_id: str, start: int, delta: int) -> CacheOutcome:
        """Shift the tokens at positions from `start` on by `delta`. Their keys are rotated at the next `reserve`.

        `PARTIAL_BLOCK` if the first of them is not the first of a block, `OUT_OF_ORDER` if they would get positions
        among or before those of the preceding tokens, `WINDOWS_FREED` with several groups, `RECURRENT_STATE` if the
        model has recurrent layers, `LATENT_KEYS` if it has layers of latent attention.
        """
        if has_latent(self.spec.layers):
            return CacheOutcome.LATENT_KEYS
        return self._change(seq_id, lambda sequence: shift_tokens(sequence, start, delta, self._block_size))

    def _change(self, seq_id: str, change: Callable[[CachedSequence], RangeResult]) -> CacheOutcome:
        """Change an active sequence, and release the blocks that it no longer holds."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return CacheOutcome.UNKNOWN_SEQUENCE
        if sequence.state is not CacheState.ACTIVE:
            return CacheOutcome.ILLEGAL_STATE
        outcome, dropped = change(sequence)
        if outcome is CacheOutcome.OK:
            self._allocator.release(dropped)
            self._swapper.drop_reservation(sequence)
            if self._snapshots is not None and sequence.num_tokens < sequence.num_snapshot_tokens:
                self._snapshots.drop(sequence)
            if self.has_moved_positions or sequence.positions is not IDENTITY_POSITIONS:
                self.has_moved_positions = any(not each.positions.are_indices for each in self._sequences.values())
        return outcome

    # -- parking, pinning, swapping --------------------------------------------------------------------------

    def park(self, seq_id: str, *, may_drop: bool = False) -> CacheOutcome:
        """Park an idle sequence: it keeps its committed tokens and cannot be written until `resume`.

        It may be swapped out when the cache fills. If the swap store is full, a sequence that `may_drop` is released.
        """
        return self._if_open(seq_id, lambda sequence: self._swapper.park(seq_id, sequence, may_drop=may_drop))

    def touch(self, seq_id: str) -> None:
        """Record a use of a parked sequence: others are swapped out before it."""
        self._swapper.touch(seq_id)

    def resume(self, seq_id: str) -> CacheOutcome:
        """Make a parked sequence active again, from device memory or from the swap store."""
        return self._if_open(seq_id, lambda sequence: self._swapper.resume(seq_id, sequence))

    def pin(self, seq_id: str, is_pinned: bool = True) -> CacheOutcome:
        """Protect the sequence from being swapped out or released, or lift that protection."""
        return self._if_open(seq_id, lambda sequence: self._swapper.pin(sequence, is_pinned))

    def swap_out(self, seq_id: str) -> CacheOutcome:
        """Move a sequence's committed tokens to the swap store, with its recurrent state, and release its blocks."""
        return self._if_open(seq_id, lambda sequence: self._swapper.swap_out(seq_id, sequence))

    def swap_in(self, seq_id: str) -> CacheOutcome:
        """Move a swapped sequence back into blocks of its own, and make it active."""
        return self._if_open(seq_id, lambda sequence: self._swapper.swap_in(seq_id, sequence))

    def swap_out_parked(self, num_blocks: int) -> None:
        """Swap parked sequences out, as `reserve` does, before `num_blocks` blocks are allocated."""
        self._swapper.swap_out_parked(num_blocks)

    def evict(self, num_blocks: int) -> int:
        """Swap parked sequences out, and evict up to `num_blocks` cached blocks; returns how many that freed."""
        return self._swapper.evict(num_blocks)

    def _if_open(self, seq_id: str, action: Callable[[CachedSequence], CacheOutcome]) -> CacheOutcome:
        """Return the outcome of an action on a sequence, or UNKNOWN_SEQUENCE if it is not open."""
        sequence = self._sequences.get(seq_id)
        return CacheOutcome.UNKNOWN_SEQUENCE if sequence is None else action(sequence)

    # -- serialisation ---------------------------------------------------------------------------------------

    def save(self, seq_id: str, contents: BlockContents, token_ids: Sequence[int]) -> SaveResult:
        """Serialise the sequence to bytes for `load`, in this cache or another; `token_ids` are its tokens."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.state is CacheState.SWAPPED:
            return SaveResult(CacheOutcome.UNKNOWN_SEQUENCE if sequence is None else CacheOutcome.ILLEGAL_STATE)
        num_blocks, copies = self.spec.table_width(sequence.num_tokens), self.state_copies
        return SaveResult(CacheOutcome.OK, pack_sequence(sequence, num_blocks, contents, token_ids, copies))

    def load(self, seq_id: str, data: bytes, contents: BlockContents, token_ids: Sequence[int]) -> OpenResult:
        """Start a sequence from the bytes of `save`, with all of its tokens committed.

        Raises CacheContentError if `data` is damaged, or of another model, another block size, or other `token_ids`.
        """
        if seq_id in self._sequences:
            return OpenResult(CacheOutcome.ALREADY_OPEN)
        sequence, stored = unpack_sequence(data, contents, token_ids, self._block_size, self._windows)
        if sequence.num_tokens > self.max_model_len:
            return OpenResult(CacheOutcome.TOO_LONG)
        has_state = self._slots is not None and sequence.num_tokens > 0
        if has_state and not self._swapper.has_free_slot():
            return OpenResult(CacheOutcome.NO_FREE_BLOCKS)
        num_blocks = self.spec.table_width(sequence.num_tokens)
        blocks = self._swapper.allocate(sequence.num_held(num_blocks))
        if blocks is None:
            return OpenResult(CacheOutcome.NO_FREE_BLOCKS)
        if has_state and self._slots is not None:
            sequence.state_slot = self._slots.allocate()
        try:
            contents.write(stored.tensors, blocks)
            if has_state:
                contents.write_states(stored.states, sequence.state_slot, self.state_copies)
        except BaseException:
            self._allocator.release(blocks)
            self._swapper.forget(seq_id, sequence)
            raise
        sequence.attach(blocks, num_blocks)
        if self._snapshots is not None:
            self._snapshots.take_missing(sequence)
        self._sequences[seq_id] = sequence
        self.has_moved_positions = self.has_moved_positions or sequence.positions is not IDENTITY_POSITIONS
        return OpenResult(CacheOutcome.OK, sequence.num_tokens)


def _close_sequence(sequences: dict[str, CachedSequence], snapshots: StateSnapshots | None, seq_id: str) -> None:
    """Remove a sequence, and drop its snapshot that is not published."""
    sequence = sequences.pop(seq_id)
    if snapshots is not None:
        snapshots.drop(sequence)
