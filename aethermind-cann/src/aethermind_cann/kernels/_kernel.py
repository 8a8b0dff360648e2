"""How kernels of this package are declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aethermind.dispatch import Kernel, Signature
from aethermind.hal.dtype import DType

__all__ = ["Attributes", "FLOATS", "Function", "Tensors", "fused_kernel", "has_npu_op", "plain_kernel", "put"]

Tensors = Sequence[Any]
"""Tensors of torch, None for an absent input; `Any`, because what is optional is known to the schema."""
Attributes = Mapping[str, Any]
Function = Callable[[Tensors, Tensors, Attributes], None]

FLOATS = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
_FUSED_PRIORITY = 10


def plain_kernel(operator: str, function: Function, **options: Any) -> Kernel:
    """A kernel of calls that every version of torch_npu has; nothing is computed where there is nothing to write.

    It treats a row alike in any batch unless it says otherwise.
    """
    options = {"dtypes": FLOATS, "name": "torch", "is_batch_invariant": True, **options}
    return Kernel(operator, "cann", function=_unless_empty(function), **options)


def fused_kernel(
    operator: str,
    op: str,
    function: Function,
    supports: Callable[[Signature], str | None] = lambda _: None,
    **options: Any,
) -> Kernel:
    """A kernel by the operator `op` of torch_npu: chosen where torch_npu has it and `supports` gives no reason not to.

    Preferred to the plain one; the name says which operator it is.
    """

    def check(signature: Signature) -> str | None:
        if not has_npu_op(op):
            return f"this torch_npu has no {op}"
        return supports(signature)

    return plain_kernel(operator, function, name=op, priority=_FUSED_PRIORITY, supports=check, **options)


def has_npu_op(name: str) -> bool:
    """Whether torch_npu offers an operator of its own by this name."""
    return hasattr(torch.ops.npu, name)


def put(output: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value that a call returned to its place, rounded to the type of the place."""
    output.copy_(value)


def _unless_empty(function: Function) -> Function:
    def guarded(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        if any(output.numel() for output in outputs):
            function(inputs, outputs, attributes)

    return guarded
