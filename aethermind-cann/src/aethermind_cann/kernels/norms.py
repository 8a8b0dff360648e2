"""Norms over the last dim."""

from __future__ import annotations

import torch
import torch_npu

from aethermind.dispatch import Signature
from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel, put

__all__ = ["KERNELS"]

_MIN_DIMS = 2
"""Ranks that torch_npu documents for its norms."""


def _rms_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, weight = inputs
    put(outputs[0], _normed(x.float(), attributes["eps"]) * (attributes["weight_offset"] + weight.float()))


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def _layer_norm(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, weight, bias = (None if tensor is None else tensor.float() for tensor in inputs)
    assert x is not None
    put(outputs[0], torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, attributes["eps"]))


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


_OFFSET = frozenset({"weight_offset"})

KERNELS = [
    plain_kernel("rms_norm", _rms_norm, additions=_OFFSET),
    plain_kernel("layer_norm", _layer_norm),
    fused_kernel("rms_norm", "npu_rms_norm", _npu_rms_norm, _has_dims, additions=_OFFSET),
    fused_kernel("add_rms_norm", "npu_add_rms_norm", _npu_add_rms_norm, _has_dims),
]
