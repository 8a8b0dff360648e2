"""Weights in formats of few bits, in the layout of the native kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.dispatch.kernel import Pack
from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat
from aethermind_cpu import _native
from aethermind_cpu.packing import build_of_packing, pack_in_parts

__all__ = ["quantized_pack"]


def quantized_pack(format: WeightFormat) -> Pack:
    """The layout of a format; it takes floating-point arrays, which it quantises itself, and QuantizedWeights."""
    layout = _native.QuantizedLayout(
        format.bits, format.block, format.has_zero_point, format.has_offset, format.super_block != 0
    )
    return Pack(
        f"panels16_{format.name}",
        nbytes=lambda shape, _: layout.packed_bytes(*shape),
        pack=partial(_pack, format, layout),
        weight_format=format.name,
        build=build_of_packing(),
    )


def _pack(format: WeightFormat, layout: _native.QuantizedLayout, source: Any, destination: int) -> None:
    if isinstance(source, QuantizedWeight):
        _pack_codes(layout, source, destination)
    else:
        _pack_values(format, layout, source, destination)


def _pack_values(format: WeightFormat, layout: _native.QuantizedLayout, source: Any, destination: int) -> None:
    """Quantise and pack a row-major array, perhaps a read-only mapped file; InvalidArgumentError as by the format."""
    assert source.flags.c_contiguous, "weights are packed from row-major arrays"
    columns = source.shape[1]
    address, dtype = source.ctypes.data, DType.of_numpy(source.dtype).code
    refused: list[tuple[int, int]] = []

    def pack_part(first: int, count: int) -> None:
        if not layout.pack_values(address, dtype, first, count, columns, destination):
            refused.append((first, count))

    pack_in_parts(source, pack_part)
    for first, count in refused:
        format.quantize(source[first : first + count])
        raise AssertionError("a format takes what its packing refuses")


def _pack_codes(layout: _native.QuantizedLayout, source: QuantizedWeight, destination: int) -> None:
    import numpy as np

    columns = source.shape[1]
    codes, scales = np.ascontiguousarray(source.codes), np.ascontiguousarray(source.scales)
    given = (source.zeros, source.offsets, source.units)
    sides = [side if side is None else np.ascontiguousarray(side) for side in given]
    zeros, offsets, units = (0 if side is None else side.ctypes.data for side in sides)

    def pack_part(first: int, count: int) -> None:
        layout.pack_codes(
            codes.ctypes.data, scales.ctypes.data, zeros, offsets, units, first, count, columns, destination
        )

    pack_in_parts(codes, pack_part)
