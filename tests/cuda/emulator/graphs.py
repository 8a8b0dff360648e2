"""Capturing: work that is put on streams is noted, to be done when the graph is launched."""

from __future__ import annotations

from collections.abc import Callable

from aethermind_sim.timeline import Queue

__all__ = ["Capture"]

Work = Callable[[], None]


class Capture:
    """What one thread puts on a stream, and on the streams that wait for events of the capture."""

    def __init__(self, origin: Queue) -> None:
        self.origin = origin
        self._queues = [origin]
        self._work: list[Work] = []
        self._is_over = False

    def has(self, queue: Queue) -> bool:
        """Whether work on this stream is noted."""
        return queue in self._queues

    def join(self, queue: Queue) -> None:
        """Note the work of a further stream, from here on."""
        assert not self._is_over, "the event belongs to a capture that is over"
        if queue not in self._queues:
            self._queues.append(queue)

    def note(self, work: Work) -> None:
        """Keep it for when the graph is launched. The order of the calls is one that all streams and events allow."""
        self._work.append(work)

    def end(self) -> list[Work]:
        """All that was noted."""
        self._is_over = True
        return self._work
