"""The q, k and v projections of a few tokens, fused into one launch (`common/qkv_projection.cuh`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import DENSE, FP8, WeightFormat, parse_format
from aethermind_cuda.float8_weights import Float8Layout
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.kernels._quantized_gemv import quantized_gemv
from aethermind_cuda.kernels._quantized_wgmma import quantized_wgmma_bytes, takes_quantized_wgmma, wgmma_grid
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import GROUP_CHUNKS, QuantizedLayout

__all__ = [
    "max_fused_tokens",
    "qkv_projection",
    "qkv_rope_projection",
    "qkv_wgmma_bytes",
    "qkv_wgmma_projection",
    "takes_qkv_wgmma",
]

_DENSE = Projection("qkv_projection", num_weights=1, group_chunks=2, max_skinny_tokens=32)
_QUANTIZED = Projection("qkv_projection_quantized", num_weights=1, group_chunks=GROUP_CHUNKS)
_FLOAT8 = Projection("qkv_projection_float8", num_weights=1, group_chunks=GROUP_CHUNKS)
_TILE_OUTPUTS = 16
_SUM_THREADS = 256
_MAX_ROTATED_BITS = 4
"""Longer codes are projected in a launch of their own, which has more warps: 7.8 us where one launch for all took 10.8
(int8, Qwen2-7B, H200); int4 takes 6.5 and 7.8."""


class _QkvProjection(ctypes.Structure):
    """`QkvProjection` of csrc/common/qkv_projection.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p * 3) for name in ("outputs", "weights", "biases")),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_outputs", "num_kv_outputs", "num_inputs")),
    ]


class _RotatedProjection(ctypes.Structure):
    """`RotatedProjection` of csrc/qkv_rope_quantized.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p * 3) for name in ("outputs", "weights", "biases")),
        *((name, ctypes.c_void_p) for name in ("x", "rope_table", "slot_mapping")),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_inputs", "num_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int) for name in ("block_size", "num_blocks", "log2_chunks", "term")),
    ]


def _addresses(arrays: Sequence[DeviceArray | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * 3)(*(None if array is None else array.address for array in arrays))


def _parameters(calls: Sequence[Call]) -> _QkvProjection:
    inputs = [call.inputs for call in calls]
    x, outputs = inputs[0][0], [call.outputs[0] for call in calls]
    assert x is not None
    weights, biases = ([operands[i] for operands in inputs] for i in (1, 2))
    addresses = (_addresses(outputs), _addresses(weights), _addresses(biases))
    widths = [out.shape[1] for out in outputs[:2]]
    return _QkvProjection(*addresses, x.address, x.shape[0], *widths, x.shape[1])


def qkv_rope_projection(linear: Kernel, call: Call) -> Launch | None:
    """The launch of a whole `qkv_rope_cache_write` of few tokens (csrc/qkv_rope_quantized.cu).

    None where weights are not integers of few bits, heads have norms or do not rotate as a whole, or x has other rows
    than of whole vectors: such kernels have an epilogue of their own. It is batch-invariant.
    """
    format, (x, *weights) = _format_of(linear), call.inputs[:4]
    *biases, q_norm, k_norm, table, slots, k_cache, v_cache = call.inputs[4:13]
    q = call.outputs[0]
    num_tokens, num_heads, head_dim = q.shape
    is_whole = table is not None and table.shape[1] == head_dim and not head_dim % (2 * _TILE_OUTPUTS)
    if format is None or format.bits > _MAX_ROTATED_BITS or q_norm is not None or k_norm is not None or not is_whole:
        return None
    assert x is not None
    assert k_cache is not None
    _, num_kv_heads, block_size, _ = k_cache.shape
    outputs, num_inputs = (num_heads + 2 * num_kv_heads) * head_dim, x.shape[1]
    layout = QuantizedLayout(format, (num_heads * head_dim, num_inputs))
    parameters = _RotatedProjection(
        *(_addresses(arrays) for arrays in ((q, k_cache, v_cache), weights, biases)),
        *(None if array is None else array.address for array in (x, table, slots)),
        *(num_tokens, num_inputs, num_heads, num_kv_heads, head_dim, block_size),
        *(layout.num_blocks, layout.log2_chunks, layout.affine_term),
    )
    sizes = num_tokens, outputs // 2, num_inputs
    return quantized_gemv("qkv_rope_quantized", format, sizes, (parameters,), x, num_weights=2)


def takes_qkv_wgmma(linear: Kernel, x: DeviceArray, device: DeviceFacts) -> bool:
    """Whether `qkv_wgmma_projection` multiplies x[T, K], and is the fastest."""
    format = _format_of(linear)
    return format is not None and format != FP8 and takes_quantized_wgmma(format, x, device)


def qkv_wgmma_projection(linear: Kernel, calls: Sequence[Call]) -> Iterator[Launch]:
    """The launches for three calls of a `linear` kernel with quantised weights: q, k and v of the same inputs.

    The workspace of the calls has `qkv_wgmma_bytes`.
    """
    format, x = _format_of(linear), calls[0].inputs[0]
    assert format is not None
    assert x is not None
    (num_tokens, num_inputs), widths = x.shape, [call.outputs[0].shape[1] for call in calls]
    grid = wgmma_grid(num_tokens, widths, num_inputs, format, calls[0].device)
    partials = None
    if grid.splits > 1:
        partials = DeviceArray(calls[0].workspace, DType.FLOAT32, (grid.splits, num_tokens, sum(widths)))
    layout = QuantizedLayout(format, (widths[0], num_inputs))
    parameters = _parameters(calls)
    arguments = parameters, layout.num_blocks, layout.log2_chunks, partials
    yield grid.launch("qkv_projection_quantized_wgmma", format, x.dtype, arguments)
    if partials is not None:
        blocks = num_tokens, sum(div_up(width, _SUM_THREADS) for width in widths), 1
        source, entry = "qkv_projection_quantized_wgmma", f"split_k_reduce_qkv_{x.dtype}"
        yield Launch(source, entry, blocks, (_SUM_THREADS, 1, 1), (parameters, partials, grid.splits))


def qkv_wgmma_bytes(linear: Kernel, calls: Sequence[Call]) -> int:
    """The workspace of `qkv_wgmma_projection` for at most as many tokens."""
    format, x = _format_of(linear), calls[0].inputs[0]
    assert x is not None
    if format is None or format == FP8:
        return 0
    widths = [call.outputs[0].shape[1] for call in calls]
    return quantized_wgmma_bytes(x.shape[0], widths, x.shape[1], format, x.dtype, calls[0].device)


def _format_of(linear: Kernel) -> WeightFormat | None:
    assert linear.weight_formats is not None
    (name,) = linear.weight_formats
    return None if name == DENSE else parse_format(name)


def max_fused_tokens(linear: Kernel) -> int:
    """Maximum tokens of the fused launch; for more, three launches of `linear` are faster."""
    return _DENSE.max_skinny_tokens if DENSE in (linear.weight_formats or ()) else _QUANTIZED.max_skinny_tokens


def qkv_projection(linear: Kernel) -> Callable[[Sequence[Call]], Launch]:
    """The launch for three calls of a `linear` kernel: q, k and v of the same inputs.

    It is batch-invariant: the summation order of a token does not depend on the number of tokens.
    """
    format = _format_of(linear)

    def launch(calls: Sequence[Call]) -> Launch:
        inputs = [call.inputs for call in calls]
        x = inputs[0][0]
        assert x is not None
        (num_tokens, num_inputs), outputs = x.shape, [call.outputs[0] for call in calls]
        widths = [out.shape[1] for out in outputs]
        weights = [weight for _, weight, _ in inputs]
        parameters = _parameters(calls)
        # (tokens, outputs, inputs). Each matrix has its own tiles, of which the last may be partial.
        sizes = num_tokens, sum(div_up(width, _TILE_OUTPUTS) for width in widths) * _TILE_OUTPUTS, num_inputs
        if format is None:
            dense = [weight for weight in weights if weight is not None]
            return _DENSE.launch(str(x.dtype), sizes, (parameters,), x.dtype, is_invariant=True, dense=dense)
        if format == FP8:
            codes = [
                Float8Layout((width, num_inputs)).codes(weight.address)
                for width, weight in zip(widths, weights, strict=True)
                if weight is not None
            ]
            return _FLOAT8.launch(str(x.dtype), sizes, (parameters,), x.dtype, is_invariant=True, dense=codes)
        layout = QuantizedLayout(format, (widths[0], num_inputs))  # k and v differ only in rows, not used below
        arguments = (parameters, layout.num_blocks, layout.log2_chunks, layout.affine_term)
        gemv = quantized_gemv(_QUANTIZED.source, format, sizes, arguments, x)
        if gemv is not None:
            return gemv
        return _QUANTIZED.launch(f"int{format.bits}_{x.dtype}", sizes, arguments, x.dtype, is_invariant=True)

    return launch
