"""Sequences over blocks: which slots of device memory the tokens of a sequence occupy, and who shares them.

A slot is `block * block_size + offset`. `reserve` makes slots for tokens about to be computed, `commit` says
that they have been. Blocks are shared by `fork` and by prefix reuse; a shared block is never written, its
writer gets a copy first. Nothing here knows what a slot holds or where it lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.block_supply import BlockSupply
from aethermind.cache.census import BlockInfo, count_states, inspect_blocks
from aethermind.cache.growth import grow
from aethermind.cache.layout import CacheLayout, laid_out
from aethermind.cache.outcome import OpenResult, Outcome, ReserveResult, SaveResult
from aethermind.cache.positions import PLAIN
from aethermind.cache.prefix_cache import NoPrefixCache, PrefixCache
from aethermind.cache.ranges import Dropped, drop_tokens, keep_tokens, shift_tokens, truncate_tokens
from aethermind.cache.residency import Residency
from aethermind.cache.saved_sequence import BlockContents, pack_sequence, unpack_sequence
from aethermind.cache.sequence import CachedSequence
from aethermind.cache.slots import SlotArray, slots_of
from aethermind.cache.spec import KVCacheSpec
from aethermind.cache.states import CacheState, is_legal
from aethermind.cache.swap import NoSwapStore, SwapStore
from aethermind.errors import InvalidArgumentError

__all__ = ["KVCache"]


# The answers of every step, made once.
_RESERVED = ReserveResult(Outcome.OK)
_UNKNOWN = ReserveResult(Outcome.UNKNOWN_SEQUENCE)


class KVCache:
    """All sequences of one model over one pool of blocks.

    Lack of room comes back as an `Outcome`; a sequence that is not open is `Outcome.UNKNOWN_SEQUENCE`, or a
    `KeyError` from the accessors, which return no outcome. Tokens are counted by index, 0 up to `num_tokens`; ranges
    to drop or shift are given by position (see `positions`). Not thread-safe.
    """

    __slots__ = (
        "_block_size",
        "_residency",
        "_sequences",
        "_supply",
        "capacity_tokens",
        "has_moved",
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
        """Plan a cache of `num_blocks` blocks. `pool` is given when a prefix cache shares it.

        `swap_threshold` is the fraction of the blocks that sequences may hold before parked ones are swapped out, the
        least recently used first. Raises `InvalidArgumentError` for sizes below 1, an unknown layout, or a threshold
        that is no fraction.
        """
        if num_blocks < 1 or max_model_len < 1:
            raise InvalidArgumentError(
                f"A KV cache of {num_blocks} blocks for {max_model_len} tokens holds nothing; "
                "num_blocks and max_model_len must be integers of 1 or more."
            )
        if not 0 <= swap_threshold <= 1:
            raise InvalidArgumentError(f"swap_threshold is {swap_threshold} but must be a fraction, 0 to 1.")
        self.spec = laid_out(spec, layout, max_model_len)
        self.max_model_len = max_model_len
        self._block_size = self.spec.block_size
        self.capacity_tokens = min(max_model_len, num_blocks * self._block_size)
        """The longest sequence that fits when it has the cache to itself."""
        self._supply = BlockSupply(
            BlockPool(num_blocks) if pool is None else pool, NoPrefixCache() if prefix_cache is None else prefix_cache
        )
        self._residency = Residency(
            self._supply, self._block_size, NoSwapStore() if swap_store is None else swap_store, swap_threshold
        )
        self._sequences: dict[str, CachedSequence] = {}
        self.has_moved = False
        """Whether a token may stand elsewhere than at its index; False spares asking for each."""

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def pool(self) -> BlockPool:
        """All blocks, and how many sequences hold each."""
        return self._supply.pool

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.pool.num_free

    @property
    def num_available_blocks(self) -> int:
        """Blocks a reservation can get: the free ones and those that a prefix cache gives up on demand."""
        return self._supply.num_available

    @property
    def num_swapped_blocks(self) -> int:
        """Blocks of the swap store that sequences hold."""
        return self._residency.num_swapped

    @property
    def num_sequences(self) -> int:
        """Sequences that are open, swapped ones among them."""
        return len(self._sequences)

    @property
    def usage(self) -> float:
        """Fraction of the blocks that sequences hold, from 0 to 1."""
        return self._supply.num_held / self.pool.num_blocks

    @property
    def memory_pressure(self) -> float:
        """Fraction of all room, in blocks and in the swap store, that sequences hold, from 0 to 1."""
        return self._residency.memory_pressure

    def blocks(self) -> list[BlockInfo]:
        """Look at every block, which takes time in all that is held."""
        return inspect_blocks(self.pool, self._sequences, self._block_size)

    def count_states(self) -> dict[CacheState, int]:
        """Count blocks by state, like `blocks`; those Swapped are outside, all others add up to the pool."""
        return count_states(self.blocks(), self._residency.num_swapped)

    def query(self, token_ids: Sequence[int], extra_key: bytes = b"") -> int:
        """Return how many leading tokens `open` with these ids would reuse."""
        return len(self.match(token_ids, extra_key)) * self._block_size

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        """Return the blocks that `open` with these ids would reuse, idle or in use."""
        blocks = self._supply.prefix_cache.match(token_ids, extra_key)
        return list(blocks[: max(len(token_ids) - 1, 0) // self._block_size])

    def num_tokens(self, seq_id: str) -> int:
        """Return how many tokens of the sequence are committed."""
        return self._sequences[seq_id].num_tokens

    def state(self, seq_id: str) -> CacheState:
        """Return the sequence's state; `FREE` if it is not open."""
        sequence = self._sequences.get(seq_id)
        return CacheState.FREE if sequence is None else sequence.state

    def position(self, seq_id: str, index: int) -> int:
        """Return where the token of an index stands; of an index past the last, where it will stand."""
        return self._sequences[seq_id].positions.position(index)

    def block_table(self, seq_id: str) -> array[int]:
        """Return the sequence's blocks in order: the live table, to be read only."""
        return self._sequences[seq_id].block_table

    def slot(self, seq_id: str, index: int) -> int:
        """Return the slot of a reserved or committed token."""
        block_size = self._block_size
        return self._sequences[seq_id].block_table[index // block_size] * block_size + index % block_size

    def fill_slots(self, seq_id: str, start: int, count: int, out: SlotArray, out_offset: int = 0) -> None:
        """Write the slots of `count` tokens from index `start` on to `out[out_offset : out_offset + count]`."""
        table = self._sequences[seq_id].block_table
        out[out_offset : out_offset + count] = slots_of(table, start, count, self._block_size)

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
        blocks = self.match(token_ids, extra_key)
        self._supply.acquire(blocks)
        num_cached_tokens = len(blocks) * self._block_size
        self._sequences[seq_id] = CachedSequence(blocks, num_cached_tokens, extra_key)
        return OpenResult(Outcome.OK, num_cached_tokens)

    def reserve(self, seq_id: str, num_new_tokens: int) -> ReserveResult:
        """Make the next `num_new_tokens` slots after the committed ones writable; all or nothing.

        The first write into a partly filled block that is shared moves to a copy, and blocks that were shifted have
        their keys turned, in a copy where others use them too: the result's `copies` and `shifts`.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return _UNKNOWN
        if sequence.num_tokens + num_new_tokens <= sequence.num_writable:
            return _RESERVED
        end = sequence.num_tokens + num_new_tokens
        if sequence.state is not CacheState.ACTIVE:
            return ReserveResult(Outcome.ILLEGAL_STATE)
        if end > self.max_model_len:
            return ReserveResult(Outcome.TOO_LONG)
        return grow(sequence, end, self._residency, self._block_size, self.max_model_len)

    def commit(self, seq_id: str, num_new_tokens: int) -> Outcome:
        """Record that the next `num_new_tokens` reserved slots hold computed tokens."""
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
        self._residency.drop_reservation(parent)
        self._supply.acquire(parent.block_table)
        self._sequences[child_id] = parent.fork()
        self._residency.touch(parent_id)
        return Outcome.OK

    def publish(self, seq_id: str, token_ids: Sequence[int]) -> Outcome:
        """Offer the full blocks of a sequence to the prefix cache, as `release` does, while it goes on.

        `token_ids` are those it holds, or the first of them.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if sequence.state is CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        self._offer(sequence, token_ids)
        return Outcome.OK

    def release(self, seq_id: str, token_ids: Sequence[int] = ()) -> Outcome:
        """End a sequence. Its full blocks are offered to the prefix cache when its `token_ids` are given.

        Of a sequence that was dropped from or shifted, only what came before that is offered.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if not is_legal(sequence.state, CacheState.FREE, is_protected=sequence.is_pinned):
            return Outcome.ILLEGAL_STATE
        if sequence.state is not CacheState.SWAPPED:
            self._offer(sequence, token_ids)
        self._supply.trim(sequence, 0)
        self._residency.forget(seq_id, sequence)
        del self._sequences[seq_id]
        return Outcome.OK

    def _offer(self, sequence: CachedSequence, token_ids: Sequence[int]) -> None:
        num_known = min(sequence.num_tokens, sequence.num_original, len(token_ids))
        if num_full := num_known // self._block_size:
            token_ids, blocks = token_ids[: num_full * self._block_size], sequence.block_table[:num_full]
            self._supply.prefix_cache.publish(token_ids, blocks, sequence.extra_key)

    # -- parts of a sequence ---------------------------------------------------------------------------------

    def truncate(self, seq_id: str, num_tokens: int) -> Outcome:
        """Forget all but the first `num_tokens` committed tokens, and every reservation."""
        return self._change(seq_id, lambda sequence: truncate_tokens(sequence, num_tokens, self._block_size))

    def remove(self, seq_id: str, start: int = 0, end: int | None = None) -> Outcome:
        """Forget the tokens at positions from `start` up to `end` (None: to the last), and every reservation.

        Those behind keep their positions. `PARTIAL_BLOCK` where only part of a block would go and tokens follow.
        """
        return self._change(seq_id, lambda sequence: drop_tokens(sequence, start, end, self._block_size))

    def keep(self, seq_id: str, start: int, end: int | None = None) -> Outcome:
        """Forget all tokens but those at positions from `start` up to `end`, which keep them; see `remove`."""
        return self._change(seq_id, lambda sequence: keep_tokens(sequence, start, end, self._block_size))

    def shift(self, seq_id: str, start: int, delta: int) -> Outcome:
        """Move the tokens at positions from `start` on by `delta`; their keys follow when the sequence next reserves.

        `PARTIAL_BLOCK` where the first of them is not the first of a block, `OUT_OF_ORDER` where they would stand among
        those before them.
        """
        return self._change(seq_id, lambda sequence: shift_tokens(sequence, start, delta, self._block_size))

    def _change(self, seq_id: str, change: Callable[[CachedSequence], Dropped]) -> Outcome:
        """Change an active sequence, and give back the blocks that it holds no more."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return Outcome.UNKNOWN_SEQUENCE
        if sequence.state is not CacheState.ACTIVE:
            return Outcome.ILLEGAL_STATE
        outcome, dropped = change(sequence)
        if outcome is Outcome.OK:
            self._supply.release(dropped)
            self._residency.drop_reservation(sequence)
            self.has_moved = self.has_moved or sequence.positions is not PLAIN
        return outcome

    # -- resting, pinning, swapping --------------------------------------------------------------------------

    def park(self, seq_id: str) -> Outcome:
        """Let an idle sequence keep its committed tokens; it cannot be written until `resume`.

        It may be swapped out when the cache fills.
        """
        return self._with(seq_id, lambda sequence: self._residency.park(seq_id, sequence))

    def resume(self, seq_id: str) -> Outcome:
        """Make a parked sequence active again, wherever it is."""
        return self._with(seq_id, lambda sequence: self._residency.resume(seq_id, sequence))

    def pin(self, seq_id: str, is_pinned: bool = True) -> Outcome:
        """Forbid (or allow again) that the sequence is swapped out or released: make it Protected."""
        return self._with(seq_id, lambda sequence: self._residency.pin(sequence, is_pinned))

    def swap_out(self, seq_id: str) -> Outcome:
        """Move a sequence's committed tokens to the swap store and give its blocks back."""
        return self._with(seq_id, lambda sequence: self._residency.swap_out(seq_id, sequence))

    def swap_in(self, seq_id: str) -> Outcome:
        """Bring a swapped sequence back into blocks of its own, and make it active."""
        return self._with(seq_id, lambda sequence: self._residency.swap_in(seq_id, sequence))

    def make_room(self, num_blocks: int) -> None:
        """Swap parked sequences out, as `reserve` does, before `num_blocks` blocks are asked for."""
        self._residency.make_room(num_blocks)

    def _with(self, seq_id: str, act: Callable[[CachedSequence], Outcome]) -> Outcome:
        sequence = self._sequences.get(seq_id)
        return Outcome.UNKNOWN_SEQUENCE if sequence is None else act(sequence)

    # -- as bytes --------------------------------------------------------------------------------------------

    def save(self, seq_id: str, contents: BlockContents, token_ids: Sequence[int]) -> SaveResult:
        """Return the sequence as bytes that `load` takes, here or elsewhere; `token_ids` are those it holds."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return SaveResult(Outcome.UNKNOWN_SEQUENCE)
        if sequence.state is CacheState.SWAPPED:
            return SaveResult(Outcome.ILLEGAL_STATE)
        num_blocks = self.spec.num_blocks_for(sequence.num_tokens)
        return SaveResult(Outcome.OK, pack_sequence(sequence, num_blocks, contents, token_ids))

    def load(self, seq_id: str, data: bytes, contents: BlockContents, token_ids: Sequence[int]) -> OpenResult:
        """Start a sequence with what `save` made of one, all of it committed.

        Raises CacheContentError where `data` is damaged, or of another model, block size, or other `token_ids`.
        """
        if seq_id in self._sequences:
            return OpenResult(Outcome.ALREADY_OPEN)
        sequence, tensors = unpack_sequence(data, contents, token_ids)
        if sequence.num_tokens > self.max_model_len:
            return OpenResult(Outcome.TOO_LONG)
        blocks = self._residency.allocate(self.spec.num_blocks_for(sequence.num_tokens))
        if blocks is None:
            return OpenResult(Outcome.NO_ROOM)
        try:
            contents.write(tensors, blocks)
        except BaseException:
            self._supply.release(blocks)
            raise
        sequence.block_table.extend(blocks)
        self._sequences[seq_id] = sequence
        self.has_moved = self.has_moved or sequence.positions is not PLAIN
        return OpenResult(Outcome.OK, sequence.num_tokens)
