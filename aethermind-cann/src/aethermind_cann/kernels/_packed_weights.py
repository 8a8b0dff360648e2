"""Weights in fp8 and mxfp4 on the device: the layout of their rows, and dequantisation.

These NPUs have neither type. A product dequantises its weight by table lookups, and multiplies floating-point matrices.
A row of K values is stored as

    fp8     its scale (float32), then K float8 values, padded to a multiple of 4 bytes
    mxfp4   the scales of its blocks of 32 (bfloat16), then 4-bit values, two in a byte, the first in the low bits
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from aethermind.dispatch import Pack
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import FP8, MXFP4, QuantizedWeight, WeightFormat

__all__ = ["PACKED_FORMATS", "PackedFormat", "Values"]

Array = Any

_FP8_SCALE_BYTES = 4
_MXFP4_SCALE_BYTES = 2
_BLOCK, _BLOCK_BYTES = 32, 16
"""The number of values of an mxfp4 block, and of the bytes that store them."""


class Values(NamedTuple):
    """A dequantised weight: `matrix` [..., N, K], times `scales` [..., N] (float32) unless they are None."""

    matrix: torch.Tensor
    scales: torch.Tensor | None


class PackedFormat(ABC):
    """How weights of a format are stored on the device: row by row, each with its scales."""

    format: WeightFormat

    @abstractmethod
    def row_bytes(self, num_columns: int) -> int:
        """Return the size of a row."""

    @abstractmethod
    def pack_rows(self, weight: QuantizedWeight, rows: Array) -> None:
        """Write a weight [N, K] to `rows`, zeros of uint8 [N, row_bytes]."""

    @abstractmethod
    def values(self, rows: torch.Tensor, num_columns: int, dtype: torch.dtype) -> Values:
        """Dequantise stored rows, uint8 [..., N, row_bytes]: to `dtype` if it represents all values exactly, else to
        float32.
        """

    def pack(self) -> Pack:
        """Return the `Pack` that kernels declare."""
        return Pack(
            f"rows of {self.format.name}",
            nbytes=lambda shape, _: shape[0] * self.row_bytes(shape[1]),
            pack=self._pack,
            weight_format=self.format.name,
        )

    def _pack(self, source: Array, destination: int) -> None:
        num_rows, num_columns = source.shape
        row_bytes = self.row_bytes(num_columns)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (num_rows * row_bytes)).from_address(destination))
        memory[:] = 0
        rows = memory.reshape(num_rows, row_bytes)
        for chunk in row_chunks(source.shape):
            is_packed = isinstance(source, QuantizedWeight)
            part = source.rows(chunk.start, chunk.stop) if is_packed else self.format.quantize(source[chunk])
            self.pack_rows(part, rows[chunk])


class _Fp8Rows(PackedFormat):
    format = FP8

    def row_bytes(self, num_columns: int) -> int:
        return _FP8_SCALE_BYTES + -(-num_columns // _FP8_SCALE_BYTES) * _FP8_SCALE_BYTES

    def pack_rows(self, weight: QuantizedWeight, rows: Array) -> None:
        rows[:, :_FP8_SCALE_BYTES] = weight.scales.view(np.uint8)
        rows[:, _FP8_SCALE_BYTES:][:, : weight.shape[1]] = weight.codes.view(np.uint8)

    def values(self, rows: torch.Tensor, num_columns: int, dtype: torch.dtype) -> Values:
        """Float8 values are exact in all dtypes; the scale of a row is left for the product."""
        codes = rows.narrow(-1, _FP8_SCALE_BYTES, num_columns)
        scales = rows.narrow(-1, 0, _FP8_SCALE_BYTES).contiguous().view(torch.float32)[..., 0]
        table = _fp8_table(rows.device, dtype)
        return Values(table.index_select(0, codes.reshape(-1).int()).view(codes.shape), scales)


class _Mxfp4Rows(PackedFormat):
    format = MXFP4

    def row_bytes(self, num_columns: int) -> int:
        return -(-num_columns // _BLOCK) * (_MXFP4_SCALE_BYTES + _BLOCK_BYTES)

    def pack_rows(self, weight: QuantizedWeight, rows: Array) -> None:
        num_rows, num_columns = weight.shape
        num_blocks = weight.scales.shape[1]
        exponents = weight.scales.astype(np.uint16)
        bits = np.where(exponents > 0, exponents << 7, 1 << 6)  # bfloat16 has 2⁻¹²⁷ as a subnormal number only
        codes = np.zeros((num_rows, num_blocks * _BLOCK), np.uint8)
        codes[:, :num_columns] = weight.codes
        rows[:, : num_blocks * _MXFP4_SCALE_BYTES] = bits.astype("<u2").view(np.uint8)
        rows[:, num_blocks * _MXFP4_SCALE_BYTES :] = codes[:, 0::2] | codes[:, 1::2] << 4

    def values(self, rows: torch.Tensor, num_columns: int, dtype: torch.dtype) -> Values:
        """Scaled values are exact in bfloat16; the range of float16 is too small for them."""
        dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        num_blocks = -(-num_columns // _BLOCK)
        codes = rows.narrow(-1, num_blocks * _MXFP4_SCALE_BYTES, num_blocks * _BLOCK_BYTES)
        scales = rows.narrow(-1, 0, num_blocks * _MXFP4_SCALE_BYTES).contiguous().view(torch.bfloat16)
        elements = _mxfp4_table(rows.device, dtype).index_select(0, codes.reshape(-1).int())
        blocks = elements.view(*scales.shape, _BLOCK) * scales.to(dtype)[..., None]
        return Values(blocks.flatten(-2)[..., :num_columns], None)


@cache
def _fp8_table(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the table [256] of the values of all bytes."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype).to(device)


@cache
def _mxfp4_table(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the table [256, 2] of the two 4-bit values in each byte."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([magnitudes, -magnitudes]).to(dtype)
    number = torch.arange(256)
    return torch.stack([values[number % 16], values[number // 16]], 1).to(device)


PACKED_FORMATS: tuple[PackedFormat, ...] = (_Fp8Rows(), _Mxfp4Rows())
