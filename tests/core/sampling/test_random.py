"""uniform(seed, position): even, independent of neighbours, and a function of its arguments alone."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind.sampling.rows import _mix, derive_seed, uniform

NUM_DRAWS = 20_000


def stream(seed: int, start: int = 0, count: int = NUM_DRAWS) -> np.ndarray:
    return np.array([uniform(seed, start + index) for index in range(count)])


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2).sum() / expected)


def bound(num_cells: int) -> float:
    """A chi-square value that an even distribution exceeds less than once in 10,000 times."""
    degrees = num_cells - 1
    return degrees + 4.0 * float(np.sqrt(2.0 * degrees)) + 8.0


def test_it_is_splitmix64() -> None:
    """The first outputs of the published SplitMix64 generator seeded with 1234567 come out of its mixer."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    golden = 0x9E3779B97F4A7C15
    assert [_mix(1234567 + index * golden) for index in range(3)] == published


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
def test_a_stream_is_even(seed: int) -> None:
    draws = stream(seed)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert chi_square(np.histogram(draws, 128, (0.0, 1.0))[0]) < bound(128)


def test_a_position_is_even_over_seeds() -> None:
    draws = np.array([uniform(seed, 7) for seed in range(NUM_DRAWS)])
    assert chi_square(np.histogram(draws, 128, (0.0, 1.0))[0]) < bound(128)


def test_low_bits_are_even() -> None:
    low = (stream(5) * 2**53).astype(np.uint64) & np.uint64(127)
    assert chi_square(np.bincount(low.astype(np.int64), minlength=128)) < bound(128)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (stream(1), stream(1, start=1)),
        (stream(1), stream(2)),
        (stream(0), stream(2**63)),
        (
            np.array([uniform(s, s) for s in range(NUM_DRAWS)]),
            np.array([uniform(s + 1, s) for s in range(NUM_DRAWS)]),
        ),
    ],
    ids=["next position", "next seed", "one bit of the seed", "diagonal"],
)
def test_neighbours_are_independent(first: np.ndarray, second: np.ndarray) -> None:
    pairs = np.histogram2d(first, second, 12, ((0.0, 1.0), (0.0, 1.0)))[0]
    assert chi_square(pairs) < bound(144)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.0 / NUM_DRAWS**0.5


def test_seeds_do_not_share_numbers() -> None:
    draws = {uniform(seed, position) for seed in range(100) for position in range(100)}
    assert len(draws) == 10_000


def test_same_arguments_same_number() -> None:
    assert uniform(9, 4) == uniform(9, 4) == uniform(9 + 2**64, 4)


def test_derived_seeds_differ_and_fit() -> None:
    seeds = {derive_seed(engine_seed, index) for engine_seed in range(50) for index in range(200)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)
