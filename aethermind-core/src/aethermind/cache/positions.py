"""Where the tokens of a sequence stand: the position of each, and the position its key was rotated for.

A token has an index, its place among the tokens that are kept, and a position, its place in the text. They are equal
until tokens are dropped (those behind keep their positions, and a gap stays) or shifted (they move, the gap closes).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["PLAIN", "Run", "TokenPositions"]


class Run(NamedTuple):
    """Tokens from index `first` up to the next run's, at neighbouring positions."""

    first: int
    position: int
    """Where the first of them stands."""
    computed_at: int
    """Where it stood when its key was computed, or turned last."""


class TokenPositions:
    """The positions of any number of tokens, as runs of neighbours. Immutable; every change is a new value.

    The last run goes on for ever: whatever is appended stands behind the last token. Positions ascend and are 0 or
    more; Python's integers hold them whatever their size, 64 bits are what a device takes.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[Run] = (Run(0, 0, 0),)) -> None:
        self.runs = _joined(runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenPositions) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"TokenPositions({list(self.runs)})"

    def position(self, index: int) -> int:
        """Where the token of `index` stands, or will stand when it is appended."""
        run = self._run(index)
        return run.position + index - run.first

    def index(self, position: int) -> int:
        """The index of the first token at `position` or behind."""
        order = bisect_right(self.runs, position, key=lambda run: run.position) - 1
        if order < 0:
            return 0
        run = self.runs[order]
        index = run.first + position - run.position
        return min(index, self.runs[order + 1].first) if order + 1 < len(self.runs) else index

    def truncated(self, num_tokens: int) -> TokenPositions:
        """The first `num_tokens` tokens; what follows stands directly behind the last of them."""
        return TokenPositions(run for run in self.runs if run.first < num_tokens) if num_tokens else PLAIN

    def without(self, start: int, end: int) -> TokenPositions:
        """All but the tokens of the indices from `start` up to `end`; those behind keep their positions."""
        behind = self._split(end)
        runs = [run for run in self.runs if run.first < start]
        return TokenPositions(runs + [run._replace(first=run.first - (end - start)) for run in behind])

    def shifted(self, start: int, delta: int) -> TokenPositions:
        """The tokens from index `start` on moved by `delta` positions, their keys where they were."""
        runs = [run for run in self.runs if run.first < start]
        return TokenPositions(runs + [run._replace(position=run.position + delta) for run in self._split(start)])

    def turned(self) -> TokenPositions:
        """The same positions, with every key turned for its own."""
        return TokenPositions(run._replace(computed_at=run.position) for run in self.runs)

    def _run(self, index: int) -> Run:
        return self.runs[bisect_right(self.runs, index, key=lambda run: run.first) - 1]

    def _split(self, index: int) -> list[Run]:
        """The runs from `index` on, the first of which begins there."""
        run = self._run(index)
        head = Run(index, run.position + index - run.first, run.computed_at + index - run.first)
        return [head, *(run for run in self.runs if run.first > index)]


def _joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs without those that only continue the one before."""
    joined: list[Run] = []
    for run in runs:
        if joined:
            last = joined[-1]
            num_tokens = run.first - last.first
            if (run.position - last.position, run.computed_at - last.computed_at) == (num_tokens, num_tokens):
                continue
        joined.append(run)
    return tuple(joined)


PLAIN = TokenPositions()
"""Positions of a sequence that nothing was dropped from: the indices."""
