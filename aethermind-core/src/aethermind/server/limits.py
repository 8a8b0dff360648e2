"""How much one server takes at once, and what it says when that is too little."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError
from aethermind.server.openai.errors import ApiError

__all__ = ["Admission", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what clients may ask for. InvalidArgumentError for those that let nobody in."""

    max_open_requests: int = 256
    """Answers being written or waited for at once; whoever comes after is told to come again."""
    max_body_bytes: int = 4 << 20
    """Bytes of a request's body."""
    request_timeout_s: float = 600.0
    """Seconds until an answer has to be finished."""
    drain_timeout_s: float = 30.0
    """Seconds that open requests get when the server is told to stop."""

    def __post_init__(self) -> None:
        for name in ("max_open_requests", "max_body_bytes", "request_timeout_s", "drain_timeout_s"):
            value = getattr(self, name)
            if value <= 0:
                raise InvalidArgumentError(f"{name} should be more than 0, got {value!r}.")


class Admission:
    """The door: counts who is inside, and turns away who is too many or too late. Mutable."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.num_open = 0
        self.num_rejected = 0
        self.is_draining = False

    def close(self) -> None:
        """Let nobody in from now on."""
        self.is_draining = True

    async def wait_until_empty(self) -> None:
        """Wait until nobody is inside."""
        await self._is_empty.wait()

    @contextmanager
    def enter(self, num_answers: int = 1) -> Iterator[None]:
        """Hold room for some answers. ApiError 503 while the server is stopping, 429 when it is full."""
        if self.is_draining:
            self.num_rejected += 1
            raise ApiError(503, "The server is stopping; ask another one.", code="draining", retry_after_s=5)
        if self.num_open + num_answers > self._limits.max_open_requests:
            self.num_rejected += 1
            raise ApiError(
                429,
                f"The server has {self.num_open} answers open and takes {self._limits.max_open_requests}; try again "
                "in a moment.",
                code="overloaded",
                retry_after_s=1,
            )
        self.num_open += num_answers
        self._is_empty.clear()
        try:
            yield
        finally:
            self.num_open -= num_answers
            if not self.num_open:
                self._is_empty.set()
