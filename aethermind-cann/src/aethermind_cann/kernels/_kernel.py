"""Declaration of CANN kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aethermind.dispatch import Kernel, Signature
from aethermind.hal.dtype import DType

__all__ = [
    "Attributes",
    "FLOATS",
    "Function",
    "Tensors",
    "fused_kernel",
    "has_npu_op",
    "in_float32",
    "into_output",
    "plain_kernel",
    "put",
]

Tensors = Sequence[Any]
"""torch tensors, None for an absent input; `Any`, because the schema knows which are optional."""
Attributes = Mapping[str, Any]
Function = Callable[[Tensors, Tensors, Attributes], None]

FLOATS = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
_FUSED_PRIORITY = 10


def plain_kernel(operator: str, function: Function, **options: Any) -> Kernel:
    """Declare a kernel of portable torch calls, batch-invariant by default; it is not called for empty outputs."""
    options = {"dtypes": FLOATS, "name": "torch", "is_batch_invariant": True, **options}
    return Kernel(operator, "cann", function=_skip_empty_outputs(function), **options)


def fused_kernel(
    operator: str,
    op: str,
    function: Function,
    supports: Callable[[Signature], str | None] = lambda _: None,
    **options: Any,
) -> Kernel:
    """Declare a kernel that calls torch_npu's operator `op`; it has a higher priority than plain kernels.

    It supports a call if torch_npu has the operator and `supports` returns None.
    """

    def check(signature: Signature) -> str | None:
        if not has_npu_op(op):
            return f"this torch_npu has no {op}"
        return supports(signature)

    return plain_kernel(operator, function, name=op, priority=_FUSED_PRIORITY, supports=check, **options)


def has_npu_op(name: str) -> bool:
    """Whether torch_npu has an operator of this name."""
    return hasattr(torch.ops.npu, name)


def into_output(compute: Callable[..., Any]) -> Function:
    """Wrap a torch function that has an `out` argument as a kernel."""
    return lambda inputs, outputs, _: compute(*inputs, out=outputs[0])


def in_float32(compute: Callable[..., torch.Tensor]) -> Function:
    """Wrap a function of one tensor as a kernel that computes in float32 and rounds once."""
    return lambda inputs, outputs, attributes: put(outputs[0], compute(inputs[0].float(), **attributes))


def put(output: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a result to an output, rounded to the output's dtype."""
    output.copy_(value)


def _skip_empty_outputs(function: Function) -> Function:
    def function_unless_empty(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        if any(output.numel() for output in outputs):
            function(inputs, outputs, attributes)

    return function_unless_empty
