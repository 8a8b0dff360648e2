"""Strides and sizes are NumPy's, in elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.hal.memory import align_up
from aethermind.hal.tensor import contiguous_strides, is_contiguous, num_elements, num_spanned

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(shapes)
def test_sizes_and_contiguous_strides_are_numpys(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int16)
    strides = contiguous_strides(shape)
    assert num_elements(shape) == array.size
    assert is_contiguous(shape, strides)
    assert num_spanned(shape, strides) == array.size
    if array.size:
        assert strides == tuple(stride // array.itemsize for stride in array.strides)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3), st.randoms())
def test_views_are_judged_as_numpy_judges_them(axes: list[tuple[int, int]], random: object) -> None:
    array = np.zeros([length * step for length, step in axes], np.int16)
    view = array[tuple(slice(None, None, step) for _, step in axes)]
    view = view.transpose(random.sample(range(view.ndim), view.ndim))  # type: ignore[attr-defined]
    strides = tuple(stride // 2 for stride in view.strides)
    assert is_contiguous(view.shape, strides) == view.flags.c_contiguous
    low, high = np.lib.array_utils.byte_bounds(view)
    assert num_spanned(view.shape, strides) == (high - low) // 2


@pytest.mark.parametrize(("size", "aligned"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_align_up(size: int, aligned: int) -> None:
    assert align_up(size, 64) == aligned
