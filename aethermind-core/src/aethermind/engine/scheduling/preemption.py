"""What giving way costs: computing a sequence again against carrying its keys and values out and back.

Both rates are measured while the engine runs, each as a mean that forgets: of the last observations the newest counts
`_WEIGHT`. Until there is one, a default stands in that only has to be right about which of the two is larger.

Prompts are computed whatever is decided here, so that rate stays fresh. That of moves does not: who believes moves to
be slow makes none, and would believe it for ever. So the belief behind a refusal halves every `_HALF_LIFE_S`, until a
move is tried again; what that one shows counts the more, the older the belief was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from aethermind.cache.swap import SwapStore

__all__ = ["MeasuredCosts", "PreemptionCosts", "TimedSwapStore"]

_WEIGHT = 0.1
_HALF_LIFE_S = 30.0


class PreemptionCosts(Protocol):
    """Judges how a victim should give way."""

    def prefers_swap(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether moving `num_bytes` out and back is cheaper than computing `num_tokens` again."""
        ...


class MeasuredCosts:
    """Seconds per recomputed token and per byte moved one way, measured. Mutable."""

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
        """Compare a recomputation with two moves."""
        seconds_per_byte = self.seconds_per_byte * self._trust()
        is_preferred = 2 * num_bytes * seconds_per_byte < num_tokens * self.seconds_per_token
        if not is_preferred and self._refusing_since is None:
            self._refusing_since = self._clock()
        return is_preferred

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step without decodes."""
        self.seconds_per_token += _WEIGHT * (seconds / num_tokens - self.seconds_per_token)

    def observe_move(self, num_bytes: int, seconds: float) -> None:
        """Learn from a move, in whichever direction."""
        weight = 1.0 - (1.0 - _WEIGHT) * self._trust()
        self.seconds_per_byte += weight * (seconds / num_bytes - self.seconds_per_byte)
        self._refusing_since = None

    def _trust(self) -> float:
        """What is left of the belief in `seconds_per_byte`: 1.0 unless moves have been refused since the last one."""
        if self._refusing_since is None:
            return 1.0
        return float(0.5 ** ((self._clock() - self._refusing_since) / _HALF_LIFE_S))


class TimedSwapStore:
    """A swap store whose moves are measured: give it to the cache in place of `store`."""

    __slots__ = ("_bytes_per_block", "_clock", "_costs", "_store")

    def __init__(
        self, store: SwapStore, bytes_per_block: int, costs: MeasuredCosts, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._bytes_per_block = bytes_per_block
        self._costs = costs
        self._clock = clock

    @property
    def num_blocks(self) -> int:
        """Blocks that the store can keep."""
        return self._store.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that it keeps."""
        return self._store.num_used_blocks

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        """Save, and learn how long it took unless there was no room."""
        started = self._clock()
        is_saved = self._store.save(seq_id, blocks)
        if is_saved:
            self._observe(blocks, started)
        return is_saved

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        """Load, and learn how long it took."""
        started = self._clock()
        self._store.load(seq_id, blocks)
        self._observe(blocks, started)

    def drop(self, seq_id: str) -> None:
        """Forget what was saved."""
        self._store.drop(seq_id)

    def _observe(self, blocks: Sequence[int], started: float) -> None:
        if blocks:
            self._costs.observe_move(len(blocks) * self._bytes_per_block, self._clock() - started)
