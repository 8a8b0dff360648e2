"""Norms over the last dim."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_npu
from torch.nn.functional import silu

from aethermind.dispatch import Signature
from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel, put

__all__ = ["KERNELS"]

_MIN_DIMS = 2
"""The minimum number of dims that torch_npu documents for its norms."""


def _rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, weight = inputs
    put(outputs[0], _normed(x.float(), attributes["eps"]) * (attributes["weight_offset"] + weight.float()))


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def _layer_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, weight, bias = (None if tensor is None else tensor.float() for tensor in inputs)
    assert x is not None
    put(outputs[0], torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, attributes["eps"]))


def _gated_rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    _gate_and_norm(inputs, outputs, attributes, lambda x, weight, eps: _normed(x, eps) * weight)


def _npu_gated_rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    _gate_and_norm(inputs, outputs, attributes, lambda x, weight, eps: torch_npu.npu_rms_norm(x, weight, eps)[0])


def _gate_and_norm(
    inputs: Tensors,
    outputs: Tensors,
    attributes: Attributes,
    norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor],
) -> None:
    """Multiply by silu(gate) before or after `norm` of each group, in float32, and round once."""
    x, gate, weight = (tensor.float() for tensor in inputs)
    gate = silu(gate)
    y = x if attributes["norm_before_gate"] else x * gate
    groups = torch.unflatten(y, -1, (attributes["num_groups"], -1))
    normed = norm(groups, weight.view(groups.shape[-2:]), attributes["eps"]).flatten(-2)
    put(outputs[0], normed * gate if attributes["norm_before_gate"] else normed)


def _npu_rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """An offset is added in float32, because its sum with a weight of 16 bits would be rounded."""
    x, weight = inputs
    if attributes["weight_offset"]:
        x, weight = x.float(), weight.float() + attributes["weight_offset"]
    put(outputs[0], torch_npu.npu_rms_norm(x, weight, attributes["eps"])[0])


def _npu_add_rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, residual, weight = inputs
    normed, _, total = torch_npu.npu_add_rms_norm(x, residual, weight, attributes["eps"])
    put(outputs[0], normed)
    put(outputs[1], total)


def _has_dims(signature: Signature) -> str | None:
    x = signature.inputs[0]
    assert x is not None
    return None if len(x.shape) >= _MIN_DIMS else f"takes tensors of {_MIN_DIMS} dims or more"


def _has_one_group(signature: Signature) -> str | None:
    return None if signature.attributes["num_groups"] == 1 else "takes one group"


_OFFSET = frozenset({"weight_offset"})

KERNELS = [
    plain_kernel("rms_norm", _rms_norm, additions=_OFFSET),
    plain_kernel("layer_norm", _layer_norm),
    plain_kernel("gated_rms_norm", _gated_rms_norm),
    fused_kernel("rms_norm", "npu_rms_norm", _npu_rms_norm, _has_dims, additions=_OFFSET),
    fused_kernel("add_rms_norm", "npu_add_rms_norm", _npu_add_rms_norm, _has_dims),
    fused_kernel("gated_rms_norm", "npu_rms_norm", _npu_gated_rms_norm, _has_one_group),
]
