"""What came of some requests to an engine that others use as well, until their user asks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from aethermind.engine.requests.output_builder import Growth, has_ended, state_of

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput

__all__ = ["Inbox"]


class Inbox:
    """Keeps the newest growth of each open request. Mutable; called by the thread that has the engine's turn."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._grown: dict[str, Growth] = {}

    def open(self, request_id: str) -> None:
        """Expect growths of a request."""
        self._open.add(request_id)

    def put(self, growths: Sequence[Growth]) -> None:
        """Keep those of open requests. A request is open until its last state is taken or it is dropped."""
        for growth in growths:
            name = growth.request_id
            # What follows a last state is of another user's request, which took over the id.
            if name in self._open and not has_ended(self._grown.get(name)):
                self._grown[name] = growth

    def closed(self) -> None:
        """Whoever waits looks at the engine."""

    def take(self, request_ids: Collection[str], *, only_last: bool = False) -> list[RequestOutput]:
        """The states of these requests that are new, or with `only_last` those that are their last."""
        names = [
            name for name, growth in self._grown.items() if name in request_ids and (not only_last or has_ended(growth))
        ]
        states = [state_of(self._grown.pop(name)) for name in names]
        self._open.difference_update(state.request_id for state in states if state.finished)
        return states

    def drop(self, request_id: str) -> bool:
        """Expect no more; whether the request was open and has not ended."""
        was_open = request_id in self._open
        self._open.discard(request_id)
        return not has_ended(self._grown.pop(request_id, None)) and was_open
