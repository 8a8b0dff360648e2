"""Rotary embedding: the table of a step, and its application."""

from __future__ import annotations

import torch
import torch_npu

from aethermind.dispatch import Signature
from aethermind_cann.kernels._kernel import Attributes, Tensors, fused_kernel, plain_kernel, put
from aethermind_cann.run_memo import host_decision, memoised

__all__ = ["KERNELS", "rotated"]

_MAX_FLOAT32_POSITION = 2**24
_MAX_HEADS, _MAX_HEAD_DIM = 999, 894
"""Limits of npu_rotary_mul by its documentation: N < 1000, D < 896 and even."""


def _rope_table(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    positions, frequencies = inputs
    # Positions beyond float32 precision are rare, and float64 is slow: the vector units lack it.
    needs_float64 = host_decision(positions, _exceeds_float32)
    if needs_float64:
        frequencies = frequencies.double()
    angle = positions.to(frequencies.dtype)[:, None] * frequencies
    if needs_float64:
        float32_angle = (positions.float()[:, None] * inputs[1]).double()
        angle = torch.where(positions.abs()[:, None] <= _MAX_FLOAT32_POSITION, float32_angle, angle)
    table = torch.cat([angle.cos(), angle.sin()], -1)
    put(outputs[0], table * attributes["scale"])


def _exceeds_float32(positions: list[int]) -> bool:
    return max(map(abs, positions), default=0) > _MAX_FLOAT32_POSITION


def rotated(x: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate the first R elements of `x` [..., C] in float32 by `table` [..., R]: cosines, then sines."""
    rotary_dim = table.shape[-1]
    half = rotary_dim // 2
    cos, sin = table[..., :half], table[..., half:]
    x32, rest = x[..., :rotary_dim].float(), x[..., rotary_dim:].float()
    first, second = (x32[..., 0::2], x32[..., 1::2]) if interleaved else (x32[..., :half], x32[..., half:])
    pair = (first * cos - second * sin, second * cos + first * sin)
    result = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([result, rest], -1) if rest.shape[-1] else result


def _rope(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, table = inputs
    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))


def _npu_rotary_mul(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """Compute in float32, because cosines of 16 bits would change the angles. The layout is BSND, with tokens as S."""
    x, table = inputs
    interleaved = attributes["interleaved"]
    cos, sin = memoised(("rotary", interleaved), table, lambda: _cosines_sines(table, interleaved))
    result = torch_npu.npu_rotary_mul(x.float()[None], cos, sin, "interleave" if interleaved else "half")
    put(outputs[0], result[0])


def _cosines_sines(table: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [1, T, 1, C] each: every angle twice, for both elements of a pair."""
    half = table.shape[-1] // 2
    cos, sin = (
        part.repeat_interleave(2, -1) if interleaved else torch.cat([part, part], -1)
        for part in (table[:, :half], table[:, half:])
    )
    return cos[None, :, None], sin[None, :, None]


def _unsupported_reason(signature: Signature) -> str | None:
    x, table = signature.inputs
    assert x is not None
    assert table is not None
    if table.shape[-1] != x.shape[-1]:
        return "rotates whole heads"
    _, num_heads, head_dim = x.shape
    if not isinstance(num_heads, int) or num_heads > _MAX_HEADS:
        return f"takes up to {_MAX_HEADS} heads"
    if not isinstance(head_dim, int) or head_dim > _MAX_HEAD_DIM:
        return f"takes heads of up to {_MAX_HEAD_DIM}"
    return None


KERNELS = [
    plain_kernel("rope_table", _rope_table),
    plain_kernel("rope", _rope),
    fused_kernel("rope", "npu_rotary_mul", _npu_rotary_mul, _unsupported_reason),
]
