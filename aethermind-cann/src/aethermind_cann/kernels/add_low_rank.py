"""add_low_rank (LoRA); which adapter a row has is not read on the host, so that steps can be captured."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _add_low_rank(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """Multiply every row by the matrices of all adapters, and mask the ranks of other adapters: two products in all."""
    y, x, down, up, cu_ranks, adapters = inputs
    if not len(down):
        put(outputs[0], y)
        return
    index = adapters.clamp(min=0).long()
    begin, end = cu_ranks.index_select(0, index), cu_ranks.index_select(0, index + 1)
    ranks = torch.arange(len(down), dtype=cu_ranks.dtype, device=x.device)
    is_selected = (ranks >= begin[:, None]) & (ranks < end[:, None]) & (adapters >= 0)[:, None]
    products = x.float() @ down.float().t()
    added = torch.where(is_selected, products, torch.zeros_like(products)) @ up.float()
    put(outputs[0], torch.where(is_selected.any(dim=1)[:, None], (y.float() + added).to(y.dtype), y))


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """One product per row, for batch invariance."""
    y, x, *lora, adapters = inputs
    for row in range(len(x)):
        selected = slice(row, row + 1)
        _add_low_rank((y[selected], x[selected], *lora, adapters[selected]), (outputs[0][selected],), attributes)


KERNELS = [
    plain_kernel("add_low_rank", _add_low_rank, is_batch_invariant=False),
    plain_kernel("add_low_rank", _by_row, name="torch by row", priority=-1),
]
