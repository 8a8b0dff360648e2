"""Norms: a block processes a row, or lanes of a warp or a block a group of gated_rms_norm."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_VECTOR_BYTES = 16
_NARROW_BYTES = 2048
"""Groups of up to this size are processed by lanes of a warp."""
_NARROW_THREADS = 128


class _GatedRmsNorm(ctypes.Structure):
    """`GatedRmsNorm` of csrc/gated_rms_norm.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "x", "gate", "weight")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("num_rows", "num_groups", "width", "is_norm_first", "num_lanes")),
    ]


def _launch(source: str, x: DeviceArray, *arguments: DeviceArray | None, parameters: tuple[float, ...]) -> Launch:
    width = x.shape[-1]
    rows = x.size // max(1, width)
    threads = threads_for(width * x.dtype.itemsize // _VECTOR_BYTES)
    return Launch(source, f"{source}_{x.dtype}", (rows, 1, 1), (threads, 1, 1), (*arguments, width, *parameters))


def _rms_norm(call: Call) -> Iterator[Launch]:
    (out,) = call.outputs
    yield _launch("rms_norm", out, out, *call.inputs, parameters=_eps_and_offset(call))


def _layer_norm(call: Call) -> Iterator[Launch]:
    (out,) = call.outputs
    yield _launch("layer_norm", out, out, *call.inputs, parameters=(float(call.attributes["eps"]),))


def _add_rms_norm(call: Call) -> Iterator[Launch]:
    out, total = call.outputs
    yield _launch("add_rms_norm", out, out, total, *call.inputs, parameters=_eps_and_offset(call))


def _gated_rms_norm(call: Call) -> Iterator[Launch]:
    (out,) = call.outputs
    num_groups = int(call.attributes["num_groups"])
    num_rows, width = out.size // max(1, out.shape[-1]), out.shape[-1] // num_groups
    row_bytes = width * out.dtype.itemsize
    threads, num_lanes, groups = threads_for(row_bytes // _VECTOR_BYTES), 0, 1
    if row_bytes <= _NARROW_BYTES:
        num_vectors = max(1, div_up(row_bytes, _VECTOR_BYTES))
        threads, num_lanes = _NARROW_THREADS, min(32, 1 << (num_vectors - 1).bit_length())
        groups = threads // num_lanes
    pointers = [None if array is None else array.address for array in (out, *call.inputs)]
    sizes = num_rows, num_groups, width, int(call.attributes["norm_before_gate"]), num_lanes
    parameters = _GatedRmsNorm(*pointers, float(call.attributes["eps"]), *sizes)
    yield Launch(
        "gated_rms_norm",
        f"gated_rms_norm_{out.dtype}",
        (div_up(num_rows * num_groups, groups), 1, 1),
        (threads, 1, 1),
        (parameters,),
    )


def _eps_and_offset(call: Call) -> tuple[float, float]:
    return float(call.attributes["eps"]), float(call.attributes.get("weight_offset", 0.0))


_OFFSET = frozenset({"weight_offset"})

KERNELS = (
    cuda_kernel("rms_norm", _rms_norm, additions=_OFFSET),
    cuda_kernel("gated_rms_norm", _gated_rms_norm),
    cuda_kernel("layer_norm", _layer_norm),
    cuda_kernel("add_rms_norm", _add_rms_norm, additions=_OFFSET),
)
