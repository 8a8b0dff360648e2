"""Measured limits of a GPU: memory bandwidth of a device copy, and FLOP/s of a large matrix product.

The output of the fp8 product is bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from aethermind.errors import DeviceError
from aethermind.hal.backend import MeasuredLimits
from aethermind.hal.dtype import DType
from aethermind.hal.memory import Buffer
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct, find_cublaslt
from aethermind_cuda.driver import Driver
from aethermind_cuda.launch import DeviceArray
from aethermind_cuda.library import KernelLibrary

__all__ = ["measure_limits"]

_COPY_BYTES = 512 << 20
_MATRIX_SIZE = 8192
_NUM_RANDOM_VALUES = 1_000_003
_REPEAT = 5


def measure_limits(
    driver: Driver, library: KernelLibrary, allocate: Callable[[int], Buffer], stream: int, dtypes: Sequence[DType]
) -> MeasuredLimits:
    """Measure by device events, best of several runs, in about a second; without cuBLASLt no FLOP/s."""
    source, destination = allocate(_COPY_BYTES), allocate(_COPY_BYTES)

    def copy(stream_handle: int) -> None:
        driver.copy(destination.address, source.address, _COPY_BYTES, stream_handle)

    bandwidth = 2 * _COPY_BYTES / _best_seconds(driver, stream, copy)
    rates = {}
    if find_cublaslt() is not None:
        workspace = allocate(WORKSPACE_BYTES)
        for dtype in dtypes:
            if dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN):
                with suppress(DeviceError) if dtype is DType.FLOAT8_E4M3FN else nullcontext():  # older GPUs have none
                    rates[dtype.label] = _product_rate(driver, library, allocate, stream, dtype, workspace.address)
    return MeasuredLimits(bandwidth, rates)


def _product_rate(
    driver: Driver,
    library: KernelLibrary,
    allocate: Callable[[int], Buffer],
    stream: int,
    dtype: DType,
    workspace: int,
) -> float:
    import numpy as np

    size, out_dtype = _MATRIX_SIZE, DType.BFLOAT16 if dtype is DType.FLOAT8_E4M3FN else dtype
    out, *buffers = (allocate(size * size * operand.itemsize) for operand in (out_dtype, dtype, dtype))
    # Random values: zeros would draw less power and so run faster than real operands.
    block = np.random.default_rng(0).standard_normal(_NUM_RANDOM_VALUES, np.float32).astype(dtype.numpy)
    values = np.resize(block, size * size)
    for buffer in buffers:
        driver.copy(buffer.address, values.ctypes.data, buffer.nbytes, stream)
    driver.stream_synchronize(stream)
    x, weight = (DeviceArray(buffer.address, dtype, (size, size)) for buffer in buffers)
    product = DenseProduct(DeviceArray(out.address, out_dtype, (size, size)), x, weight, None, workspace)
    seconds = _best_seconds(driver, stream, product.bind(library))
    return 2 * size**3 / seconds


def _best_seconds(driver: Driver, stream: int, enqueue: Callable[[int], None]) -> float:
    begin, end = driver.event_create(True), driver.event_create(True)
    enqueue(stream)
    best = float("inf")
    for _ in range(_REPEAT):
        driver.event_record(begin, stream)
        enqueue(stream)
        driver.event_record(end, stream)
        driver.event_synchronize(end)
        best = min(best, driver.event_elapsed(begin, end) / 1e3)
    for event in (begin, end):
        driver.event_destroy(event)
    return best
