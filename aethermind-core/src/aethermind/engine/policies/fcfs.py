"""First come, first served: by arrival, and the last to come is the first to give way."""

from __future__ import annotations

from typing import ClassVar

from aethermind.engine.policies.base import ByOrder, OrderKey
from aethermind.engine.requests.request import Request

__all__ = ["FirstComeFirstServed"]


class FirstComeFirstServed(ByOrder):
    """Orders by arrival; equal arrivals by request id."""

    __slots__ = ()
    heeds: ClassVar[frozenset[str]] = frozenset()

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Earlier arrivals first."""
        return (request.arrival, 0.0, request.request_id)
