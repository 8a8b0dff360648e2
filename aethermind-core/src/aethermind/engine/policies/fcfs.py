"""First come, first served: by arrival, and the last to come is the first to give way."""

from __future__ import annotations

from typing import ClassVar

from aethermind.engine.policies.base import OrderKey, fits_now
from aethermind.engine.requests.request import Request

__all__ = ["FirstComeFirstServed"]


class FirstComeFirstServed:
    """Orders by arrival; equal arrivals by request id."""

    __slots__ = ()
    heeds: ClassVar[frozenset[str]] = frozenset()

    def order_key(self, request: Request, now: float) -> OrderKey:
        """Earlier arrivals first."""
        return (request.arrival, 0.0, request.request_id)

    def victim_key(self, request: Request, now: float) -> OrderKey | None:
        """The latest arrival gives way."""
        return self.order_key(request, now)

    def admit(self, request: Request, num_blocks_needed: int, num_available_blocks: int) -> bool:
        """Only if all its tokens fit now."""
        return fits_now(num_blocks_needed, num_available_blocks)
