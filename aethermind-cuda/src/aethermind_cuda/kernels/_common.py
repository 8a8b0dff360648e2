"""Helpers for kernel descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Pack, Signature
from aethermind.hal.dtype import DType
from aethermind_cuda.launch import Call, DeviceArray, KernelFunction, Work

__all__ = ["BIAS_OF_LOGITS", "FLOATS", "cuda_kernel", "div_up", "has_whole_vectors", "threads_for"]

BIAS_OF_LOGITS = frozenset({"bias"})
"""The addition of `lm_head` that kernels of projections compute; cuBLASLt's do not."""
FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_WARP = 32
_VECTOR_BYTES = 16


def cuda_kernel(
    operator: str,
    launches: Callable[[Call], Iterable[Work]],
    *,
    name: str = "cuda",
    dtypes: frozenset[DType] = FLOATS,
    workspace_bytes: Callable[[Call], int] = lambda _: 0,
    supports: Callable[[Signature], str | None] = lambda _: None,
    packs: Mapping[str, Pack] | None = None,
    is_relocatable: bool = True,
    has_heuristics: bool = False,
    is_batch_invariant: bool = True,
    **rest: Any,
) -> Kernel:
    """Describe a CUDA kernel (see `KernelFunction`), batch-invariant by default; `rest` are further fields of
    `Kernel`.
    """
    function: Any = KernelFunction(launches, workspace_bytes, is_relocatable, has_heuristics)
    return Kernel(
        operator,
        "cuda",
        name,
        dtypes,
        function=function,
        supports=supports,
        packs=packs or {},
        is_batch_invariant=is_batch_invariant,
        **rest,
    )


def has_whole_vectors(matrix: DeviceArray) -> bool:
    """Whether every row is 16-byte aligned."""
    return not (matrix.address | matrix.shape[1] * matrix.dtype.itemsize) % _VECTOR_BYTES


def div_up(count: int, size: int) -> int:
    """Division rounded up."""
    return -(-count // size)


def threads_for(count: int, max_threads: int = 1024) -> int:
    """Threads per block for `count` parallel items: whole warps, at most `max_threads`."""
    return max(_WARP, min(max_threads, div_up(count, _WARP) * _WARP))
