"""Encoders of matrices in the layouts of compressed-tensors, which transformers and vLLM read, and their configuration.

    pack-quantized   weight-only integers. `weight_packed` int32 [N, ⌈K · bits / 32⌉] has codes plus 2^(bits − 1), the
                     first in the lowest bits; `weight_shape` is (N, K); `weight_scale` [N, K / group] has the dtype of
                     the model
    int-quantized    `weight` int8 [N, K], `weight_scale` [N, 1]; activations are int8 with a scale for each token
    float-quantized  `weight` float8_e4m3fn [N, K], `weight_scale` [N, 1]; activations are FP8 likewise

A value is scale · code. Zero points are left out: transformers 5 does not load them. Source: the compressed-tensors
library, 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.safetensors_writer import TensorSpec
from aethermind.checkpoint.source import dtype_names
from aethermind.ops.quantization import encode, inverses, row_chunks
from aethermind.ops.weight_format import FP8, WeightFormat, parse_format

__all__ = ["CompressedTensorsScheme", "SCHEMES"]

Array = npt.NDArray[Any]

_PACKED, _INT, _FLOAT = "pack-quantized", "int-quantized", "float-quantized"
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class CompressedTensorsScheme:
    """How the matrices of a model are stored: the scheme's name on the command line, its layout and weight format.

    `quantizes_activations` is written to the configuration: other engines then compute with activations of the same
    type as the codes.
    """

    name: str
    layout: str
    format: WeightFormat
    quantizes_activations: bool = False

    def why_not_storable(self, shape: tuple[int, int]) -> str:
        """Return why a matrix [N, K] cannot be stored; empty if it can."""
        _, columns = shape
        if self.format.block and columns % self.format.block:
            return f"{columns} columns are not a multiple of the group size {self.format.block}"
        return ""

    def specs(self, name: str, shape: tuple[int, int], dtype_name: str) -> tuple[TensorSpec, ...]:
        """The tensors that `encode` computes of the matrix `X.weight`; `dtype_name` is the dtype of the model."""
        rows, columns = shape
        groups = self.format.num_blocks(columns)
        scale = TensorSpec(f"{name}_scale", dtype_name, (rows, groups))
        if self.layout != _PACKED:
            return TensorSpec(name, "I8" if self.layout == _INT else "F8_E4M3", shape), scale
        packed = TensorSpec(f"{name}_packed", "I32", (rows, -(-columns * self.format.bits // 32)))
        return packed, scale

    def shape_spec(self, name: str) -> TensorSpec | None:
        """The tensor that stores the shape (N, K) of a matrix; None in layouts without one."""
        return TensorSpec(f"{name}_shape", "I64", (2,)) if self.layout == _PACKED else None

    def encode(self, array: Array, dtype_name: str, importance: Array | None = None) -> tuple[Array, ...]:
        """Quantise a matrix [N, K], or some of its rows; returns the arrays of `specs`.

        Scales are rounded to the dtype of the model, and codes are those of the rounded scales. `importance` is as of
        `ops.quantization.encode`. InvalidArgumentError for values that are not finite, or too large for scales.
        """
        dtype = dtype_names()[dtype_name]
        if self.format == FP8:
            quantised = self.format.quantize(array)
            scales = quantised.scales.astype(dtype)
            return _nearest_codes(array, scales, (-448, 448), quantised.codes.dtype), scales
        scales = encode(self.format, array, importance).scales.astype(dtype)
        half_range = 1 << (self.format.bits - 1)
        codes = _nearest_codes(array, scales, (-half_range, half_range - 1), np.dtype(np.int8))
        return (codes if self.layout == _INT else _pack(codes.astype(np.int16) + half_range, self.format.bits)), scales

    def quantization_config(self, ignored: Sequence[str]) -> dict[str, Any]:
        """The field of config.json; `ignored` are the linear modules that are not quantised."""
        weights = {
            "num_bits": self.format.bits,
            "type": "float" if self.format == FP8 else "int",
            "symmetric": True,
            "strategy": "group" if self.format.block else "channel",
            "group_size": self.format.block or None,
            "dynamic": False,
        }
        activations = {**weights, "strategy": "token", "dynamic": True} if self.quantizes_activations else None
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": activations,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.layout,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignored),
            "kv_cache_scheme": None,
        }


def _nearest_codes(array: Array, scales: Array, limits: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """The codes nearest to values [N, K] for scales [N, groups], from `limits[0]` to `limits[1]`."""
    codes = np.empty(array.shape, dtype)
    inverse = inverses(scales.astype(np.float32))
    for chunk in row_chunks(array.shape):
        values = array[chunk].astype(np.float32).reshape(chunk.stop - chunk.start, scales.shape[1], -1)
        scaled = values * inverse[chunk][..., None]
        if dtype.kind == "i":
            scaled = np.rint(scaled)
        codes[chunk] = np.clip(scaled, *limits).reshape(codes[chunk].shape).astype(dtype)
    return codes


def _pack(codes: Array, bits: int) -> Array:
    """Pack unsigned codes [n, count] of 4 or 8 bits into int32 [n, ⌈count · bits / 32⌉], the first in the lowest
    bits.
    """
    rows, columns = codes.shape
    per_word = 32 // bits
    padded = np.zeros((rows, -(-columns // per_word) * per_word), np.uint8)
    padded[:, :columns] = codes
    if bits == 4:
        padded = padded[:, ::2] | padded[:, 1::2] << 4
    return np.ascontiguousarray(padded).view("<i4")


def _format(name: str) -> WeightFormat:
    format = parse_format(name)
    assert format is not None, "schemes have the names of the core's formats"
    return format


_WEIGHT_ONLY = ("int4_g32", "int4_g64", "int4_g128", "int4_channel", "int8_g128", "int8_channel")

SCHEMES: Mapping[str, CompressedTensorsScheme] = MappingProxyType(
    {
        **{name: CompressedTensorsScheme(name, _PACKED, _format(name)) for name in _WEIGHT_ONLY},
        "fp8": CompressedTensorsScheme("fp8", _FLOAT, FP8, quantizes_activations=True),
        "w8a8": CompressedTensorsScheme("w8a8", _INT, _format("int8_channel"), quantizes_activations=True),
    }
)
"""The schemes by name. All but w8a8 have the names of weight formats."""
