"""Parking, pinning and swapping of sequences: which of them are in device memory, and which in the swap store.

Once sequences hold more than a threshold of the blocks, parked ones (Standby) are swapped out, the least recently used
first. Running sequences (Active), pinned ones (Protected) and blocks that a prefix cache keeps (Warm) are never swapped
out. The recurrent state of a sequence, if it has one, is swapped together with its blocks (see `recurrent_states`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from aethermind.cache.block_pool import BlockAllocator, BlockPool
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.recurrent_states import NULL_SLOT, StateSlots
from aethermind.cache.sequence import CachedSequence, CacheState, is_legal_transition
from aethermind.cache.swap_store import SwapStore
from aethermind.errors import InvalidArgumentError

__all__ = ["SequenceSwapper"]


class SequenceSwapper:
    """Parks, pins and swaps sequences: moves them between Active, Standby and Swapped."""

    __slots__ = ("_allocator", "_block_size", "_on_dropped", "_parked", "_slots", "_store", "_threshold")

    def __init__(
        self,
        allocator: BlockAllocator,
        block_size: int,
        store: SwapStore,
        threshold: float,
        slots: StateSlots | None,
        on_dropped: Callable[[str], object],
    ) -> None:
        """`threshold` is the fraction of the blocks that sequences may hold before parked ones are swapped out; `slots`
        are those of recurrent states. `on_dropped` is called with the id of a parked sequence that ends because the
        store is full. Raises `InvalidArgumentError` for a threshold outside [0, 1].
        """
        if not 0 <= threshold <= 1:
            raise InvalidArgumentError(
                f"swap_threshold is {threshold} but must be a fraction, 0 to 1.", param="swap_threshold"
            )
        self._allocator = allocator
        self._block_size = block_size
        self._store = store
        self._threshold = threshold
        self._slots = slots
        self._on_dropped = on_dropped
        self._parked: OrderedDict[str, CachedSequence] = OrderedDict()

    @property
    def pool(self) -> BlockPool:
        """The pool of the sequences' blocks."""
        return self._allocator.pool

    @property
    def num_swapped(self) -> int:
        """Number of swap-store blocks in use."""
        return self._store.num_used_blocks

    @property
    def memory_pressure(self) -> float:
        """Fraction of all blocks, of the pool and of the store, that sequences hold, from 0 to 1."""
        num_held = self._allocator.num_held + self._store.num_used_blocks
        return num_held / (self._allocator.pool.num_blocks + self._store.num_blocks)

    def park(self, seq_id: str, sequence: CachedSequence, *, may_drop: bool) -> CacheOutcome:
        """Move an Active sequence to Standby, and drop its reservations.

        If the store is full, a sequence that `may_drop` is released; its published blocks become Warm.
        """
        if not _can_become(sequence, CacheState.STANDBY):
            return CacheOutcome.ILLEGAL_STATE
        self.drop_reservation(sequence)
        sequence.state = CacheState.STANDBY
        sequence.may_drop = may_drop
        self._parked[seq_id] = sequence
        self.swap_out_parked(0)
        return CacheOutcome.OK

    def resume(self, seq_id: str, sequence: CachedSequence) -> CacheOutcome:
        """Move a Standby or Swapped sequence to Active."""
        if sequence.state is CacheState.SWAPPED:
            return self.swap_in(seq_id, sequence)
        if sequence.state is not CacheState.STANDBY:
            return CacheOutcome.ILLEGAL_STATE
        sequence.state = CacheState.ACTIVE
        del self._parked[seq_id]
        return CacheOutcome.OK

    def pin(self, sequence: CachedSequence, is_pinned: bool) -> CacheOutcome:
        """Protect a sequence in device memory, or unpin it."""
        if sequence.state is CacheState.SWAPPED:
            return CacheOutcome.ILLEGAL_STATE
        sequence.is_pinned = is_pinned
        return CacheOutcome.OK

    def touch(self, seq_id: str) -> None:
        """Record a use of a sequence, for the LRU order."""
        if seq_id in self._parked:
            self._parked.move_to_end(seq_id)

    def forget(self, seq_id: str, sequence: CachedSequence) -> None:
        """Drop everything kept for a sequence that ends, including its blocks in the swap store."""
        if sequence.state is CacheState.SWAPPED:
            self._store.drop(seq_id)
        self._parked.pop(seq_id, None)
        if self._slots is not None:
            self._slots.free(sequence.state_slot)
            self._slots.drop_checkpoint(sequence)

    def swap_out(self, seq_id: str, sequence: CachedSequence) -> CacheOutcome:
        """Move a sequence to the store, drop its reservations and release its blocks."""
        if not _can_become(sequence, CacheState.SWAPPED):
            return CacheOutcome.ILLEGAL_STATE
        if sequence.state_slot != NULL_SLOT and not self._num_free_slots_on_host:
            return CacheOutcome.NO_FREE_BLOCKS
        self._allocator.release_hidden(sequence, self._block_size)
        if not self._store.save(seq_id, sequence.held_blocks(self._num_blocks(sequence))):
            return CacheOutcome.NO_FREE_BLOCKS
        if self._slots is not None and sequence.state_slot != NULL_SLOT:
            self._slots.drop_checkpoint(sequence)
            sequence.state_slot = self._slots.swap_out(sequence.state_slot)
        self._allocator.trim(sequence, 0)
        sequence.num_writable = sequence.num_tokens
        sequence.state = CacheState.SWAPPED
        self._parked.pop(seq_id, None)
        return CacheOutcome.OK

    def swap_in(self, seq_id: str, sequence: CachedSequence) -> CacheOutcome:
        """Move a sequence from the store to blocks of its own, and make it Active."""
        if sequence.state is not CacheState.SWAPPED:
            return CacheOutcome.ILLEGAL_STATE
        if sequence.state_slot != NULL_SLOT and not self.has_free_slot():
            return CacheOutcome.NO_FREE_BLOCKS
        num_blocks = self._num_blocks(sequence)
        blocks = self.allocate(sequence.num_held(num_blocks))
        if blocks is None:
            return CacheOutcome.NO_FREE_BLOCKS
        self._store.load(seq_id, blocks)
        if self._slots is not None and sequence.state_slot != NULL_SLOT:
            sequence.state_slot = self._slots.swap_in(sequence.state_slot)
        sequence.attach(blocks, num_blocks)
        sequence.state = CacheState.ACTIVE
        return CacheOutcome.OK

    def release_hidden(self, sequence: CachedSequence) -> None:
        """Release the blocks of a sequence that its windows hide from all further queries."""
        self._allocator.release_hidden(sequence, self._block_size)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Allocate blocks, swapping out parked sequences first if needed."""
        self.swap_out_parked(num_blocks)
        return self._allocator.allocate(num_blocks)

    def uncache(self, blocks: Iterable[int]) -> None:
        """Take blocks out of the prefix cache that exactly one sequence uses, so that the sequence may change them."""
        for block in blocks:
            if self.pool.num_users(block) == 1:
                self._allocator.prefix_cache.forget(block)

    def has_free_slot(self) -> bool:
        """Whether a state slot is free, after swapping out or dropping a parked sequence if needed."""
        if self._slots is None or self._slots.num_free:
            return self._slots is not None
        parked = [(seq_id, sequence) for seq_id, sequence in self._parked.items() if sequence.state_slot != NULL_SLOT]
        return any(self._swap_out_or_drop(seq_id, sequence) for seq_id, sequence in parked)

    def swap_out_parked(self, num_blocks: int) -> None:
        """Swap parked sequences out until the threshold holds with `num_blocks` more blocks in use, or none is left.

        If the store is full, sequences that `may_drop` are released instead. A sequence is not swapped out if all of
        its blocks are shared with sequences that remain, because that frees nothing. No sequence is swapped out if
        `num_blocks` could not be allocated even then.
        """
        if not self._parked:
            return
        num_excess = self._allocator.num_held + num_blocks - int(self._threshold * self._allocator.pool.num_blocks)
        if num_excess <= 0:
            return
        victims, num_freed = self._swap_candidates(num_excess)
        if num_blocks <= self._allocator.num_available + num_freed:
            for seq_id, sequence in victims.items():
                self._swap_out_or_drop(seq_id, sequence)

    def evict(self, num_blocks: int) -> int:
        """Swap out the parked sequences that fit into the store, and evict up to `num_blocks` blocks that only the
        prefix cache keeps, the least recently used first; returns how many blocks that freed.
        """
        prefix_cache, num_free = self._allocator.prefix_cache, self.pool.num_free
        for seq_id, sequence in self._swap_candidates(self.pool.num_blocks)[0].items():
            self.swap_out(seq_id, sequence)
        prefix_cache.evict(min(num_blocks, prefix_cache.num_evictable))
        return self.pool.num_free - num_free

    def _swap_out_or_drop(self, seq_id: str, sequence: CachedSequence) -> bool:
        """Swap a parked sequence out, or release it if it `may_drop`; False if neither was possible."""
        if self.swap_out(seq_id, sequence) is CacheOutcome.OK:
            return True
        if not sequence.may_drop or sequence.is_pinned:
            return False
        self._allocator.trim(sequence, 0)
        self.forget(seq_id, sequence)
        self._on_dropped(seq_id)
        return True

    def _swap_candidates(self, num_excess: int) -> tuple[dict[str, CachedSequence], int]:
        """Return the parked sequences to swap out so that `num_excess` blocks are freed, or as many as possible, and
        how many blocks that frees.
        """
        swappable = {
            seq_id: parked for seq_id, parked in self._parked.items() if _can_become(parked, CacheState.SWAPPED)
        }
        held = {seq_id: sequence.held_blocks() for seq_id, sequence in swappable.items()}
        holders = Counter(block for blocks in held.values() for block in blocks)
        num_users_left = {
            block: count for block, count in holders.items() if count == self._allocator.pool.num_users(block)
        }
        num_free_in_store, num_freed = self._store.num_blocks - self._store.num_used_blocks, 0
        num_free_slots = self._num_free_slots_on_host
        victims: dict[str, CachedSequence] = {}
        for seq_id, sequence in swappable.items():
            blocks = [block for block in held[seq_id] if block in num_users_left]
            num_slots = int(sequence.state_slot != NULL_SLOT)
            fits = len(held[seq_id]) <= num_free_in_store and num_slots <= num_free_slots
            if not blocks or not (fits or sequence.may_drop):
                continue
            victims[seq_id] = sequence
            if fits:
                num_free_slots -= num_slots
                num_free_in_store -= len(held[seq_id])
            for block in blocks:
                num_users_left[block] -= 1
                num_freed += num_users_left[block] == 0
            if num_freed >= num_excess:
                break
        return victims, num_freed

    def drop_reservation(self, sequence: CachedSequence) -> None:
        """Release the reserved blocks after the one that holds the last token."""
        self._allocator.trim(sequence, self._num_blocks(sequence))
        sequence.num_writable = sequence.num_tokens

    @property
    def _num_free_slots_on_host(self) -> int:
        return 0 if self._slots is None else self._slots.num_free_on_host

    def _num_blocks(self, sequence: CachedSequence) -> int:
        return -(-sequence.num_tokens // self._block_size)


def _can_become(sequence: CachedSequence, target: CacheState) -> bool:
    """Whether the sequence may go to the state `target`."""
    return is_legal_transition(sequence.state, target, is_protected=sequence.is_pinned)
