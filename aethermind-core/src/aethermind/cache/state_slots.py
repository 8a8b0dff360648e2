"""State slots: where the recurrent state of each sequence is, for models with recurrent layers.

A state tensor is [num_slots, …], and slot *s* of the cache is row *s* of all state tensors. A sequence has one slot
from its first reservation until it ends, but not always the same one. Blocks of keys can be shared and dropped one by
one, because each token has its own; a state stands for all tokens of its sequence at once and is overwritten by each
step. So it can be copied, but not shared, and a sequence can drop its tokens only down to a number of which there is a
copy: none, those of its *checkpoint*, which is taken before drafts are verified, or those of a snapshot (see
`state_snapshots`). (vLLM: the state indices of `mamba_cache_params`; llama.cpp: `llama_memory_recurrent`.)

A slot is not cleared: the operators take the initial state of a sequence as zero in the step that computes its first
token (see `ops.catalog`), whatever the slot holds. No sequence has slot 0, the null slot: the padding of steps reads
and writes there.

Swapped sequences have slots in host memory, which are numbered behind those of the device. Forks, snapshots and swaps
are copies in one list: they are carried out in order before a graph runs next, so a slot can be reused at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from aethermind.cache.sequence import CachedSequence
    from aethermind.cache.spec import KVCacheSpec

__all__ = ["NULL_SLOT", "NUM_RESERVED_SLOTS", "StateSlots"]

NULL_SLOT = 0
"""The slot of padding, and of a sequence that has none yet."""

NUM_RESERVED_SLOTS = 2
"""Slots besides those of running requests: the null slot, and a scratch slot, which a fork of a request that ends or a
text that is embedded or scored takes for a moment."""


class StateSlots:
    """Slots of sequences, `1 … end - 1` and those of `on_host`, each free or one sequence's, and the copies of states.

    Not thread-safe.
    """

    __slots__ = ("_first_on_host", "_free", "_free_on_host", "copies", "num_moved_in", "num_moved_out")

    def __init__(self, end: int, on_host: range = range(0)) -> None:
        self._free = list(range(end - 1, NULL_SLOT, -1))
        self._free_on_host = list(reversed(on_host))
        self._first_on_host = on_host.start if on_host else end
        self.num_moved_out = self.num_moved_in = 0
        """States swapped out, and back in, so far."""
        self.copies: list[tuple[int, int]] = []
        """`(source, destination)` slots of forks, snapshots, checkpoints and swaps, to copy in order before the next
        run of a graph. Until then no graph has written to a source, even if its sequence has ended since."""

    @classmethod
    def of(cls, spec: KVCacheSpec) -> Self:
        """The slots of a cache: the last of the device are those of snapshots."""
        return cls(spec.num_slots - spec.num_snapshots, range(spec.num_slots, spec.num_slots + spec.num_host_slots))

    @property
    def num_free(self) -> int:
        """Slots that no sequence has."""
        return len(self._free)

    @property
    def num_free_on_host(self) -> int:
        """Slots in host memory that no swapped sequence has."""
        return len(self._free_on_host)

    def allocate(self) -> int:
        """Take the slot that was freed last; the null slot if there is none.

        A step in flight may still write to it. Steps and copies run in the order in which they are enqueued, so the
        sequence that gets the slot is computed after that.
        """
        return self._free.pop() if self._free else NULL_SLOT

    def copy(self, slot: int) -> int:
        """Take a slot for a copy of the state in `slot`; the null slot if there is none, or for the null slot."""
        if slot == NULL_SLOT:
            return NULL_SLOT
        taken = self.allocate()
        if taken != NULL_SLOT:
            self.copies.append((slot, taken))
        return taken

    def checkpoint(self, sequence: CachedSequence) -> bool:
        """Copy the state of a sequence to a slot of its own, in place of its last checkpoint; False if none is free."""
        if sequence.checkpoint == NULL_SLOT:
            sequence.checkpoint = self.allocate()
        if sequence.checkpoint == NULL_SLOT:
            return False
        sequence.num_checkpoint_tokens = sequence.num_tokens
        self.copies.append((sequence.state_slot, sequence.checkpoint))
        return True

    def drop_checkpoint(self, sequence: CachedSequence) -> None:
        """Give back the slot of a sequence's checkpoint, if it has one."""
        self.free(sequence.checkpoint)
        sequence.checkpoint, sequence.num_checkpoint_tokens = NULL_SLOT, 0

    def swap_out(self, slot: int) -> int:
        """Exchange a slot for one in host memory, of which one must be free."""
        on_host = self._free_on_host.pop()
        self.copies.append((slot, on_host))
        self.num_moved_out += 1
        self.free(slot)
        return on_host

    def swap_in(self, on_host: int) -> int:
        """Exchange a slot in host memory for one of the device, of which one must be free."""
        slot = self._free.pop()
        self.copies.append((on_host, slot))
        self.num_moved_in += 1
        self.free(on_host)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; the null slot is none."""
        if slot != NULL_SLOT:
            free = self._free if slot < self._first_on_host else self._free_on_host
            assert slot not in free, f"state slot {slot} is already free"
            free.append(slot)
