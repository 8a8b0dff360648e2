"""rms_norm, add_rms_norm and layer_norm: a block normalises one row."""

from __future__ import annotations

from collections.abc import Iterator

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_VECTOR_BYTES = 16


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


def _eps_and_offset(call: Call) -> tuple[float, float]:
    return float(call.attributes["eps"]), float(call.attributes.get("weight_offset", 0.0))


_OFFSET = frozenset({"weight_offset"})

KERNELS = (
    cuda_kernel("rms_norm", _rms_norm, additions=_OFFSET),
    cuda_kernel("layer_norm", _layer_norm),
    cuda_kernel("add_rms_norm", _add_rms_norm, additions=_OFFSET),
)
