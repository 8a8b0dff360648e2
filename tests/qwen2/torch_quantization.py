"""Weight formats once more, in torch and step by step, as somebody writes them who has read their description."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["dequantized", "quantized_model"]

_STEPS = (8, 7.25, 8.75, 10)
_STEPS_OFFSET = (15, 15.75, 16.5, 17.5)
_STEPS_ZP = {"int4": (15, 14, 15.75, 16.5, 17.5, 18.75), "int2": (3, 2, 3.25, 3.5, 4, 4.5, 5, 6)}


def dequantized(name: str, weight: torch.Tensor) -> torch.Tensor:
    """The float32 values that a weight [N, K] has in a format."""
    if name == "fp8":
        largest = weight.detach().float().abs().amax(1, keepdim=True)
        codes = (weight.detach().float() * (448 / largest)).to(torch.float8_e4m3fn)
        return codes.float() * (largest / 448)
    kind, *suffixes = name.split("_")
    if "k" in suffixes:
        return torch.cat([_in_two_levels(values) for values in weight.detach().float().split(256, dim=1)], dim=1)
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
    return _symmetric


def _peak(x: torch.Tensor) -> torch.Tensor:
    return x.gather(1, x.abs().argmax(1, keepdim=True))


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    """4 bits: each scale is followed by two of weighted least squares."""
    y = x.double()
    weights = ((y**2).mean(1, keepdim=True).sqrt().float() + x.abs()).double()
    candidates = []
    for steps in _STEPS:
        scale = _peak(x) / -steps
        for _ in range(3):
            candidates.append(_scaled(x, scale, 0, -8, 7))
            codes = (candidates[-1] / scale.half().float()).round().double()
            scale = ((weights * codes * y).sum(1, keepdim=True) / (weights * codes**2).sum(1, keepdim=True)).float()
    return torch.stack(candidates)[_first_of_least(x, candidates, weights), torch.arange(len(x))]


def _affine(x: torch.Tensor, steps: float, most: int) -> torch.Tensor:
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    zero = (-low * min(steps, most) / (high - low)).round()
    return _scaled(x, (high - low) / steps, zero, 0, most)


def _lines(x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """4 bits: scales and offsets; each first line is followed by two of least squares."""
    lines = []
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    for steps in _STEPS_OFFSET:
        scale = ((high - low) / steps).half()
        offset = (0.5 * low + 0.5 * high - 7.5 * scale.float()).half()
        for _ in range(3):
            lines.append((scale.float(), offset.float()))
            c, y = _codes(x, *lines[-1]).double(), x.double()
            of_codes, of_values = c.sum(1, keepdim=True), y.sum(1, keepdim=True)
            products, squares = (c * y).sum(1, keepdim=True), (c * c).sum(1, keepdim=True)
            slope = (x.shape[1] * products - of_codes * of_values) / (x.shape[1] * squares - of_codes**2)
            scale, offset = slope.float().half(), ((of_values - slope * of_codes) / x.shape[1]).float().half()
    return lines


def _codes(x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return ((x - offset) * (1 / scale)).round().clamp(0, 15)


def _on(x: torch.Tensor, lines: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return [scale * _codes(x, scale, offset) + offset for scale, offset in lines]


def _on_a_line(x: torch.Tensor) -> torch.Tensor:
    return _best(x, _on(x, _lines(x)))


def _in_two_levels(x: torch.Tensor) -> torch.Tensor:
    """4 bits of up to 256 values of each row. Beside negative offsets, a positive one gives way to the origin."""
    best = []
    for run in x.split(32, dim=1):
        lines = _lines(run)
        chosen = _first_of_least(run, _on(run, lines)), torch.arange(len(x))
        best.append([torch.stack(side)[chosen] for side in zip(*lines, strict=True)])
    scales, offsets = (torch.cat(side, dim=1) for side in zip(*best, strict=True))
    reaches = torch.cat([run.amax(1, keepdim=True) for run in x.split(32, dim=1)], dim=1)
    is_negative = offsets.amin(1, keepdim=True) < 0
    is_other = is_negative & (offsets > 0)
    scales, offsets = torch.where(is_other, reaches / 15, scales), torch.where(is_other, 0, offsets)
    of_scales, of_offsets = _unit(scales.amax(1, keepdim=True)), _unit(offsets.abs().amax(1, keepdim=True))
    of_offsets = torch.where(is_negative, -of_offsets, of_offsets)
    values = []
    for run, scale, offset in zip(x.split(32, dim=1), scales.split(1, dim=1), offsets.split(1, dim=1), strict=True):
        counts = (scale * (1 / of_scales)).round(), (offset * (1 / of_offsets)).round()
        near = [
            (of_scales * (counts[0] + i).clamp(1, 63), of_offsets * (counts[1] + j).clamp(0, 63))
            for i in (0, -1, 1)
            for j in (0, -1, 1, -2, 2)
        ]
        values.append(_best(run, _on(run, near)))
    return torch.cat(values, dim=1)


def _unit(largest: torch.Tensor) -> torch.Tensor:
    """The float16 numbers of which 63 reach the largest."""
    unit = (largest / 63).half()
    above = (unit.view(torch.int16) + 1).view(torch.float16)
    return torch.where(63 * unit.float() < largest, above, unit).float()


def _scaled(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | int, low: int, high: int) -> torch.Tensor:
    scale = scale.half().float()
    codes = ((x * (1 / scale)).round() + zero).clamp(low, high)
    return scale * (codes - zero)


def _best(x: torch.Tensor, candidates: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of each block the first of those with the least error."""
    return torch.stack(list(candidates))[_first_of_least(x, candidates), torch.arange(len(x))]


def _first_of_least(
    x: torch.Tensor, candidates: Sequence[torch.Tensor], weights: torch.Tensor | float = 1.0
) -> torch.Tensor:
    errors = (weights * (x - torch.stack(list(candidates))).double() ** 2).sum(2)
    return (errors == errors.amin(0)).to(torch.uint8).argmax(0)
