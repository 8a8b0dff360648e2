"""What the descriptions of kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Pack, Signature
from aethermind.hal.dtype import DType
from aethermind_cuda.launch import Call, DeviceArray, KernelFunction, Work

__all__ = ["FLOATS", "cuda_kernel", "div_up", "has_whole_vectors", "threads_for"]

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
    """A kernel of this device (see `KernelFunction`), which treats a row alike in any batch unless it says otherwise;
    `rest` are further fields of `Kernel`.
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
    """Whether every row begins at a multiple of 16 bytes."""
    return not (matrix.address | matrix.shape[1] * matrix.dtype.itemsize) % _VECTOR_BYTES


def div_up(count: int, size: int) -> int:
    """How many pieces of `size` cover `count`."""
    return -(-count // size)


def threads_for(count: int, most: int = 1024) -> int:
    """A number of threads for `count` things that a block does side by side: whole warps, at most `most`."""
    return max(_WARP, min(most, div_up(count, _WARP) * _WARP))
