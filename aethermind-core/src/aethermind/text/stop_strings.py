"""Stop strings in streamed text: text is emitted once it cannot be part of one, and is cut at the first match.

The first match is the one that ends first; if several end at the same character, the longest counts. So the output
does not depend on how text is split into deltas, and a match is never delayed.
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
        text: text to emit now; the text still held back is shorter than the longest stop string.
        is_stopped: whether a stop string was found, which ends generation.
        matched: the stop string that was found, or None.
    """

    text: str
    is_stopped: bool
    matched: str | None


class StopChecker:
    """Finds stop strings in the text of one sequence. Mutable: one per sequence."""

    def __init__(self, stop: Sequence[str], include_stop_str: bool = False) -> None:
        """Search for the strings in `stop`, which may be empty. `include_stop_str` makes the match part of the output.

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
        """Add text; return the text that can be emitted now. After a match, further text is dropped.

        If `may_stop` is False (e.g. before `min_tokens`), a match that ends in this delta is emitted as text; one that
        ends later still counts.
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
        num_emitted = self._partial_match_start(text)
        self._held = text[num_emitted:]
        return StopResult(text[:num_emitted], False, None)

    def flush(self) -> str:
        """End the text; return the text held back, which did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return begin and end of the match that ends first, the longest if several end there.

        Matches entirely in the held-back text do not count: they ended while `may_stop` was False.
        """
        num_held = len(self._held)
        begins = ((text.find(stop, max(num_held - len(stop) + 1, 0)), len(stop)) for stop in self._stop)
        matches = [(begin + length, begin) for begin, length in begins if begin >= 0]
        if not matches:
            return None
        end, begin = min(matches)
        return begin, end

    def _partial_match_start(self, text: str) -> int:
        """Return the start of the longest suffix that is a prefix of a stop string; `len(text)` if there is none."""
        first = len(text)
        for stop in self._stop:
            begin = max(0, len(text) - len(stop) + 1)
            while (begin := text.find(stop[0], begin, first)) >= 0:
                if stop.startswith(text[begin:]):
                    first = begin
                    break
                begin += 1
        return first
