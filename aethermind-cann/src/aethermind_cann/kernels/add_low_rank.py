"""What adapters add to the result of a projection, without asking the host who has which."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _add_low_rank(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """Every row meets the ranks of all adapters, and those of others are dropped: two products, whoever is there."""
    y, x, down, up, cu_ranks, adapters = inputs
    if not len(down):
        put(outputs[0], y)
        return
    index = adapters.clamp(min=0).long()
    begin, end = cu_ranks.index_select(0, index), cu_ranks.index_select(0, index + 1)
    ranks = torch.arange(len(down), dtype=cu_ranks.dtype, device=x.device)
    is_own = (ranks >= begin[:, None]) & (ranks < end[:, None]) & (adapters >= 0)[:, None]
    products = x.float() @ down.float().t()
    added = torch.where(is_own, products, torch.zeros_like(products)) @ up.float()
    put(outputs[0], torch.where(is_own.any(dim=1)[:, None], (y.float() + added).to(y.dtype), y))


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """Each row in products of its own, so that its bits do not depend on how many others there are."""
    y, x, *parts, adapters = inputs
    for row in range(len(x)):
        one = slice(row, row + 1)
        _add_low_rank((y[one], x[one], *parts, adapters[one]), (outputs[0][one],), attributes)


KERNELS = [
    plain_kernel("add_low_rank", _add_low_rank, is_batch_invariant=False),
    plain_kernel("add_low_rank", _by_row, name="torch by row", priority=-1),
]
