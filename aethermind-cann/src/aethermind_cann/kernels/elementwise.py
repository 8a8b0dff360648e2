"""Element-wise operators by torch: arithmetic, exp, log and activations (SiLU, GELU, SwiGLU's silu_mul)."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu

from aethermind_cann.kernels._kernel import Attributes, Tensors, in_float32, into_output, plain_kernel, put

__all__ = ["KERNELS"]


def _relu(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.clamp(inputs[0], min=0, out=outputs[0])


def _silu_mul(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    gate, up = inputs
    put(outputs[0], torch.nn.functional.silu(gate.float()) * up.float())


def _gelu(x: torch.Tensor, *, approximate: bool) -> torch.Tensor:
    return gelu(x, approximate="tanh" if approximate else "none")


KERNELS = [
    *(plain_kernel(name, into_output(getattr(torch, name))) for name in ("add", "sub", "mul", "div")),
    plain_kernel("relu", _relu),
    plain_kernel("exp", in_float32(torch.exp)),
    plain_kernel("log", in_float32(torch.log)),
    plain_kernel("silu", in_float32(torch.nn.functional.silu)),
    plain_kernel("silu_mul", _silu_mul),
    plain_kernel("gelu", in_float32(_gelu)),
]
