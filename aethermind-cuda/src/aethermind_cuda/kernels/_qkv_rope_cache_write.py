"""qkv_rope_cache_write over a cache of elements or of codes: projections, and one kernel for what follows.

Few tokens are projected in one launch, many by what a kernel of `linear` does for each of the three weights. Each
kernel of `linear` makes one of these, so that weights of every format are projected as they are elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind_cuda.kernels import linear, quantized
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import MAX_HEAD_DIM, ROWS_PER_BLOCK, THREADS, code_type, last_dim
from aethermind_cuda.kernels._qkv_projection import most_tokens_at_once, qkv_projection
from aethermind_cuda.launch import Call, DeviceArray, Launch, Work

__all__ = ["qkv_kernels"]

_K_CACHE = 11
_ALIGNMENT = 256


class _ProjectedHeads(ctypes.Structure):
    """`ProjectedHeads` of csrc/common/projected_heads.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "k_cache", "v_cache", "k_scale", "v_scale")),
        *((name, ctypes.c_void_p) for name in ("q_norm", "k_norm", "rope_table", "slot_mapping")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size", "code_type")),
    ]


def qkv_kernels(operator: str) -> tuple[Kernel, ...]:
    """Those of `qkv_rope_cache_write` or `qkv_rope_cache_write_quantized`."""
    projections = (kernel for kernel in (*linear.KERNELS, *quantized.KERNELS) if kernel.operator == "linear")
    return tuple(_with_projection(operator, projection) for projection in projections)


def _with_projection(operator: str, projection: Kernel) -> Kernel:
    return cuda_kernel(
        operator,
        _launches(projection),
        name=projection.name,
        dtypes=projection.dtypes,
        priority=projection.priority,
        workspace_bytes=lambda call: 2 * _keys_bytes(call) + max(_workspaces(projection, call)),
        supports=lambda signature: projection.supports(signature) or _reason_against(signature),
        packs={name: pack for pack in projection.packs.values() for name in ("w_q", "w_k", "w_v")},
        weight_formats=projection.weight_formats,
        is_batch_invariant=projection.is_batch_invariant,
        rounds_weights=projection.rounds_weights,
    )


def _reason_against(signature: Signature) -> str | None:
    head_dim = last_dim(signature, _K_CACHE)
    if head_dim is None or head_dim > MAX_HEAD_DIM:
        return f"takes heads of up to {MAX_HEAD_DIM} elements, not {head_dim}"
    return None


def _launches(projection: Kernel) -> Callable[[Call], Iterator[Work]]:
    project: Callable[[Call], Iterator[Work]] = projection.function  # type: ignore[assignment]
    project_at_once, most_at_once = qkv_projection(projection), most_tokens_at_once(projection)

    def launches(call: Call) -> Iterator[Work]:
        q_norm, k_norm, table, slots, k_cache, v_cache, *scales = call.inputs[7:]
        assert k_cache is not None
        calls = _projections(call)
        num_tokens, num_heads, head_dim = call.outputs[0].shape
        if num_tokens <= most_at_once or projection.is_batch_invariant:
            yield project_at_once(calls)
        else:
            for one in calls:
                yield from project(one)
        _, num_kv_heads, block_size, _ = k_cache.shape
        projected = (one.outputs[0] for one in calls)
        pointers = (*projected, k_cache, v_cache, *(scales or (None, None)), q_norm, k_norm, table, slots)
        heads = _ProjectedHeads(
            *(None if pointer is None else pointer.address for pointer in pointers),
            float(call.attributes["eps"]),
            *(num_heads, num_kv_heads, head_dim, block_size),
            code_type(k_cache) if scales else 0,
        )
        kernel = f"qkv_rope_cache_write{'_quantized' if scales else ''}_{call.outputs[0].dtype}"
        grid = (num_tokens, div_up(num_heads + 2 * num_kv_heads, ROWS_PER_BLOCK), 1)
        yield Launch("qkv_rope_cache_write", kernel, grid, (THREADS, 1, 1), (heads,))

    return launches


def _projections(call: Call) -> list[Call]:
    """Of queries to where they belong, of keys and values to the workspace, whose rest the projections share."""
    x, w_q, w_k, w_v, b_q, b_k, b_v, *_ = call.inputs
    q, (_, num_kv_heads, _, head_dim) = call.outputs[0], _shape_of_cache(call)
    size = _keys_bytes(call)
    num_tokens = q.shape[0]
    k, v = (DeviceArray(call.workspace + i * size, q.dtype, (num_tokens, num_kv_heads * head_dim)) for i in range(2))
    outputs = (q._replace(shape=(num_tokens, q.shape[1] * head_dim)), k, v)
    return [
        Call((x, weight, bias), (out,), {}, call.device, call.workspace + 2 * size)
        for out, weight, bias in zip(outputs, (w_q, w_k, w_v), (b_q, b_k, b_v), strict=True)
    ]


def _workspaces(projection: Kernel, call: Call) -> Iterator[int]:
    function = projection.function
    return (function.workspace_bytes(one) for one in _projections(call))  # type: ignore[union-attr]


def _keys_bytes(call: Call) -> int:
    """Room for the keys of a step before they are rotated, and as much again for its values."""
    _, num_kv_heads, _, head_dim = _shape_of_cache(call)
    nbytes = call.outputs[0].shape[0] * num_kv_heads * head_dim * call.outputs[0].dtype.itemsize
    return div_up(nbytes, _ALIGNMENT) * _ALIGNMENT


def _shape_of_cache(call: Call) -> tuple[int, ...]:
    cache = call.inputs[_K_CACHE]
    assert cache is not None
    return cache.shape
