"""Positions of a sequence's tokens, and the K-shifts that follow when they change.

A token has an index, its place among the tokens that are kept, and a position, its place in the text. The two are equal
until tokens are dropped (later tokens keep their positions, which leaves a gap) or shifted (which can close the gap).

A rotary embedding turns the key of a token by an angle proportional to its position, so rotations add up: a key that
was computed at position p becomes one at p + delta by rotating it by the angle of delta, with the same frequencies.
Values do not depend on positions. `KVCache.shift` changes positions and no keys. The next `reserve` of the sequence
returns the blocks whose keys have to be rotated before the step: each block once, however often the sequence was
shifted in between.

Source: Su et al., RoFormer, 2021 (https://arxiv.org/abs/2104.09864), section 3.2.2: R(m) R(n) = R(m + n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["BlockShift", "IDENTITY_POSITIONS", "PositionRun", "TokenPositions", "block_shifts"]


class PositionRun(NamedTuple):
    """Tokens at consecutive positions, from index `first` up to the `first` of the next run."""

    first: int
    position: int
    """Position of the first token."""
    key_position: int
    """Position for which the key of the first token is rotated at present."""


class TokenPositions:
    """The positions of any number of tokens, as runs of consecutive positions. Immutable: every change returns a new
    object.

    The last run has no end: appended tokens get the positions after the last token. Positions ascend and are 0 or
    more. Python's integers hold any size; a device takes 64 bits.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[PositionRun] = (PositionRun(0, 0, 0),)) -> None:
        self.runs = _merge_runs(runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenPositions) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"TokenPositions({list(self.runs)})"

    @property
    def are_indices(self) -> bool:
        """Whether every position equals its token's index; keys may still have to be rotated."""
        return all(run.position == run.first for run in self.runs)

    def position(self, index: int) -> int:
        """Return the position of the token at `index`, or the one that it will have when it is appended."""
        run = self._run(index)
        return run.position + index - run.first

    def index(self, position: int) -> int:
        """Return the index of the first token at `position` or after it."""
        number = bisect_right(self.runs, position, key=lambda run: run.position) - 1
        if number < 0:
            return 0
        run = self.runs[number]
        index = run.first + position - run.position
        return min(index, self.runs[number + 1].first) if number + 1 < len(self.runs) else index

    def truncated(self, num_tokens: int) -> TokenPositions:
        """Keep the first `num_tokens` tokens; appended tokens follow directly after them."""
        return TokenPositions(run for run in self.runs if run.first < num_tokens) if num_tokens else IDENTITY_POSITIONS

    def without(self, start: int, end: int) -> TokenPositions:
        """Drop the tokens at indices from `start` up to `end`; later tokens keep their positions."""
        later = self._split(end)
        runs = [run for run in self.runs if run.first < start]
        return TokenPositions(runs + [run._replace(first=run.first - (end - start)) for run in later])

    def shifted(self, start: int, delta: int) -> TokenPositions:
        """Shift the tokens from index `start` on by `delta` positions; their keys keep their rotation."""
        runs = [run for run in self.runs if run.first < start]
        return TokenPositions(runs + [run._replace(position=run.position + delta) for run in self._split(start)])

    def with_keys_shifted(self) -> TokenPositions:
        """Return the same positions with every key rotated for its own position."""
        return TokenPositions(run._replace(key_position=run.position) for run in self.runs)

    def _run(self, index: int) -> PositionRun:
        """Return the run of the token at `index`."""
        return self.runs[bisect_right(self.runs, index, key=lambda run: run.first) - 1]

    def _split(self, index: int) -> list[PositionRun]:
        """Return the runs from `index` on, the first of which begins there."""
        run = self._run(index)
        head = PositionRun(index, run.position + index - run.first, run.key_position + index - run.first)
        return [head, *(run for run in self.runs if run.first > index)]


def _merge_runs(runs: Iterable[PositionRun]) -> tuple[PositionRun, ...]:
    """Merge each run that continues the previous one."""
    merged: list[PositionRun] = []
    for run in runs:
        if merged:
            last = merged[-1]
            num_tokens = run.first - last.first
            if (run.position - last.position, run.key_position - last.key_position) == (num_tokens, num_tokens):
                continue
        merged.append(run)
    return tuple(merged)


IDENTITY_POSITIONS = TokenPositions()
"""Positions equal to the indices: those of a sequence without dropped or shifted tokens."""


class BlockShift(NamedTuple):
    """A K-shift of one block: its keys are rotated in place, in all layers, after a step's copies and before its
    writes.
    """

    block: int
    num_tokens: int
    """Leading slots of the block that are filled; the others are ignored."""
    delta: int
    """Current position minus the position of the rotation, int64, the same for all tokens of the block, never 0."""


def block_shifts(
    positions: TokenPositions, block_table: Sequence[int], block_size: int, num_tokens: int
) -> Iterator[BlockShift]:
    """Yield the blocks of a sequence of `num_tokens` tokens whose keys are not rotated for their current positions."""
    ends = [run.first for run in positions.runs[1:]]
    for run, end in zip(positions.runs, [*ends, num_tokens], strict=True):
        delta = run.position - run.key_position
        if delta == 0:
            continue
        assert run.first % block_size == 0, f"a shift begins inside a block of {block_size} tokens, at {run.first}"
        for start in range(run.first, end, block_size):
            yield BlockShift(block_table[start // block_size], min(block_size, end - start), delta)
