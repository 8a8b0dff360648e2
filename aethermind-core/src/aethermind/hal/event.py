"""Marks in a stream: ask for them, wait for them, measure between them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from aethermind.hal.stream import Stream

__all__ = ["Event", "EventManager"]


class Event(ABC):
    """A mark in a stream. An event that was never recorded counts as reached."""

    @abstractmethod
    def record(self, stream: Stream) -> None:
        """Set the mark behind everything submitted to `stream` so far; recording again moves it."""

    @abstractmethod
    def query(self) -> bool:
        """Whether the mark has been reached; never waits."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when the mark has been reached; DeviceError, where the device can tell, if work before it failed."""

    @abstractmethod
    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds from this mark to `end`; DeviceError unless both have timing, were recorded and reached."""


class EventManager(ABC):
    """Makes the events of one backend."""

    @abstractmethod
    def create(self, *, timing: bool = False) -> Event:
        """A new event; only one with `timing` can be measured from or to."""
