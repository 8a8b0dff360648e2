"""Products of many tokens with weights in fp8, by cuBLASLt: inputs are quantised with a scale per token (W8A8).

Compute capability 9.0: cuBLASLt applies the scales (outer vectors). Others with fp8 arithmetic, 8.9 and from 10.0 on:
it multiplies codes to float32 sums, which a kernel scales. Older GPUs dequantise the weight to the inputs' dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
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
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch, Work

__all__ = ["Float8Product", "float8_products", "float8_products_bytes"]

_FIRST_WITH_FLOAT8 = (8, 9)
_WITH_SCALES = (9, 0)
"""The compute capability on which cuBLASLt applies scales of outer vectors."""
_ALIGNMENT = 256
_MAX_SUMS_BYTES = 128 << 20
"""Limit of float32 sums at a time."""
_SCALE_THREADS = 256
_COLUMNS_PER_THREAD = 4


class Float8Product(NamedTuple):
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N] for the packed `weight`; `fallback` computes the same."""

    out: DeviceArray
    weight: DeviceArray
    bias: DeviceArray | None
    fallback: Launch


def float8_products(
    x: DeviceArray, products: Sequence[Float8Product], device: DeviceFacts, workspace: int
) -> Iterator[Work]:
    """Products of the same inputs x, which are quantised once."""
    if device.compute_capability < _FIRST_WITH_FLOAT8:
        for product in products:
            yield from _dequantized(x, product, workspace)
        return
    codes, scales = _quantized(x, workspace)
    yield quantize_rows(x, codes, scales)
    multiply = _with_scales if device.compute_capability == _WITH_SCALES else _with_sums
    for product in products:
        yield from multiply(codes, scales, product, workspace)


def float8_products_bytes(x: DeviceArray, widths: Sequence[int], device: DeviceFacts) -> int:
    """The workspace of `float8_products` for weights with so many outputs."""
    num_tokens, num_inputs = x.shape
    if device.compute_capability < _FIRST_WITH_FLOAT8:
        return max(dequantized_product_bytes(Float8Layout((width, num_inputs)), x.dtype) for width in widths)
    nbytes = _quantized_bytes(x)
    if device.compute_capability != _WITH_SCALES:
        nbytes += max(min(num_tokens, _rows_of_sums(width)) * width for width in widths) * DType.FLOAT32.itemsize
    return nbytes


def _quantized(x: DeviceArray, workspace: int) -> tuple[DeviceArray, DeviceArray]:
    """Where codes and scales of x are, behind cuBLASLt's own part."""
    layout = Float8Layout((x.shape[0], x.shape[1]))
    address = workspace + WORKSPACE_BYTES
    scales = layout.scales(address)._replace(address=address + align_up(layout.code_bytes, _ALIGNMENT))
    return layout.codes(address), scales


def _quantized_bytes(x: DeviceArray) -> int:
    """Bytes up to the end of the scales."""
    _, scales = _quantized(x, 0)
    return align_up(scales.address + scales.nbytes, _ALIGNMENT)


def _with_scales(codes: DeviceArray, scales: DeviceArray, product: Float8Product, workspace: int) -> Iterator[Work]:
    layout = _layout(product, codes.shape[1])
    weight, out = product.weight.address, product.out
    yield DenseProduct(
        out,
        codes,
        layout.codes(weight),
        product.bias,
        workspace,
        lambda *_: product.fallback,
        scales=(layout.scales(weight), scales),
    )


def _with_sums(codes: DeviceArray, scales: DeviceArray, product: Float8Product, workspace: int) -> Iterator[Work]:
    layout = _layout(product, codes.shape[1])
    num_tokens, width = product.out.shape
    sums_at = align_up(scales.address + scales.nbytes, _ALIGNMENT)
    rows_at_once = _rows_of_sums(width)
    for first in range(0, num_tokens, rows_at_once):
        rows = min(rows_at_once, num_tokens - first)
        sums = DeviceArray(sums_at, DType.FLOAT32, (rows, width))
        part = partial(_rows_of, first=first, rows=rows)
        yield DenseProduct(sums, part(codes), layout.codes(product.weight.address), None, workspace)
        out, bias = part(product.out), product.bias
        arguments = (out, sums, part(scales), layout.scales(product.weight.address), bias, width)
        grid = div_up(width, _SCALE_THREADS * _COLUMNS_PER_THREAD), rows, 1
        yield Launch("scale_outer", f"scale_outer_{out.dtype}", grid, (_SCALE_THREADS, 1, 1), arguments)


def _dequantized(x: DeviceArray, product: Float8Product, workspace: int) -> Iterator[Work]:
    layout = Float8Layout((product.out.shape[1], x.shape[1]))

    def dequantize(values: DeviceArray, first_row: int) -> Launch:
        return dequantize_weight("float8", layout.shape, values, product.weight, first_row)

    return product_of_dequantized(layout, dequantize, product.out, x, product.bias, workspace)


def _layout(product: Float8Product, row_bytes: int) -> Float8Layout:
    """The layout of a weight with padded rows: codes beyond K are zeros."""
    return Float8Layout((product.out.shape[1], row_bytes))


def _rows_of(array: DeviceArray, first: int, rows: int) -> DeviceArray:
    row_bytes = array.nbytes // max(1, array.shape[0])
    return array._replace(address=array.address + first * row_bytes, shape=(rows, *array.shape[1:]))


def _rows_of_sums(width: int) -> int:
    """Rows of float32 sums at a time."""
    return max(1, min(65535, _MAX_SUMS_BYTES // max(1, width * DType.FLOAT32.itemsize)))
