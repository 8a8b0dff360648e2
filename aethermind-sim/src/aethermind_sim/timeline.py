"""When work runs: late, in an order that a seed chooses among all that streams and events allow.

Nothing runs by itself. Work is queued, and whoever waits for something lets the devices work until it has happened:
on only what that needs (everything else is late), on everything else first, or on whatever chance picks. So a program
that does not wait for what it uses meets all of them in a few runs, and the same ones again under the same seed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from random import Random
from threading import RLock

from aethermind.errors import DeviceError
from aethermind_sim.faults import Faults

__all__ = ["Mark", "Queue", "Timeline"]

Work = Callable[[], None]


class Mark:
    """A place in a queue; `error` is that of the work before it, if some of it failed."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_reached = False
        self.reached_at: float | None = None
        self.error: Exception | None = None


class Queue:
    """Work of one stream in order: things to do, marks to set, and marks of others to wait for."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.items: deque[Work | Mark] = deque()
        self.error: Exception | None = None

    @property
    def blocker(self) -> Mark | None:
        """The mark of another queue that has to be reached before this one goes on."""
        head = self.items[0] if self.items else None
        is_blocked = isinstance(head, Mark) and head.queue is not self and not head.is_reached
        return head if is_blocked and isinstance(head, Mark) else None


class Timeline:
    """What all devices still have to do. Safe to use from several threads, one of which works at a time."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._random = Random(seed)
        self._faults = faults
        self._lock = RLock()
        self._busy: list[Queue] = []

    def submit(self, queue: Queue, item: Work | Mark) -> None:
        """Put something behind all that is in a queue. Perhaps a device finds time for something at once."""
        with self._lock:
            queue.items.append(item)
            if queue not in self._busy:
                self._busy.append(queue)
            if self._random.random() < 1 / 16:
                self._work_on_anything()

    def glance(self) -> None:
        """What happens while the host asks how far things are: something, or nothing."""
        with self._lock:
            if self._random.random() < 1 / 2:
                self._work_on_anything()

    def finish(self, queue: Queue) -> None:
        """Work until everything in a queue is done; raises its first error, which the queue then forgets."""
        end = Mark(queue)
        self.submit(queue, end)
        self._work_until(end)
        with self._lock:
            error, queue.error = queue.error, None
        _raise(error)
        self._faults.check_present()

    def reach(self, mark: Mark) -> None:
        """Work until a mark is reached; raises the error of the work before it."""
        self._work_until(mark)
        _raise(mark.error)

    def finish_device(self, device: int) -> None:
        """Work until a device has nothing left to do."""
        with self._lock:
            queues = [queue for queue in self._busy if queue.device == device]
        for queue in queues:
            self.finish(queue)

    def _work_until(self, mark: Mark) -> None:
        pace = self._random.choice((self._work_on_what_is_needed, self._work_on_others, self._work_on_anything))
        while True:
            with self._lock:  # given up between two pieces of work, so that other threads are not kept out
                if mark.is_reached:
                    return
                pace(mark.queue)

    def _work_on_what_is_needed(self, queue: Queue) -> None:
        while (mark := queue.blocker) is not None:
            queue = mark.queue
        self._work_on(queue)

    def _work_on_others(self, queue: Queue) -> None:
        self._work_on_one_of([other for other in self._busy if other is not queue and other.blocker is None] or [queue])

    def _work_on_anything(self, _: Queue | None = None) -> None:
        self._work_on_one_of([queue for queue in self._busy if queue.blocker is None])

    def _work_on_one_of(self, ready: list[Queue]) -> None:
        if ready:
            self._work_on(self._random.choice(ready))

    def _work_on(self, queue: Queue) -> None:
        item = queue.items.popleft()
        if not queue.items:
            self._busy.remove(queue)
        if not isinstance(item, Mark):
            self._do(queue, item)
        elif item.queue is not queue:
            queue.error = queue.error or item.error
        elif not item.is_reached:
            item.error, item.reached_at, item.is_reached = queue.error, time.perf_counter(), True

    def _do(self, queue: Queue, work: Work) -> None:
        if queue.error is not None:  # what follows a failure is not done
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
