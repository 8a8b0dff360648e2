"""Native packing of quantised weights equals the formats' definition bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aethermind import Runtime
from aethermind.errors import InvalidArgumentError
from aethermind.hal import DType
from aethermind.ops.operator import Sample
from aethermind.ops.weight_format import FORMAT_NAMES, parse_format
from aethermind.testing.kernel_cases import is_supported
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cpu.packing import quantized_pack

NAMES = (
    *(name for name in FORMAT_NAMES if name != "fp8"),
    "int8_zp",
    "int8_offset",
    "int4_offset_channel",
    "int4_channel",
    "int2_g64",
    "int4_g96",
    "int1_channel",
)
SHAPES = [(1, 1), (5, 31), (16, 32), (17, 100), (300, 416), (33, 1300)]


def packed(name: str, source: Any) -> np.ndarray[Any, Any]:
    format = parse_format(name)
    assert format is not None
    pack = quantized_pack(format)
    nbytes = pack.nbytes(source.shape, DType.FLOAT32)
    memory = np.zeros(nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    pack.pack(source, memory.ctypes.data + begin)
    return memory[begin : begin + nbytes]


def values(shape: tuple[int, int], dtype: Any) -> np.ndarray[Any, Any]:
    """Rows of very different magnitudes, with blocks of zeros, ties, and outliers."""
    rng = np.random.default_rng(shape[1])
    array = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 4, (shape[0], 1))
    array[::3] = np.round(array[::3], 1)
    array[rng.random(shape) < 0.02] *= 8
    array[: shape[0] // 4, : shape[1] // 2] = 0
    return np.clip(array, -6e4, 6e4).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16], ids=str)
def test_packing_values_equals_packing_the_codes_of_the_definition(name: str, dtype: Any) -> None:
    format = parse_format(name)
    assert format is not None
    for shape in SHAPES:
        array = values(shape, dtype)
        assert np.array_equal(packed(name, array), packed(name, format.quantize(array))), shape


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 70000.0])
@pytest.mark.parametrize("name", ["int8", "int4_zp", "int1"])
def test_packing_rejects_values_that_the_format_rejects(name: str, bad: float) -> None:
    array = np.zeros((40, 50), np.float32)
    array[39, 49] = bad
    with pytest.raises(InvalidArgumentError, match=f"cannot be stored as {name}"):
        packed(name, array)


@pytest.mark.parametrize("name", ["int2", "int4", "int8", "mxfp4"])
def test_rows_shorter_than_a_block_are_off_by_half_a_step_of_their_largest_value(runtime: Runtime, name: str) -> None:
    """The largest of few values may meet a weight of zero, so that half its step is much of a small sum."""
    opened, operator = runtime.open_device("cpu"), runtime.operators["linear"]
    rng = np.random.default_rng(3)
    samples = [Sample(str(size), (rng.normal(size=(300, size)), rng.normal(size=(17, size)), None)) for size in (3, 9)]
    kernels = [kernel for kernel in runtime.kernels.kernels("cpu") if kernel.operator == "linear"]
    cases = [
        KernelCase(operator, kernel, DType.FLOAT32, sample, runtime.weight_formats.get(name))
        for kernel in kernels
        for sample in samples
        if kernel.weight_formats is not None and name in kernel.weight_formats
    ]
    found = [case for case in cases if is_supported(case)]
    for case in found:
        check_kernel(case, runtime.operators, opened)
    assert len(found) >= 2
