"""Element-wise operators by torch: arithmetic, exp, log, casts, soft caps and activations (SiLU, GELU, gated SiLU)."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu

from aethermind.ops.operator import BROADCASTING
from aethermind_cann.kernels._kernel import Attributes, Tensors, in_float32, into_output, plain_kernel, put

__all__ = ["KERNELS", "gated_silu"]


def _relu(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.clamp(inputs[0], min=0, out=outputs[0])


def _cast(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    outputs[0].copy_(inputs[0])


def gated_silu(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: float = 1.0, limit: float = 0.0, up_offset: float = 0.0
) -> torch.Tensor:
    """gate · sigmoid(alpha · gate) · (up + up_offset) in float32; a `limit` above 0 bounds gate above, and up."""
    gate, up = gate.float(), up.float()
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + up_offset)


def _gated_silu(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], gated_silu(*inputs, **attributes))


def _sigmoid_mul(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    gate, x = inputs
    put(outputs[0], torch.sigmoid(gate.float()) * x.float())


def _scaled(x: torch.Tensor, *, factor: float) -> torch.Tensor:
    return x * factor


def _clamped(x: torch.Tensor, *, limit: float) -> torch.Tensor:
    return torch.clamp(x, -limit, limit)


def _softcapped(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def _gelu(x: torch.Tensor, *, approximate: bool) -> torch.Tensor:
    return gelu(x, approximate="tanh" if approximate else "none")


KERNELS = [
    *(
        plain_kernel(name, into_output(getattr(torch, name)), additions=frozenset({BROADCASTING}))
        for name in ("add", "sub", "mul", "div")
    ),
    plain_kernel("cast", _cast),
    plain_kernel("relu", _relu),
    plain_kernel("exp", in_float32(torch.exp)),
    plain_kernel("log", in_float32(torch.log)),
    plain_kernel("silu", in_float32(torch.nn.functional.silu)),
    plain_kernel("silu_mul", _gated_silu),
    plain_kernel("clamped_silu_mul", _gated_silu),
    plain_kernel("sigmoid_mul", _sigmoid_mul),
    plain_kernel("gelu", in_float32(_gelu)),
    plain_kernel("scale", in_float32(_scaled)),
    plain_kernel("clamp", in_float32(_clamped)),
    plain_kernel("softcap", in_float32(_softcapped)),
]
