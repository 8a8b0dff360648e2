"""Weight formats once more, in torch and step by step, as somebody writes them who has read their description."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["dequantized", "quantized_model"]

_STEPS = {"int4": (8, 7, 7.25, 7.75, 8.25, 8.75, 9.25, 10)}
_STEPS_OFFSET = (15, 15.75, 16.5, 17.5)
_STEPS_ZP = {"int4": (15, 14, 15.75, 16.5, 17.5, 18.75), "int2": (3, 2, 3.25, 3.5, 4, 4.5, 5, 6)}


def dequantized(name: str, weight: torch.Tensor) -> torch.Tensor:
    """The float32 values that a weight [N, K] has in a format."""
    kind, *suffixes = name.split("_")
    length = weight.shape[1] if "channel" in suffixes else 32
    length = next((int(suffix[1:]) for suffix in suffixes if suffix.startswith("g")), length)
    convert = (
        _on_a_line if "offset" in suffixes else _converter(kind, has_zero_point="zp" in suffixes or kind == "int2")
    )
    return torch.cat([convert(blocks) for blocks in weight.detach().float().split(length, dim=1)], dim=1)


def quantized_model(model: Any, name: str, head: str) -> Any:
    """A copy of a transformers model with its projections in one format and its head in another.

    Where the head is the embedding as well, rows of it are looked up as they are if the format has fewer than 8 bits.
    """
    model = copy.deepcopy(model)
    embedding = model.model.embed_tokens
    is_tied = embedding.weight is model.lm_head.weight
    head_weight = dequantized(head, model.lm_head.weight).to(model.lm_head.weight.dtype)
    model.lm_head.weight = torch.nn.Parameter(head_weight)
    if is_tied and head.startswith("int8"):
        embedding.weight = model.lm_head.weight
    for layer in model.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = dequantized(name, module.weight).to(module.weight.dtype)
    return model


# From here on x [N, length] is a block of every row, and what is one of a block [N, 1].


def _converter(kind: str, *, has_zero_point: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    if kind == "int8":
        return lambda x: _scaled(x, x.abs().amax(1, keepdim=True) / 127, 0, -127, 127)
    if kind == "int1":
        return lambda x: torch.where(x < 0, -1.0, 1.0) * x.double().abs().mean(1, keepdim=True).float().half().float()
    if has_zero_point:
        return lambda x: _best(x, [_affine(x, steps, 2 ** int(kind[3:]) - 1) for steps in _STEPS_ZP[kind]])
    return lambda x: _best(x, [_scaled(x, _peak(x) / -steps, 0, -8, 7) for steps in _STEPS[kind]])


def _peak(x: torch.Tensor) -> torch.Tensor:
    return x.gather(1, x.abs().argmax(1, keepdim=True))


def _affine(x: torch.Tensor, steps: float, most: int) -> torch.Tensor:
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    zero = (-low * min(steps, most) / (high - low)).round()
    return _scaled(x, (high - low) / steps, zero, 0, most)


def _on_a_line(x: torch.Tensor) -> torch.Tensor:
    """4 bits: each first line is followed by two of least squares."""
    candidates = []
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    for steps in _STEPS_OFFSET:
        scale = ((high - low) / steps).half()
        offset = (0.5 * low + 0.5 * high - 7.5 * scale.float()).half()
        for _ in range(3):
            codes = ((x - offset.float()) * (1 / scale.float())).round().clamp(0, 15)
            candidates.append(scale.float() * codes + offset.float())
            c, y = codes.double(), x.double()
            of_codes, of_values = c.sum(1, keepdim=True), y.sum(1, keepdim=True)
            products, squares = (c * y).sum(1, keepdim=True), (c * c).sum(1, keepdim=True)
            slope = (x.shape[1] * products - of_codes * of_values) / (x.shape[1] * squares - of_codes**2)
            scale, offset = slope.float().half(), ((of_values - slope * of_codes) / x.shape[1]).float().half()
    return _best(x, candidates)


def _scaled(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | int, low: int, high: int) -> torch.Tensor:
    scale = scale.half().float()
    codes = ((x * (1 / scale)).round() + zero).clamp(low, high)
    return scale * (codes - zero)


def _best(x: torch.Tensor, candidates: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of each block the first of those with the least error."""
    values = torch.stack(list(candidates))
    errors = ((x - values).double() ** 2).sum(2)
    first = (errors == errors.amin(0)).to(torch.uint8).argmax(0)
    return values[first, torch.arange(len(x))]
