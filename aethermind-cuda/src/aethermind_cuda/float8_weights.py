"""Packing of weights in fp8 into the layout of `csrc/common/float8_weight.cuh`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.dispatch.kernel import Pack
from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.hal.tensor import Tensor
from aethermind.ops.weight_format import FP8, QuantizedWeight, WeightFormat
from aethermind_cuda.device_packing import pack_rows_on_device
from aethermind_cuda.launch import DeviceArray, Launch
from aethermind_cuda.quantized_weights import pack_rows_on_host, quantized_pack

if TYPE_CHECKING:
    from aethermind_cuda.backend import CudaBackend

__all__ = ["FLOAT8_PACK", "Float8Layout", "quantize_rows", "weight_pack"]

_ROW_ALIGNMENT = 16
_ROWS_OF_SCALES = 16
"""Scales are padded to a multiple of this many rows: cuBLASLt multiplies multiples of 16 outputs."""
_VALUES_PER_THREAD = 16
_MAX_THREADS = 512
_WARP = 32

Array = Any


@dataclass(frozen=True, slots=True)
class Float8Layout:
    """The layout of a weight [N, K]: row-major codes, rows padded to a multiple of 16 bytes, then a scale for each row.

    Scales are padded to the size of a multiple of 16 rows of codes. So adjacent weights are one matrix of codes, in
    which the rows between them hold scales and are ignored.
    """

    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """K, padded."""
        return align_up(self.shape[1], _ROW_ALIGNMENT)

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes; scales follow them."""
        return self.shape[0] * self.row_bytes

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales, without padding."""
        return self.shape[0] * DType.FLOAT32.itemsize

    @property
    def num_rows(self) -> int:
        """The number of rows, of `row_bytes` each, that codes and scales take together."""
        return self.shape[0] + -(-self.scale_bytes // max(1, _ROWS_OF_SCALES * self.row_bytes)) * _ROWS_OF_SCALES

    @property
    def nbytes(self) -> int:
        """Total bytes."""
        return self.num_rows * self.row_bytes if self.row_bytes else self.scale_bytes

    def codes(self, address: int) -> DeviceArray:
        """The codes [N, padded K] of a matrix at an address."""
        return DeviceArray(address, DType.FLOAT8_E4M3FN, (self.shape[0], self.row_bytes))

    def scales(self, address: int) -> DeviceArray:
        """Its scales, float32 [N]."""
        return DeviceArray(address + self.code_bytes, DType.FLOAT32, self.shape[:1])


def quantize_rows(
    x: DeviceArray, codes: DeviceArray, scales: DeviceArray, largest: DeviceArray | None = None
) -> Launch:
    """Quantise x [R, K] to codes [R, padded K] and scales [R]: csrc/quantize_rows.cu."""
    num_rows, num_inputs = x.shape
    threads = min(_MAX_THREADS, align_up(-(-num_inputs // _VALUES_PER_THREAD), _WARP))
    arguments = (codes, scales, x, num_inputs, largest)
    return Launch("quantize_rows", f"quantize_rows_{x.dtype}", (num_rows, 1, 1), (threads, 1, 1), arguments)


def _quantize_on_device(backend: CudaBackend, source: Array, destination: Tensor) -> None:
    """Quantise a floating-point array [N, K] on the device, to the bytes that `_pack_on_host` writes."""
    layout = Float8Layout(source.shape)

    def launches(first_row: int, rows: DeviceArray, largest: DeviceArray) -> list[Launch]:
        codes, scales = layout.codes(destination.address), layout.scales(destination.address)
        codes = codes._replace(address=codes.address + first_row * layout.row_bytes)
        scales = scales._replace(address=scales.address + first_row * DType.FLOAT32.itemsize)
        return [quantize_rows(rows, codes, scales, largest)]

    pack_rows_on_device(backend, FP8, source, destination, launches)


def _pack_on_host(source: Array | QuantizedWeight, destination: int) -> None:
    """Pack into host memory at an address; raises InvalidArgumentError as the format does."""
    import numpy as np

    rows, columns = source.shape
    layout = Float8Layout((rows, columns))
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * layout.nbytes).from_address(destination))
    codes = memory[: layout.code_bytes].reshape(rows, layout.row_bytes)
    scales = memory[layout.code_bytes :][: layout.scale_bytes].view(np.float32)
    memory[layout.code_bytes + layout.scale_bytes :] = 0

    def pack_rows(begin: int, part: QuantizedWeight) -> None:
        end = begin + part.shape[0]
        codes[begin:end, :columns] = part.codes.view(np.uint8)
        codes[begin:end, columns:] = 0
        scales[begin:end] = part.scales[:, 0] if columns else 0

    pack_rows_on_host(FP8, source, pack_rows)


def _nbytes(shape: tuple[int, ...], _: DType) -> int:
    rows, columns = shape
    return Float8Layout((rows, columns)).nbytes


FLOAT8_PACK = Pack(
    "rows_fp8",
    _nbytes,
    _pack_on_host,
    weight_format=FP8.name,
    pack_on_device=_quantize_on_device,
    is_adjacent=True,
)
"""Packs QuantizedWeights in fp8, and quantises floating-point arrays, on the GPU where they are loaded to one."""


def weight_pack(format: WeightFormat) -> Pack:
    """The `Pack` of a weight format."""
    return FLOAT8_PACK if format == FP8 else quantized_pack(format)
