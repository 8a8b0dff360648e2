"""What an eager call costs beyond its kernel: operators on arrays so small that the kernel takes next to nothing.

make bench
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aethermind import eager

CALLS: dict[str, Callable[[Any], Any]] = {
    "silu [8]": lambda x: eager.silu(x[0, :8]),
    "add [8]": lambda x: eager.add(x[0, :8], x[0, 8:16]),
    "softmax [8]": lambda x: eager.softmax(x[0, :8]),
    "rms_norm [1, 64]": lambda x: eager.rms_norm(x, x[0], eps=1e-6),
}


@pytest.mark.parametrize("name", CALLS)
def bench_small_calls(name: str) -> None:
    """Print the median time of a call whose signature has been seen before."""
    x = np.ones((1, 64), np.float32)
    call = CALLS[name]
    call(x)
    times = [seconds / 2000 for seconds in timeit.repeat(lambda: call(x), number=2000, repeat=9)]
    print(f"\neager.{name}: {statistics.median(times) * 1e6:.1f} µs")


@pytest.mark.parametrize("size", [64, 896])
def bench_packed_linear(size: int) -> None:
    """Print `linear` of one row with its weight as it lies, and packed once."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(1, size)).astype(np.float32), rng.normal(size=(size, size)).astype(np.float32)
    packed = eager.pack("linear", "weight", weight)
    took = []
    for given in (weight, packed):
        eager.linear(x, given)
        took.append(
            statistics.median(timeit.repeat(lambda given=given: eager.linear(x, given), number=100, repeat=9)) / 100
        )
    print(f"\neager.linear {size} × {size}: {took[0] * 1e6:.1f} µs, packed once {took[1] * 1e6:.1f} µs")
