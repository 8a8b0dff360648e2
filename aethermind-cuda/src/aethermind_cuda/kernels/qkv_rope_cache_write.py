"""qkv_rope_cache_write and its quantised form: the QKV projections, and one kernel as their epilogue.

Few tokens are projected in one launch, which is also the epilogue where weights have up to four bits and heads no
norms; many by a `linear` kernel per weight, or by one dense product where the weights are adjacent. There is one kernel
per `linear` kernel, so that weights of every format are projected as in `linear`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.hal.memory import align_up
from aethermind_cuda.kernels import float8, linear, quantized
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._cublaslt import CUBLASLT, MIN_CUBLASLT_TOKENS
from aethermind_cuda.kernels._float8 import float8_products, float8_products_bytes
from aethermind_cuda.kernels._heads import MAX_HEAD_DIM, ROWS_PER_BLOCK, THREADS, code_type, last_dim
from aethermind_cuda.kernels._qkv_projection import (
    max_fused_tokens,
    qkv_projection,
    qkv_rope_projection,
    qkv_wgmma_bytes,
    qkv_wgmma_projection,
    takes_qkv_wgmma,
)
from aethermind_cuda.kernels._stacked import stacked_product, stacked_product_bytes
from aethermind_cuda.launch import Call, DeviceArray, Launch, Work

__all__ = ["KERNELS"]

_K_CACHE = 11
_NUM_INPUTS = 13
"""Those of the operator whose cache is not quantised."""
_ALIGNMENT = 256
_VECTOR_BYTES = 16


class _ProjectedHeads(ctypes.Structure):
    """`ProjectedHeads` of csrc/common/projected_heads.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "projected_q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("k_cache", "v_cache", "k_scale", "v_scale")),
        *((name, ctypes.c_void_p) for name in ("q_norm", "k_norm", "rope_table", "slot_mapping")),
        ("eps", ctypes.c_float),
        ("weight_offset", ctypes.c_float),
        *(
            (name, ctypes.c_int)
            for name in ("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "block_size", "code_type")
        ),
        *((name, ctypes.c_int) for name in ("num_tokens", "q_stride", "kv_stride", "log2_lanes")),
    ]


def _with_projection(operator: str, projection: Kernel) -> Kernel:
    function: Any = projection.function
    return cuda_kernel(
        operator,
        _launches(projection),
        has_heuristics=function.has_heuristics,
        name=projection.name,
        dtypes=projection.dtypes,
        priority=projection.priority,
        workspace_bytes=lambda call: _workspace_bytes(projection, call),
        supports=lambda signature: projection.supports(signature) or _unsupported_reason(signature),
        packs={name: pack for pack in projection.packs.values() for name in ("w_q", "w_k", "w_v")},
        weight_formats=projection.weight_formats,
        is_batch_invariant=projection.is_batch_invariant,
        arithmetic=projection.arithmetic,
        rounds_weights=projection.rounds_weights,
        additions=frozenset({"weight_offset"}),
    )


def _unsupported_reason(signature: Signature) -> str | None:
    head_dim = last_dim(signature, _K_CACHE)
    if head_dim is None or head_dim > MAX_HEAD_DIM:
        return f"takes heads of up to {MAX_HEAD_DIM} elements, not {head_dim}"
    return None


def _launches(projection: Kernel) -> Callable[[Call], Iterator[Work]]:
    project: Callable[[Call], Iterator[Work]] = projection.function  # type: ignore[assignment]
    project_fused, max_fused = qkv_projection(projection), max_fused_tokens(projection)
    is_cublaslt, is_float8 = projection.name == CUBLASLT, projection.name == float8.CUBLASLT_FLOAT8

    def launches(call: Call) -> Iterator[Work]:
        calls = _projections(call)
        num_tokens = call.outputs[0].shape[0]
        stacked = _stacked_projection(calls, call) if is_cublaslt and num_tokens >= MIN_CUBLASLT_TOKENS else None
        if stacked is not None:
            yield stacked[0]
        elif num_tokens <= max_fused or projection.is_batch_invariant:
            whole = qkv_rope_projection(projection, call) if len(call.inputs) == _NUM_INPUTS else None
            if whole is not None:
                yield whole
                return
            yield project_fused(calls)
        elif call.inputs[0] is not None and takes_qkv_wgmma(projection, call.inputs[0], call.device):
            yield from qkv_wgmma_projection(projection, calls)
        elif is_float8 and all(float8.is_multiplied(projection_call) for projection_call in calls):
            yield from _float8_projection(calls)
        else:
            for projection_call in calls:
                yield from project(projection_call)
        yield _epilogue(
            call, [projection_call.outputs[0] for projection_call in calls], None if stacked is None else stacked[1]
        )

    return launches


def _stacked_projection(calls: Sequence[Call], call: Call) -> tuple[Work, DeviceArray] | None:
    """Project q, k and v as columns of one matrix, where the three weights are adjacent."""
    inputs = [call.inputs for call in calls]
    x = inputs[0][0]
    assert x is not None
    weights = [weight for _, weight, _ in inputs if weight is not None]
    return stacked_product(x, weights, [bias for *_, bias in inputs], call.workspace, call.device)


def _float8_projection(calls: Sequence[Call]) -> Iterator[Work]:
    """Project q, k and v of the same quantised inputs."""
    x = calls[0].inputs[0]
    assert x is not None
    products = [float8.linear_product(call) for call in calls]
    return float8_products(x, products, calls[0].device, calls[0].workspace)


def _float8_bytes(calls: Sequence[Call]) -> int:
    x = calls[0].inputs[0]
    assert x is not None
    return float8_products_bytes(x, [call.outputs[0].shape[1] for call in calls], calls[0].device)


def _epilogue(call: Call, projected: Sequence[DeviceArray], matrix: DeviceArray | None) -> Launch:
    """The epilogue; the projections are three arrays or columns of one matrix."""
    q_norm, k_norm, table, slots, k_cache, v_cache, *scales = call.inputs[7:]
    out = call.outputs[0]
    num_tokens, num_heads, head_dim = out.shape
    _, num_kv_heads, block_size, _ = _shape_of_cache(call)
    strides = [array.shape[1] for array in projected[:2]]
    addresses = [array.address for array in projected]
    if matrix is not None:
        widths = [array.shape[1] for array in projected]
        addresses = [matrix.address + sum(widths[:i]) * matrix.dtype.itemsize for i in range(3)]
        strides = [matrix.shape[1]] * 2
    others = (k_cache, v_cache, *(scales or (None, None)), q_norm, k_norm, table, slots)
    pointers = [out.address, *addresses, *(None if array is None else array.address for array in others)]
    read_wide = [pointer for pointer in (*pointers[:6], *pointers[8:11]) if pointer is not None]
    row_bytes = [width * out.dtype.itemsize for width in strides]
    rotary_dim = 0 if table is None else table.shape[1]
    is_whole = rotary_dim == head_dim
    log2_lanes = _log2_lanes(head_dim * out.dtype.itemsize, (*read_wide, *row_bytes)) if is_whole else -1
    heads = num_heads + 2 * num_kv_heads
    arguments = _ProjectedHeads(
        *pointers,
        float(call.attributes["eps"]),
        float(call.attributes.get("weight_offset", 0.0)),
        *(num_heads, num_kv_heads, head_dim, rotary_dim, block_size, code_type(k_cache) if scales and k_cache else 0),
        *(num_tokens, *strides, log2_lanes),
    )
    grid = (num_tokens, div_up(heads, ROWS_PER_BLOCK), 1)
    if log2_lanes >= 0:
        grid = (div_up(num_tokens * heads << log2_lanes, THREADS), 1, 1)
    kernel = f"qkv_rope_cache_write{'_quantized' if scales else ''}_{out.dtype}"
    return Launch("qkv_rope_cache_write", kernel, grid, (THREADS, 1, 1), (arguments,))


def _log2_lanes(head_bytes: int, multiples: Iterable[int]) -> int:
    """log2 of the lanes per head for whole vectors of both halves; -1 where that is impossible and a warp processes a
    head.
    """
    lanes, rest = divmod(head_bytes, 2 * _VECTOR_BYTES)
    is_wide = not rest and lanes in (1, 2, 4, 8, 16, 32) and not any(multiple % _VECTOR_BYTES for multiple in multiples)
    return lanes.bit_length() - 1 if is_wide else -1


def _projections(call: Call) -> list[Call]:
    """Project q to the output, k and v to the workspace; the projections share the rest of it."""
    x, w_q, w_k, w_v, b_q, b_k, b_v, *_ = call.inputs
    q, (_, num_kv_heads, _, head_dim) = call.outputs[0], _shape_of_cache(call)
    size = _projected_key_bytes(call)
    num_tokens = q.shape[0]
    k, v = (DeviceArray(call.workspace + i * size, q.dtype, (num_tokens, num_kv_heads * head_dim)) for i in range(2))
    outputs = (q._replace(shape=(num_tokens, q.shape[1] * head_dim)), k, v)
    return [
        Call((x, weight, bias), (out,), {}, call.device, call.workspace + 2 * size)
        for out, weight, bias in zip(outputs, (w_q, w_k, w_v), (b_q, b_k, b_v), strict=True)
    ]


def _workspace_bytes(projection: Kernel, call: Call) -> int:
    function: Any = projection.function
    calls = _projections(call)
    nbytes = max(function.workspace_bytes(projection_call) for projection_call in calls)
    nbytes = max(nbytes, qkv_wgmma_bytes(projection, calls))
    if projection.name == float8.CUBLASLT_FLOAT8:
        nbytes = max(nbytes, _float8_bytes(calls))
    separate: int = 2 * _projected_key_bytes(call) + nbytes
    if projection.name != CUBLASLT:
        return separate
    x, *weights = call.inputs[:4]
    assert x is not None
    return max(separate, stacked_product_bytes(x, [weight for weight in weights if weight is not None]))


def _projected_key_bytes(call: Call) -> int:
    """Workspace of the keys of a step before rotation, and the same for its values."""
    _, num_kv_heads, _, head_dim = _shape_of_cache(call)
    nbytes = call.outputs[0].shape[0] * num_kv_heads * head_dim * call.outputs[0].dtype.itemsize
    return align_up(nbytes, _ALIGNMENT)


def _shape_of_cache(call: Call) -> tuple[int, ...]:
    cache = call.inputs[_K_CACHE]
    assert cache is not None
    return cache.shape


_PROJECTIONS = [
    kernel for kernel in (*linear.KERNELS, *quantized.KERNELS, *float8.KERNELS) if kernel.operator == "linear"
]

KERNELS = tuple(
    _with_projection(operator, projection)
    for operator in ("qkv_rope_cache_write", "qkv_rope_cache_write_quantized")
    for projection in _PROJECTIONS
)
