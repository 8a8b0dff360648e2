"""States of recurrent layers: one slot per sequence, updated in place by the tokens of a step.

T tokens of S sequences are concatenated. The tokens of sequence s are rows cu_seqlens_q[s] to cu_seqlens_q[s+1] - 1,
and its state is in slot state_slots[s] of N. seqlens_k[s] counts its tokens so far, those of the step included; if it
equals the number of tokens in the step, the sequence is new, and its state counts as zero, whatever the slot holds. The
state of a sequence without tokens in the step does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._index_checks import Shapes, check_offsets, require_below
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import Array, Call

__all__ = [
    "STATE_INPUTS",
    "StateBatch",
    "check_state_slots",
    "sequences_of",
    "state_batch",
    "state_batches",
    "state_bytes",
]

STATE_INPUTS = "cu_seqlens_q: i32[S+1], seqlens_k: i32[S], state_slots: i32[S]"
"""The inputs of a schema that say which rows and which slot belong to each sequence."""


class SequenceRows(NamedTuple):
    """A sequence with tokens in the step: its rows, its slot, and whether its state counts as zero."""

    rows: slice
    slot: int
    is_new: bool

    def initial(self, state: Array, dtype: np.dtype[np.floating]) -> Array:
        """Return a copy in `dtype` of the sequence's state out of the states of all slots."""
        return np.zeros(state.shape[1:], dtype) if self.is_new else state[self.slot].astype(dtype)


def sequences_of(cu_seqlens_q: Array, seqlens_k: Array, state_slots: Array) -> Iterator[SequenceRows]:
    """Yield the sequences that have tokens in the step."""
    bounds = zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True)
    for (begin, end), length, slot in zip(bounds, seqlens_k.tolist(), state_slots.tolist(), strict=True):
        if begin < end:
            yield SequenceRows(slice(begin, end), slot, length == end - begin)


def check_state_slots(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that seqlens_k are at least the tokens in the step, and that slots are in `state` and distinct."""
    cu_seqlens_q, lengths, slots = arrays["cu_seqlens_q"], arrays["seqlens_k"], arrays["state_slots"]
    check_offsets("cu_seqlens_q", cu_seqlens_q, shapes["out"][0])
    counts = np.diff(cu_seqlens_q)
    if bool((lengths < counts).any()):
        raise OperatorError(f"seqlens_k should be at least the tokens of each sequence, {counts}, got {lengths}.")
    require_below("state_slots", slots, shapes["state"][0])
    used = slots[counts > 0]
    if len(np.unique(used)) < len(used):
        raise OperatorError("state_slots holds a slot twice; each sequence has a state of its own.")


def state_bytes(call: Call, name: str = "state") -> tuple[int, int]:
    """Return the bytes of states that a call has to read, those of sequences that are not new, and to write."""
    num_slots = max(call.shape(name)[0], 1)
    per_slot = call.bytes_in(name) // num_slots
    with_tokens = [(tokens, length) for tokens, length in call.sequences if tokens]
    return per_slot * sum(length > tokens for tokens, length in with_tokens), per_slot * len(with_tokens)


class StateBatch(NamedTuple):
    """A ragged batch of a sample: the inputs of `STATE_INPUTS`, and the numbers of slots and of rows (with padding)."""

    label: str
    cu_seqlens_q: Array
    seqlens_k: Array
    state_slots: Array
    num_slots: int
    num_rows: int

    @property
    def tables(self) -> tuple[Array, Array, Array]:
        """The inputs of `STATE_INPUTS`."""
        return self.cu_seqlens_q, self.seqlens_k, self.state_slots

    def states(self, rng: np.random.Generator, *shape: int) -> Array:
        """Return random states of this shape, NaN in the slots of new sequences, which a kernel must not read."""
        states = normal(rng, self.num_slots, *shape)
        for sequence in sequences_of(*self.tables):
            if sequence.is_new:
                states[sequence.slot] = np.nan
        return states


def state_batch(
    rng: np.random.Generator, label: str, sequences: Sequence[tuple[int, int]], num_padding_rows: int = 0
) -> StateBatch:
    """Return a batch of sequences, given as (tokens in the step, seqlens_k), in random slots; two slots are unused."""
    cu_seqlens_q = np.cumsum([0, *(tokens for tokens, _ in sequences)]).astype(np.int32)
    lengths = np.array([length for _, length in sequences], np.int32)
    num_slots = len(sequences) + 2
    slots = rng.permutation(num_slots)[: len(sequences)].astype(np.int32)
    return StateBatch(label, cu_seqlens_q, lengths, slots, num_slots, int(cu_seqlens_q[-1]) + num_padding_rows)


def state_batches(rng: np.random.Generator) -> Iterator[StateBatch]:
    """Yield batches of decodes, prompts, later chunks of prompts and mixes of them, with and without padding rows."""
    mixed = [(1, 9), (7, 7), (4, 11), (1, 16), (3, 17)]
    yield state_batch(rng, "mixed", mixed)
    yield state_batch(rng, "prompts", [(5, 5), (17, 17), (1, 1), (2, 2)])
    yield state_batch(rng, "decodes", [(1, 5), (1, 2), (1, 33)])
    yield state_batch(rng, "one_token", [(1, 1)])
    yield state_batch(rng, "later_chunk", [(33, 40)])
    yield state_batch(rng, "sequence_without_tokens", [(2, 4), (0, 6), (1, 3)])
    yield state_batch(rng, "no_sequences", [])
    yield state_batch(rng, "padded", mixed, num_padding_rows=3)
