"""The q, k and v projections of a few tokens, fused into one launch (`common/qkv_projection.cuh`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from aethermind.dispatch import Kernel
from aethermind.ops.weight_format import DENSE, FP8, parse_format
from aethermind_cuda.float8_weights import Float8Layout
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.kernels._quantized_gemv import quantized_gemv
from aethermind_cuda.launch import Call, DeviceArray, Launch
from aethermind_cuda.quantized_weights import GROUP_CHUNKS, QuantizedLayout

__all__ = ["max_fused_tokens", "qkv_projection"]

_DENSE = Projection("qkv_projection", num_weights=1, group_chunks=2, max_skinny_tokens=32)
_QUANTIZED = Projection("qkv_projection_quantized", num_weights=1, group_chunks=GROUP_CHUNKS)
_FLOAT8 = Projection("qkv_projection_float8", num_weights=1, group_chunks=GROUP_CHUNKS)
_TILE_OUTPUTS = 16


class _QkvProjection(ctypes.Structure):
    """`QkvProjection` of csrc/common/qkv_projection.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p * 3) for name in ("outputs", "weights", "biases")),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_outputs", "num_kv_outputs", "num_inputs")),
    ]


def _addresses(arrays: Sequence[DeviceArray | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * 3)(*(None if array is None else array.address for array in arrays))


def max_fused_tokens(linear: Kernel) -> int:
    """Maximum tokens of the fused launch; for more, three launches of `linear` are faster."""
    return _DENSE.max_skinny_tokens if DENSE in (linear.weight_formats or ()) else _QUANTIZED.max_skinny_tokens


def qkv_projection(linear: Kernel) -> Callable[[Sequence[Call]], Launch]:
    """The launch for three calls of a `linear` kernel: q, k and v of the same inputs.

    It is batch-invariant: the summation order of a token does not depend on the number of tokens.
    """
    assert linear.weight_formats is not None
    (name,) = linear.weight_formats
    format = None if name == DENSE else parse_format(name)

    def launch(calls: Sequence[Call]) -> Launch:
        inputs = [call.inputs for call in calls]
        x = inputs[0][0]
        assert x is not None
        (num_tokens, num_inputs), outputs = x.shape, [call.outputs[0] for call in calls]
        widths = [out.shape[1] for out in outputs]
        weights, biases = ([operands[i] for operands in inputs] for i in (1, 2))
        addresses = (_addresses(outputs), _addresses(weights), _addresses(biases))
        parameters = _QkvProjection(*addresses, x.address, num_tokens, *widths[:2], num_inputs)
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
