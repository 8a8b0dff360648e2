"""Comparisons: what counts as an error, where the worst is, and two engines run side by side."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.engine.engines import open_engine
from tests.scale import scaled

from aethermind import Runtime
from aethermind.engine.observation.comparison import ComparisonTolerance, compare, compare_arrays
from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.hal.dtype import DType

TOLERANCE = ComparisonTolerance(0.01, 0.001)
INF, NAN = float("inf"), float("nan")


def test_the_tolerance_scales_with_the_row() -> None:
    expected = np.array([[1.0, 0.0], [100.0, 0.0]], np.float32)
    actual = expected + np.array([[0, 0.022], [0, 0.9]], np.float32)
    error, excess, index, left, right = compare_arrays(expected, actual, TOLERANCE)
    assert error == pytest.approx(0.9)
    assert (excess, index) == (pytest.approx(2.0), (0, 1))
    assert (left, right) == (0.0, pytest.approx(0.022))


@pytest.mark.parametrize(
    ("expected", "actual", "excess"),
    [
        ([1.0, NAN], [1.0, NAN], 0),
        ([1.0, INF], [1.0, INF], 0),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, 2.0], [1.0, INF], INF),
    ],
)
def test_infinities_and_nan_agree_with_themselves_only(
    expected: list[float], actual: list[float], excess: float
) -> None:
    found = compare_arrays(np.array(expected), np.array(actual), TOLERANCE)
    assert (found[0], found[1]) == (excess, excess)
    assert found[2] == ((1,) if excess else (0,))


def test_integers_must_be_equal_and_empty_arrays_are() -> None:
    assert compare_arrays(np.array([4, 5]), np.array([4, 5]), TOLERANCE)[:2] == (0, 0)
    assert compare_arrays(np.array([4, 5]), np.array([4, 6]), TOLERANCE) == (1, INF, (1,), 5, 6)
    assert compare_arrays(np.zeros((0, 3)), np.zeros((0, 3)), TOLERANCE)[:2] == (0, 0)
    assert compare_arrays(np.zeros((2, 3)), np.zeros((3, 2)), TOLERANCE)[:2] == (INF, INF)
    assert compare_arrays(np.array(1.0), np.array(1.0), TOLERANCE)[:3] == (0, 0, ())


@given(st.integers(1, 4), st.integers(1, 5), st.data())
@settings(max_examples=scaled(5000), deadline=None)
def test_one_wrong_element_is_found(rows: int, columns: int, data: st.DataObject) -> None:
    expected = np.random.default_rng(rows * 7 + columns).standard_normal((rows, columns)).astype(np.float32)
    index = (data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1)))
    actual = expected * (1 + 1e-4)
    actual[index] += 1
    _, excess, found, left, right = compare_arrays(expected, actual, TOLERANCE)
    assert excess > 1
    assert (found, left, right) == (index, expected[index], actual[index])


@pytest.mark.parametrize("value", [-1.0, NAN, INF])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_tolerance_is_a_number_from_zero(name: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} should be a number from 0"):
        ComparisonTolerance.of(DType.FLOAT32, **{name: value})


def test_narrower_types_are_allowed_more() -> None:
    float32, float16, bfloat16 = (
        ComparisonTolerance.of(dtype) for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
    )
    assert float32.rtol < float16.rtol < bfloat16.rtol
    assert ComparisonTolerance.of(DType.FLOAT32, 0.5, 0.0) == ComparisonTolerance(0.5, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fuse", [True, False])
def test_the_cpu_computes_what_the_references_do(runtime: Runtime, dtype: str, fuse: bool) -> None:
    engines = [open_engine(runtime, device, dtype=dtype) for device in ("numpy", "cpu")]
    tolerance = ComparisonTolerance.of(DType.parse(dtype))
    comparison = compare(engines[0], engines[1], [5, 6, 7, 8], 3, tolerance, fuse=fuse)
    assert comparison.first_divergence is None
    assert comparison.num_steps == 3
    assert comparison.only_in_tested == ()
    assert bool(comparison.only_in_reference) == fuse
    plan = engines[1].compiled.compile(fuse=fuse).plan
    names = [name for step in plan.steps for name in step.names]
    assert [difference.name for difference in comparison.differences] == names * 3
    assert [difference.step for difference in comparison.differences] == sorted([*range(3)] * len(names))
    assert list(comparison.worst_by_layer()) == [None, *range(engines[0].compiled.model.config.num_hidden_layers)]
    for engine in engines:
        assert not engine.has_unfinished
        assert not engine.runner.hooks.is_active
        assert engine.cache.num_free_blocks == engine.compiled.num_kv_blocks


def test_only_slots_written_by_the_step_are_compared_in_caches(runtime: Runtime) -> None:
    engines = [open_engine(runtime) for _ in range(2)]
    comparison = compare(engines[0], engines[1], [5, 6, 7, 8], 2, ComparisonTolerance(0, 0))
    config = engines[0].compiled.model.config
    heads = (config.num_key_value_heads, config.head_dim)
    shapes = [one.shape for one in comparison.differences if ".0." in one.name and one.operator == "kv_cache_write"]
    assert shapes == [(4, *heads), (4, *heads), (1, *heads), (1, *heads)]
    assert comparison.first_divergence is None


def test_it_ends_where_the_tokens_differ(runtime: Runtime) -> None:
    engines: list[Any] = [open_engine(runtime) for _ in range(2)]

    def choose_another(_: str, array: Any, info: Any) -> None:
        if info.step == 1:
            another = (array + 1) % 7
            ctypes.memmove(array.ctypes.data, another.ctypes.data, array.nbytes)

    with engines[1].runner.hooks.on("sampler.sample_tokens", choose_another):
        comparison = compare(engines[0], engines[1], [5, 6, 7, 8], 5, TOLERANCE)
    assert comparison.num_steps == 2
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.name, comparison.first_divergence.step) == ("sampler.sample_tokens", 1)
    assert not engines[0].has_unfinished
    assert not engines[1].has_unfinished


def test_a_prompt_that_does_not_fit_leaves_nothing_behind(runtime: Runtime) -> None:
    engines = [open_engine(runtime), open_engine(runtime, max_model_len=4)]
    with pytest.raises(ContextLengthError):
        compare(engines[0], engines[1], [5] * 8, 1, TOLERANCE)
    assert not engines[0].has_unfinished
