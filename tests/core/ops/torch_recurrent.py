"""Recurrent layers in torch, in float64: counterparts of the operators for `test_catalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["causal_conv1d", "gated_delta_rule", "gated_rms_norm", "ssd_scan"]


def sequences(cu_seqlens: Tensor, seqlens: Tensor, slots: Tensor) -> Iterator[tuple[slice, int, bool]]:
    """Rows and slot of each sequence with tokens, and whether it is new."""
    for s, slot in enumerate(slots.tolist()):
        begin, end = cu_seqlens[s : s + 2].tolist()
        if begin < end:
            yield slice(begin, end), slot, end - begin == seqlens[s]


def causal_conv1d(x: Tensor, w: Tensor, bias: Any, state: Tensor, *tables: Tensor, silu: bool) -> Any:
    out, states = torch.zeros_like(x), state.clone()
    for rows, slot, is_new in sequences(*tables):
        before = torch.zeros_like(state[slot]) if is_new else state[slot]
        window = torch.cat([before, x[rows]])
        total = functional.conv1d(window.T[None], w.T[:, None].contiguous(), bias, groups=x.shape[1])[0].T
        out[rows] = functional.silu(total) if silu else total
        states[slot] = window[len(window) - len(before) :]
    return out, states


def scan(
    step: Callable[[int, Tensor], tuple[Tensor, Tensor]], rows: int, heads: int, width: int, state: Tensor, tables: Any
) -> Any:
    """The results and states of `step(token, state)`, which returns both for one token."""
    out, states = torch.zeros(rows, heads, width, dtype=torch.float64), state.clone()
    for sequence, slot, is_new in sequences(*tables):
        own = torch.zeros_like(state[slot]) if is_new else state[slot]
        for token in range(sequence.start, sequence.stop):
            out[token], own = step(token, own)
        states[slot] = own
    return out, states


def gated_delta_rule(
    qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, *tables: Tensor, scale, eps
) -> Any:
    heads, depth, width = state.shape[1:]
    groups = (qkv.shape[1] - heads * width) // 2 // depth
    q, k, v = qkv.split([groups * depth, groups * depth, heads * width], dim=1)
    q, k = (x.unflatten(1, (groups, depth)).repeat_interleave(heads // groups, dim=1) for x in (q, k))
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps) for x in (q, k))
    v, decay, beta = v.unflatten(1, (heads, width)), -a_log.exp() * softplus(a + dt_bias), b.sigmoid()

    def step(token: int, own: Tensor) -> tuple[Tensor, Tensor]:
        own = own * decay[token].exp()[:, None, None]
        delta = (v[token] - (own * k[token][..., None]).sum(1)) * beta[token][:, None]
        own = own + k[token][..., None] * delta[:, None]
        return (own * q[token][..., None]).sum(1) * scale, own

    return scan(step, len(qkv), heads, width, state, tables)


def ssd_scan(
    xbc: Tensor, dt: Tensor, a_log: Tensor, dt_bias: Tensor, d: Tensor, state: Tensor, *tables: Tensor, dt_min, dt_max
) -> Any:
    heads, depth, width = state.shape[1:]
    groups = (xbc.shape[1] - heads * width) // 2 // depth
    x, b, c = xbc.split([heads * width, groups * depth, groups * depth], dim=1)
    b, c = (rows.unflatten(1, (groups, depth)).repeat_interleave(heads // groups, dim=1) for rows in (b, c))
    x, dt = x.unflatten(1, (heads, width)), softplus(dt + dt_bias).clamp(dt_min, dt_max or torch.inf)

    def step(token: int, own: Tensor) -> tuple[Tensor, Tensor]:
        decay = (-a_log.exp() * dt[token]).exp()
        own = own * decay[:, None, None] + torch.einsum("hm,hp->hmp", b[token], dt[token][:, None] * x[token])
        return torch.einsum("hmp,hm->hp", own, c[token]), own

    out, states = scan(step, len(xbc), heads, width, state, tables)
    return out + d[:, None] * x, states


def softplus(x: Tensor) -> Tensor:
    """Without the threshold from which functional.softplus returns x."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, num_groups: int, norm_before_gate: bool) -> Any:
    factor = functional.silu(gate)
    groups = (x if norm_before_gate else x * factor).unflatten(-1, (num_groups, -1))
    normed = functional.rms_norm(groups, groups.shape[-1:], eps=eps).flatten(-2) * weight
    return normed * factor if norm_before_gate else normed
