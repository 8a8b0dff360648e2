"""Products of many tokens with weights in fp8, by cuBLASLt: inputs are quantised with a scale per token (W8A8).

From compute capability 8.9 on, cuBLASLt multiplies codes to float32 sums, and one kernel scales the sums of all
products of the same inputs. On 9.0 it applies the scales itself (outer vectors) for more than 256 tokens: it does so by
kernels for large tiles only. Older GPUs have no fp8 arithmetic and dequantise the weight to the inputs' dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct
from aethermind_cuda.float8_weights import Float8Layout, quantize_rows
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._dequantize import (
    dequantize_weight,
    dequantized_product_bytes,
    product_of_dequantized,
)
from aethermind_cuda.kernels.elementwise import elementwise
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch, Work

__all__ = ["Float8Product", "float8_gate_up_silu", "float8_gate_up_silu_bytes", "float8_products",
           "float8_products_bytes"]  # fmt: skip

_FIRST_WITH_FLOAT8 = (8, 9)
_WITH_SCALES = (9, 0)
"""The compute capability on which cuBLASLt applies scales of outer vectors."""
_MAX_TOKENS_OF_SUMS = 256
"""Most tokens that are multiplied to sums where the alternative is to let cuBLASLt apply the scales."""
_ALIGNMENT = 256
_MAX_SUMS_BYTES = 128 << 20
"""Limit of float32 sums at a time."""
_MAX_GRID_Y = 65535
_SCALE_THREADS = 256
_COLUMNS_PER_THREAD = 4
_MAX_PARTS = 3


class Float8Product(NamedTuple):
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N] for the packed `weight`; `fallback` computes the same."""

    out: DeviceArray
    weight: DeviceArray
    bias: DeviceArray | None
    fallback: Launch

    @property
    def width(self) -> int:
        """N."""
        return self.out.shape[1]

    def layout(self, row_bytes: int) -> Float8Layout:
        """The weight's layout, as one of rows without padding: codes beyond K are zeros."""
        return Float8Layout((self.width, row_bytes))


class _Codes(NamedTuple):
    """Quantised inputs: codes [T, padded K] and scales [T]."""

    codes: DeviceArray
    scales: DeviceArray

    @classmethod
    def of(cls, x: DeviceArray, workspace: int) -> _Codes:
        """Where those of x are, behind cuBLASLt's own part of the workspace."""
        layout = Float8Layout((x.shape[0], x.shape[1]))
        address = workspace + WORKSPACE_BYTES
        scales = layout.scales(address)._replace(address=address + align_up(layout.code_bytes, _ALIGNMENT))
        return cls(layout.codes(address), scales)

    @property
    def end(self) -> int:
        """The aligned address behind them."""
        return align_up(self.scales.address + self.scales.nbytes, _ALIGNMENT)

    def rows(self, first: int, count: int) -> _Codes:
        """Those of some tokens."""
        return _Codes(_rows_of(self.codes, first, count), _rows_of(self.scales, first, count))


def float8_products(
    x: DeviceArray, products: Sequence[Float8Product], device: DeviceFacts, workspace: int
) -> Iterator[Work]:
    """Up to three products of the same inputs x, which are quantised once."""
    if device.compute_capability < _FIRST_WITH_FLOAT8:
        for product in products:
            yield from _dequantized(x, product, workspace)
        return
    quantized = _Codes.of(x, workspace)
    yield quantize_rows(x, *quantized)
    if not _is_summed(x, device):
        for product in products:
            yield _with_scales(quantized, product, workspace)
        return
    for part, sums, first in _sums(quantized, products, workspace):
        yield from part
        outs = [_rows_of(product.out, first, sums.shape[0]) for product in products]
        yield _scale(outs, products, sums, quantized.rows(first, sums.shape[0]))


def float8_gate_up_silu(
    x: DeviceArray, gate: Float8Product, up: Float8Product, device: DeviceFacts, workspace: int
) -> Iterator[Work]:
    """SwiGLU of two products without bias, to `gate.out`; `up.out` is scratch memory for many tokens."""
    if not _is_summed(x, device):
        yield from float8_products(x, [gate, up], device, workspace)
        yield elementwise("silu_mul", gate.out, gate.out, up.out)
        return
    quantized = _Codes.of(x, workspace)
    yield quantize_rows(x, *quantized)
    row_bytes = quantized.codes.shape[1]
    scales = [product.layout(row_bytes).scales(product.weight.address) for product in (gate, up)]
    for part, sums, first in _sums(quantized, (gate, up), workspace):
        yield from part
        rows, out = sums.shape[0], _rows_of(gate.out, first, sums.shape[0])
        columns = gate.width, gate.layout(row_bytes).num_rows, sums.shape[1]
        arguments = (out, sums, quantized.rows(first, rows).scales, *scales, *columns)
        yield _launch(f"scale_outer_silu_mul_{out.dtype}", gate.width, rows, arguments)


def float8_products_bytes(x: DeviceArray, widths: Sequence[int], device: DeviceFacts) -> int:
    """The workspace of `float8_products` for weights with so many outputs."""
    if device.compute_capability < _FIRST_WITH_FLOAT8:
        return max(dequantized_product_bytes(Float8Layout((width, x.shape[1])), x.dtype) for width in widths)
    quantized = _Codes.of(x, 0)
    rows = [Float8Layout((width, quantized.codes.shape[1])).num_rows for width in widths]
    return quantized.end + _sums_bytes(x, sum(rows), device)


def float8_gate_up_silu_bytes(x: DeviceArray, width: int, device: DeviceFacts) -> int:
    """The workspace of `float8_gate_up_silu`, without `up.out`."""
    return float8_products_bytes(x, [width, width], device)


def _is_summed(x: DeviceArray, device: DeviceFacts) -> bool:
    """Whether cuBLASLt returns sums that are yet to be scaled."""
    capability = device.compute_capability
    if capability == _WITH_SCALES:
        return x.shape[0] <= _MAX_TOKENS_OF_SUMS
    return capability >= _FIRST_WITH_FLOAT8


def _sums_bytes(x: DeviceArray, width: int, device: DeviceFacts) -> int:
    """The bytes of the sums of at most as many tokens as x has."""
    num_tokens = x.shape[0]
    if device.compute_capability == _WITH_SCALES:
        num_tokens = min(num_tokens, _MAX_TOKENS_OF_SUMS)
    return min(num_tokens, _rows_at_once(width)) * width * DType.FLOAT32.itemsize


def _rows_at_once(width: int) -> int:
    """Rows of float32 sums at a time."""
    return max(1, min(_MAX_GRID_Y, _MAX_SUMS_BYTES // max(1, width * DType.FLOAT32.itemsize)))


def _sums(
    quantized: _Codes, products: Sequence[Float8Product], workspace: int
) -> Iterator[tuple[Iterator[Work], DeviceArray, int]]:
    """The sums of all products side by side, some rows at a time: what computes them, the sums, and the first row.

    Each has columns for its weight's outputs, and each but the last for the rows of its scales, which are ignored.
    """
    row_bytes = quantized.codes.shape[1]
    width = sum(product.layout(row_bytes).num_rows for product in products[:-1]) + products[-1].width
    num_tokens, rows_at_once = quantized.codes.shape[0], _rows_at_once(width)
    for first in range(0, num_tokens, rows_at_once):
        rows = min(rows_at_once, num_tokens - first)
        sums = DeviceArray(quantized.end, DType.FLOAT32, (rows, width))
        yield _products_to(sums, quantized.rows(first, rows).codes, products, workspace), sums, first


def _products_to(
    sums: DeviceArray, codes: DeviceArray, products: Sequence[Float8Product], workspace: int
) -> Iterator[Work]:
    num_tokens, width = sums.shape
    layouts = [product.layout(codes.shape[1]) for product in products]
    ends = [product.weight.address + layout.nbytes for product, layout in zip(products, layouts, strict=True)]
    if all(end == product.weight.address for end, product in zip(ends, products[1:], strict=False)):
        stacked = Float8Layout((width, codes.shape[1])).codes(products[0].weight.address)
        yield DenseProduct(sums, codes, stacked, None, workspace)
        return
    begin = 0
    for product, layout in zip(products, layouts, strict=True):
        address = sums.address + begin * DType.FLOAT32.itemsize
        out = DeviceArray(address, DType.FLOAT32, (num_tokens, product.width))
        yield DenseProduct(out, codes, layout.codes(product.weight.address), None, workspace, out_stride=width)
        begin += layout.num_rows


def _scale(
    outs: Sequence[DeviceArray], products: Sequence[Float8Product], sums: DeviceArray, quantized: _Codes
) -> Launch:
    parts: list[DeviceArray | int | None] = []
    begin = 0
    for out, product in zip(outs, products, strict=True):
        layout = product.layout(quantized.codes.shape[1])
        parts += [out, layout.scales(product.weight.address), product.bias, product.width, begin]
        begin += layout.num_rows
    parts += [None, None, None, 0, 0] * (_MAX_PARTS - len(products))
    width = sum(product.width for product in products)
    arguments = (*parts, sums, quantized.scales, width, sums.shape[1])
    return _launch(f"scale_outer_{outs[0].dtype}", width, sums.shape[0], arguments)


def _launch(kernel: str, width: int, num_rows: int, arguments: tuple[object, ...]) -> Launch:
    grid = div_up(width, _SCALE_THREADS * _COLUMNS_PER_THREAD), num_rows, 1
    return Launch("scale_outer", kernel, grid, (_SCALE_THREADS, 1, 1), arguments)


def _with_scales(quantized: _Codes, product: Float8Product, workspace: int) -> DenseProduct:
    layout, weight = product.layout(quantized.codes.shape[1]), product.weight.address
    scales = layout.scales(weight), quantized.scales
    codes = layout.codes(weight)
    return DenseProduct(
        product.out, quantized.codes, codes, product.bias, workspace, lambda *_: product.fallback, scales=scales
    )


def _dequantized(x: DeviceArray, product: Float8Product, workspace: int) -> Iterator[Work]:
    layout = Float8Layout((product.width, x.shape[1]))

    def dequantize(values: DeviceArray, first_row: int) -> Launch:
        return dequantize_weight("float8", layout.shape, values, product.weight, first_row)

    return product_of_dequantized(layout, dequantize, product.out, x, product.bias, workspace)


def _rows_of(array: DeviceArray, first: int, rows: int) -> DeviceArray:
    row_bytes = array.nbytes // max(1, array.shape[0])
    return array._replace(address=array.address + first * row_bytes, shape=(rows, *array.shape[1:]))
