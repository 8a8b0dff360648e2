"""Quantisation of a matrix by several threads, each of which takes some of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["dense_values", "encode_by_rows"]

Array = npt.NDArray[Any]

_VALUES = 1 << 20
"""The values of a thread's part."""


def encode_by_rows(
    pool: ThreadPoolExecutor, encode: Callable[[Array], Sequence[Array]], stored: Array | QuantizedWeight
) -> list[Array]:
    """Call `encode` with parts of the rows of a matrix [N, K], and join its arrays along their first axis.

    A quantised matrix is dequantised part by part; the mapped pages of a dense one are dropped at the end.
    """
    rows, columns = stored.shape
    count = max(1, _VALUES // max(columns, 1))

    def encode_part(begin: int) -> Sequence[Array]:
        part = (
            stored.rows(begin, begin + count) if isinstance(stored, QuantizedWeight) else stored[begin : begin + count]
        )
        return encode(dense_values(part))

    parts = list(pool.map(encode_part, range(0, max(rows, 1), count)))
    if not isinstance(stored, QuantizedWeight):
        drop_mapped_pages(stored)
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def dense_values(stored: Array | QuantizedWeight, dtype: npt.DTypeLike = np.float32) -> Array:
    """The values of a tensor; those of a quantised one in `dtype`."""
    if isinstance(stored, QuantizedWeight):
        values: Array = stored.format.dequantize(stored, dtype)
        return values
    return stored
