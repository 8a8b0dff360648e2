"""Attention without a cache, and its core, which paged attention shares."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS", "attend"]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_visible: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(q·kᵀ·scale)·v in float32: q [..., Q, H, C], k and v [..., K, S, C], is_visible broadcast to [..., Q, S].

    Head h uses kv head h // (H/K). A query without visible keys gives zeros. Returns [..., Q, H, C].
    """
    *leading, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[-3]
    grouped = q.float().reshape(*leading, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = grouped.movedim(-4, -2)  # [..., K, H/K, Q, C]
    scores = queries @ k.float()[..., None, :, :].transpose(-2, -1) * scale
    scores = torch.where(is_visible[..., None, None, :, :], scores, -torch.inf)
    weights = torch.where(is_visible[..., None, None, :, :], scores.softmax(-1), 0.0)
    out = weights @ v.float()[..., None, :, :]
    return out.movedim(-2, -4).reshape(q.shape)


def _attention(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k, v = inputs
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    if num_keys == 0:
        outputs[0].zero_()
        return
    last_seen = torch.arange(num_keys - num_queries, num_keys, device=q.device)[:, None]
    if not attributes["causal"]:
        last_seen = torch.full_like(last_seen, num_keys)
    is_visible = torch.arange(num_keys, device=q.device) <= last_seen
    k, v = (one.transpose(-3, -2) for one in (k, v))
    put(outputs[0], attend(q, k, v, is_visible, attributes["scale"]))


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """One query at a time over its visible keys, for batch invariance."""
    q, k, v = inputs
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    for row in range(num_queries):
        visible = max(num_keys - (num_queries - 1 - row), 0) if attributes["causal"] else num_keys
        one = (q[..., row : row + 1, :, :], k[..., :visible, :, :], v[..., :visible, :, :])
        _attention(one, (outputs[0][..., row : row + 1, :, :],), {**attributes, "causal": False})


KERNELS = [
    plain_kernel("attention", _attention, is_batch_invariant=False),
    plain_kernel("attention", _by_row, name="torch by row", priority=-1),
]
