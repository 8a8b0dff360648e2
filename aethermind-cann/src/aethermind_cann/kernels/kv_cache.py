"""KV cache writes, and the K-shift of cached keys in place.

A cache [N, K, P, C] is viewed as N·K blocks of one head, so that writing a token's heads is one scatter over the first
dim rather than an update of the whole cache.
"""

from __future__ import annotations

import torch
import torch_npu

from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel
from aethermind_cann.kernels._row_quantization import quantized, unscaled_values
from aethermind_cann.kernels.rotary import rotated
from aethermind_cann.run_memo import host_decision, memoised

__all__ = ["KERNELS"]


def _kv_cache_write(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """Write keys and values to their caches; a latent cache has one row for both."""
    num_caches = len(outputs)
    tokens, rows = _rows_of(inputs[num_caches], outputs[0])
    for values, cache in zip(inputs[:num_caches], outputs, strict=True):
        _scatter(cache, rows, values if tokens is None else values.index_select(0, tokens))


def _npu_scatter_pa_kv_cache(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    k, v, slots = inputs[:3]
    tokens, rows = _rows_of(slots, outputs[0])
    if rows.numel() == 0:
        return
    head_dim, block_size = k.shape[-1], outputs[0].shape[2]
    k, v = (
        (values if tokens is None else values.index_select(0, tokens)).reshape(-1, 1, head_dim) for values in (k, v)
    )
    k_cache, v_cache = (cache.view(-1, block_size, 1, head_dim) for cache in outputs)
    torch_npu.npu_scatter_pa_kv_cache(k, v, k_cache, v_cache, rows, cache_mode="Norm")


def _kv_cache_write_quantized(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    k, v, slots = inputs[:3]
    tokens, rows = _rows_of(slots, outputs[0])
    for values, cache, scales in zip((k, v), outputs[:2], outputs[2:], strict=True):
        codes, scale = quantized(values if tokens is None else values.index_select(0, tokens), cache.dtype)
        _scatter(cache, rows, codes)
        scales.view(-1).index_copy_(0, rows, scale.reshape(-1))


def _shift_keys(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    _, blocks, num_tokens, table = inputs
    (cache,) = outputs
    keys = cache.index_select(0, blocks)
    rotated_keys = rotated(keys, table[:, None, None], attributes["interleaved"])
    is_filled = _is_filled(keys, num_tokens)[..., None]
    cache.index_copy_(0, blocks.long(), torch.where(is_filled, rotated_keys.to(cache.dtype), keys))


def _shift_keys_quantized(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    _, blocks, num_tokens, table, _ = inputs
    cache, scales = outputs
    keys, scale = cache.index_select(0, blocks), scales.index_select(0, blocks)
    rotated_keys = rotated(unscaled_values(keys), table[:, None, None], attributes["interleaved"])
    codes, factor = quantized(rotated_keys, cache.dtype)
    is_filled = _is_filled(keys, num_tokens)
    cache.index_copy_(0, blocks.long(), torch.where(is_filled[..., None], codes, keys))
    scales.index_copy_(0, blocks.long(), torch.where(is_filled, scale * factor, scale))


def _rows_of(slots: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the tokens to write (None: all), and the row of each of their heads in the cache viewed as [N·K·P, C]."""
    _, num_heads, block_size, _ = cache.shape
    return memoised(("rows", num_heads, block_size), slots, lambda: _find_rows(slots, num_heads, block_size))


def _find_rows(slots: torch.Tensor, num_heads: int, block_size: int) -> tuple[torch.Tensor | None, torch.Tensor]:
    first = host_decision(slots, _first_token_with_slot)
    tokens = None if first is None else _replace_skipped_tokens(slots, first)
    token_slots = slots if tokens is None else slots.index_select(0, tokens)
    blocks = torch.div(token_slots, block_size, rounding_mode="floor")
    heads = torch.arange(num_heads, device=slots.device)
    block_heads = blocks[:, None] * num_heads + heads
    return tokens, (block_heads * block_size + (token_slots - blocks * block_size)[:, None]).reshape(-1)


def _first_token_with_slot(slots: list[int]) -> int | None:
    """Return the first token with a slot; None if all have one, -1 if none has."""
    if all(slot >= 0 for slot in slots):
        return None
    return next((token for token, slot in enumerate(slots) if slot >= 0), -1)


def _replace_skipped_tokens(slots: torch.Tensor, first: int) -> torch.Tensor:
    """Replace tokens without a slot by the first one with a slot, which is then written twice with equal values."""
    tokens = torch.arange(len(slots), device=slots.device)
    return tokens[:0] if first < 0 else torch.where(slots >= 0, tokens, first)


def _scatter(cache: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    head_dim = cache.shape[-1]
    if rows.numel():
        cache.view(-1, head_dim).index_copy_(0, rows, values.reshape(-1, head_dim))


def _is_filled(keys: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
    """Return a mask [B, K, P] of the first `num_tokens` [B] slots of each block."""
    offsets = torch.arange(keys.shape[2], device=keys.device)
    return (offsets < num_tokens[:, None])[:, None].expand(keys.shape[:3])


KERNELS = [
    plain_kernel("kv_cache_write", _kv_cache_write),
    plain_kernel("latent_cache_write", _kv_cache_write),
    plain_kernel("kv_cache_write_quantized", _kv_cache_write_quantized),
    plain_kernel("shift_keys", _shift_keys),
    plain_kernel("shift_keys_quantized", _shift_keys_quantized),
    fused_kernel("kv_cache_write", "npu_scatter_pa_kv_cache", _npu_scatter_pa_kv_cache),
]
