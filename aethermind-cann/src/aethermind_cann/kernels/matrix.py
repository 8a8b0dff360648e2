"""Matrix products by torch."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel, put

__all__ = ["KERNELS", "float32_product", "product"]

_ROWS_PER_CHUNK = 8192
"""Rows of the weight that are converted to float32 at a time, if 16-bit products cannot return float32."""


def _linear(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, weight, bias = inputs
    product(x, weight, bias, outputs[0])


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """x @ weight.T + bias; dequantised weights are float32, and then everything is computed in float32."""
    if weight.dtype != x.dtype:
        result = x.float() @ weight.t()
        put(out, result if bias is None else result + bias.float())
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _lm_head(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, weight, bias = inputs
    float32_product(x, weight, outputs[0])
    if bias is not None:
        outputs[0].add_(bias)


def float32_product(x: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> None:
    """x @ weight.T into float32 `logits`."""
    if weight.dtype == torch.float32:
        torch.mm(x.float(), weight.t(), out=logits)
    elif _has_float32_output():
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=logits)
    else:
        x32 = x.float()
        for begin in range(0, len(weight), _ROWS_PER_CHUNK):
            rows = slice(begin, begin + _ROWS_PER_CHUNK)
            put(logits[:, rows], x32 @ weight[rows].float().t())


def _has_float32_output() -> bool:
    """Whether torch_npu multiplies 16-bit floats into float32."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm.dtype_out", "PrivateUse1"))


def _matmul(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.matmul(*inputs, out=outputs[0])


def _gate_up_silu(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, w_gate, w_up = inputs
    gate_and_up = torch.empty((2, *outputs[0].shape), dtype=x.dtype, device=x.device)
    product(x, w_gate, None, gate_and_up[0])
    product(x, w_up, None, gate_and_up[1])
    put(outputs[0], torch_npu.npu_swiglu(gate_and_up, dim=0)[0])


def _by_row(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    """One product per row of x, for batch invariance."""
    x, weight, *bias = inputs
    for row in range(len(x)):
        current = slice(row, row + 1)
        product(x[current], weight, bias[0] if bias else None, outputs[0][current])


def _lm_head_by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, weight, bias = inputs
    for row in range(len(x)):
        current = slice(row, row + 1)
        _lm_head((x[current], weight, bias), (outputs[0][current],), attributes)


_BIAS = frozenset({"bias"})
_ANY_WEIGHT: dict[str, Any] = {"weight_formats": None, "is_batch_invariant": False}

KERNELS = [
    plain_kernel("linear", _linear, **_ANY_WEIGHT),
    plain_kernel("linear", _by_row, name="torch by row", priority=-1, weight_formats=None),
    plain_kernel("lm_head", _lm_head, additions=_BIAS, **_ANY_WEIGHT),
    plain_kernel("lm_head", _lm_head_by_row, name="torch by row", priority=-1, weight_formats=None, additions=_BIAS),
    plain_kernel("matmul", _matmul, is_batch_invariant=False),
    fused_kernel("gate_up_silu", "npu_swiglu", _gate_up_silu, **_ANY_WEIGHT),
]
