"""Weights in codes: packed as their formats define them, and read back by the kernels to the same values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all

from aethermind.dispatch import Kernel
from aethermind.errors import InvalidArgumentError
from aethermind.hal import DType
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, parse_format
from aethermind_cuda.kernels import quantized
from aethermind_cuda.quantized_weights import quantized_pack

NAMES = tuple(name for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES) if name not in ("int4_k", "mxfp4", "fp8"))
SHAPES = [(1, 1), (5, 31), (16, 128), (17, 100), (50, 300)]


def packed(name: str, source: Any) -> np.ndarray[Any, Any]:
    format = parse_format(name)
    assert format is not None
    pack = quantized_pack(format)
    nbytes = pack.nbytes(source.shape, DType.FLOAT32)
    memory = np.full(nbytes + 16, 0xA5, np.uint8)
    pack.pack(source, memory.ctypes.data)
    assert np.all(memory[nbytes:] == 0xA5), "packing wrote beyond its end"
    return memory[:nbytes]


def values(shape: tuple[int, int], dtype: Any) -> np.ndarray[Any, Any]:
    """Rows of different magnitudes."""
    rng = np.random.default_rng(shape[1])
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, (shape[0], 1))).astype(np.float32).astype(dtype)


def kernel_for(name: str, operator: str = "linear", *, with_cublaslt: bool = False) -> Kernel:
    wanted = operator, frozenset({name}), int(with_cublaslt)
    return next(
        kernel for kernel in quantized.KERNELS if (kernel.operator, kernel.weight_formats, kernel.priority) == wanted
    )


@pytest.mark.parametrize("name", NAMES)
def test_packing_values_is_packing_the_codes_of_the_definition(name: str) -> None:
    format = parse_format(name)
    assert format is not None
    for shape in SHAPES:
        for dtype in (np.float32, ml_dtypes.bfloat16):
            array = values(shape, dtype)
            assert np.array_equal(packed(name, array), packed(name, format.quantize(array))), shape


def test_a_large_weight_is_packed_in_parts() -> None:
    array = values((200, 20000), np.float32)
    parts = [packed("int4_g64", array[begin : begin + 16]) for begin in range(0, 200, 16)]
    codes = 16 * 20096 // 2
    whole = packed("int4_g64", array)
    assert np.array_equal(whole[: 12 * codes], np.concatenate([part[:codes] for part in parts[:12]]))


def test_packing_refuses_what_the_format_refuses() -> None:
    array = np.zeros((40, 50), np.float32)
    array[39, 49] = np.nan
    with pytest.raises(InvalidArgumentError, match="cannot be stored as int4_zp"):
        packed("int4_zp", array)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_reads_the_values_that_the_format_defines(name: str) -> None:
    """Each input alone is one, so that the outputs are the weights."""
    format = parse_format(name)
    assert format is not None
    rows, columns = 21, 133
    weight = format.quantize(values((rows, columns), np.float32))
    out = np.full((columns, rows), np.nan, np.float32)
    launch_all(kernel_for(name), [np.eye(columns, dtype=np.float32), packed(name, weight), None], [out])
    np.testing.assert_allclose(out.T, format.dequantize(weight), rtol=1e-6 if format.has_offset else 0)
