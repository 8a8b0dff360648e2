"""Routers of mixtures of experts by torch.

torch_npu's fused routers (such as `npu_moe_gating_top_k`) are not used: they do not document the order of experts with
equal scores, which the operator defines.
"""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.kernels.matrix import float32_product

__all__ = ["KERNELS"]

_EPSILON = 1e-20
"""Added to the sum of weights, against a division by zero."""


def _router_logits(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, weight, bias = inputs
    (logits,) = outputs
    float32_product(x, weight, logits)
    if bias is not None:
        logits.add_(bias.float())


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """One product per token, for batch invariance."""
    x, *weights = inputs
    for token in range(len(x)):
        current = slice(token, token + 1)
        _router_logits((x[current], *weights), (outputs[0][current],), attributes)


def _router_topk(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    logits, correction = inputs
    scores = torch.sigmoid(logits) if attributes["sigmoid"] else logits.softmax(-1)
    selection_scores = scores if correction is None else scores + correction
    if attributes["top_groups"] < attributes["num_groups"]:
        selection_scores = torch.where(_in_best_groups(selection_scores, attributes), selection_scores, -torch.inf)
    ids = _descending(selection_scores)[:, : attributes["k"]]
    weights = scores.gather(1, ids)
    if attributes["renormalize"]:
        weights = weights / (weights.sum(-1, keepdim=True) + _EPSILON)
    put(outputs[0], ids)
    put(outputs[1], weights * attributes["scale"])


def _in_best_groups(selection_scores: torch.Tensor, attributes: Attributes) -> torch.Tensor:
    """Whether each expert (bool [T, E]) is in one of the groups whose best experts have the largest sums."""
    num_tokens, num_experts = selection_scores.shape
    num_groups = attributes["num_groups"]
    groups = selection_scores.view(num_tokens, num_groups, num_experts // num_groups)
    best = groups.sort(dim=-1, descending=True)[0][..., : attributes["group_score_k"]].sum(-1)
    order = _descending(best)[:, : attributes["top_groups"]]
    number = torch.arange(num_groups, device=selection_scores.device)
    return (order[..., None] == number).any(1)[..., None].expand(groups.shape).reshape(selection_scores.shape)


def _descending(scores: torch.Tensor) -> torch.Tensor:
    """Indices (int64) that sort each row in descending order, ties by index."""
    return scores.sort(dim=-1, descending=True, stable=True)[1]


KERNELS = [
    plain_kernel("router_logits", _router_logits, is_batch_invariant=False),
    plain_kernel("router_logits", _by_row, name="torch by row", priority=-1),
    plain_kernel("router_topk", _router_topk),
]
