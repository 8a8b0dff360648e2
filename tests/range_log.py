"""A collector of a profiler's ranges, for packages that open them as context managers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind import LLM

__all__ = ["RangeLog", "ranges_of_an_answer"]


class RangeLog:
    """The names of ranges in the order in which they begin, each with the names of those around it."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, ...]] = []
        self._open: list[str] = []

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the ranges that are open now, the outermost first."""
        return tuple(self._open)

    @contextmanager
    def range(self, name: str, *_: Any) -> Iterator[None]:
        self._open.append(name)
        self.begun.append(tuple(self._open))
        yield
        assert self._open.pop() == name, "ranges nest"


def ranges_of_an_answer(llm: LLM, log: RangeLog) -> dict[str, list[list[str]]]:
    """Generate three tokens; returns the names of the ranges inside of each step, by its phase.

    One step computes the prompt, and each other one the token before: all of them are ranges, nothing is outside.
    """
    from aethermind import SamplingParams

    log.begun.clear()
    llm.generate([{"prompt_token_ids": [5, 9, 7]}], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    found: dict[str, list[list[str]]] = {}
    for names in log.begun:
        if len(names) == 1:
            found.setdefault(names[0], []).append([])
        else:
            phase, name = names
            found[phase][-1].append(name)
    return found
