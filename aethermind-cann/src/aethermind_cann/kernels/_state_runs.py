"""The sequences of a step whose states are updated, in groups that are computed together.

T tokens of S sequences are concatenated; the state of sequence s is in slot state_slots[s]. Adjacent sequences with
equal numbers of tokens form a run: the decodes of a step are one run, and so are adjacent prompts of equal length. The
runs of decode steps are computed on the device, so that such steps can be captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import torch

from aethermind_cann.kernels._kernel import Tensors
from aethermind_cann.run_memo import host_decision, host_list, memoised

__all__ = ["StateRun", "state_runs", "token_runs"]


class StateRun(NamedTuple):
    """B sequences of L tokens each.

    `rows` are their rows [B · L] in the step's tensors. `slots` [B] are the slots of their states, and `is_new` [B]
    says which states count as zero. The first sequence may be repeated, as padding: all states are read before any is
    written.
    """

    rows: slice | torch.Tensor
    num_tokens: int
    slots: torch.Tensor
    is_new: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the rows of the sequences from a tensor [T, …]: [B, L, …] in float32."""
        rows = x[self.rows] if isinstance(self.rows, slice) else x.index_select(0, self.rows)
        return torch.unflatten(rows.float(), 0, (-1, self.num_tokens))

    def put(self, out: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values [B, L, …] to the rows of the sequences in `out` [T, …]."""
        values = values.flatten(0, 1)
        if isinstance(self.rows, slice):
            out[self.rows].copy_(values)
        else:
            out.index_copy_(0, self.rows, values.to(out.dtype))

    def states(self, states: torch.Tensor) -> torch.Tensor:
        """Gather the states of the sequences from all slots [N, …]: [B, …], a copy."""
        is_new = self.is_new.view(-1, *(1,) * (states.dim() - 1))
        return torch.where(is_new, 0.0, states.index_select(0, self.slots))  # unused slots may be NaN

    def put_states(self, states: torch.Tensor, values: torch.Tensor) -> None:
        """Copy the states [B, …] of the sequences to their slots."""
        states.index_copy_(0, self.slots, values)


def state_runs(tables: Tensors) -> list[StateRun]:
    """Return the runs of a step; `tables` are `cu_seqlens_q`, `seqlens_k` and `state_slots`, which all layers share."""
    return memoised("state runs", tables[-1], lambda: list(_find_runs(*tables)))


def token_runs(tables: Tensors) -> list[StateRun]:
    """Return the tokens of a step as runs of one token of one sequence each, in order."""
    return memoised("token runs", tables[-1], lambda: list(_find_tokens(*tables)))


def _find_runs(cu_seqlens_q: torch.Tensor, seqlens_k: torch.Tensor, state_slots: torch.Tensor) -> Iterator[StateRun]:
    slots, num_sequences = state_slots.long(), len(state_slots)
    if num_sequences == 0:
        return
    is_decode_step, is_padded = host_decision(cu_seqlens_q, _kind_of_step)
    if is_decode_step and not is_padded:
        yield StateRun(slice(0, num_sequences), 1, slots, seqlens_k == 1)
    elif is_decode_step:
        number = torch.arange(num_sequences, device=slots.device)
        number = torch.where(number < cu_seqlens_q[-1:], number, 0)
        yield StateRun(number, 1, slots.index_select(0, number), seqlens_k.index_select(0, number) == 1)
    else:
        yield from _ragged_runs(host_list(cu_seqlens_q), seqlens_k, slots)


def _kind_of_step(cu_seqlens_q: list[int]) -> tuple[bool, bool]:
    """Whether all sequences have one token, followed by empty ones only; and whether there are empty ones."""
    num_tokens, num_sequences = cu_seqlens_q[-1], len(cu_seqlens_q) - 1
    has_one_each = all(end == min(number, num_tokens) for number, end in enumerate(cu_seqlens_q))
    return has_one_each and num_tokens > 0, num_tokens < num_sequences


def _ragged_runs(bounds: list[int], seqlens_k: torch.Tensor, slots: torch.Tensor) -> Iterator[StateRun]:
    counts = [end - begin for begin, end in pairwise(bounds)]
    for num_tokens, group in groupby(range(len(counts)), key=counts.__getitem__):
        first, *others = group
        last = others[-1] if others else first
        if num_tokens:
            numbers, rows = slice(first, last + 1), slice(bounds[first], bounds[last + 1])
            yield StateRun(rows, num_tokens, slots[numbers], seqlens_k[numbers] == num_tokens)


def _find_tokens(cu_seqlens_q: torch.Tensor, seqlens_k: torch.Tensor, state_slots: torch.Tensor) -> Iterator[StateRun]:
    num_decodes = host_decision(cu_seqlens_q, _num_decodes)
    bounds = host_list(cu_seqlens_q) if num_decodes is None else range(num_decodes + 1)
    slots = state_slots.long()
    for sequence, (begin, end) in enumerate(pairwise(bounds)):
        own = slice(sequence, sequence + 1)
        is_new = seqlens_k[own] == end - begin
        for row in range(begin, end):
            is_first = is_new if row == begin else torch.zeros_like(is_new)
            yield StateRun(slice(row, row + 1), 1, slots[own], is_first)


def _num_decodes(cu_seqlens_q: list[int]) -> int | None:
    """Return the number of tokens where all sequences have one, followed by empty ones only; else None."""
    return cu_seqlens_q[-1] if _kind_of_step(cu_seqlens_q)[0] else None
