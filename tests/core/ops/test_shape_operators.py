"""Permutations, reshapes, expansions and reductions, and the smaller operators that are enough for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch.reference import ReferenceRunner
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

REGISTRY = OperatorRegistry(catalog.load())
RUNNER = ReferenceRunner(REGISTRY)
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_every_permutation_is_a_chain_of_swapped_neighbours(order: tuple[int, ...]) -> None:
    x, left = X, list(range(4))
    for place, axis in enumerate(order):
        for index in range(left.index(axis), place, -1):
            x = swap_neighbours(x, index - 1)
            left[index - 1], left[index] = left[index], left[index - 1]
    np.testing.assert_array_equal(x, X.transpose(order))


@pytest.mark.parametrize("shape", [(120,), (1, 120), (4, 30), (5, 4, 6), (3, 2, 2, 2, 5)], ids=str)
def test_every_reshape_is_a_chain_of_merges_and_splits(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(split(merge(X, 1), shape), X.reshape(shape))


def swap_neighbours(x: Any, index: int) -> Any:
    if index == x.ndim - 2:
        return RUNNER.op("transpose", x)
    swapped = RUNNER.op("permute_heads", merge(x, index + 3))
    return split(swapped, x.shape[index + 2 :])


def merge(x: Any, num_dims: int) -> Any:
    while x.ndim > num_dims:
        x = RUNNER.op("merge_last", x)
    return x


def split(x: Any, last: Sequence[int]) -> Any:
    for count in last[:-1]:
        x = RUNNER.op("split_last", x, count=count)
    return x


def by_parts(name: str, *inputs: Any, **attributes: Any) -> Any:
    operator = REGISTRY[name]
    parts = operator.decompose or operator.without_additions
    assert parts is not None
    return parts(RUNNER, *inputs, **operator.schema.complete(attributes))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_permute_is_its_parts(order: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(RUNNER.op("permute", X, dims=order), X.transpose(order))
    np.testing.assert_array_equal(by_parts("permute", X, dims=order), X.transpose(order))


@pytest.mark.parametrize("shape", [(2, 3, 1), (1, 5, 1), (2, 1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("wanted", [(2, 3, 4), (7, 2, 3, 13), (2, 0, 4)], ids=str)
def test_expand_is_its_parts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape)
    sizes = [size if old == 1 else -1 for old, size in zip((1,) * (len(wanted) - 3) + shape, wanted, strict=True)]
    expected = np.broadcast_to(x, [old if size == -1 else size for old, size in zip(shape, sizes[-3:], strict=True)])
    expected = np.broadcast_to(expected, (*wanted[:-3], *expected.shape))
    np.testing.assert_array_equal(RUNNER.op("expand", x, shape=sizes), expected)
    np.testing.assert_array_equal(by_parts("expand", x, shape=sizes), expected)


DIMS = [dims for count in range(5) for dims in itertools.combinations(range(4), count)]


@pytest.mark.parametrize("keepdim", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_reductions_over_all_subsets_of_dims(name: str, dims: tuple[int, ...], keepdim: bool) -> None:
    expected = getattr(X, name)(axis=dims or None, keepdims=keepdim)
    np.testing.assert_allclose(RUNNER.op(name, X, dim=dims, keepdim=keepdim), expected)
    np.testing.assert_allclose(by_parts(name, X, dim=dims, keepdim=keepdim), expected)


@pytest.mark.parametrize("dim", range(-4, 4))
def test_the_index_of_the_largest_over_each_dim(dim: int) -> None:
    np.testing.assert_array_equal(RUNNER.op("argmax", X, dim=dim), X.argmax(dim))
    np.testing.assert_array_equal(by_parts("argmax", X, dim=dim, keepdim=True), X.argmax(dim, keepdims=True))
    np.testing.assert_array_equal(RUNNER.op("argmin", X, dim=dim), X.argmin(dim))


@pytest.mark.parametrize("shapes", [((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((2, 1, 1), (1, 3, 1)), ((), (5,))], ids=str)
def test_broadcasting_is_expansion_before_equal_shapes(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (np.random.default_rng(2).standard_normal(shape) for shape in shapes)
    np.testing.assert_array_equal(RUNNER.op("sub", a, b), a - b)
    np.testing.assert_array_equal(by_parts("sub", a, b), a - b)
