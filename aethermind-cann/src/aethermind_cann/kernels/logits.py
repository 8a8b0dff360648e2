"""Logits processors: each row has a list of tokens, concatenated over rows."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.run_memo import host_list, memoised

__all__ = ["KERNELS"]


def _suppress_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cu_tokens = inputs
    out = outputs[0]
    put(out, logits)
    indices = _flat_indices(tokens, cu_tokens, logits.shape[1])
    if len(indices):
        out.view(-1).index_fill_(0, indices, -torch.inf)


def _bias_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cu_tokens, bias = inputs
    out = outputs[0]
    put(out, logits)
    indices = _flat_indices(tokens, cu_tokens, logits.shape[1])
    if len(indices):
        flat = out.view(-1)
        flat.index_copy_(0, indices, flat.index_select(0, indices) + bias[: len(indices)])


def _repetition_penalty(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cu_tokens, penalty = inputs
    out = outputs[0]
    put(out, logits)
    indices = _flat_indices(tokens, cu_tokens, logits.shape[1])
    if len(indices):
        flat = out.view(-1)
        listed = flat.index_select(0, indices)
        factor = penalty.index_select(0, torch.div(indices, logits.shape[1], rounding_mode="floor"))
        flat.index_copy_(0, indices, torch.where(listed > 0, listed / factor, listed * factor))


def _flat_indices(tokens: torch.Tensor, cu_tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Flat indices (int64) of the listed tokens in the logits; entries beyond the last list are ignored."""
    return memoised(
        ("indices", vocab_size, id(cu_tokens)), tokens, lambda: _find_flat_indices(tokens, cu_tokens, vocab_size)
    )


def _find_flat_indices(tokens: torch.Tensor, cu_tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    end = int(host_list(cu_tokens)[-1])
    entries = torch.arange(end, device=tokens.device, dtype=cu_tokens.dtype)
    rows = torch.searchsorted(cu_tokens[1:].contiguous(), entries, right=True)
    return rows * vocab_size + tokens[:end]


def _mask_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, mask = inputs
    bit = torch.arange(32, device=mask.device, dtype=torch.int32)
    is_allowed = torch.bitwise_and(mask[:, :, None] >> bit, 1).flatten(1)[:, : logits.shape[1]] == 1
    put(outputs[0], torch.where(is_allowed, logits, -torch.inf))


KERNELS = [
    plain_kernel("suppress_tokens", _suppress_tokens),
    plain_kernel("bias_tokens", _bias_tokens),
    plain_kernel("repetition_penalty", _repetition_penalty),
    plain_kernel("mask_tokens", _mask_tokens),
]
