"""Element types: their names, their NumPy dtypes, and their numbers in the native ABI."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import aethermind
from aethermind.errors import InvalidArgumentError
from aethermind.hal import DType

HEADER = Path(aethermind.__file__).parent / "include" / "aethermind" / "kernel_abi.h"


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_numpy_dtypes_have_the_same_size_and_lead_back(dtype: DType) -> None:
    assert dtype.numpy.itemsize == dtype.itemsize
    assert DType.of_numpy(dtype.numpy) is dtype
    assert DType.parse(str(dtype)) is dtype


def test_floating_types_are_told_apart() -> None:
    floating = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
    assert {dtype for dtype in DType if dtype.is_floating} == floating


@pytest.mark.parametrize(
    ("short", "dtype"),
    [
        ("fp32", DType.FLOAT32),
        ("float", DType.FLOAT32),
        ("fp16", DType.FLOAT16),
        ("half", DType.FLOAT16),
        ("bf16", DType.BFLOAT16),
    ],
)
def test_short_forms(short: str, dtype: DType) -> None:
    assert DType.parse(short) is dtype


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Unknown dtype 'float8'. Known: float32, float16, bfloat16, "):
        DType.parse("float8")


@pytest.mark.parametrize("dtype", [np.dtype(np.complex64), np.dtype(">f4"), np.dtype("U3")], ids=str)
def test_arrays_that_have_no_dtype_here_are_refused(dtype: np.dtype) -> None:
    with pytest.raises(InvalidArgumentError):
        DType.of_numpy(dtype)


def test_codes_are_those_of_the_native_header() -> None:
    codes = {name.lower(): int(code) for name, code in re.findall(r"AM_(\w+) = (\d+)", HEADER.read_text())}
    assert codes == {str(dtype): dtype.code for dtype in DType}
