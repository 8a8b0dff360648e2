"""Logits processors: each row has a list of tokens, concatenated over rows."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.run_memo import host_list, once

__all__ = ["KERNELS"]


def _suppress_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cuts = inputs
    out = outputs[0]
    put(out, logits)
    places = _places(tokens, cuts, logits.shape[1])
    if len(places):
        out.view(-1).index_fill_(0, places, -torch.inf)


def _bias_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cuts, bias = inputs
    out = outputs[0]
    put(out, logits)
    places = _places(tokens, cuts, logits.shape[1])
    if len(places):
        flat = out.view(-1)
        flat.index_copy_(0, places, flat.index_select(0, places) + bias[: len(places)])


def _repetition_penalty(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, tokens, cuts, penalty = inputs
    out = outputs[0]
    put(out, logits)
    places = _places(tokens, cuts, logits.shape[1])
    if len(places):
        flat = out.view(-1)
        seen = flat.index_select(0, places)
        factor = penalty.index_select(0, torch.div(places, logits.shape[1], rounding_mode="floor"))
        flat.index_copy_(0, places, torch.where(seen > 0, seen / factor, seen * factor))


def _places(tokens: torch.Tensor, cuts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Flat indices (int64) of the listed tokens in the logits; entries beyond the last list are ignored."""
    return once(("places", vocab_size, id(cuts)), tokens, lambda: _find_places(tokens, cuts, vocab_size))


def _find_places(tokens: torch.Tensor, cuts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    end = int(host_list(cuts)[-1])
    entries = torch.arange(end, device=tokens.device, dtype=cuts.dtype)
    rows = torch.searchsorted(cuts[1:].contiguous(), entries, right=True)
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
