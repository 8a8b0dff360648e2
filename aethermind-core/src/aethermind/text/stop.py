"""Stop strings in streamed text: text is emitted once it cannot be part of one, and ends at the first complete one.

The first is the one that is complete first, reading character by character; of those that complete together, the
longest. So the output does not depend on how the text is split into deltas, and a stop string takes effect at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError

__all__ = ["StopChecker", "StopResult"]


@dataclass(frozen=True, slots=True)
class StopResult:
    """The result of one delta.

    Attributes:
        text: text to emit now; it lags behind by less than the longest stop string.
        is_stopped: a stop string is complete: generation ends here.
        matched: that stop string, else None.
    """

    text: str
    is_stopped: bool
    matched: str | None


class StopChecker:
    """Finds stop strings in the text of one sequence. Mutable: one per sequence."""

    def __init__(self, stop: Sequence[str], include_stop_str: bool = False) -> None:
        """Find any of `stop`, which may be empty; with `include_stop_str`, the one found is emitted.

        Raises:
            InvalidArgumentError: a stop string is empty.
        """
        self._stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self._stop:
            raise InvalidArgumentError("A stop string is empty, which would stop before any text. Leave it out.")
        self._include_stop_str = include_stop_str
        self._held = ""
        self._matched: str | None = None

    def push(self, delta: str, *, may_stop: bool = True) -> StopResult:
        """Add text; return what is certain. After a stop, all text is dropped.

        Without `may_stop`, stop strings that complete in it are text; those that begin in it still count.
        """
        if not self._stop:
            return StopResult(delta, False, None)
        if self._matched is not None:
            return StopResult("", True, self._matched)
        text = self._held + delta
        if may_stop and (match := self._first_match(text)) is not None:
            begin, end = match
            self._held = ""
            self._matched = text[begin:end]
            return StopResult(text[: end if self._include_stop_str else begin], True, self._matched)
        num_certain = self._first_unfinished(text)
        self._held = text[num_certain:]
        return StopResult(text[:num_certain], False, None)

    def flush(self) -> str:
        """End the text; return what was held back, which is not a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return the bounds of the stop string that is complete first, the longest of those that end there.

        Those that were complete in the text held back do not count.
        """
        num_held = len(self._held)
        found = ((text.find(stop, max(num_held - len(stop) + 1, 0)), len(stop)) for stop in self._stop)
        matches = [(begin + length, begin) for begin, length in found if begin >= 0]
        if not matches:
            return None
        end, begin = min(matches)
        return begin, end

    def _first_unfinished(self, text: str) -> int:
        """Return the begin of the longest suffix that is a prefix of a stop string; `len(text)` if there is none."""
        first = len(text)
        for stop in self._stop:
            begin = max(0, len(text) - len(stop) + 1)
            while (begin := text.find(stop[0], begin, first)) >= 0:
                if stop.startswith(text[begin:]):
                    first = begin
                    break
                begin += 1
        return first
