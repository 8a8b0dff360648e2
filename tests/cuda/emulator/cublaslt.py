"""cuBLASLt on an emulated GPU: products are work of its streams, over memory that is closed to the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tests.cuda.emulator import memory
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.test_cublas import TYPES, FakeCublasLt

__all__ = ["EmulatedCublasLt"]


class EmulatedCublasLt(FakeCublasLt):
    """Counts its products by their shapes, (tokens, outputs, inputs)."""

    def __init__(self, driver: EmulatedDriver) -> None:
        super().__init__()
        self.products: list[tuple[int, int, int]] = []
        self._driver = driver

    def cublasLtMatmul(self, *arguments: Any) -> int:  # noqa: N802
        _, desc, _, a, a_layout, b, b_layout, _, _, _, d, d_layout, _, _, _, stream = arguments
        (weight, x, out) = (
            (address.value, *self.things[layout.value])
            for address, layout in ((a, a_layout), (b, b_layout), (d, d_layout))
        )
        attributes = self.things[desc.value]
        bias = (attributes[8], TYPES[attributes[26]], out[2], 1, out[2]) if attributes.get(7) == 4 else None
        self.products.append((out[3], out[2], x[2]))
        scales = [
            (attributes[pointer], np.dtype(np.float32), size, 1, size)
            for pointer, size in ((17, out[2]), (18, out[3]))
            if pointer in attributes
        ]
        self._driver._submit(stream.value, partial(_multiply, out, x, weight, bias, scales))
        return 0


def _multiply(out: Any, x: Any, weight: Any, bias: Any, scales: Any) -> None:
    result = _read(x).astype(np.float32) @ _read(weight).astype(np.float32).T
    if scales:
        of_weight, of_x = map(_read, scales)
        result *= of_x.T * of_weight
    if bias is not None:
        result += _read(bias).astype(np.float32)
    address, dtype, _, rows, stride = out
    for row in range(rows):
        values = result[row].astype(dtype)
        memory.copy(address + row * stride * dtype.itemsize, values.ctypes.data, values.nbytes, memory.TO_DEVICE)


def _read(matrix: Any) -> Any:
    """Row-major, as ours are: the library's columns are our rows."""
    address, dtype, columns, rows, stride = matrix
    assert stride == columns
    values = np.empty((rows, columns), dtype)
    memory.copy(values.ctypes.data, address, values.nbytes, memory.FROM_DEVICE)
    return values
