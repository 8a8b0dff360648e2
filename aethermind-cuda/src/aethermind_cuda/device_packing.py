"""Quantisation of weights on the GPU: rows are uploaded unquantised and packed there.

Rows are copied through two page-locked staging buffers to one device buffer of the same size. Each buffer holds at most
half of the matrix, or 16 rows if that is more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aethermind.hal.dtype import DType
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.hal.memory import Buffer, MemoryKind, align_up
from aethermind.hal.stream import Event
from aethermind.hal.tensor import Tensor
from aethermind.ops.weight_format import WeightFormat
from aethermind_cuda.launch import DeviceArray, Launch

if TYPE_CHECKING:
    from aethermind_cuda.backend import CudaBackend

__all__ = ["blocks_per_scale_vector", "format_family", "pack_rows_on_device", "quantize_on_device"]

_TILE_OUTPUTS = 16
_CHUNK_INPUTS = 32
_GROUP_INPUTS = 128
_THREADS_PER_GROUP = 4
_BLOCK_THREADS = 256
_STAGING_BYTES = 32 << 20


def blocks_per_scale_vector(format: WeightFormat) -> int:
    """Scale blocks that are stored contiguously per output: 4 for blocks of 32 inputs (a group of 128), else 1."""
    return _GROUP_INPUTS // _CHUNK_INPUTS if format.block == _CHUNK_INPUTS else 1


class _PackedWeight(ctypes.Structure):
    """See csrc/quantize_weight.cu."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("largest", ctypes.c_uint64),
        ("first_row", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("num_outputs", ctypes.c_int32),
        ("num_inputs", ctypes.c_int32),
        ("num_blocks", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("blocks_per_scale_vector", ctypes.c_int32),
    )


class _StagingBuffer(NamedTuple):
    """A page-locked buffer, and the event after the copy from it to the device."""

    buffer: Buffer
    copied: Event


def quantize_on_device(backend: CudaBackend, format: WeightFormat, source: Any, destination: Tensor) -> None:
    """Quantise a floating-point array [N, K] to a format of the core, in the layout of `quantized_weights`.

    The result is byte-identical to `quantized_pack` on the host. Raises InvalidArgumentError as the format does.
    """
    num_outputs, num_inputs = source.shape
    scales = format.num_blocks(num_inputs), format.block or num_inputs, blocks_per_scale_vector(format)

    def launches(first_row: int, rows: DeviceArray, largest: DeviceArray) -> Sequence[Launch]:
        addresses = destination.address, rows.address, largest.address
        weight = _PackedWeight(*addresses, first_row, rows.shape[0], num_outputs, num_inputs, *scales)
        return _launches(weight, format_family(format), rows.dtype)

    pack_rows_on_device(backend, format, source, destination, launches)


def pack_rows_on_device(
    backend: CudaBackend,
    format: WeightFormat,
    source: Any,
    destination: Tensor,
    launches: Callable[[int, DeviceArray, DeviceArray], Sequence[Launch]],
) -> None:
    """Upload an array [N, K] in parts of whole tiles of rows, and quantise each part to `destination`.

    `launches(first row, rows, largest)` returns the launches for a part. They raise the float32
    `largest` to the largest magnitude that the format may not represent, which `check_magnitude` reports.
    """
    import numpy as np

    from aethermind.ops.quantization import check_magnitude

    num_outputs, num_inputs = source.shape
    if not source.size:
        return
    dtype, row_bytes = DType.of_numpy(source.dtype), num_inputs * source.itemsize
    half = align_up(-(-num_outputs // 2), _TILE_OUTPUTS)
    rows_per_pass = max(_TILE_OUTPUTS, min(half, _STAGING_BYTES // row_bytes // _TILE_OUTPUTS * _TILE_OUTPUTS))
    alloc, events, copy_async = backend.allocator.alloc, backend.events, backend.transfer.copy_async
    stream = backend.streams.create(destination.buffer.device.index)
    staged = [_StagingBuffer(alloc(rows_per_pass * row_bytes, MemoryKind.PINNED), events.create()) for _ in range(2)]
    values = alloc(rows_per_pass * row_bytes)
    largest = Tensor.of(alloc(4), DType.FLOAT32, (1,))
    backend.transfer.fill(largest, 0, stream)
    largest_on_host = Tensor.of(alloc(4, MemoryKind.PINNED), DType.FLOAT32, (1,))
    try:
        for first_row in range(0, num_outputs, rows_per_pass):
            rows = source[first_row : first_row + rows_per_pass]
            staged.reverse()
            buffer, copied = staged[0]
            copied.synchronize()
            host_rows = Tensor.of(buffer, dtype, rows.shape)
            np.copyto(host_rows.numpy(), rows)
            drop_mapped_pages(rows)
            copy_async(Tensor.of(values, dtype, rows.shape), host_rows, stream)
            copied.record(stream)
            device_rows = DeviceArray(values.address, dtype, rows.shape)
            work = launches(first_row, device_rows, DeviceArray(largest.address, DType.FLOAT32, (1,)))
            backend.enqueue(work, stream)
        copy_async(largest_on_host, largest, stream)
    finally:
        stream.destroy()  # synchronises: the buffers are reused afterwards, also after an error
    check_magnitude(float(largest_on_host.numpy()[0]), format)


def _launches(weight: _PackedWeight, family: str, dtype: DType) -> list[Launch]:
    """The launches of csrc/quantize_weight.cu: scales, then codes."""
    rows = align_up(weight.num_rows, _TILE_OUTPUTS)
    num_groups = -(-weight.num_inputs // _GROUP_INPUTS)
    blocks_per_row = align_up(weight.num_blocks, weight.blocks_per_scale_vector)
    counts = {"scales": rows * blocks_per_row, "codes": rows * num_groups * _THREADS_PER_GROUP}
    return [
        Launch(
            "quantize_weight",
            f"quantize_{what}_{family}_{dtype}",
            (-(-count // _BLOCK_THREADS), 1, 1),
            (_BLOCK_THREADS, 1, 1),
            (weight,),
        )
        for what, count in counts.items()
    ]


def format_family(format: WeightFormat) -> str:
    """The format's name in kernel names, such as int4_zp. It does not contain the block size."""
    affine_suffix = "_offset" if format.has_offset else "_zp" if format.has_zero_point and format.bits != 2 else ""
    return f"int{format.bits}{affine_suffix}"
