"""Random GPTQ and AWQ layers, written and dequantised value by value from the published layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Layer", "random_layer"]

Array = np.ndarray[Any, Any]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Layer:
    """The tensors of a packed matrix by the ends of their names, and its values [N, K] in float64."""

    tensors: dict[str, Array]
    values: Array


def random_layer(
    rows: int,
    columns: int,
    *,
    method: str = "gptq",
    bits: int = 4,
    group_size: int = 64,
    is_symmetric: bool = False,
    zero_shift: int = 1,
    groups: Array | None = None,
    seed: int = 0,
) -> Layer:
    """A matrix [rows, columns]. `groups` [columns] is GPTQ's g_idx where it is not that of the order.

    `zero_shift` is what a reader adds to stored zero points: one in GPTQ's first layout.
    """
    rng = np.random.default_rng(seed)
    length = columns if group_size == -1 else group_size
    num_groups = columns // length
    in_order = np.arange(columns) // length
    group_of = in_order if groups is None else groups
    codes = rng.integers(0, 1 << bits, (columns, rows))
    middle = 1 << (bits - 1)
    zeros = np.full((num_groups, rows), middle) if is_symmetric else rng.integers(0, 1 << bits, (num_groups, rows))
    size = columns**-0.5 * 8 / middle / 4
    scales = (rng.uniform(0.3, 1, (num_groups, rows)) * size).astype(np.float16)
    values = scales.astype(np.float64)[group_of] * (codes - zeros[group_of])
    stored = (zeros - zero_shift) % (1 << bits)
    if method == "gemv":
        tensors = _pack_gemv(codes.T, zeros.T, scales.T, length)
    elif method == "gemv_fast":
        tensors = _pack_gemv_fast(codes.T, zeros.T, scales.T, length)
    elif method == "awq":
        tensors = {"qweight": _pack_awq(codes), "qzeros": _pack_awq(zeros), "scales": scales}
    else:
        tensors = {
            "qweight": _pack(codes.T, bits).T,
            "qzeros": _pack(stored, bits),
            "scales": scales,
            "g_idx": group_of.astype(np.int32),
        }
    return Layer({end: np.ascontiguousarray(tensor) for end, tensor in tensors.items()}, values.T)


def _pack(numbers: Array, bits: int) -> Array:
    """Along the last axis, as one run of bits: the first number in the lowest bits of the first word."""
    rows, length = numbers.shape
    packed = np.zeros((rows, length * bits // 32), np.int64)
    for index in range(length):
        for bit in range(bits):
            word, place = divmod(index * bits + bit, 32)
            packed[:, word] |= ((numbers[:, index].astype(np.int64) >> bit) & 1) << place
    return packed.astype(np.uint32).view(np.int32)


def _padded(numbers: Array, group_size: int) -> Array:
    """With zeros up to whole words of eight, of which small groups have a multiple of two or four."""
    words = -(-numbers.shape[1] // 8)
    multiple = {64: 2, 32: 4}.get(group_size, 1)
    width = -(-words // multiple) * multiple * 8
    return np.pad(numbers, ((0, 0), (0, width - numbers.shape[1])))


def _pack_gemv(codes: Array, zeros: Array, scales: Array, group_size: int) -> dict[str, Array]:
    """AutoAWQ's layout gemv: words of eight codes, or zero points, of a row in their order."""
    return {
        "qweight": _pack(codes, 4),
        "qzeros": _pack(_padded(zeros, group_size), 4),
        "scales": _padded(scales, group_size),
    }


def _pack_gemv_fast(codes: Array, zeros: Array, scales: Array, group_size: int) -> dict[str, Array]:
    """AutoAWQ's layout gemv_fast: the codes of four rows and 64 columns are 64 words of 16 bits."""
    rows, columns = codes.shape
    # Each 32 columns, in the order 0 8 16 24 1 9 17 25 … of pairs, then even ones before odd ones in each eight.
    order = [base + pair * 2 + 8 * (i % 4) + i // 4 for base in [0] for pair in range(4) for i in range(8)]
    reordered = codes.reshape(rows, -1, 32)[:, :, order].reshape(rows, columns)
    words = np.zeros((rows // 4, columns), np.uint16)
    for quad in range(rows // 4):
        for block in range(columns // 64):
            flat = reordered[4 * quad : 4 * quad + 4, 64 * block : 64 * block + 64].reshape(-1)
            for word in range(64):
                for place in range(4):
                    words[quad, 64 * block + word] |= int(flat[4 * word + place]) << 4 * place
    products = (-scales.astype(np.float32) * zeros).astype(np.float16)
    return {
        "qweight": words.view(np.int16),
        "qzeros": _padded(products, group_size).T,
        "scales": _padded(scales, group_size).T,
    }


def _pack_awq(numbers: Array) -> Array:
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.uint32)
    for i, column in enumerate(_AWQ_ORDER):
        words |= numbers[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)
