"""An event loop whose time a test sets, so that timers run without waiting."""

from __future__ import annotations

import asyncio

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual; `advance` lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def time(self) -> float:
        return self._now

    def settle(self) -> None:
        """Run all callbacks and tasks until each waits for time or for the test."""

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.run_until_complete(turns())

    def advance(self, seconds: float) -> None:
        """Let time pass, and run what is due by then."""
        self._now += seconds
        self.settle()
