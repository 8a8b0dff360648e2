"""Kernels by torch, written out plainly so that each line can be broken; the core's references do the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from tests.conformance.planted.subject.arrays import Array, Attributes, Inputs, put, tensor, wide

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import reference_kernels
from aethermind.hal import DType
from aethermind.ops import catalog
from aethermind.ops.operator import BROADCASTING

torch.set_num_threads(1)

KEPT: Any = {}
"""Nothing; what bugs keep between calls."""


# Element by element


def add(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    a, b = map(wide, inputs)
    put(outputs[0], a + b)


def sub(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    a, b = map(wide, inputs)
    put(outputs[0], a - b)


def mul(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    a, b = map(wide, inputs)
    put(outputs[0], a * b)


def div(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    a, b = map(wide, inputs)
    put(outputs[0], a / b)


def exp(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], torch.exp(wide(inputs[0])))


def log(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], torch.log(wide(inputs[0])))


def cast(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], wide(inputs[0]))


def relu(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], wide(inputs[0]).clamp(min=0))


def silu(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x = wide(inputs[0])
    put(outputs[0], x * torch.sigmoid(x))


def silu_mul(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    gate, up = map(wide, inputs)
    put(outputs[0], gate * torch.sigmoid(gate) * up)


def gelu(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    approximate = "tanh" if attributes["approximate"] else "none"
    put(outputs[0], torch.nn.functional.gelu(wide(inputs[0]).double(), approximate=approximate))


# Vector by vector


def softmax(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x = wide(inputs[0])
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    put(outputs[0], weights / weights.sum(-1, keepdim=True))


def argmax(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x = wide(inputs[0])
    is_largest = x == x.amax(-1, keepdim=True)
    put(outputs[0], is_largest.int().argmax(-1).int())


def total(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    x = wide(inputs[0])
    reduced = sorted(dim % x.ndim for dim in attributes["dim"] or range(x.ndim))
    kept = [dim for dim in range(x.ndim) if dim not in reduced]
    rows = x.permute(*kept, *reduced).flatten(len(kept))
    put(outputs[0], rows.sum(-1).reshape(outputs[0].shape))


def mean(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], wide(inputs[0]).mean(-1))


def largest(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], wide(inputs[0]).amax(-1))


def smallest(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], wide(inputs[0]).amin(-1))


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rms_norm(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    put(outputs[0], normed(wide(inputs[0]), wide(inputs[1]), attributes["eps"]))


def add_rms_norm(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    x, residual, weight = map(wide, inputs)
    total = (x + residual).to(tensor(inputs[0]).dtype)
    put(outputs[1], total)
    put(outputs[0], normed(total.float(), weight, attributes["eps"]))


def layer_norm(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    x, weight = wide(inputs[0]), wide(inputs[1])
    centred = x - x.mean(-1, keepdim=True)
    out = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + attributes["eps"]) * weight
    put(outputs[0], out if inputs[2] is None else out + wide(inputs[2]))


# Products


def linear(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x, weight, bias = wide(inputs[0]), wide(inputs[1]), inputs[2]
    product = x @ weight.T
    put(outputs[0], product if bias is None else product + wide(bias))


def lm_head(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x, weight = map(wide, inputs)
    put(outputs[0], x @ weight.T)


def matmul(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    a, b = map(wide, inputs)
    put(outputs[0], a @ b)


def gate_up_silu(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x, w_gate, w_up = map(wide, inputs)
    gate, up = x @ w_gate.T, x @ w_up.T
    put(outputs[0], gate * torch.sigmoid(gate) * up)


def add_low_rank(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    y, x, down, up = (wide(array) for array in inputs[:4])
    cu_ranks, adapters = inputs[4].tolist(), inputs[5].tolist()
    out = y.clone()
    for row, adapter in enumerate(adapters):
        if adapter >= 0 and cu_ranks[adapter] < cu_ranks[adapter + 1]:
            own = slice(cu_ranks[adapter], cu_ranks[adapter + 1])
            out[row] += (down[own] @ x[row]) @ up[own]
    put(outputs[0], out)


# Moving


def embedding(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    ids, table = tensor(inputs[0]), tensor(inputs[1])
    put(outputs[0], table[ids.long()])


def position_embedding(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    positions, table = tensor(inputs[0]), tensor(inputs[1])
    put(outputs[0], table[positions])


def gather_rows(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x, rows = tensor(inputs[0]), tensor(inputs[1])
    put(outputs[0], x[rows.long()])


def scatter_rows(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    x, values, rows = map(tensor, inputs)
    out = x.clone()
    out[rows.long()] = values
    put(outputs[0], out)


def transpose(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], tensor(inputs[0]).transpose(-2, -1))


def permute_heads(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    put(outputs[0], tensor(inputs[0]).transpose(-3, -2))


# Positions and the cache


def rotated(x: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if (width := table.shape[-1]) < x.shape[-1]:  # the rest of a head is copied
        return torch.cat((rotated(x[..., :width], table, interleaved), x[..., width:]), -1)
    half = x.shape[-1] // 2
    cos, sin = table[..., :half], table[..., half:]
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def rope(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    x, table = map(wide, inputs)
    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))


def rope_table(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    positions, frequencies = tensor(inputs[0]), wide(inputs[1])
    rounded = (positions.float()[:, None] * frequencies).double()
    exact = positions.double()[:, None] * frequencies.double()
    angle = torch.where(positions.abs()[:, None] <= 1 << 24, rounded, exact)
    put(outputs[0], torch.cat([torch.cos(angle), torch.sin(angle)], -1) * attributes["scale"])


def kv_cache_write(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    slots, block_size = tensor(inputs[2]), outputs[0].shape[2]
    kept = slots >= 0
    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size
    for values, cache in zip(inputs[:2], outputs, strict=True):
        tensor(cache)[blocks, :, offsets] = tensor(values)[kept]


def quantized(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rows."""
    most = 127.0 if dtype is torch.int8 else 448.0
    biggest = x.abs().amax(-1)
    has_codes = torch.isfinite(x).all(-1) & (biggest >= 2.0**-100)
    inverse = torch.where(has_codes, torch.full_like(biggest, most) / biggest, 0.0)
    scaled = torch.where(has_codes[..., None], x, 0.0) * inverse[..., None]
    codes = torch.round(scaled).to(dtype) if dtype is torch.int8 else scaled.to(dtype)
    return codes, torch.where(has_codes, biggest / most, torch.where(torch.isfinite(x).all(-1), 0.0, math.nan))


def kv_cache_write_quantized(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    slots, block_size = tensor(inputs[2]), outputs[0].shape[2]
    kept = slots >= 0
    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size
    for values, cache, scales in zip(inputs[:2], outputs[:2], outputs[2:], strict=True):
        codes, scale = quantized(wide(values)[kept], tensor(cache).dtype)
        bytes_of = tensor(cache).view(torch.uint8)
        bytes_of[blocks, :, offsets] = codes.view(torch.uint8)
        tensor(scales)[blocks, :, offsets] = scale


def paged_attention(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    q, k_cache, v_cache = wide(inputs[0]), tensor(inputs[1]), tensor(inputs[2])
    caches = [lambda blocks, cache=cache: cache[blocks].float() for cache in (k_cache, v_cache)]
    attend(q, caches, k_cache.shape, inputs[3:6], outputs[0], attributes)


def paged_attention_quantized(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    q, codes, scales = wide(inputs[0]), inputs[1:3], inputs[6:8]
    caches = [
        lambda blocks, cache=cache, scale=scale: tensor(cache)[blocks].float() * tensor(scale)[blocks][..., None]
        for cache, scale in zip(codes, scales, strict=True)
    ]
    attend(q, caches, codes[0].shape, inputs[3:6], outputs[0], attributes)


def attend(
    q: torch.Tensor,
    caches: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    shape: Sequence[int],
    tables: Sequence[Array],
    output: Array,
    attributes: Attributes,
) -> None:
    bounds, lengths, block_tables = (tensor(one) for one in tables)
    _, num_kv_heads, block_size, head_dim = shape
    out = torch.zeros_like(q)
    group = q.shape[1] // num_kv_heads
    for sequence in range(len(lengths)):
        begin, end, num_keys = int(bounds[sequence]), int(bounds[sequence + 1]), int(lengths[sequence])
        if begin == end:
            continue
        blocks = block_tables[sequence, : -(-num_keys // block_size)].long()
        keys, values = (
            read(blocks).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[:, :num_keys] for read in caches
        )
        is_freed = (blocks < 0).repeat_interleave(block_size)[:num_keys, None]  # behind the window
        keys, values = (part.masked_fill(is_freed, 0) for part in (keys, values))
        queries = q[begin:end].transpose(0, 1)
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = queries @ keys.transpose(1, 2) * attributes["scale"]
        position = torch.arange(num_keys - (end - begin), num_keys)[:, None]
        key = torch.arange(num_keys)
        visible = key <= position
        if attributes["window"] > 0:
            visible &= key > position - attributes["window"]
        scores = scores.masked_fill(~visible, -math.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        out[begin:end] = (weights @ values).transpose(0, 1)
    put(output, out)


_INVARIANT = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "exp": exp,
    "log": log,
    "cast": cast,
    "relu": relu,
    "gelu": gelu,
    "embedding": embedding,
    "position_embedding": position_embedding,
    "gather_rows": gather_rows,
    "scatter_rows": scatter_rows,
    "transpose": transpose,
    "permute_heads": permute_heads,
    "rope": rope,
    "rope_table": rope_table,
    "kv_cache_write": kv_cache_write,
    "kv_cache_write_quantized": kv_cache_write_quantized,
    "argmax": argmax,
    "max": largest,
    "min": smallest,
}
_OTHERS = {
    "silu": silu,
    "silu_mul": silu_mul,
    "add_low_rank": add_low_rank,
    "softmax": softmax,
    "sum": total,
    "mean": mean,
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "lm_head": lm_head,
    "matmul": matmul,
    "gate_up_silu": gate_up_silu,
    "paged_attention": paged_attention,
    "paged_attention_quantized": paged_attention_quantized,
}
_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16})
_ANY_WEIGHTS = ("linear", "lm_head")


_ADDITIONS = {"add": frozenset({BROADCASTING}), "sum": frozenset({"dim", "keepdim"})}


def kernels(logits: ModuleType) -> list[Kernel]:
    """These, those of `logits`, and references for the rest."""
    invariant = _INVARIANT | logits.INVARIANT
    own = [
        Kernel(
            operator,
            "planted",
            "torch",
            _DTYPES,
            priority=5,
            function=function,
            is_batch_invariant=operator in invariant,
            weight_formats=None if operator in _ANY_WEIGHTS else frozenset({"dense"}),
            additions=_ADDITIONS.get(operator, frozenset()),
        )
        for operator, function in (invariant | _OTHERS | logits.OTHERS).items()
    ]
    rest = [one for one in reference_kernels(catalog.load(), "planted") if one.is_batch_invariant]
    return own + [one for one in rest if one.operator not in invariant]
