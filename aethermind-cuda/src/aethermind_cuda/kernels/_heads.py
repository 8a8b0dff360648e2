"""Helpers for kernels over attention heads and KV caches."""

from __future__ import annotations

from aethermind.dispatch.kernel import Signature
from aethermind.hal.dtype import DType
from aethermind_cuda.launch import DeviceArray

__all__ = ["MAX_HEAD_DIM", "ROWS_PER_BLOCK", "THREADS", "all_present", "code_type", "last_dim", "supports_head_dim"]

MAX_HEAD_DIM = 256
"""Largest head_dim that a warp holds in registers (csrc/common/head_row.cuh)."""

ROWS_PER_BLOCK = 4
"""Rows per block where a warp processes a row."""

THREADS = 32 * ROWS_PER_BLOCK

_CODE_TYPES = {DType.INT8: 0, DType.FLOAT8_E4M3FN: 1}


def all_present(arrays: tuple[DeviceArray | None, ...]) -> list[DeviceArray]:
    """The inputs of an operator that has no optional inputs."""
    assert None not in arrays
    return [array for array in arrays if array is not None]


def code_type(codes: DeviceArray) -> int:
    """The `CodeType` of csrc/common/kv_quantization.cuh."""
    return _CODE_TYPES[codes.dtype]


def last_dim(signature: Signature, position: int) -> int | None:
    """The last dim of an input, None if symbolic."""
    type_ = signature.inputs[position]
    dim = None if type_ is None else type_.shape[-1]
    return dim if isinstance(dim, int) else None


def supports_head_dim(signature: Signature) -> str | None:
    """Check head_dim for kernels that process a head per warp; heads are the rows of the first input."""
    head_dim = last_dim(signature, 0)
    if head_dim is None or head_dim > MAX_HEAD_DIM:
        return f"takes heads of up to {MAX_HEAD_DIM} elements, not {head_dim}"
    return None
