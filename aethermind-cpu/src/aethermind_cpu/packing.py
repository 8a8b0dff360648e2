"""Packing of weights into the layouts of the native kernels: dense and quantised, in parallel chunks."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from aethermind.dispatch.kernel import Pack
from aethermind.hal.dtype import DType
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.weight_format import MXFP4, QuantizedWeight, WeightFormat
from aethermind_cpu import _native
from aethermind_cpu.devices import num_physical_cores

__all__ = ["dense_pack", "quantized_pack"]

_ROWS_PER_CHUNK = 64
"""A multiple of the panel height of every packed layout, so that chunks can be packed in parallel."""
_BYTES_PER_CHUNK = 1 << 20
"""Fewest bytes of a chunk: the part of a weight that one thread packs."""
_BYTES_BEFORE_DROP = 8 << 20
"""Source bytes that a thread packs before it drops their pages. It bounds the resident part of a mapped file."""


def dense_pack(entry: _native.PackEntry) -> Pack:
    """Return the `Pack` of a dense layout."""
    return Pack(
        entry.name,
        nbytes=lambda shape, _: entry.packed_bytes(*_rows_and_columns(shape)),
        pack=partial(_pack_dense, entry),
        build=_packing_build_id(),
    )


def _pack_dense(entry: _native.PackEntry, source: Any, destination: int) -> None:
    """Pack a row-major array, which may be a read-only mapped file, to an address; large arrays on all cores."""
    assert source.flags.c_contiguous, "weights are packed from row-major arrays"
    _, columns = _rows_and_columns(source.shape)
    row_bytes = columns * source.itemsize

    def pack_rows(first: int, count: int) -> None:
        address = source.ctypes.data + first * row_bytes
        entry.pack(address, count, columns, destination + entry.packed_bytes(first, columns))

    _pack_in_chunks(source, pack_rows)


def _rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def quantized_pack(format: WeightFormat) -> Pack:
    """Return the `Pack` of a format. It packs QuantizedWeights, and floating-point arrays, which it quantises."""
    return Pack(
        f"panels16_{format.name}",
        nbytes=lambda shape, _: _layout_of(format).packed_bytes(*shape),
        pack=partial(_pack_quantized, format),
        weight_format=format.name,
        build=_packing_build_id(),
    )


@cache
def _layout_of(format: WeightFormat) -> _native.QuantizedLayout:
    if format == MXFP4:
        return _native.QuantizedLayout.mxfp4()
    has_super_blocks = format.super_block_size != 0
    return _native.QuantizedLayout(
        format.bits, format.block, format.has_zero_point, format.has_offset, has_super_blocks
    )


def _pack_quantized(format: WeightFormat, source: Any, destination: int) -> None:
    layout = _layout_of(format)
    if isinstance(source, QuantizedWeight):
        _pack_codes(layout, source, destination)
    elif format == MXFP4:  # checkpoints are published in this format, so quantising to it need not be fast
        _pack_codes(layout, format.quantize(source), destination)
    else:
        _pack_values(format, layout, source, destination)


def _pack_values(format: WeightFormat, layout: _native.QuantizedLayout, source: Any, destination: int) -> None:
    """Quantise and pack a row-major array, which may be a read-only mapped file; errors are those of the format."""
    assert source.flags.c_contiguous, "weights are packed from row-major arrays"
    columns = source.shape[1]
    address, dtype = source.ctypes.data, DType.of_numpy(source.dtype).code
    rejected: list[tuple[int, int]] = []

    def pack_rows(first: int, count: int) -> None:
        if not layout.pack_values(address, dtype, first, count, columns, destination):
            rejected.append((first, count))

    _pack_in_chunks(source, pack_rows)
    for first, count in rejected:
        format.quantize(source[first : first + count])
        raise AssertionError("the format accepts values that its packing rejects")


def _pack_codes(layout: _native.QuantizedLayout, source: QuantizedWeight, destination: int) -> None:
    import numpy as np

    columns = source.shape[1]
    codes, scales = np.ascontiguousarray(source.codes), np.ascontiguousarray(source.scales)
    parameters = [
        array if array is None else np.ascontiguousarray(array)
        for array in (source.zeros, source.offsets, source.super_block_scales)
    ]
    zeros, offsets, super_scales = (0 if array is None else array.ctypes.data for array in parameters)

    def pack_rows(first: int, count: int) -> None:
        layout.pack_codes(
            codes.ctypes.data, scales.ctypes.data, zeros, offsets, super_scales, first, count, columns, destination
        )

    _pack_in_chunks(codes, pack_rows)


@cache
def _packing_build_id() -> str:
    """Return an identifier of the packing code, for caches of packed weights: the native module's file."""
    status = os.stat(_native.__file__)
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def _pack_in_chunks(source: Any, pack_rows: Callable[[int, int], None]) -> None:
    """Call `pack_rows(first row, number of rows)` for all rows of an array; for large arrays in parallel.

    Packed pages of a mapped file are dropped from memory.
    """
    rows = len(source)
    num_chunks = max(1, min(source.nbytes // _BYTES_PER_CHUNK, rows // _ROWS_PER_CHUNK))
    if num_chunks > 1:
        num_chunks = min(num_chunks, _num_cores())
    rows_per_chunk = _round_up(math.ceil(rows / num_chunks))
    rows_before_drop = min(rows_per_chunk, _round_up(math.ceil(rows * _BYTES_BEFORE_DROP / max(source.nbytes, 1))))

    def pack_from(begin: int) -> None:
        end = min(begin + rows_per_chunk, rows)
        for first in range(begin, end, rows_before_drop):
            count = min(rows_before_drop, end - first)
            pack_rows(first, count)
            drop_mapped_pages(source[first : first + count])

    threads = [
        threading.Thread(target=pack_from, args=(first,)) for first in range(rows_per_chunk, rows, rows_per_chunk)
    ]
    for thread in threads:
        thread.start()
    pack_from(0)
    for thread in threads:
        thread.join()


@cache
def _num_cores() -> int:
    """The number of physical cores, cached because counting them takes as long as packing a weight."""
    return num_physical_cores()


def _round_up(num_rows: int) -> int:
    return max(1, math.ceil(num_rows / _ROWS_PER_CHUNK)) * _ROWS_PER_CHUNK
