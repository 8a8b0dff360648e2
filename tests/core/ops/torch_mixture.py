"""Mixtures of experts in torch, one token and choice at a time."""

from __future__ import annotations

import torch
from torch.nn import functional


def router_topk(logits, correction, k, sigmoid, renormalize, num_groups, top_groups, group_score_k, scale):
    rows = []
    for row in logits:
        scores = torch.sigmoid(row) if sigmoid else torch.softmax(row, dim=0)
        choice = (scores if correction is None else scores + correction).tolist()
        size = len(choice) // num_groups
        groups = [choice[begin : begin + size] for begin in range(0, len(choice), size)]
        sums = [sum(sorted(group, reverse=True)[:group_score_k]) for group in groups]
        best = sorted(range(num_groups), key=lambda group: (-sums[group], group))[:top_groups]
        experts = [expert for expert in range(len(choice)) if expert // size in best]
        ids = torch.tensor(sorted(experts, key=lambda expert: (-choice[expert], expert))[:k])
        weights = scores[ids] / (scores[ids].sum() + 1e-20) if renormalize else scores[ids]
        rows.append((ids.int(), weights * scale))
    if not rows:
        return torch.zeros(0, k, dtype=torch.int32), torch.zeros(0, k, dtype=torch.float64)
    return torch.stack([ids for ids, _ in rows]), torch.stack([weights for _, weights in rows])


def moe_gate_up_silu(x, ids, w_gate, w_up, b_gate, b_up, num_experts, alpha, limit, up_offset):
    rows = x[:, None].expand(-1, ids.shape[1], -1)
    gate, up = moe_linear(rows, ids, w_gate, b_gate, num_experts), moe_linear(rows, ids, w_up, b_up, num_experts)
    return clamped_silu_mul(gate, up, alpha, limit, up_offset)


def clamped_silu_mul(gate, up, alpha, limit, up_offset):
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + up_offset)


def moe_linear(x, ids, w, bias, num_experts):
    weights = w.unflatten(0, (num_experts, -1))
    biases = torch.zeros(weights.shape[:2], dtype=w.dtype) if bias is None else bias.unflatten(0, (num_experts, -1))
    out = torch.zeros(*ids.shape, weights.shape[1], dtype=x.dtype)
    for token, row in enumerate(ids.tolist()):
        for choice, expert in enumerate(row):
            out[token, choice] = functional.linear(x[token, choice], weights[expert], biases[expert])
    return out


def moe_combine(x, weights):
    return torch.einsum("tad,ta->td", x, weights)


def moe_swiglu(x, ids, weights, w_gate, w_up, w_down, b_gate, b_up, b_down, num_experts, alpha, limit, up_offset):
    inner = moe_gate_up_silu(x, ids, w_gate, w_up, b_gate, b_up, num_experts, alpha, limit, up_offset)
    return moe_combine(moe_linear(inner, ids, w_down, b_down, num_experts), weights)


def take_experts(all, ids, first, count):
    out = torch.zeros(len(ids), count, all.shape[2], dtype=all.dtype)
    for token, row in enumerate(ids[:, first : first + count].tolist()):
        for position, expert in enumerate(row):
            out[token, position] = all[token, expert]
    return out
