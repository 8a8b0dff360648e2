"""Requests that wait for what a thread of the engine makes for them, and what is said of them meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aethermind.engine.process.messages import Abort, Add, Forget

if TYPE_CHECKING:
    from concurrent.futures import Future

    from aethermind.sampling.guidance import TokenGuide

__all__ = ["Prepared", "Preparing"]


class Prepared(NamedTuple):
    """A request, what was made for it, and whether it is to be aborted when it was added."""

    request: Add
    made: Future[TokenGuide]
    is_aborted: bool = False


class Preparing:
    """Mutable: by handle, each until what is made for it is there or nobody wants the request any more."""

    def __init__(self) -> None:
        self._waiting: dict[int, Prepared] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, request: Add, made: Future[TokenGuide]) -> None:
        """Let a request wait for what is being made."""
        self._waiting[request.handle] = Prepared(request, made)

    def hear(self, message: Abort | Forget) -> bool:
        """Note what is said of a request that waits here; False where none of that handle does."""
        prepared = self._waiting.get(message.handle)
        if prepared is None:
            return False
        if isinstance(message, Abort):
            self._waiting[message.handle] = prepared._replace(is_aborted=True)
        else:
            prepared.made.cancel()
            del self._waiting[message.handle]
        return True

    def take(self) -> list[Prepared]:
        """Those that need not wait any longer."""
        ready = [prepared for prepared in self._waiting.values() if prepared.made.done()]
        for prepared in ready:
            del self._waiting[prepared.request.handle]
        return ready
