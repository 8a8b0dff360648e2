"""Sequences over blocks: which slots of device memory the tokens of a sequence occupy, and who shares them.

A slot is `block * block_size + offset`. `reserve` makes slots for tokens about to be computed, `commit` says
that they have been. Blocks are shared by `fork` and by prefix reuse; a shared block is never written, its
writer gets a copy first. Nothing here knows what a slot holds or where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.outcome import OpenResult, Outcome, ReserveResult
from aethermind.cache.prefix_cache import NoPrefixCache, PrefixCache
from aethermind.cache.spec import KVCacheSpec
from aethermind.cache.states import CacheState, is_legal
from aethermind.cache.swap import NoSwapStore, SwapStore
from aethermind.errors import InvalidArgumentError

__all__ = ["KVCache", "SlotArray"]


class SlotArray(Protocol):
    """Anything that takes a list of integers at a slice: an integer vector, a list."""

    def __setitem__(self, key: slice, value: list[int], /) -> None: ...


class _Sequence:
    """One sequence's blocks; positions from `num_tokens` up to `num_writable` are its alone to write."""

    __slots__ = ("block_table", "extra_key", "is_protected", "num_tokens", "num_writable", "state")

    def __init__(self, block_table: list[int], num_tokens: int, extra_key: bytes) -> None:
        self.block_table = block_table
        self.extra_key = extra_key
        self.num_tokens = num_tokens
        self.num_writable = num_tokens
        self.state = CacheState.ACTIVE
        self.is_protected = False


# The answers of every step, made once.
_RESERVED = ReserveResult(Outcome.OK)
_UNKNOWN = ReserveResult(Outcome.UNKNOWN_SEQUENCE)


class KVCache:
    """All sequences of one model over one pool of blocks.

    `layout="static"` gives each sequence one block of `max_model_len` tokens, so `num_blocks` is the number
    of sequences; everything else is the same. Lack of room comes back as an `Outcome`; a sequence that is not
    open is `Outcome.UNKNOWN_SEQUENCE`, or a `KeyError` from the accessors, which return no outcome. Not
    thread-safe.
    """

    __slots__ = (
        "_block_size",
        "_prefix_cache",
        "_sequences",
        "_swap_store",
        "capacity_tokens",
        "max_model_len",
        "pool",
        "spec",
    )

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        max_model_len: int,
        layout: Literal["paged", "static"] = "paged",
        *,
        prefix_cache: PrefixCache | None = None,
        swap_store: SwapStore | None = None,
        pool: BlockPool | None = None,
    ) -> None:
        """Plan a cache of `num_blocks` blocks. `pool` is given when a prefix cache shares it.

        Raises `InvalidArgumentError` for sizes below 1 or an unknown layout.
        """
        if num_blocks < 1 or max_model_len < 1:
            raise InvalidArgumentError(
                f"A KV cache of {num_blocks} blocks for {max_model_len} tokens holds nothing; "
                "num_blocks and max_model_len must be integers of 1 or more."
            )
        if layout not in ("paged", "static"):
            raise InvalidArgumentError(f"KV cache layout is {layout!r} but must be 'paged' or 'static'.")
        self.spec = spec if layout == "paged" else replace(spec, block_size=max_model_len)
        self.max_model_len = max_model_len
        self.pool = BlockPool(num_blocks) if pool is None else pool
        self.capacity_tokens = min(max_model_len, num_blocks * self.spec.block_size)
        """The longest sequence that fits when it has the cache to itself."""
        self._block_size = self.spec.block_size
        self._prefix_cache: PrefixCache = NoPrefixCache() if prefix_cache is None else prefix_cache
        self._swap_store: SwapStore = NoSwapStore() if swap_store is None else swap_store
        self._sequences: dict[str, _Sequence] = {}

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.pool.num_free

    @property
    def num_available_blocks(self) -> int:
        """Blocks a reservation can get: the free ones and those that a prefix cache gives up on demand."""
        return self.pool.num_free + self._prefix_cache.num_reclaimable

    @property
    def num_sequences(self) -> int:
        """Sequences that are open, swapped ones among them."""
        return len(self._sequences)

    @property
    def usage(self) -> float:
        """Fraction of the blocks that a reservation cannot get, from 0 to 1."""
        return 1.0 - self.num_available_blocks / self.pool.num_blocks

    def query(self, token_ids: Sequence[int], extra_key: bytes = b"") -> int:
        """Return how many leading tokens `open` with these ids would reuse."""
        return len(self._match(token_ids, extra_key)) * self._block_size

    def num_tokens(self, seq_id: str) -> int:
        """Return how many tokens of the sequence are committed."""
        return self._sequences[seq_id].num_tokens

    def state(self, seq_id: str) -> CacheState:
        """Return the sequence's state; `FREE` if it is not open."""
        sequence = self._sequences.get(seq_id)
        return CacheState.FREE if sequence is None else sequence.state

    def block_table(self, seq_id: str) -> list[int]:
        """Return the sequence's blocks in order of position: the live list, to be read only."""
        return self._sequences[seq_id].block_table

    def slot(self, seq_id: str, position: int) -> int:
        """Return the slot of a reserved or committed position."""
        block_size = self._block_size
        return self._sequences[seq_id].block_table[position // block_size] * block_size + position % block_size

    def fill_slots(self, seq_id: str, start: int, count: int, out: SlotArray, out_offset: int = 0) -> None:
        """Write the slots of `count` positions from `start` on to `out[out_offset : out_offset + count]`."""
        table, block_size, end = self._sequences[seq_id].block_table, self._block_size, start + count
        assert 0 <= start <= end <= len(table) * block_size, f"positions {start} to {end} are not reserved"
        slots: list[int] = []
        while start < end:
            index, offset = divmod(start, block_size)
            length = min(block_size - offset, end - start)
            first = table[index] * block_size + offset
            slots.extend(range(first, first + length))
            start += length
        out[out_offset : out_offset + count] = slots

    # -- the life of a sequence ------------------------------------------------------------------------------

    def open(self, seq_id: str, token_ids: Sequence[int] = (), extra_key: bytes = b"") -> OpenResult:
        """Start a sequence, with the KV of as many leading `token_ids` as are known; they count as committed.

        At least one token is always left to compute, because its logits are wanted. Content is shared only between
        sequences of one `extra_key`.
        """
        if seq_id in self._sequences:
            return OpenResult(Outcome.ALREADY_OPEN)
        if len(token_ids) > self.max_model_len:
            return OpenResult(Outcome.TOO_LONG)
        blocks = self._match(token_ids, extra_key)
        for block in blocks:
            self.pool.acquire(block)
        num_cached_tokens = len(blocks) * self._block_size
        self._sequences[seq_id] = _Sequence(blocks, num_cached_tokens, extra_key)
        return OpenResult(Outcome.OK, num_cached_tokens)

    def reserve(self, seq_id: str, num_new_tokens: int) -> ReserveResult:
        """Make the next `num_new_tokens` positions after the committed ones writable; all or nothing.

        The first write into a partly filled block that is shared moves to a copy, named in the result's
        `copies`.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return _UNKNOWN
        if sequence.num_tokens + num_new_tokens <= sequence.num_writable:
            return _RESERVED
        return self._grow(sequence, sequence.num_tokens + num_new_tokens)

    def commit(self, seq_id: str, num_new_tokens: int) -> Outcome:
        """Record that the next `num_new_tokens` reserved positions hold computed tokens."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        num_tokens = sequence.num_tokens + num_new_tokens
        assert num_tokens <= sequence.num_writable, f"{num_tokens} tokens committed, {sequence.num_writable} reserved"
        sequence.num_tokens = num_tokens
        return Outcome.OK

    def fork(self, parent_id: str, child_id: str) -> Outcome:
        """Start `child_id` on the parent's committed tokens and blocks; the parent must reserve anew."""
        parent = self._sequences.get(parent_id)
        if parent is None:
            return Outcome.UNKNOWN_SEQUENCE
        if child_id in self._sequences:
            return Outcome.ALREADY_OPEN
        if parent.state is CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        self._drop_reservation(parent)
        for block in parent.block_table:
            self.pool.acquire(block)
        self._sequences[child_id] = _Sequence(list(parent.block_table), parent.num_tokens, parent.extra_key)
        return Outcome.OK

    def truncate(self, seq_id: str, num_tokens: int) -> Outcome:
        """Forget all but the first `num_tokens` committed tokens, and every reservation."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if sequence.state is not CacheState.ACTIVE:
            return Outcome.ILLEGAL_STATE
        assert 0 <= num_tokens <= sequence.num_tokens, f"cannot truncate {sequence.num_tokens} tokens to {num_tokens}"
        sequence.num_tokens = num_tokens
        self._drop_reservation(sequence)
        return Outcome.OK

    def release(self, seq_id: str, token_ids: Sequence[int] = ()) -> Outcome:
        """End a sequence. Its full blocks are offered to the prefix cache when its `token_ids` are given."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if not is_legal(sequence.state, CacheState.FREE, is_protected=sequence.is_protected):
            return Outcome.ILLEGAL_STATE
        if sequence.state is CacheState.SWAPPED:
            self._swap_store.drop(seq_id)
        elif num_full := min(sequence.num_tokens, len(token_ids)) // self._block_size:
            token_ids = token_ids[: num_full * self._block_size]
            self._prefix_cache.publish(token_ids, sequence.block_table[:num_full], sequence.extra_key)
        self._release_blocks(sequence, 0)
        del self._sequences[seq_id]
        return Outcome.OK

    # -- resting, protecting, swapping -----------------------------------------------------------------------

    def park(self, seq_id: str) -> Outcome:
        """Let an idle sequence keep its committed tokens; it cannot be written until `resume`."""
        outcome = self._move(seq_id, CacheState.STANDBY)
        if outcome is Outcome.OK:
            self._drop_reservation(self._sequences[seq_id])
        return outcome

    def resume(self, seq_id: str) -> Outcome:
        """Make a parked sequence active again."""
        if self.state(seq_id) is CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        return self._move(seq_id, CacheState.ACTIVE)

    def protect(self, seq_id: str, is_protected: bool = True) -> Outcome:
        """Forbid (or allow again) that the sequence is swapped out or released."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if sequence.state is CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        sequence.is_protected = is_protected
        return Outcome.OK

    def swap_out(self, seq_id: str) -> Outcome:
        """Move a sequence's committed tokens to the swap store and give its blocks back."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if not is_legal(sequence.state, CacheState.SWAPPED, is_protected=sequence.is_protected):
            return Outcome.ILLEGAL_STATE
        if not self._swap_store.save(seq_id, sequence.block_table[: self.spec.num_blocks_for(sequence.num_tokens)]):
            return Outcome.NO_ROOM
        self._release_blocks(sequence, 0)
        sequence.num_writable = sequence.num_tokens
        sequence.state = CacheState.SWAPPED
        return Outcome.OK

    def swap_in(self, seq_id: str) -> Outcome:
        """Bring a swapped sequence back into blocks of its own, and make it active."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if sequence.state is not CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        blocks = self._allocate(self.spec.num_blocks_for(sequence.num_tokens))
        if blocks is None:
            return Outcome.NO_ROOM
        self._swap_store.load(seq_id, blocks)
        sequence.block_table.extend(blocks)
        sequence.state = CacheState.ACTIVE
        return Outcome.OK

    # -- blocks ----------------------------------------------------------------------------------------------

    def _grow(self, sequence: _Sequence, end: int) -> ReserveResult:
        if sequence.state is not CacheState.ACTIVE:
            return ReserveResult(Outcome.ILLEGAL_STATE)
        if end > self.max_model_len:
            return ReserveResult(Outcome.TOO_LONG)
        table, pool = sequence.block_table, self.pool
        # Only the partly filled block can be shared and about to be written: sharing drops all reservations.
        partial = sequence.num_tokens // self._block_size
        is_shared = partial < len(table) and pool.ref_count(table[partial]) > 1
        num_missing = max(self.spec.num_blocks_for(end) - len(table), 0)
        blocks = self._allocate(num_missing + is_shared)
        if blocks is None:
            return ReserveResult(Outcome.NO_ROOM)
        copies: tuple[tuple[int, int], ...] = ()
        if is_shared:
            source, table[partial] = table[partial], blocks.pop()
            pool.release(source)
            copies = ((source, table[partial]),)
        table.extend(blocks)
        sequence.num_writable = min(len(table) * self._block_size, self.max_model_len)
        return ReserveResult(Outcome.OK, copies) if copies else _RESERVED

    def _match(self, token_ids: Sequence[int], extra_key: bytes) -> list[int]:
        blocks = self._prefix_cache.match(token_ids, extra_key)
        return list(blocks[: max(len(token_ids) - 1, 0) // self._block_size])

    def _allocate(self, num_blocks: int) -> list[int] | None:
        num_lacking = num_blocks - self.pool.num_free
        if num_lacking > 0:
            if num_lacking > self._prefix_cache.num_reclaimable:
                return None
            self._prefix_cache.reclaim(num_lacking)
        return self.pool.allocate(num_blocks)

    def _move(self, seq_id: str, target: CacheState) -> Outcome:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if not is_legal(sequence.state, target, is_protected=sequence.is_protected):
            return Outcome.ILLEGAL_STATE
        sequence.state = target
        return Outcome.OK

    def _drop_reservation(self, sequence: _Sequence) -> None:
        self._release_blocks(sequence, self.spec.num_blocks_for(sequence.num_tokens))
        sequence.num_writable = sequence.num_tokens

    def _release_blocks(self, sequence: _Sequence, first: int) -> None:
        # From the end, because a prefix cache gives up first what was released first.
        for block in reversed(sequence.block_table[first:]):
            self.pool.release(block)
        del sequence.block_table[first:]
