"""Linear recurrences: the gated delta rule and the scan of Mamba 2, token by token or in chunks.

Both keep a state S [D, E] per head. For each token, the state decays, the outer product of key k [D] and update u [E]
is added to it, and the query q [D] reads it:

    S = decay · S + k uᵀ        out = Sᵀ q

In decode, a step is a few products over all sequences. In prefill, the tokens of a chunk are computed at once by matrix
products (`_chunked_recurrence`), which round differently; with `--deterministic`, tokens are computed one by one, for
batch invariance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import softplus

from aethermind_cann.kernels._chunked_recurrence import Recurrence, chunked_scan, expand_groups
from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel
from aethermind_cann.kernels._state_runs import StateRun, state_runs, token_runs

__all__ = ["KERNELS"]

_MIN_LOG_DECAY = -200.0
"""The lower bound of log decays: exp of it is 0 in float32, and a smaller bound would cost precision in sums."""

Runs = Callable[[Tensors], list[StateRun]]
"""Returns the groups of tokens that are computed together, given the tables of a step."""


def _gated_delta_rule(runs: Runs, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    *rows, _, cu_seqlens_q, seqlens_k, state_slots = inputs
    out, states = outputs
    for run in runs((cu_seqlens_q, seqlens_k, state_slots)):
        results, updated = _scan_tokens(_delta_rule(run, rows, states, attributes), run.states(states))
        run.put(out, results)
        run.put_states(states, updated)


def _delta_rule(run: StateRun, rows: Tensors, states: torch.Tensor, attributes: Attributes) -> Recurrence:
    qkv, a, b, a_log, dt_bias = rows
    _, num_heads, depth, width = states.shape
    q, k, v = _split(run.take(qkv), num_heads * width, values_first=False)
    q, k = (_l2_normed(torch.unflatten(x, -1, (-1, depth)), attributes["eps"]) for x in (q, k))
    return Recurrence(
        q * attributes["scale"],
        k,
        torch.unflatten(v, -1, (num_heads, width)),
        _log_decay(a_log, softplus(run.take(a) + dt_bias)),
        torch.sigmoid(run.take(b)),
    )


def _ssd_scan(runs: Runs, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    xbc, dt, a_log, dt_bias, d, _, *tables = inputs
    out, states = outputs
    _, num_heads, depth, width = states.shape
    for run in runs(tables):
        b, c, x = _split(run.take(xbc), num_heads * width, values_first=True)
        b, c = (torch.unflatten(rows, -1, (-1, depth)) for rows in (b, c))
        x = torch.unflatten(x, -1, (num_heads, width))
        step = softplus(run.take(dt) + dt_bias).clamp(min=attributes["dt_min"])
        if attributes["dt_max"] > 0:
            step = step.clamp(max=attributes["dt_max"])
        recurrence = Recurrence(c, b, step[..., None] * x, _log_decay(a_log, step), None)
        results, updated = _scan_tokens(recurrence, run.states(states))
        run.put(out, torch.addcmul(results, d[:, None], x))
        run.put_states(states, updated)


def _split(
    rows: torch.Tensor, num_values: int, *, values_first: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split the last dim into two parts of equal size and one of `num_values` elements, which is the first or the last.

    Returns the two parts of equal size, then the other.
    """
    size = (rows.shape[-1] - num_values) // 2
    if values_first:
        values, first, second = torch.split_with_sizes(rows, (num_values, size, size), -1)
    else:
        first, second, values = torch.split_with_sizes(rows, (size, size, num_values), -1)
    return first, second, values


def _l2_normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def _log_decay(a_log: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    return (-torch.exp(a_log) * step).clamp(min=_MIN_LOG_DECAY)


def _decode_token(recurrence: Recurrence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence over one token of each sequence."""
    num_heads = state.shape[1]
    q, k = (expand_groups(x.movedim(1, 2), num_heads) for x in (recurrence.q, recurrence.k))  # [B, H, 1, D]
    update = recurrence.v.movedim(1, 2)  # [B, H, 1, E]
    state = state * torch.exp(recurrence.log_decay[:, 0])[..., None, None]
    if recurrence.beta is not None:
        update = recurrence.beta[:, 0, :, None, None] * (update - k @ state)
    state = torch.addcmul(state, k.transpose(-2, -1), update)
    return (q @ state).movedim(2, 1), state


def _scan_tokens(recurrence: Recurrence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence over L tokens of B sequences, from their states [B, H, D, E].

    Returns the results [B, L, H, E] and the new states.
    """
    is_decode = recurrence.v.shape[1] == 1
    return _decode_token(recurrence, state) if is_decode else chunked_scan(recurrence, state)


KERNELS = [
    plain_kernel("gated_delta_rule", partial(_gated_delta_rule, state_runs), is_batch_invariant=False),
    plain_kernel("gated_delta_rule", partial(_gated_delta_rule, token_runs), name="torch by token", priority=-1),
    plain_kernel("ssd_scan", partial(_ssd_scan, state_runs), is_batch_invariant=False),
    plain_kernel("ssd_scan", partial(_ssd_scan, token_runs), name="torch by token", priority=-1),
]
