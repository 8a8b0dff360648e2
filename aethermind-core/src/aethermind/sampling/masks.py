"""Which tokens each row may choose: a bitmask for every row of logits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.guidance import TokenGuide
    from aethermind.sampling.rows import SampledRequest

__all__ = ["MaskRows"]

_WORTH_THREADS_S = 1e-3
"""Masks that together take longer than this are made by several threads; to wake one takes a tenth of it."""
_MOST_HELPERS = 3
_WEIGHT = 0.1


class _Guided:
    """A row whose mask a guide writes."""

    __slots__ = ("failure", "guide", "mask", "output_token_ids", "row")

    def __init__(self, row: int, guide: TokenGuide, output: Sequence[int], mask: npt.NDArray[np.int32]) -> None:
        self.row = row
        self.guide = guide
        self.output_token_ids = output
        self.mask = mask
        self.failure: str | None = None


class MaskRows:
    """Writes token_mask [R, W] in place: bit t % 32 of word t // 32 says whether a row may choose token t.

    Guides of one lane would wait for each other (see `Grammars`), so each lane is the work of one thread.
    """

    def __init__(self, token_mask: npt.NDArray[np.int32], num_rows: int) -> None:
        """`token_mask` is flat, with room for `num_rows`."""
        self._mask = token_mask
        self._width = len(token_mask) // num_rows
        self._guide_s = 0.0
        """What a guide takes for a row, in the mean of the last steps."""

    def fill(self, requests: Sequence[SampledRequest]) -> dict[int, str]:
        """Write a row for each request; returns by row why an answer cannot go on, where its guide says so."""
        lanes: dict[int, list[_Guided]] = {}
        for row, request in enumerate(requests):
            mask, controls = self._row(row), request.controls
            if controls is None or controls.guide is None:
                mask[:] = -1
            else:
                guided = _Guided(row, controls.guide, request.output_token_ids, mask)
                lanes.setdefault(controls.guide.lane, []).append(guided)
        self._ask(list(lanes.values()))
        for row, request in enumerate(requests):
            if request.controls is not None and request.controls.allowed is not None:
                mask = self._row(row)
                mask &= request.controls.allowed
        return {one.row: one.failure for lane in lanes.values() for one in lane if one.failure is not None}

    def allows(self, row: int, request: SampledRequest, token_id: int) -> bool:
        """Whether the request of a row may have a token. What a guide says of that is in the mask as last written."""
        controls = request.controls
        if controls is None:
            return True
        mask = controls.allowed if controls.guide is None else self._row(row)
        return mask is None or bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)

    def _row(self, row: int) -> npt.NDArray[np.int32]:
        return self._mask[row * self._width : (row + 1) * self._width]

    def _ask(self, lanes: list[list[_Guided]]) -> None:
        """Have the guides of all lanes write their rows."""
        num_guides = sum(map(len, lanes))
        if not num_guides:
            return
        if len(lanes) > 1 and self._guide_s * num_guides > _WORTH_THREADS_S:
            own, *others = lanes
            helping = [self._helpers.submit(_write, lane) for lane in others]
            seconds = _write(own) + sum(helper.result() for helper in helping)
        else:
            seconds = sum(map(_write, lanes))
        self._guide_s += _WEIGHT * (seconds / num_guides - self._guide_s)

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MOST_HELPERS, "token-masks")


def _write(lane: Iterable[_Guided]) -> float:
    """One after the other; returns the seconds that it took."""
    started = time.perf_counter()
    for one in lane:
        one.failure = one.guide.fill(one.output_token_ids, one.mask)
    return time.perf_counter() - started
