"""In torch: the operators that write a paged cache, turn its keys, and attend to it."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = [
    "kv_cache_write",
    "kv_cache_write_quantized",
    "latent_cache_write",
    "mla_attention",
    "paged_attention",
    "paged_attention_quantized",
    "rope",
    "shift_keys",
    "shift_keys_quantized",
]


def rope(x, table, interleaved=False):
    x, rest = x.split([table.shape[-1], x.shape[-1] - table.shape[-1]], dim=-1)
    return torch.cat([_rope_whole(x, table, interleaved), rest], dim=-1)


def _rope_whole(x, table, interleaved):
    cos, sin = (part.unsqueeze(1) for part in table.chunk(2, dim=-1))
    if interleaved:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.complex(cos, sin)
        return torch.view_as_real(turned).flatten(-2)
    cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def kv_cache_write(k, v, slot_mapping, k_cache, v_cache):
    k_out, v_out = k_cache.clone(), v_cache.clone()
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, k_cache.shape[2])
            k_out[block, :, offset] = k[token]
            v_out[block, :, offset] = v[token]
    return k_out, v_out


def quantized_rows(x, dtype):
    """Codes and scales by fake quantisation: torch rounds half to even, as NumPy does."""
    x = x.float()
    largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = x.abs().amax(-1) / largest
    # A division by tensors: that of a Python number is a product with the reciprocal, which is rounded twice.
    inverse = torch.where(scale > 0, torch.tensor(float(largest)) / x.abs().amax(-1), 0.0)
    scaled = x * inverse[..., None]
    return (torch.round(scaled) if dtype is torch.int8 else scaled).to(dtype), scale


def kv_cache_write_quantized(k, v, slot_mapping, k_cache, v_cache, k_scale, v_scale):
    (k_codes, k_scales), (v_codes, v_scales) = (quantized_rows(x, k_cache.dtype) for x in (k, v))
    codes = kv_cache_write(k_codes, v_codes, slot_mapping, k_cache, v_cache)
    columns = (one[..., None].to(scale) for one, scale in ((k_scales, k_scale), (v_scales, v_scale)))
    scales = kv_cache_write(*columns, slot_mapping, k_scale[..., None], v_scale[..., None])
    return *codes, *(one[..., 0] for one in scales)


def shift_keys(k_cache, blocks, num_tokens, table, interleaved):
    k_out = k_cache.clone()
    for block, count, row in zip(blocks.tolist(), num_tokens.tolist(), table, strict=True):
        keys = k_cache[block, :, :count].transpose(0, 1)
        k_out[block, :, :count] = rope(keys, row.expand(count, -1), interleaved).transpose(0, 1)
    return k_out


def shift_keys_quantized(k_cache, blocks, num_tokens, table, k_scale, interleaved):
    codes, scales = k_cache.clone(), k_scale.clone()
    turned = shift_keys(k_cache.double(), blocks, num_tokens, table, interleaved)
    for block, count in zip(blocks.tolist(), num_tokens.tolist(), strict=True):
        codes[block, :, :count], factors = quantized_rows(turned[block, :, :count], k_cache.dtype)
        scales[block, :, :count] *= factors
    return codes, scales


def paged_attention_quantized(
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables, k_scale, v_scale, sinks, slopes, **attributes
):
    caches = (k_cache.double() * k_scale[..., None], v_cache.double() * v_scale[..., None])
    return paged_attention(q, *caches, cu_seqlens_q, seqlens_k, block_tables, sinks, slopes, **attributes)


def attend(q, k, v, mask, sinks, slopes, scale, softcap):
    """Attention of one sequence by its parts, for scores that are not only scaled: heads first, [H, tokens, C]."""
    scores = q @ k.transpose(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        num_queries, num_keys = mask.shape
        distance = torch.arange(num_keys) - torch.arange(num_keys - num_queries, num_keys)[:, None]
        scores = scores + slopes[:, None, None] * distance
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1] @ v
    return torch.softmax(scores, dim=-1) @ v


def paged_attention(q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables, sinks, slopes, scale, window, softcap):
    block_size, num_groups = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    out = torch.full_like(q, torch.nan)
    for sequence, num_keys in enumerate(seqlens_k.tolist()):
        begin, end = cu_seqlens_q[sequence : sequence + 2].tolist()
        first = max(0, num_keys - (end - begin) - window + 1) if window else 0  # blocks before it may be freed
        places = [(int(block_tables[sequence, j // block_size]), j % block_size) for j in range(first, num_keys)]
        k = torch.stack([k_cache[block, :, offset] for block, offset in places], dim=1)
        v = torch.stack([v_cache[block, :, offset] for block, offset in places], dim=1)
        mask = torch.zeros(end - begin, num_keys, dtype=torch.bool)
        for row in range(end - begin):
            position = num_keys - (end - begin) + row
            mask[row, max(0, position - window + 1) if window else 0 : position + 1] = True
        mask = mask[:, first:]
        operands = (q[begin:end].transpose(0, 1), *(x.repeat_interleave(num_groups, dim=0) for x in (k, v)))
        if softcap or sinks is not None or slopes is not None:
            heads = attend(*operands, mask, sinks, slopes, scale, softcap)
        else:
            heads = functional.scaled_dot_product_attention(*operands, attn_mask=mask, scale=scale)
        out[begin:end] = heads.transpose(0, 1)
    return out


def latent_cache_write(k, slot_mapping, k_cache):
    return kv_cache_write(k, k, slot_mapping, k_cache, k_cache)[0]


def mla_attention(q, k_cache, cu_seqlens_q, seqlens_k, block_tables, value_dim, scale):
    whole = paged_attention(
        q, k_cache, k_cache, cu_seqlens_q, seqlens_k, block_tables, None, None, scale, window=0, softcap=0
    )
    return whole[..., :value_dim]
