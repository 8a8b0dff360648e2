"""A seeded scheduler of simulated work, which runs late and in any order that streams and events permit.

Work is queued and runs only when a caller waits for something. Then the devices run only the work that the wait
requires, or all other work first, or work at random. A program with missing synchronisation fails under some of a few
seeds, and reproducibly under the same seed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from random import Random
from threading import RLock

from aethermind.errors import DeviceError
from aethermind_sim.faults import Faults

__all__ = ["Marker", "Queue", "Timeline"]

Work = Callable[[], None]
"""A kernel call or copy, to be run by a simulated device."""


class Marker:
    """A position in a queue, for events; `error` is the error of the work before it, if any failed.

    `reached_at` is in seconds of `time.perf_counter`.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_reached = False
        self.reached_at: float | None = None
        self.error: Exception | None = None


class Queue:
    """The queue of one stream: work, markers of this queue to set, and markers of other queues to wait for."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.items: deque[Work | Marker] = deque()
        self.error: Exception | None = None

    @property
    def blocker(self) -> Marker | None:
        """The marker of another queue that this queue waits for, or None."""
        head = self.items[0] if self.items else None
        is_blocked = isinstance(head, Marker) and head.queue is not self and not head.is_reached
        return head if is_blocked and isinstance(head, Marker) else None


class Timeline:
    """The pending work of all devices. Thread-safe; one thread executes work at a time."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._random = Random(seed)
        self._faults = faults
        self._lock = RLock()
        self._busy: list[Queue] = []

    def submit(self, queue: Queue, item: Work | Marker) -> None:
        """Append work or a marker to a queue. Some pending work may run immediately."""
        with self._lock:
            queue.items.append(item)
            if queue not in self._busy:
                self._busy.append(queue)
            if self._random.random() < 1 / 16:
                self._run_any()

    def poll(self) -> None:
        """Possibly run some work while the host polls."""
        with self._lock:
            if self._random.random() < 1 / 2:
                self._run_any()

    def finish(self, queue: Queue) -> None:
        """Run until a queue is empty; raises and clears its first error."""
        end = Marker(queue)
        self.submit(queue, end)
        self._run_until(end)
        with self._lock:
            error, queue.error = queue.error, None
        _raise(error)
        self._faults.check_present()

    def run_until(self, marker: Marker) -> None:
        """Run until a marker is reached; raises the error of the work before it."""
        self._run_until(marker)
        _raise(marker.error)

    def finish_device(self, device: int) -> None:
        """Run until a device has no work left."""
        with self._lock:
            queues = [queue for queue in self._busy if queue.device == device]
        for queue in queues:
            self.finish(queue)

    def _run_until(self, marker: Marker) -> None:
        strategy = self._random.choice((self._run_required, self._run_others, self._run_any))
        while True:
            with self._lock:  # released between two work items, so that other threads can proceed
                if marker.is_reached:
                    return
                strategy(marker.queue)

    def _run_required(self, queue: Queue) -> None:
        while (marker := queue.blocker) is not None:
            queue = marker.queue
        self._run_next(queue)

    def _run_others(self, queue: Queue) -> None:
        self._run_random([other for other in self._busy if other is not queue and other.blocker is None] or [queue])

    def _run_any(self, _: Queue | None = None) -> None:
        self._run_random([queue for queue in self._busy if queue.blocker is None])

    def _run_random(self, ready: list[Queue]) -> None:
        if ready:
            self._run_next(self._random.choice(ready))

    def _run_next(self, queue: Queue) -> None:
        item = queue.items.popleft()
        if not queue.items:
            self._busy.remove(queue)
        if not isinstance(item, Marker):
            self._execute(queue, item)
        elif item.queue is not queue:
            queue.error = queue.error or item.error
        elif not item.is_reached:
            item.error, item.reached_at, item.is_reached = queue.error, time.perf_counter(), True

    def _execute(self, queue: Queue, work: Work) -> None:
        if queue.error is not None:  # work after a failure is skipped
            return
        try:
            self._faults.check_work()
            work()
        except Exception as error:
            queue.error = error


def _raise(error: Exception | None) -> None:
    if isinstance(error, DeviceError):
        raise error
    if error is not None:
        raise DeviceError(f"Work on the simulated device failed: {type(error).__name__}: {error}") from error
