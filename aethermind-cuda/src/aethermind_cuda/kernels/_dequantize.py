"""Matrix products of many tokens with a quantised weight: dequantise some rows at a time, then multiply by cuBLASLt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.launch import DeviceArray, Launch, Work
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = [
    "MIN_DEQUANTIZED_GATE_UP_TOKENS",
    "MIN_DEQUANTIZED_TOKENS",
    "dequantize_weight",
    "dequantized_product",
    "dequantized_product_bytes",
    "product_of_dequantized",
]

MIN_DEQUANTIZED_TOKENS = 65
MIN_DEQUANTIZED_GATE_UP_TOKENS = 33
"""Fewest tokens for dequantisation and a dense product. It moves about 4.5 bytes per weight (codes in, 16 bits out and
in again), whatever the number of tokens; the quantised kernels for 33 to 64 tokens are bound by instructions."""

_TILE_OUTPUTS = 16
_ALIGNED_TILES = 8
_ALIGNED_ROWS = _ALIGNED_TILES * _TILE_OUTPUTS
_MAX_GRID_Y = 65535
"""Limit of gridDim.y."""
_ALIGNMENT = 256
_MAX_DEQUANTIZED_BYTES = 160 << 20
"""Limit of dequantised bytes at a time: a whole projection of a 7B or 14B model, a part of larger ones."""
_GROUP_INPUTS = 128
_WARP = 32
_WARPS = 4


class _Layout(Protocol):
    """The layout of a packed weight (N, K)."""

    @property
    def shape(self) -> tuple[int, int]: ...


def _rows_at_once(layout: _Layout, dtype: DType) -> int:
    """Rows dequantised at a time: the fewest equal parts within the memory limit."""
    num_outputs, num_inputs = layout.shape
    max_groups = min(
        _MAX_DEQUANTIZED_BYTES // (max(1, num_inputs) * dtype.itemsize * _ALIGNED_ROWS), _MAX_GRID_Y // _ALIGNED_TILES
    )
    max_groups = max(1, max_groups)
    num_passes = div_up(div_up(num_outputs, _ALIGNED_ROWS), max_groups)
    return align_up(div_up(num_outputs, max(1, num_passes)), _ALIGNED_ROWS)


def dequantized_product_bytes(layout: _Layout, dtype: DType) -> int:
    """The workspace of `dequantized_product`."""
    num_outputs, num_inputs = layout.shape
    nbytes = min(num_outputs, _rows_at_once(layout, dtype)) * num_inputs * dtype.itemsize
    return WORKSPACE_BYTES + align_up(nbytes, _ALIGNMENT)


def dequantized_product(
    layout: QuantizedLayout,
    out: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray,
    bias: DeviceArray | None,
    workspace: int,
) -> Iterator[Work]:
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N], weights rounded to the dtype of `x`."""

    def dequantize(values: DeviceArray, first_row: int) -> Launch:
        scales = layout.num_blocks, layout.log2_chunks, layout.affine_term
        return dequantize_weight(f"int{layout.format.bits}", layout.shape, values, weight, first_row, scales)

    return product_of_dequantized(layout, dequantize, out, x, bias, workspace)


def product_of_dequantized(
    layout: _Layout,
    dequantize: Callable[[DeviceArray, int], Launch],
    out: DeviceArray,
    x: DeviceArray,
    bias: DeviceArray | None,
    workspace: int,
) -> Iterator[Work]:
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N]. `dequantize(values, first row)` writes rows of the weight from one
    on to `values` [rows, K], rounded to the dtype of `x`.
    """
    num_outputs, num_inputs = layout.shape
    rows_at_once = _rows_at_once(layout, x.dtype)
    for first in range(0, num_outputs, rows_at_once):
        rows = min(rows_at_once, num_outputs - first)
        values = DeviceArray(workspace + WORKSPACE_BYTES, x.dtype, (rows, num_inputs))
        yield dequantize(values, first)
        block_out = DeviceArray(out.address + first * out.dtype.itemsize, out.dtype, (out.shape[0], rows))
        block_bias = bias and DeviceArray(bias.address + first * bias.dtype.itemsize, bias.dtype, (rows,))
        yield DenseProduct(block_out, x, values, block_bias, workspace, out_stride=num_outputs)


def dequantize_weight(
    family: str,
    shape: tuple[int, int],
    values: DeviceArray,
    weight: DeviceArray,
    first_row: int,
    scales: tuple[int, ...] = (),
) -> Launch:
    """Dequantise rows of a weight of this shape from `first_row` on into `values`: csrc/dequantize_weight.cu."""
    rows = values.shape[0]
    grid = div_up(shape[1], _WARPS * _GROUP_INPUTS), div_up(rows, _TILE_OUTPUTS), 1
    arguments = (values, weight, first_row // _TILE_OUTPUTS, rows, *shape, *scales)
    kernel = f"dequantize_weight_{family}_{values.dtype}"
    return Launch("dequantize_weight", kernel, grid, (_WARPS * _WARP, 1, 1), arguments)
