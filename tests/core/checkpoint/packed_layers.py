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
    if method == "awq":
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


def _pack_awq(numbers: Array) -> Array:
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.uint32)
    for i, column in enumerate(_AWQ_ORDER):
        words |= numbers[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)
