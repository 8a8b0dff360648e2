"""Copies of numbered things, as few as there have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["stretches"]


def stretches(sources: Sequence[int], destinations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(source, destination, count) of the longest stretches in which both numbers ascend by one: one copy each."""
    start = 0
    for end in range(1, len(sources) + 1):
        is_going_on = (
            end < len(sources)
            and sources[end] == sources[end - 1] + 1
            and destinations[end] == destinations[end - 1] + 1
        )
        if not is_going_on:
            yield sources[start], destinations[start], end - start
            start = end
