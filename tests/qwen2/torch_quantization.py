"""Weight formats once more, in torch and block by block, as somebody writes them who has read their description."""

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
    rows = [torch.cat([convert(block) for block in row.split(length)]) for row in weight.detach().float()]
    return torch.stack(rows)


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


def _converter(kind: str, *, has_zero_point: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    if kind == "int8":
        return lambda x: _scaled(x, x.abs().max() / 127, 0, -127, 127)
    if kind == "int1":
        return lambda x: torch.where(x < 0, -1.0, 1.0) * x.double().abs().mean().float().half().float()
    if has_zero_point:
        return lambda x: _best(x, [_affine(x, steps, 2 ** int(kind[3:]) - 1) for steps in _STEPS_ZP[kind]])
    return lambda x: _best(x, [_scaled(x, _peak(x) / -steps, 0, -8, 7) for steps in _STEPS[kind]])


def _peak(x: torch.Tensor) -> torch.Tensor:
    return x[int(x.abs().argmax())]


def _affine(x: torch.Tensor, steps: float, most: int) -> torch.Tensor:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    zero = float((-low * min(steps, most) / (high - low)).round())
    return _scaled(x, (high - low) / steps, zero, 0, most)


def _on_a_line(x: torch.Tensor) -> torch.Tensor:
    """4 bits: each first line is followed by two of least squares."""
    candidates = []
    for steps in _STEPS_OFFSET:
        scale = ((x.max() - x.min()) / steps).half()
        offset = (0.5 * x.min() + 0.5 * x.max() - 7.5 * scale.float()).half()
        for _ in range(3):
            codes = ((x - offset.float()) * (1 / scale.float())).round().clamp(0, 15)
            candidates.append(scale.float() * codes + offset.float())
            c, y = codes.double(), x.double()
            slope = (len(x) * (c * y).sum() - c.sum() * y.sum()) / (len(x) * (c * c).sum() - c.sum() ** 2)
            scale, offset = slope.float().half(), ((y.sum() - slope * c.sum()) / len(x)).float().half()
    return _best(x, candidates)


def _scaled(x: torch.Tensor, scale: torch.Tensor, zero: float, low: int, high: int) -> torch.Tensor:
    scale = scale.half().float()
    codes = ((x * (1 / scale)).round() + zero).clamp(low, high)
    return scale * (codes - zero)


def _best(x: torch.Tensor, candidates: Sequence[torch.Tensor]) -> torch.Tensor:
    return min(candidates, key=lambda values: float(((x - values).double() ** 2).sum()))
