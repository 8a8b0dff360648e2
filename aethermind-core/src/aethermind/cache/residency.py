"""Which sequences are in device memory: parking and pinning them, moving them out and back, by order or when it fills.

A parked sequence (Standby) may be moved out without being asked once the sequences hold more than a threshold of the
blocks, the one that was used least recently first. Nothing else is: not what runs (Active), not what is pinned
(Protected), and no block that a prefix cache keeps for reuse (Warm): it stays where it is, whoever else leaves.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.block_supply import BlockSupply
from aethermind.cache.outcome import Outcome
from aethermind.cache.sequence import CachedSequence
from aethermind.cache.states import CacheState, is_legal
from aethermind.cache.swap import SwapStore

__all__ = ["Residency"]


class Residency:
    """Moves sequences between Active, Standby and Swapped."""

    __slots__ = ("_block_size", "_parked", "_store", "_supply", "_threshold")

    def __init__(self, supply: BlockSupply, block_size: int, store: SwapStore, threshold: float) -> None:
        """`threshold` is the fraction of the blocks that sequences may hold before parked ones are moved out."""
        self._supply = supply
        self._block_size = block_size
        self._store = store
        self._threshold = threshold
        self._parked: OrderedDict[str, CachedSequence] = OrderedDict()

    @property
    def pool(self) -> BlockPool:
        """Whose blocks they are."""
        return self._supply.pool

    @property
    def num_swapped(self) -> int:
        """Blocks of the store that are in use."""
        return self._store.num_used_blocks

    @property
    def memory_pressure(self) -> float:
        """Fraction of all room, in the pool and in the store, that sequences hold, from 0 to 1."""
        num_held = self._supply.num_held + self._store.num_used_blocks
        return num_held / (self._supply.pool.num_blocks + self._store.num_blocks)

    def park(self, seq_id: str, sequence: CachedSequence) -> Outcome:
        """Active to Standby, without reservations."""
        if not _may(sequence, CacheState.STANDBY):
            return Outcome.ILLEGAL_STATE
        self.drop_reservation(sequence)
        sequence.state = CacheState.STANDBY
        self._parked[seq_id] = sequence
        self.make_room(0)
        return Outcome.OK

    def resume(self, seq_id: str, sequence: CachedSequence) -> Outcome:
        """Standby or Swapped to Active."""
        if sequence.state is CacheState.SWAPPED:
            return self.swap_in(seq_id, sequence)
        if sequence.state is not CacheState.STANDBY:
            return Outcome.ILLEGAL_STATE
        sequence.state = CacheState.ACTIVE
        del self._parked[seq_id]
        return Outcome.OK

    def pin(self, sequence: CachedSequence, is_pinned: bool) -> Outcome:
        """Make what is in device memory Protected, or let it go again."""
        if sequence.state is CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        sequence.is_pinned = is_pinned
        return Outcome.OK

    def touch(self, seq_id: str) -> None:
        """Note that a sequence was used."""
        if seq_id in self._parked:
            self._parked.move_to_end(seq_id)

    def forget(self, seq_id: str, sequence: CachedSequence) -> None:
        """Drop what is kept of a sequence that ends, in the store too."""
        if sequence.state is CacheState.SWAPPED:
            self._store.drop(seq_id)
        self._parked.pop(seq_id, None)

    def swap_out(self, seq_id: str, sequence: CachedSequence) -> Outcome:
        """To the store, without reservations; its blocks are given back."""
        if not _may(sequence, CacheState.SWAPPED):
            return Outcome.ILLEGAL_STATE
        if not self._store.save(seq_id, sequence.block_table[: self._num_blocks(sequence)].tolist()):
            return Outcome.NO_ROOM
        self._supply.trim(sequence, 0)
        sequence.num_writable = sequence.num_tokens
        sequence.state = CacheState.SWAPPED
        self._parked.pop(seq_id, None)
        return Outcome.OK

    def swap_in(self, seq_id: str, sequence: CachedSequence) -> Outcome:
        """From the store to blocks of its own, and Active."""
        if sequence.state is not CacheState.SWAPPED:
            return Outcome.ILLEGAL_STATE
        blocks = self.allocate(self._num_blocks(sequence))
        if blocks is None:
            return Outcome.NO_ROOM
        self._store.load(seq_id, blocks)
        sequence.block_table.extend(blocks)
        sequence.state = CacheState.ACTIVE
        return Outcome.OK

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Blocks of the supply, after parked sequences have made room for them."""
        self.make_room(num_blocks)
        return self._supply.allocate(num_blocks)

    def make_room(self, num_blocks: int) -> None:
        """Move parked sequences out until the threshold holds with `num_blocks` more blocks in use, or none can go.

        Those whose blocks all have holders that stay are left alone: their going would free nothing. Nothing moves for
        a need that cannot be met even so.
        """
        if not self._parked:
            return
        num_excess = self._supply.num_held + num_blocks - int(self._threshold * self._supply.pool.num_blocks)
        if num_excess <= 0:
            return
        leaving, num_freed = self._who_could_leave(num_excess)
        if num_blocks <= self._supply.num_available + num_freed:
            for seq_id, sequence in leaving.items():
                self.swap_out(seq_id, sequence)

    def _who_could_leave(self, num_excess: int) -> tuple[dict[str, CachedSequence], int]:
        """Parked sequences whose going frees `num_excess` blocks, or as many as can be; and how many they free."""
        movable = {seq_id: one for seq_id, one in self._parked.items() if _may(one, CacheState.SWAPPED)}
        holders = Counter(block for sequence in movable.values() for block in sequence.block_table)
        loose = {block: count for block, count in holders.items() if count == self._supply.pool.num_users(block)}
        num_room, num_freed = self._store.num_blocks - self._store.num_used_blocks, 0
        leaving: dict[str, CachedSequence] = {}
        for seq_id, sequence in movable.items():
            own = [block for block in sequence.block_table if block in loose]
            if not own or len(sequence.block_table) > num_room:
                continue
            leaving[seq_id] = sequence
            num_room -= len(sequence.block_table)
            for block in own:
                loose[block] -= 1
                num_freed += loose[block] == 0
            if num_freed >= num_excess:
                break
        return leaving, num_freed

    def drop_reservation(self, sequence: CachedSequence) -> None:
        """Give back the blocks behind the last token."""
        self._supply.trim(sequence, self._num_blocks(sequence))
        sequence.num_writable = sequence.num_tokens

    def _num_blocks(self, sequence: CachedSequence) -> int:
        return -(-sequence.num_tokens // self._block_size)


def _may(sequence: CachedSequence, target: CacheState) -> bool:
    return is_legal(sequence.state, target, is_protected=sequence.is_pinned)
