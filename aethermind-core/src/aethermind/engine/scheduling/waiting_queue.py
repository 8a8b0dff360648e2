"""Requests that wait, in the order of a policy's keys, without sorting them again in every step."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from aethermind.engine.policies.base import OrderKey, SchedulingPolicy
from aethermind.engine.requests.request import Request

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """A heap of requests. Adding and taking cost O(log n), removing from the middle O(1); not thread-safe.

    A key is computed when its request is added, and again when the request comes to the front: keys that grow with
    time are right when it counts, and those that never change cost nothing. That a key shrinks while its request waits
    is not noticed.
    """

    __slots__ = ("_alive", "_heap", "_num_added", "_policy")

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[OrderKey, int, Request]] = []  # with those that were removed, until they come up
        self._alive: dict[Request, int] = {}
        self._num_added = count()

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in no particular order."""
        return iter(self._alive)

    def __contains__(self, request: object) -> bool:
        return request in self._alive

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; the engine's clock says `now`."""
        assert request not in self._alive, f"request {request.request_id} waits already"
        number = self._alive[request] = next(self._num_added)
        heappush(self._heap, (self._policy.order_key(request, now), number, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands. Raises `KeyError` if it does not wait."""
        del self._alive[request]
        if len(self._heap) > 2 * len(self._alive) + 16:
            self._heap = [entry for entry in self._heap if self._alive.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def first(self, now: float) -> Request | None:
        """The request with the smallest key, which stays; None if nobody waits."""
        heap = self._heap
        while heap:
            key, number, request = heap[0]
            if self._alive.get(request) != number:
                heappop(heap)
                continue
            current = self._policy.order_key(request, now)
            if current == key:
                return request
            heapreplace(heap, (current, number, request))
        return None
