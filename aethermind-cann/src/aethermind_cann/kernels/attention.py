"""Attention without a KV cache, the attention function that paged attention shares, and ALiBi's position bias."""

from __future__ import annotations

from typing import NamedTuple

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS", "ScoreRules", "attend"]


class ScoreRules(NamedTuple):
    """How attention scores are computed from the products of queries and keys.

    `scale` multiplies the products. A `softcap` above 0 then bounds them by softcap · tanh(score / softcap). `slopes`
    [H] times the distances of keys from queries are added (ALiBi), and `sinks` [H] are scores in the softmax's
    denominator only.
    """

    scale: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_visible: torch.Tensor,
    rules: ScoreRules,
    distances: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q·kᵀ·scale)·v in float32: q [..., Q, H, C], k [..., K, S, C], v [..., K, S, V], is_visible [..., Q, S].

    Head h uses kv head h // (H/K). A query without visible keys gives zeros. `distances` [..., Q, S], key position
    minus query position, are for rules with slopes. Returns [..., Q, H, V].
    """
    *leading, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[-3]
    grouped = q.float().reshape(*leading, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = grouped.movedim(-4, -2)  # [..., K, H/K, Q, C]
    # The queries of a kv head are rows of one product, so that its keys are not copied for each.
    rows = queries.flatten(-3, -2) @ k.float().transpose(-2, -1) * rules.scale
    scores = torch.unflatten(rows, -2, queries.shape[-3:-1])  # [..., K, H/K, Q, S]
    if rules.softcap > 0:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if rules.slopes is not None:
        assert distances is not None
        scores = scores + rules.slopes.view(num_kv_heads, -1, 1, 1) * distances[..., None, None, :, :]
    scores = torch.where(is_visible[..., None, None, :, :], scores, -torch.inf)
    if rules.sinks is not None:
        sinks = rules.sinks.view(num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.where(is_visible[..., None, None, :, :], scores.softmax(-1)[..., : k.shape[-2]], 0.0)
    out = torch.unflatten(weights.flatten(-3, -2) @ v.float(), -2, queries.shape[-3:-1])
    return out.movedim(-2, -4).reshape(*leading, num_queries, num_heads, v.shape[-1])


def _attention(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k, v = inputs
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    if num_keys == 0:
        outputs[0].zero_()
        return
    last_visible = torch.arange(num_keys - num_queries, num_keys, device=q.device)[:, None]
    if not attributes["causal"]:
        last_visible = torch.full_like(last_visible, num_keys)
    is_visible = torch.arange(num_keys, device=q.device) <= last_visible
    k, v = (tensor.transpose(-3, -2) for tensor in (k, v))
    put(outputs[0], attend(q, k, v, is_visible, ScoreRules(attributes["scale"])))


def _alibi(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    scores, slopes = inputs
    num_queries, num_keys = scores.shape[-2:]
    position = torch.arange(num_keys - num_queries, num_keys, device=scores.device)[:, None]
    distance = (torch.arange(num_keys, device=scores.device) - position).float()
    put(outputs[0], scores.float() + slopes[:, None, None] * distance)


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """One query at a time over its visible keys, for batch invariance."""
    q, k, v = inputs
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    for row in range(num_queries):
        visible = max(num_keys - (num_queries - 1 - row), 0) if attributes["causal"] else num_keys
        operands = (q[..., row : row + 1, :, :], k[..., :visible, :, :], v[..., :visible, :, :])
        _attention(operands, (outputs[0][..., row : row + 1, :, :],), {**attributes, "causal": False})


KERNELS = [
    plain_kernel("attention", _attention, is_batch_invariant=False),
    plain_kernel("attention", _by_row, name="torch by row", priority=-1),
    plain_kernel("alibi", _alibi),
]
