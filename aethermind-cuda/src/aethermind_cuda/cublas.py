"""Dense products by cuBLASLt, called through its C interface: no torch between a plan and the library.

The library is the one of the `nvidia-cublas` wheel (which torch for CUDA brings, too) or of an installed CUDA toolkit.
Numbers are those of cublasLt.h; see https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from aethermind.errors import DeviceError
from aethermind.hal.dtype import DType
from aethermind_cuda.launch import Context, DeviceArray

__all__ = ["CublasLt", "DenseProduct", "WORKSPACE_BYTES", "find_cublaslt"]

WORKSPACE_BYTES = 32 << 20
"""What cuBLASLt may use beside the operands; NVIDIA's own advice for sm_90, and enough for the others."""

_DATA_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}
_COMPUTE_32F, _REAL_32F = 68, 0
_DESC_TRANSA, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 3, 7, 8, 26
_TRANSPOSED, _EPILOGUE_BIAS = 1, 4
_PREFERENCE_MAX_WORKSPACE, _PREFERENCE_REDUCTION_SCHEMES = 1, 3
_IN_FLOAT32 = 2
"""The mask of schemes that add parts of K up in the type that is computed with, not in the output's."""
_PREFERENCE_ALIGNMENTS = 5, 6, 7, 8
"""Of A, B, C and D."""
_MOST_ALIGNED = 256
_STATUS = {
    1: "not initialised",
    3: "out of memory",
    7: "invalid value",
    8: "architecture mismatch",
    15: "not supported",
}


class _Heuristic(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def find_cublaslt() -> Any | None:
    """The library, or None where it is not installed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (DynamicLibNotFoundError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N], summed in float32; `workspace` is WORKSPACE_BYTES of memory."""

    out: DeviceArray
    x: DeviceArray
    weight: DeviceArray
    bias: DeviceArray | None
    workspace: int

    def bind(self, context: Context) -> Callable[[int], None]:
        """See `launch.Work`."""
        return context.cublas.bind(self)


class CublasLt:
    """The library for the device whose context is current."""

    def __init__(self, library: Any) -> None:
        self._library = library
        handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(handle))
        self._handle = handle

    def close(self) -> None:
        """Give back what the library holds."""
        self._call("cublasLtDestroy", self._handle)

    def bind(self, product: DenseProduct) -> Callable[[int], None]:
        """Choose an algorithm by the library's own heuristics; what is returned enqueues it on a stream."""
        num_tokens, num_inputs = product.x.shape
        num_outputs = product.weight.shape[0]
        if not num_tokens or not num_outputs:
            return lambda _: None
        # The library counts columns first: there our row-major matrices are their own transposes.
        weight = self._layout(product.weight.dtype, num_inputs, num_outputs)
        x = self._layout(product.x.dtype, num_inputs, num_tokens)
        out = self._layout(product.out.dtype, num_outputs, num_tokens)
        operation = self._operation(product)
        chosen = self._choose(operation, product, (weight, x, out))
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        call, handle = self._call, self._handle
        addresses = [ctypes.c_void_p(array.address) for array in (product.weight, product.x, product.out)]
        weight_at, x_at, out_at = addresses
        workspace, workspace_bytes = ctypes.c_void_p(product.workspace), ctypes.c_size_t(WORKSPACE_BYTES)

        def enqueue(stream: int) -> None:
            call(
                "cublasLtMatmul",
                handle,
                operation,
                ctypes.byref(one),
                weight_at,
                weight,
                x_at,
                x,
                ctypes.byref(zero),
                out_at,
                out,
                out_at,
                out,
                ctypes.byref(chosen.algorithm),
                workspace,
                workspace_bytes,
                ctypes.c_void_p(stream),
            )

        return enqueue

    def _layout(self, dtype: DType, rows: int, columns: int) -> _Owned:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _DATA_TYPES[dtype], *sizes)
        return _Owned(layout, self._library.cublasLtMatrixLayoutDestroy)

    def _operation(self, product: DenseProduct) -> _Owned:
        operation = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_32F, _REAL_32F)
        owned = _Owned(operation, self._library.cublasLtMatmulDescDestroy)
        self._set(operation, _DESC_TRANSA, ctypes.c_int32(_TRANSPOSED))
        if product.bias is not None:
            self._set(operation, _DESC_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            self._set(operation, _DESC_BIAS_POINTER, ctypes.c_void_p(product.bias.address))
            self._set(operation, _DESC_BIAS_DATA_TYPE, ctypes.c_int32(_DATA_TYPES[product.bias.dtype]))
        return owned

    def _set(self, operation: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call("cublasLtMatmulDescSetAttribute", operation, attribute, ctypes.byref(value), size)

    def _choose(self, operation: _Owned, product: DenseProduct, layouts: tuple[_Owned, _Owned, _Owned]) -> _Heuristic:
        """The heuristics take operands to begin at multiples of 256 bytes, unless they are told how these lie."""
        preference, found, count = ctypes.c_void_p(), _Heuristic(), ctypes.c_int()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        owned = _Owned(preference, self._library.cublasLtMatmulPreferenceDestroy)
        weight, x, out = layouts
        arrays = product.weight, product.x, product.out, product.out
        aligned = (ctypes.c_uint32(_alignment(array.address)) for array in arrays)
        limits = dict(zip(_PREFERENCE_ALIGNMENTS, aligned, strict=True))
        limits[_PREFERENCE_REDUCTION_SCHEMES] = ctypes.c_uint32(_IN_FLOAT32)
        for attribute, limit in {_PREFERENCE_MAX_WORKSPACE: ctypes.c_uint64(WORKSPACE_BYTES), **limits}.items():
            value = ctypes.byref(limit), ctypes.c_size_t(ctypes.sizeof(limit))
            self._call("cublasLtMatmulPreferenceSetAttribute", preference, attribute, *value)
        operands = self._handle, operation, weight, x, out, out, owned
        self._call("cublasLtMatmulAlgoGetHeuristic", *operands, 1, ctypes.byref(found), ctypes.byref(count))
        if not count.value:
            raise DeviceError("cuBLASLt has no algorithm for a product of this shape and type on this GPU.")
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*(_plain(argument) for argument in arguments))
        if status:
            raise DeviceError(f"{name} failed with status {status} ({_STATUS.get(status, 'see cublas_api.h')}).")


class _Owned:
    """A handle that is given back with its last reference."""

    def __init__(self, handle: ctypes.c_void_p, destroy: Callable[[ctypes.c_void_p], int]) -> None:
        self.handle = handle
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.handle)


def _alignment(address: int) -> int:
    """The greatest power of two, up to 256, that an address is a multiple of."""
    return min(_MOST_ALIGNED, address & -address) or _MOST_ALIGNED


def _plain(argument: Any) -> Any:
    return argument.handle if isinstance(argument, _Owned) else argument
