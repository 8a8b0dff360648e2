"""Counter-based random numbers: a number is a function of a seed and a position alone.

There is no generator state, so a request draws the same numbers alone, in any batch, and after a preemption. The mixing
function is SplitMix64's finaliser (Steele, Lea and Flood, 2014), applied first to the seed, so that neighbouring seeds
start far apart, and then to the position.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["derive_seed", "uniform"]

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1), of 53 random bits, that belongs to `position` in the stream of `seed`.

    `seed` is taken modulo 2**64; `position` is 0 or more, by convention the number of tokens that precede the
    one being sampled.
    """
    return (_mix(_start(seed) + position * _GOLDEN) >> 11) * _TO_UNIT


def derive_seed(seed: int, index: int) -> int:
    """Return the seed, in [0, 2**64), of the `index`-th request of an engine with `seed`."""
    return _mix(_mix(seed ^ _GOLDEN) + index)


@lru_cache(maxsize=1024)
def _start(seed: int) -> int:
    """Return the start of a seed's stream; cached, because it is needed for each token."""
    return _mix(seed)


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
