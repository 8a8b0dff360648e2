"""The cost of preemption: recomputing a sequence, compared with swapping its keys and values out and in.

Both costs, seconds per token and per byte, are measured while the engine runs, as exponential moving averages with
weight `_WEIGHT`. Until the first observation defaults are used; they only have to be right about which of the two is
cheaper.

The cost of recomputation is always current, because prompts are computed anyway. The cost of swapping is not: an
estimate that is too high would prevent the swaps that could correct it. So while recomputation is preferred, the
estimate decays with a half-life of `_HALF_LIFE_S`, until a swap is tried again. The more the estimate has decayed, the
more weight the next observation has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from aethermind.cache.swap_store import SwapStore

__all__ = ["PreemptionCosts", "SwapVsRecomputeCosts", "TimedSwapStore"]

_WEIGHT = 0.1
_HALF_LIFE_S = 30.0


class PreemptionCosts(Protocol):
    """Decides between swapping and recomputing a preempted request."""

    def prefers_swap(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether swapping `num_bytes` out and in is cheaper than recomputing `num_tokens`."""
        ...


class SwapVsRecomputeCosts:
    """Measured seconds per recomputed token, and per byte swapped one way. Mutable."""

    __slots__ = ("_clock", "_refusing_since", "seconds_per_byte", "seconds_per_token")

    def __init__(
        self,
        seconds_per_token: float = 1e-4,
        seconds_per_byte: float = 2.5e-10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds_per_token = seconds_per_token
        self.seconds_per_byte = seconds_per_byte
        self._clock = clock
        self._refusing_since: float | None = None

    def prefers_swap(self, num_tokens: int, num_bytes: int) -> bool:
        """Compare a recomputation with a swap out and a swap in."""
        seconds_per_byte = self.seconds_per_byte * self._decay()
        is_preferred = 2 * num_bytes * seconds_per_byte < num_tokens * self.seconds_per_token
        if not is_preferred and self._refusing_since is None:
            self._refusing_since = self._clock()
        return is_preferred

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Update the cost of computation after a step without decodes."""
        self.seconds_per_token += _WEIGHT * (seconds / num_tokens - self.seconds_per_token)

    def observe_move(self, num_bytes: int, seconds: float) -> None:
        """Update the cost of swapping after a move in either direction."""
        if not num_bytes:  # a model without attention, whose blocks are empty
            return
        weight = 1.0 - (1.0 - _WEIGHT) * self._decay()
        self.seconds_per_byte += weight * (seconds / num_bytes - self.seconds_per_byte)
        self._refusing_since = None

    def _decay(self) -> float:
        """Return the decay of `seconds_per_byte`, 0 to 1: it is 1 unless recomputation was preferred since the last
        swap.
        """
        if self._refusing_since is None:
            return 1.0
        return float(0.5 ** ((self._clock() - self._refusing_since) / _HALF_LIFE_S))


class TimedSwapStore:
    """A swap store that wraps another one and reports the times of its moves to `SwapVsRecomputeCosts`."""

    __slots__ = ("_bytes_per_block", "_clock", "_costs", "_store")

    def __init__(
        self, store: SwapStore, bytes_per_block: int, costs: SwapVsRecomputeCosts, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._bytes_per_block = bytes_per_block
        self._costs = costs
        self._clock = clock

    @property
    def num_blocks(self) -> int:
        """Blocks of the store."""
        return self._store.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks of the store that are in use."""
        return self._store.num_used_blocks

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Save blocks, and measure the time if they were saved."""
        started = self._clock()
        is_saved = self._store.save(seq_id, blocks)
        if is_saved:
            self._observe(blocks, started)
        return is_saved

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Load blocks, and measure the time."""
        started = self._clock()
        self._store.load(seq_id, blocks)
        self._observe(blocks, started)

    def drop(self, seq_id: str) -> None:
        """Drop saved blocks."""
        self._store.drop(seq_id)

    def _observe(self, blocks: Sequence[int], started: float) -> None:
        if blocks:
            self._costs.observe_move(len(blocks) * self._bytes_per_block, self._clock() - started)
