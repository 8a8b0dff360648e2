"""Paged attention: by torch_npu's fused operator, or by torch on gathered keys and values.

The fused operator takes lengths as Python integers, so they are copied to the host once per run. The device is idle
then, because the engine waits for tokens before it schedules the next step. The lengths in a captured graph are updated
before each replay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch_npu

from aethermind.dispatch import Signature
from aethermind.hal.dtype import DType
from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel, put
from aethermind_cann.kernels._row_quantization import unscaled_values
from aethermind_cann.kernels.attention import ScoreRules, attend
from aethermind_cann.run_memo import host_decision, host_list, memoised, updatable_arguments

__all__ = ["KERNELS", "PagedCall", "attend_blocks", "gather_blocks"]

_MASK_SIZE = 2048
"""Size of the compressed mask of the fused operator's causal and banded modes, for any lengths."""
_CAUSAL, _BAND = 3, 4
_BLOCK_MULTIPLE, _MAX_BLOCK, _DIM_MULTIPLE, _MAX_DIM = 128, 512, 16, 512
"""The fused operator's limits on block sizes and head dims, by its documentation."""
_SCORES_AT_ONCE = 1 << 26
"""The maximum number of scores (queries × heads × keys) that are computed at a time, which bounds temporary memory."""

Gather = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Gathers keys and values of blocks [...]: [..., K, P, C] each, for K KV heads, P tokens of a block and head dim C."""


class PagedCall(NamedTuple):
    """Arguments that all sequences of a call share: access to the cache, its block size, the window, and score rules.

    `window` is the number of last keys that a query attends to, 0 for all.
    """

    gather: Gather
    block_size: int
    window: int
    rules: ScoreRules


def _paged_attention(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k_cache, v_cache, *tables, sinks, slopes = inputs

    def gather(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gather_blocks(k_cache, blocks), gather_blocks(v_cache, blocks)

    call = PagedCall(gather, k_cache.shape[2], attributes["window"], _rules(attributes, sinks, slopes))
    attend_blocks(q, tables, call, outputs[0])


def _paged_attention_quantized(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k_cache, v_cache, *tables, k_scale, v_scale, sinks, slopes = inputs

    def gather(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (
            unscaled_values(gather_blocks(codes, blocks)) * gather_blocks(scales, blocks)[..., None]
            for codes, scales in ((k_cache, k_scale), (v_cache, v_scale))
        )
        return k, v

    call = PagedCall(gather, k_cache.shape[2], attributes["window"], _rules(attributes, sinks, slopes))
    attend_blocks(q, tables, call, outputs[0])


def _rules(attributes: Attributes, sinks: torch.Tensor | None, slopes: torch.Tensor | None) -> ScoreRules:
    return ScoreRules(attributes["scale"], attributes["softcap"], sinks, slopes)


def gather_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    return cache.index_select(0, blocks.reshape(-1)).reshape(*blocks.shape, *cache.shape[1:])


def attend_blocks(q: torch.Tensor, tables: Tensors, call: PagedCall, out: torch.Tensor) -> None:
    cu_seqlens_q, seqlens_k, block_tables = tables
    if len(q) <= len(seqlens_k):  # decode: all sequences at once, without copies of device values to the host
        sequences, last_visible = memoised(
            "sequences", cu_seqlens_q, lambda: _sequence_of_tokens(len(q), cu_seqlens_q, seqlens_k)
        )
        blocks = memoised("blocks", block_tables, lambda: block_tables.clamp(min=0)).index_select(0, sequences)
        put(out, _attend_gathered(q[:, None], blocks, last_visible[:, None], call)[:, 0])
        return
    for sequence, ((begin, end), length) in enumerate(
        zip(pairwise(host_list(cu_seqlens_q)), host_list(seqlens_k), strict=True)
    ):
        step = max(1, _SCORES_AT_ONCE // max(1, q.shape[1] * length))
        for first in range(begin, end, step):
            part = slice(first, min(first + step, end))
            num_keys = length - (end - part.stop)
            blocks = block_tables[sequence, : -(-num_keys // call.block_size)].clamp(min=0)
            last_visible = torch.arange(num_keys - (part.stop - first), num_keys, device=q.device)
            put(out[part], _attend_gathered(q[part], blocks, last_visible, call))


def _sequence_of_tokens(
    num_tokens: int, cu_seqlens_q: torch.Tensor, seqlens_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequence of each token, and the last key that it attends to. Padding belongs to the last sequence."""
    tokens = torch.arange(num_tokens, device=cu_seqlens_q.device, dtype=cu_seqlens_q.dtype)
    sequences = torch.searchsorted(cu_seqlens_q[1:].contiguous(), tokens, right=True).clamp(max=len(seqlens_k) - 1)
    ends = cu_seqlens_q[1:].index_select(0, sequences)
    last_visible = seqlens_k.index_select(0, sequences) - (ends - tokens)
    return sequences, last_visible.clamp(min=0)


def _attend_gathered(
    q: torch.Tensor, blocks: torch.Tensor, last_visible: torch.Tensor, call: PagedCall
) -> torch.Tensor:
    """Attention of q [..., Q, H, C] over the keys in `blocks` [..., M]; `last_visible` [..., Q] is the last visible
    key.
    """
    k, v = (tensor.movedim(-4, -3).flatten(-3, -2) for tensor in call.gather(blocks))  # [..., K, M·P, C]
    key = torch.arange(k.shape[-2], device=q.device)
    is_visible = key <= last_visible[..., None]
    is_read = key <= last_visible.amax(-1, keepdim=True)
    if call.window > 0:
        is_visible = is_visible & (key > last_visible[..., None] - call.window)
        is_read = is_read & (key > last_visible.amin(-1, keepdim=True) - call.window)
    # Values that no query reads may be uninitialised, and NaN times a weight of zero is NaN.
    v = torch.where(is_read[..., None, :, None], v.float(), 0.0)
    distances = None if call.rules.slopes is None else (key - last_visible[..., None]).float()
    return attend(q, k, v, is_visible, call.rules, distances)


def _npu_fused_attention(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables = inputs
    if len(q) == len(seqlens_k) and host_decision(cu_seqlens_q, _has_one_query_each):
        lengths = updatable_arguments((cu_seqlens_q, seqlens_k), _decode_lengths)
    else:
        lengths = {"actual_seq_lengths": host_list(cu_seqlens_q)[1:], "actual_seq_lengths_kv": host_list(seqlens_k)}
    end = lengths["actual_seq_lengths"][-1]
    window = attributes["window"]
    band = {"sparse_mode": _BAND, "pre_tokens": window - 1, "next_tokens": 0}
    attended, _ = torch_npu.npu_fused_infer_attention_score(
        q[:end],
        k_cache,
        v_cache,
        atten_mask=_mask(q.device),
        block_table=memoised("blocks", block_tables, lambda: block_tables.clamp(min=0)),
        **lengths,
        num_heads=q.shape[1],
        num_key_value_heads=k_cache.shape[1],
        input_layout="TND",
        block_size=k_cache.shape[2],
        scale=attributes["scale"],
        **(band if window > 0 else {"sparse_mode": _CAUSAL}),
    )
    put(outputs[0][:end], attended)


def _has_one_query_each(cu_seqlens_q: list[int]) -> bool:
    """Whether all sequences have one query each, followed by empty ones only."""
    return all(end == min(number, cu_seqlens_q[-1]) for number, end in enumerate(cu_seqlens_q))


def _decode_lengths(cu_seqlens_q: list[int], seqlens_k: list[int]) -> dict[str, list[int]]:
    """Return the lengths of a decode step; padding counts as sequences of one key, so that all shapes are constant."""
    return {
        "actual_seq_lengths": list(range(1, len(cu_seqlens_q))),
        "actual_seq_lengths_kv": [max(length, 1) for length in seqlens_k],
    }


@cache
def _mask(device: torch.device) -> torch.Tensor:
    """Return a causal mask: True above the diagonal."""
    # Made on the host: that copy is synchronous, so any stream may use the mask later.
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool).triu(1).to(device)


def _unsupported_reason(signature: Signature) -> str | None:
    cache = signature.inputs[1]
    assert cache is not None
    _, _, block_size, head_dim = cache.shape
    if not isinstance(block_size, int) or block_size % _BLOCK_MULTIPLE or not 0 < block_size <= _MAX_BLOCK:
        return f"takes blocks of a multiple of {_BLOCK_MULTIPLE} up to {_MAX_BLOCK} (--block-size)"
    if not isinstance(head_dim, int) or head_dim % _DIM_MULTIPLE or head_dim > _MAX_DIM:
        return f"takes head dims that are multiples of {_DIM_MULTIPLE}, up to {_MAX_DIM}"
    return None


_HALF_DTYPES = frozenset({DType.BFLOAT16, DType.FLOAT16})
_ADDITIONS = frozenset({"sinks", "slopes", "softcap"})

KERNELS = [
    plain_kernel("paged_attention", _paged_attention, additions=_ADDITIONS),
    plain_kernel("paged_attention_quantized", _paged_attention_quantized, additions=_ADDITIONS),
    fused_kernel(
        "paged_attention",
        "npu_fused_infer_attention_score",
        _npu_fused_attention,
        _unsupported_reason,
        dtypes=_HALF_DTYPES,
        is_batch_invariant=False,
    ),
]
