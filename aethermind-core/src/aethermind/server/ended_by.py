"""Work that ends when something else happens: its client leaves, or no longer reads."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

__all__ = ["EndedBy"]


class EndedBy:
    """Cancels what runs inside once one of some futures is done, and goes on behind it, as `asyncio.timeout` does.

    A task for the work and one for each future would say the same, and cost more than all else around a short answer.
    """

    def __init__(self, *futures: asyncio.Future[Any]) -> None:
        self._futures = futures
        self._task: asyncio.Task[Any] | None = None
        self._num_cancelled = 0
        self._has_ended_it = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        self._num_cancelled = task.cancelling()
        for future in self._futures:
            future.add_done_callback(self._end)

    def _end(self, _: asyncio.Future[Any]) -> None:
        if self._task is not None and not self._has_ended_it:
            self._has_ended_it = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        for future in self._futures:
            future.remove_done_callback(self._end)
        task, self._task = self._task, None
        assert task is not None
        if not self._has_ended_it:
            return False
        # Who else has cancelled the task meanwhile is to be heard.
        return task.uncancel() <= self._num_cancelled and kind is asyncio.CancelledError
