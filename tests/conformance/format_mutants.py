"""Kernels of one weight format each that pack it wrongly in one way; only the kit's cases of that format show it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel, Pack
from aethermind.hal import DType
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = ["FORMAT_BUGS", "format_kernels"]

Array = Any


def right(weight: QuantizedWeight) -> QuantizedWeight:
    return weight


def zeros_forgotten(weight: QuantizedWeight) -> QuantizedWeight:
    return replace(weight, zeros=np.zeros_like(weight.zeros))


def offsets_forgotten(weight: QuantizedWeight) -> QuantizedWeight:
    return replace(weight, offsets=np.zeros_like(weight.offsets))


def last_scale_of_the_block_before(weight: QuantizedWeight) -> QuantizedWeight:
    scales = weight.scales.copy()
    scales[:, -1:] = scales[:, -2:-1] if scales.shape[1] > 1 else scales[:, -1:]
    return replace(weight, scales=scales)


def scales_of_the_row_before(weight: QuantizedWeight) -> QuantizedWeight:
    return replace(weight, scales=np.roll(weight.scales, 1, axis=0))


FORMAT_BUGS: Mapping[str, Callable[[QuantizedWeight], QuantizedWeight]] = {
    "int8": last_scale_of_the_block_before,
    "int8_channel": scales_of_the_row_before,
    "int4": right,
    "int4_zp": zeros_forgotten,
    "int4_offset_g64": offsets_forgotten,
    "int2": right,
}


def format_kernels(device_type: str) -> list[Kernel]:
    """A `linear` and a `lm_head` for each of the formats, in float32."""
    return [
        _kernel(device_type, operator, name, bug)
        for operator in ("linear", "lm_head")
        for name, bug in FORMAT_BUGS.items()
    ]


def _kernel(device_type: str, operator: str, name: str, bug: Callable[[QuantizedWeight], QuantizedWeight]) -> Kernel:
    format = parse_format(name)
    assert format is not None
    pack = Pack(f"{name} mutant", lambda shape, _: 4 * shape[0] * shape[1], partial(_pack, format, bug), name)
    return Kernel(
        operator,
        device_type,
        f"{name} mutant",
        frozenset({DType.FLOAT32}),
        priority=9,
        function=_linear,
        packs={"weight": pack},
        weight_formats=frozenset({name}),
    )


def _pack(format: WeightFormat, bug: Callable[[QuantizedWeight], QuantizedWeight], source: Any, address: int) -> None:
    """The values in float32, row by row."""
    weight = source if isinstance(source, QuantizedWeight) else format.quantize(source)
    values = format.dequantize(bug(weight))
    ctypes.memmove(address, np.ascontiguousarray(values).ctypes.data, values.nbytes)


def _linear(inputs: Sequence[Array], outputs: Sequence[Array], _: Mapping[str, Any]) -> None:
    x, packed, *bias = inputs
    product = x @ packed.view(np.float32).reshape(-1, x.shape[-1]).T
    outputs[0][...] = product if not bias or bias[0] is None else product + bias[0]
