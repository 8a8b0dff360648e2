"""The definition of the weight formats: error bounds, values that survive a second way through, and every odd shape."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.scale import scaled

from aethermind.errors import InvalidArgumentError
from aethermind.ops import quantization
from aethermind.ops.quantization import dequantize, fake_quantize
from aethermind.ops.weight_format import FORMAT_NAMES, QuantizedWeight, WeightFormat, parse_format

Array = np.ndarray[Any, Any]

FORMATS = {name: found for name in (*FORMAT_NAMES, "int8_zp", "int8_offset", "int4_channel", "int2_g64", "int1_channel")
           if (found := parse_format(name)) and found.scale_dtype != "float32"}  # fmt: skip
WITHOUT_OFFSETS = sorted(name for name, format in FORMATS.items() if not format.has_offset)
"""Lines through what has been on a line need not be that line: values with few of the codes lie on many."""
SMALLEST_EXACT_SCALE = 2.0**-16
"""Below, float16 scales have so few digits that a second rounding may choose another one."""

by_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 140))


@st.composite
def matrices(draw: Any) -> Array:
    """Weights of any size that float16 scales can reach: zeros of both signs, tiny, large and equal ones among them."""
    size = draw(st.sampled_from([1e-9, 1e-6, 1e-3, 0.03, 1.0, 500.0, 60000.0]))
    elements = st.one_of(
        st.floats(-1, 1, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1 / 3, -0.5, 1e-5]), st.just(0.0)
    )
    array = draw(hnp.arrays(np.float32, draw(shapes), elements=elements)) * np.float32(size)
    return np.asarray(array, np.float32)


def normal(*shape: int, seed: int = 0, size: float = 0.02) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def spread(values: Array, format: WeightFormat, columns: int) -> Array:
    """Something of every block, for every value of it."""
    return np.repeat(values, format.block or columns, axis=1)[:, :columns]


def assert_same(one: QuantizedWeight, other: QuantizedWeight) -> None:
    assert one.format == other.format
    sides = (
        (one.scales, other.scales),
        (one.zeros, other.zeros),
        (one.offsets, other.offsets),
        (one.super_block_scales, other.super_block_scales),
    )
    for left, right in ((one.codes, other.codes), *sides):
        np.testing.assert_array_equal(left, right)


@given(matrices(), st.sampled_from(["int8", "int8_channel", "int8_g64"]))
@settings(deadline=None, max_examples=scaled(15_000))
def test_int8_is_off_by_half_a_step_at_most(array: Array, name: str) -> None:
    format = parse_format(name)
    assert format is not None
    q = format.quantize(array)
    scales = spread(q.scales.astype(np.float64), format, array.shape[1])
    error = np.abs(array - dequantize(q).astype(np.float64))
    assert (error <= scales * (0.5 + 1e-4)).all()
    assert (scales >= 0).all()
    assert np.abs(q.codes).max() <= 127


@given(matrices(), st.sampled_from(["int8", "int8_channel", "int1", "int1_channel"]))
@settings(deadline=None, max_examples=scaled(15_000))
def test_what_has_been_through_comes_back_code_for_code(array: Array, name: str) -> None:
    q = FORMATS[name].quantize(array)
    if (q.scales[q.scales != 0] >= SMALLEST_EXACT_SCALE).all():
        assert_same(FORMATS[name].quantize(dequantize(q)), q)


@given(matrices(), st.sampled_from(WITHOUT_OFFSETS))
@settings(deadline=None, max_examples=scaled(15_000))
def test_what_has_been_through_stands_for_the_same_values(array: Array, name: str) -> None:
    """Codes may differ where two scales stand for the same values."""
    q = FORMATS[name].quantize(array)
    values = dequantize(q)
    if (np.abs(q.scales[q.scales != 0]) >= SMALLEST_EXACT_SCALE).all():
        np.testing.assert_array_equal(fake_quantize(FORMATS[name], values), values)


@given(matrices())
@settings(deadline=None, max_examples=scaled(15_000))
def test_int4_is_no_worse_than_the_largest_magnitude_at_minus_8(array: Array) -> None:
    format = FORMATS["int4"]
    padded = np.pad(array, ((0, 0), (0, -array.shape[1] % 32))).reshape(len(array), -1, 32)
    peak = np.take_along_axis(padded, np.abs(padded).argmax(-1)[..., None], -1)
    scale = (peak / np.float32(-8)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(np.divide(padded, scale, out=np.zeros_like(padded), where=scale != 0)), -8, 7)
    theirs = ((padded - codes * scale).astype(np.float64) ** 2).sum(-1)
    error = np.pad(array - fake_quantize(format, array), ((0, 0), (0, -array.shape[1] % 32))).astype(np.float64)
    ours = (error.reshape(padded.shape) ** 2).sum(-1)
    assert (ours <= theirs * (1 + 1e-5)).all()


@given(matrices())
@settings(deadline=None, max_examples=scaled(15_000))
def test_an_offset_is_no_worse_than_the_range_in_15_steps(array: Array) -> None:
    """As llama.cpp's Q4_1 has it, of the same size; its minimum and scale in float16, codes by the rounded ones."""
    ours = (array - fake_quantize(FORMATS["int4_offset"], array)).astype(np.float64) ** 2
    for begin in range(0, array.shape[1], 32):
        x = array[:, begin : begin + 32]
        low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
        scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
        low = low.astype(np.float16).astype(np.float32)
        codes = np.clip(np.rint(np.divide(x - low, scale, out=np.zeros_like(x), where=scale != 0)), 0, 15)
        theirs = ((x - (codes * scale + low)).astype(np.float64) ** 2).sum(1)
        tiny = (np.float64(np.abs(x).max()) * 2.0**-10 + 2.0**-24) ** 2 * x.shape[1]  # float16's own rounding
        assert (ours[:, begin : begin + 32].sum(1) <= theirs * (1 + 1e-5) + tiny).all()


@given(matrices(), st.sampled_from(["int4_zp", "int2", "int8_zp"]))
@settings(deadline=None, max_examples=scaled(15_000))
def test_zero_stays_zero_where_there_are_zero_points(array: Array, name: str) -> None:
    values = fake_quantize(FORMATS[name], array)
    assert (values[array == 0] == 0).all()


@given(matrices())
@settings(deadline=None, max_examples=scaled(15_000))
def test_int1_is_the_sign_of_the_mean_magnitude(array: Array) -> None:
    q = FORMATS["int1"].quantize(array)
    for row in range(len(array)):
        for block in range(q.scales.shape[1]):
            values = array[row, 32 * block : 32 * (block + 1)]
            wanted = np.float16(np.float32(np.abs(values).astype(np.float64).mean()))
            assert q.scales[row, block] == wanted
            signs = np.where((values < 0) & (wanted > 0), -1, 1)
            np.testing.assert_array_equal(q.codes[row, 32 * block : 32 * (block + 1)], signs)


@by_format
def test_codes_stay_in_their_bits(format: WeightFormat) -> None:
    q = format.quantize(normal(9, 200))
    low, high = int(q.codes.min()), int(q.codes.max())
    if format.has_offset:
        assert low >= 0
        assert high < 1 << format.bits
    elif format.has_zero_point:
        assert low >= 0
        assert high < 1 << format.bits
        assert q.zeros is not None
        assert q.zeros.max() < 1 << format.bits
    elif format.bits > 1:
        assert -(1 << format.bits - 1) <= low
        assert high < 1 << format.bits - 1
    else:
        assert set(np.unique(q.codes)) == {-1, 1}


@by_format
def test_more_bits_and_smaller_blocks_cost_less(format: WeightFormat) -> None:
    array = normal(64, 256)
    allowed = {8: 0.012, 4: 0.14, 2: 0.40, 1: 0.62}[format.bits]
    error = np.linalg.norm(fake_quantize(format, array) - array) / np.linalg.norm(array)
    assert error < allowed


@by_format
@pytest.mark.parametrize("value", [0.0, -0.0])
def test_zeros_are_zeros(format: WeightFormat, value: float) -> None:
    q = format.quantize(np.full((3, 70), value, np.float32))
    assert not q.scales.any()
    assert not dequantize(q).any()


@by_format
@pytest.mark.parametrize("shape", [(0, 40), (3, 0), (1, 1), (5, 1), (2, 31), (2, 33), (1, 129)], ids=str)
def test_every_shape(format: WeightFormat, shape: tuple[int, int]) -> None:
    array = normal(*shape)
    values = fake_quantize(format, array)
    assert (values.shape, values.dtype) == (shape, np.float32)
    if array.size:
        assert np.abs(values - array).max() <= 2 * np.abs(array).max()


@by_format
def test_rows_are_independent(format: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    array = normal(37, 100)
    whole = format.quantize(array)
    monkeypatch.setattr(quantization, "_VALUES_PER_CHUNK", 300)
    in_parts = format.quantize(array)
    assert_same(in_parts, whole)
    np.testing.assert_array_equal(dequantize(whole)[5:9], dequantize(whole.rows(5, 9)))
    np.testing.assert_array_equal(fake_quantize(format, array), dequantize(whole))
    for row in (0, 36):
        assert_same(format.quantize(array[row : row + 1]), whole.rows(row, row + 1))


@by_format
def test_a_shorter_last_block_is_one_of_its_own(format: WeightFormat) -> None:
    if not format.block:
        return
    array = normal(4, format.stride + 5)
    array[:, format.stride :] *= 100
    values = fake_quantize(format, array)
    np.testing.assert_array_equal(values[:, : format.stride], fake_quantize(format, array[:, : format.stride]))
    np.testing.assert_array_equal(values[:, format.stride :], fake_quantize(format, array[:, format.stride :]))


@by_format
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_float_is_read_and_written(format: WeightFormat, dtype: Any) -> None:
    array = normal(3, 70).astype(dtype)
    q = format.quantize(array)
    assert_same(q, format.quantize(array.astype(np.float32)))
    np.testing.assert_array_equal(dequantize(q, dtype), dequantize(q).astype(dtype))


def test_scales_of_few_digits_still_reach_the_largest_value() -> None:
    unit = np.float32(2.0**-24)
    for multiple in (0.3, 63.4, 127.4, 127.6, 190.5, 255.2, 600.0):
        array = np.array([[multiple, -multiple / 2, 0]], np.float32) * unit
        q = FORMATS["int8"].quantize(array)
        assert np.abs(dequantize(q) - array).max() <= 0.5001 * q.scales.astype(np.float32)


@by_format
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(format: WeightFormat, value: float) -> None:
    array = normal(3, 40)
    array[2, 39] = value
    with pytest.raises(InvalidArgumentError, match=f"not finite cannot be stored as {format.name}"):
        format.quantize(array)


@by_format
def test_values_beyond_the_scales_are_refused(format: WeightFormat) -> None:
    array = normal(3, 40)
    array[1, 1] = -65504
    assert np.isfinite(fake_quantize(format, array)).all()
    array[1, 1] = -65600
    with pytest.raises(InvalidArgumentError, match=f"magnitude 65600 cannot be stored as {format.name}"):
        format.quantize(array)


@pytest.mark.parametrize("name", ["int8", "int4_zp"])
def test_a_way_through_takes_little_memory_beside_its_result(name: str) -> None:
    array = normal(2048, 1024)
    tracemalloc.start()
    try:
        values = fake_quantize(FORMATS[name], array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes + 64 * quantization._VALUES_PER_CHUNK
