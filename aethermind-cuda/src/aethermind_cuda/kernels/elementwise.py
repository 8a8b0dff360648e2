"""Element-wise operators: one source file with an entry point for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aethermind.ops.operator import BROADCASTING
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._loops import broadcast_strides, joined_loops, loops_argument
from aethermind_cuda.launch import Call, DeviceArray, Int64, Launch

__all__ = ["KERNELS", "clamped_silu_mul", "elementwise", "silu_mul_halves"]

_THREADS = 256
_ELEMENTS_PER_BLOCK = 2048
_MAX_BLOCKS = 1 << 16
_ROW_THREADS = 128
_ROW_ELEMENTS = 8
"""Elements per thread for rows of whole 16-byte vectors of 16-bit values."""


def elementwise(
    entry: str, out: DeviceArray, *inputs: DeviceArray | None, parameters: tuple[float, ...] = ()
) -> Launch:
    """The launch of an entry point; `out` may alias the first of `inputs`."""
    blocks = min(_MAX_BLOCKS, div_up(out.size, _ELEMENTS_PER_BLOCK))  # grid-stride loop
    arguments = (out, *inputs, Int64(out.size), *parameters)
    return Launch("elementwise", f"elementwise_{entry}_{out.dtype}", (blocks, 1, 1), (_THREADS, 1, 1), arguments)


def silu_mul_halves(out: DeviceArray, x: DeviceArray) -> Launch:
    """out[T, N] = silu(x[:, :N]) · x[:, N:] for x[T, 2N]."""
    num_rows, width = out.shape
    grid = div_up(width, _ROW_THREADS * _ROW_ELEMENTS), num_rows, 1
    entry = f"elementwise_silu_mul_halves_{out.dtype}"
    return Launch("elementwise", entry, grid, (_ROW_THREADS, 1, 1), (out, x, width))


def clamped_silu_mul(out: DeviceArray, gate: DeviceArray, up: DeviceArray, attributes: Mapping[str, Any]) -> Launch:
    """The launch of the operator of this name, or of `silu_mul` where its attributes are neutral; out may be gate."""
    parameters = tuple(float(attributes[name]) for name in ("alpha", "limit", "up_offset"))
    if parameters == (1.0, 0.0, 0.0):
        return elementwise("silu_mul", out, gate, up)
    return elementwise("clamped_silu_mul", out, gate, up, parameters=parameters)


def _launches(entry: str, *parameters: str) -> Callable[[Call], Iterator[Launch]]:
    """The launch of an entry point whose `parameters` are attributes of the operator."""

    def launches(call: Call) -> Iterator[Launch]:
        values = tuple(float(call.attributes[name]) for name in parameters)
        yield elementwise(entry, *call.outputs, *call.inputs, parameters=values)

    return launches


def _broadcast(entry: str) -> Callable[[Call], Iterator[Launch]]:
    """The launch of a binary entry point over inputs of one shape, or of shapes that are broadcast."""

    def launches(call: Call) -> Iterator[Launch]:
        (out,), (a, b) = call.outputs, call.inputs
        assert a is not None
        assert b is not None
        if a.shape == b.shape:
            yield elementwise(entry, out, a, b)
            return
        strides = (broadcast_strides(array.shape, out.shape) for array in (a, b))
        loops = loops_argument(joined_loops(out.shape, *strides), 2)
        blocks = min(_MAX_BLOCKS, div_up(out.size, _ELEMENTS_PER_BLOCK))
        arguments = (out, a, b, Int64(out.size), loops)
        kernel = f"elementwise_{entry}_broadcast_{out.dtype}"
        yield Launch("elementwise", kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments)

    return launches


def _cast(call: Call) -> Iterator[Launch]:
    (out,), (x,) = call.outputs, call.inputs
    assert x is not None
    blocks = min(_MAX_BLOCKS, div_up(out.size, _ELEMENTS_PER_BLOCK))
    kernel = f"elementwise_cast_{x.dtype}_to_{out.dtype}"
    yield Launch("elementwise", kernel, (blocks, 1, 1), (_THREADS, 1, 1), (out, x, Int64(out.size)))


def _gelu(call: Call) -> Iterator[Launch]:
    yield elementwise("gelu_tanh" if call.attributes["approximate"] else "gelu", *call.outputs, *call.inputs)


_SAME_NAMED = ("exp", "log", "relu", "sigmoid_mul", "silu", "silu_mul")
_BINARY = ("add", "div", "mul", "sub")

KERNELS = (
    *(cuda_kernel(name, _launches(name)) for name in _SAME_NAMED),
    *(cuda_kernel(name, _broadcast(name), additions=frozenset({BROADCASTING})) for name in _BINARY),
    cuda_kernel("cast", _cast),
    cuda_kernel("gelu", _gelu),
    cuda_kernel("scale", _launches("scale", "factor")),
    cuda_kernel("clamp", _launches("clamp", "limit")),
    cuda_kernel("softcap", _launches("softcap", "cap")),
    cuda_kernel("clamped_silu_mul", _launches("clamped_silu_mul", "alpha", "limit", "up_offset")),
)
