"""Attention over a paged cache of elements or of codes: which kernels take which part of a batch.

The tensor core kernels differ in how many queries of a sequence they take. Where there are no more tokens than
sequences, the one for few queries takes every token by itself; else it takes the sequences of so few queries that their
heads fill no more tiles than one query's, and the other kernel the rest: what is which, they see at `cu_seqlens_q`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import THREADS, code_type, last_dim, supports_head_dim
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["paged_attention_kernels"]

_DECODE_ROWS = 16
_PREFILL_ROWS = 128
_SHORTEST_SPLIT = 256
_BLOCKS_PER_MULTIPROCESSOR = 2
"""Sequences are split until so many blocks are at work."""

_PADDING = 8
"""Elements between rows of shared memory (csrc/common/attention_tile.cuh)."""


class _AttentionCall(ctypes.Structure):
    """`AttentionCall` of csrc/common/attention_call.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "q", "k_cache", "v_cache", "k_scale", "v_scale")),
        *((name, ctypes.c_void_p) for name in ("cu_seqlens_q", "seqlens_k", "block_tables", "partials")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_sequences", "num_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int) for name in ("num_blocks", "block_size", "blocks_per_sequence", "window", "code_type")),
        *((name, ctypes.c_int) for name in ("num_splits", "items_are_tokens")),
    ]


def paged_attention_kernels(operator: str) -> tuple[Kernel, ...]:
    """Those of `paged_attention` or `paged_attention_quantized`."""
    tensor_cores = cuda_kernel(
        operator,
        _on_tensor_cores,
        name="cuda/tensor_cores",
        dtypes=frozenset({DType.FLOAT16, DType.BFLOAT16}),
        workspace_bytes=_partials_bytes,
        supports=_supports_tensor_cores,
        priority=1,
        is_batch_invariant=False,
    )
    return tensor_cores, cuda_kernel(operator, _by_rows, name="cuda/by_row", supports=supports_head_dim)


def _supports_tensor_cores(signature: Signature) -> str | None:
    head_dim, piece = last_dim(signature, 0), 16 if _is_coded(len(signature.inputs)) else 8
    if head_dim is None or head_dim > 128 or head_dim % piece:
        return f"takes heads of up to 128 elements, a multiple of {piece}, not {head_dim}"
    return None


def _on_tensor_cores(call: Call) -> Iterator[Launch]:
    arguments = _arguments(call)
    num_tokens, num_sequences, num_kv_heads = arguments.num_tokens, arguments.num_sequences, arguments.num_kv_heads
    if num_sequences == 0:
        return
    is_coded = _is_coded(len(call.inputs))
    width = _width(call)
    suffix = f"{call.outputs[0].dtype}_{width}"
    form = "_quantized" if is_coded else ""
    group = arguments.num_heads // num_kv_heads
    items = min(num_tokens, num_sequences)
    decode = (items * div_up(group, _DECODE_ROWS), num_kv_heads)
    arguments.num_splits = _num_splits(call, decode[0] * decode[1])
    arguments.items_are_tokens = num_tokens <= num_sequences
    source = f"paged_attention_decode{form}"
    grid, shared = (*decode, arguments.num_splits), _decode_shared(width, is_coded)
    yield Launch(source, f"{source}_{suffix}", grid, (THREADS, 1, 1), (arguments,), shared)
    if arguments.num_splits > 1:
        name = f"paged_attention_decode_combine_{suffix}"
        yield Launch("paged_attention_decode", name, (*decode, 4), (THREADS, 1, 1), (arguments,))
    if not arguments.items_are_tokens:
        source = f"paged_attention_prefill{form}"
        grid = (num_tokens * group // _PREFILL_ROWS + num_sequences, num_kv_heads, 1)
        shared = _prefill_shared(width, is_coded)
        yield Launch(source, f"{source}_{suffix}", grid, (THREADS, 1, 1), (arguments,), shared)


def _by_rows(call: Call) -> Iterator[Launch]:
    arguments = _arguments(call)
    if arguments.num_sequences == 0:
        return
    form = "_quantized" if _is_coded(len(call.inputs)) else ""
    name = f"paged_attention_rows{form}_{call.outputs[0].dtype}"
    grid = (arguments.num_tokens, arguments.num_heads, 1)
    yield Launch("paged_attention_rows", name, grid, (THREADS, 1, 1), (arguments,))


def _is_coded(num_inputs: int) -> bool:
    return num_inputs == 8


def _arguments(call: Call) -> Any:
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables, *scales = call.inputs
    assert q is not None
    assert k_cache is not None
    assert block_tables is not None
    pointers = (call.outputs[0], q, k_cache, v_cache, *(scales or (None, None)), cu_seqlens_q, seqlens_k, block_tables)
    num_sequences, blocks_per_sequence = block_tables.shape
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = k_cache.shape
    return _AttentionCall(
        *(_address(pointer) for pointer in pointers),
        call.workspace,
        float(call.attributes["scale"]),
        *(num_tokens, num_sequences, num_heads, num_kv_heads, head_dim),
        *(num_blocks, block_size, blocks_per_sequence),
        int(call.attributes["window"]),
        code_type(k_cache) if scales else 0,
        1,
        0,
    )


def _address(array: DeviceArray | None) -> int | None:
    return None if array is None else array.address


def _width(call: Call) -> int:
    """The head dim that a kernel was compiled for: elements behind the own ones are zeros."""
    head_dim = call.outputs[0].shape[-1]
    widths = (64, 128) if _is_coded(len(call.inputs)) else (64, 96, 128)
    return next(width for width in widths if head_dim <= width)


def _num_splits(call: Call, num_blocks: int) -> int:
    block_tables, k_cache = call.inputs[5], call.inputs[1]
    assert block_tables is not None
    assert k_cache is not None
    longest = block_tables.shape[1] * k_cache.shape[2]
    return max(1, min(_most_partials(call) // max(1, num_blocks), div_up(longest, _SHORTEST_SPLIT)))


def _most_partials(call: Call) -> int:
    return _BLOCKS_PER_MULTIPROCESSOR * call.device.num_multiprocessors


def _partials_bytes(call: Call) -> int:
    """Enough for any number of splits, since there are never more blocks with partial results than this."""
    return _most_partials(call) * _DECODE_ROWS * (_width(call) + 2) * 4


def _decode_shared(width: int, is_coded: bool) -> int:
    """`DecodeShared::kBytes`: queries, and for each of four warps two stages of 16 keys and as many values."""
    row = 2 * (width + _PADDING)
    of_warp = 2 * 2 * 16 * width + 2 * 16 * row if is_coded else 2 * 2 * 16 * row
    return _DECODE_ROWS * row + 4 * of_warp


def _prefill_shared(width: int, is_coded: bool) -> int:
    """`PrefillShared::kBytes`: queries, keys and values, and of codes the widened ones and their scales."""
    row, keys = 2 * (width + _PADDING), 64 if width <= 64 else 32
    of_keys = 2 * keys * width + keys * row + 2 * keys * 4 if is_coded else 2 * keys * row
    return _PREFILL_ROWS * row + of_keys
