"""Two copies and two views are enough for every permutation of dims and every reshape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch.reference import ReferenceRunner
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

RUNNER = ReferenceRunner(OperatorRegistry(catalog.load()))
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
