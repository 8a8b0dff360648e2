"""Element-wise operators, reductions over the last dim, softmax, transposes and ALiBi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu

from aethermind_cann.kernels._kernel import Attributes, Function, Tensors, plain_kernel, put

__all__ = ["KERNELS"]


def _into(compute: Callable[..., Any]) -> Function:
    """A kernel that calls a torch function with an `out` argument."""
    return lambda inputs, outputs, _: compute(*inputs, out=outputs[0])


def _in_float32(compute: Callable[..., torch.Tensor]) -> Function:
    """A kernel that computes in float32 and rounds once."""
    return lambda inputs, outputs, attributes: put(outputs[0], compute(inputs[0].float(), **attributes))


def _relu(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    torch.clamp(inputs[0], min=0, out=outputs[0])


def _alibi(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    scores, slopes = inputs
    num_queries, num_keys = scores.shape[-2:]
    position = torch.arange(num_keys - num_queries, num_keys, device=scores.device)[:, None]
    distance = (torch.arange(num_keys, device=scores.device) - position).float()
    put(outputs[0], scores.float() + slopes[:, None, None] * distance)


def _silu_mul(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    gate, up = inputs
    put(outputs[0], torch.nn.functional.silu(gate.float()) * up.float())


def _gelu(x: torch.Tensor, *, approximate: bool) -> torch.Tensor:
    return gelu(x, approximate="tanh" if approximate else "none")


def _transpose(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    put(outputs[0], inputs[0].transpose(-2, -1))


def _permute_heads(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    put(outputs[0], inputs[0].transpose(-3, -2))


KERNELS = [
    *(plain_kernel(name, _into(getattr(torch, name))) for name in ("add", "sub", "mul", "div")),
    plain_kernel("relu", _relu),
    plain_kernel("exp", _in_float32(torch.exp)),
    plain_kernel("log", _in_float32(torch.log)),
    plain_kernel("silu", _in_float32(torch.nn.functional.silu)),
    plain_kernel("silu_mul", _silu_mul),
    plain_kernel("gelu", _in_float32(_gelu)),
    plain_kernel("alibi", _alibi),
    plain_kernel("sum", _in_float32(lambda x: x.sum(-1))),
    plain_kernel("mean", _in_float32(lambda x: x.mean(-1))),
    plain_kernel("max", _into(lambda x, out: torch.amax(x, -1, out=out))),
    plain_kernel("min", _into(lambda x, out: torch.amin(x, -1, out=out))),
    plain_kernel("argmax", lambda inputs, outputs, _: put(outputs[0], inputs[0].argmax(-1))),
    plain_kernel("softmax", _in_float32(lambda x: x.softmax(-1))),
    plain_kernel("transpose", _transpose),
    plain_kernel("permute_heads", _permute_heads),
]
