"""Shapes with symbols: reading, matching, calculating."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.errors import OperatorError
from aethermind.ops.dims import SymDim, parse_shape, resolve
from aethermind.ops.shape_inference import evaluate, match

T, S = SymDim("T"), SymDim("S")

dims = st.one_of(st.integers(0, 9999), st.builds(SymDim, st.sampled_from("TSRN"), st.integers(-9, 9)))
shapes = st.lists(dims, max_size=5).map(tuple)


@given(shapes)
def test_a_printed_shape_reads_back(shape):
    assert parse_shape(",".join(map(str, shape))) == shape


@given(shapes, st.integers(10, 50))
def test_resolve_leaves_only_numbers(shape, value):
    expected = tuple(dim if isinstance(dim, int) else value + dim.offset for dim in shape)
    assert resolve(shape, dict.fromkeys("TSRN", value)) == expected


@given(shapes)
def test_names_bind_to_dims_and_give_them_back(shape):
    names, binding = [f"d{i}" for i in range(len(shape))], {}
    assert match(names, shape, binding) is None
    assert evaluate(names, binding) == shape


@given(shapes, dims)
def test_leading_dots_take_whatever_is_left(shape, last):
    binding = {}
    assert match(["...", "D"], (*shape, last), binding) is None
    assert binding == {"...": shape, "D": last}
    assert evaluate(["...", "D"], binding) == (*shape, last)


def test_an_offset_in_a_pattern_is_taken_off():
    binding = {}
    assert match(["S+1"], (SymDim("S", 1),), binding) is None
    assert binding == {"S": S}
    assert match(["S+1"], (5,), {}) is None
    assert match(["S+1"], (5,), {"S": 4}) is None
    assert match(["S+1"], (5,), {"S": 5}) == "S is 5 elsewhere"


@pytest.mark.parametrize(
    ("pattern", "shape", "binding", "problem"),
    [
        (["T", "D"], (3,), {}, "needs 2 dims"),
        (["...", "D"], (), {}, "needs at least 1 dims"),
        (["T"], (4,), {"T": 3}, "T is 3 elsewhere"),
        (["T"], (4,), {"T": T}, "T is T elsewhere"),
        (["4"], (3,), {}, "a dim should be 4"),
        (["...", "D"], (2, 3, 5), {"...": (4,), "D": 5}, "leading dims should be [4]"),
    ],
)
def test_what_does_not_fit_is_said(pattern, shape, binding, problem):
    assert match(pattern, shape, binding) == problem


@pytest.mark.parametrize(
    ("term", "binding", "dim"),
    [
        ("2*E", {"E": 32}, 64),
        ("H*C", {"H": 14, "C": 64}, 896),
        ("Q/n", {"Q": 896, "n": 14}, 64),
        ("S+1", {"S": S}, SymDim("S", 1)),
        ("T-1", {"T": SymDim("T", 1)}, T),
        ("7", {}, 7),
    ],
)
def test_terms_are_calculated(term, binding, dim):
    assert evaluate([term], binding) == (dim,)


@pytest.mark.parametrize(
    ("term", "binding", "message"),
    [
        ("Q/n", {"Q": 10, "n": 4}, "Dim 10 is not a multiple of 4."),
        ("Q/n", {"Q": 10, "n": 0}, "Dim 10 is not a multiple of 0."),
        ("2*T", {"T": T}, "Dim T*2 is not supported: only a symbolic dim plus a number is."),
    ],
)
def test_terms_without_a_value_are_errors(term, binding, message):
    with pytest.raises(OperatorError) as raised:
        evaluate([term], binding)
    assert str(raised.value) == message
