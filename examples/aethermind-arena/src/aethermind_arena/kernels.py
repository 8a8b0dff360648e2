"""Eleven kernels. Fused operators are decomposed into them, and the sampler's operators run by the references."""

from typing import Any

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import reference_kernels
from aethermind.hal import DType
from aethermind.ops import catalog


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return _to_float32(x) @ _to_float32(weight).T + (0 if bias is None else bias)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x: Any, table: Any, interleaved: bool) -> Any:
    (cos, sin), (x, rest) = np.split(table[:, None], 2, axis=-1), np.split(x, [table.shape[-1]], axis=-1)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1 if interleaved else -2).reshape(x.shape)
    return np.concatenate([turned, rest], axis=-1)


def paged_attention(q: Any, k: Any, v: Any, starts: Any, lengths: Any, tables: Any, scale: float, window: int) -> Any:
    out = np.zeros_like(q)
    for begin, end, length, table in zip(starts, starts[1:], lengths, tables, strict=False):
        keys, values = (_read(cache, table, length, q.shape[1]) for cache in (k, v))
        distance = np.arange(length - (end - begin), length)[:, None] - np.arange(length)
        products = q[begin:end].swapaxes(0, 1) @ keys.swapaxes(1, 2) * scale
        scores = np.where((distance >= 0) & ((window <= 0) | (distance < window)), products, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e30))
        out[begin:end] = (weights / weights.sum(axis=-1, keepdims=True) @ values).swapaxes(0, 1)
    return out


def _read(cache: Any, table: Any, length: int, num_heads: int) -> Any:
    """Gather a sequence from its blocks, repeated for query heads: float32 [num_heads, length, head_dim]."""
    ids = table[: -(-length // cache.shape[2])]
    blocks = np.where((ids < 0)[:, None, None, None], 0, cache[ids]).swapaxes(0, 1)  # -1: freed behind a window
    sequence = blocks.reshape(len(blocks), -1, cache.shape[3])[:, :length]
    return _to_float32(np.repeat(sequence, num_heads // len(sequence), axis=0))


def kv_cache_write(inputs: Any, outputs: Any, _: Any) -> None:
    slots = inputs[2][has_slot := inputs[2] >= 0]
    for cache, rows in zip(outputs, inputs[:2], strict=True):
        cache[slots // cache.shape[2], :, slots % cache.shape[2]] = rows[has_slot]


def _to_float32(array: Any) -> Any:
    """Convert to float32: kernels compute in float32 and round once."""
    return array.astype(np.float32, copy=False)


def _write_output(compute: Any) -> Any:
    return lambda inputs, outputs, attributes: np.copyto(outputs[0], compute(*inputs, **attributes), casting="unsafe")


_FUNCTIONS = {
    "embedding": lambda token_ids, table: table[token_ids],
    "gather_rows": lambda x, rows: x[rows],
    "add": np.add,
    "mul": np.multiply,
    "silu": lambda x: _to_float32(x) / (1 + np.exp(np.minimum(-_to_float32(x), 88))),
    "rms_norm": lambda x, weight, eps: rms_norm(_to_float32(x), weight, eps),
    "rope": lambda x, *rest, **options: rope(_to_float32(x), *rest, **options),
    "paged_attention": lambda q, *rest, **options: paged_attention(_to_float32(q), *rest, **options),
    "linear": linear,
    "lm_head": linear,
}
_KERNELS = {"kv_cache_write": kv_cache_write} | {name: _write_output(compute) for name, compute in _FUNCTIONS.items()}
_REFERENCES = reference_kernels(catalog.load(), "arena")
_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
KERNELS = [
    *(
        Kernel(name, "arena", f"arena {name}", _DTYPES, function=f, is_batch_invariant=False)
        for name, f in _KERNELS.items()
    ),
    *(kernel for kernel in _REFERENCES if kernel.operator not in _KERNELS or kernel.is_batch_invariant),
]
