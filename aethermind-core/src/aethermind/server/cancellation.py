"""Cancellation of requests: on client disconnect, on `DELETE /v1/requests/{id}` and on server shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from fastapi import APIRouter, Request

from aethermind.server.openai.errors import ApiError, as_api_error

__all__ = ["CancelScope", "InFlightRequests", "router", "unless_disconnected"]

_Result = TypeVar("_Result")

router = APIRouter()


class CancelScope:
    """A context that cancels its body as soon as one of its futures is done; execution continues after the block.

    It works as `asyncio.timeout` does: the body runs in the current task, and each future gets a callback. Separate
    tasks for the body and for each future would cost much more for short completions.
    """

    def __init__(self, *futures: asyncio.Future[Any]) -> None:
        self._futures = futures
        self._task: asyncio.Task[Any] | None = None
        self._num_earlier_cancellations = 0
        self._has_cancelled = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        self._num_earlier_cancellations = task.cancelling()
        for future in self._futures:
            future.add_done_callback(self._cancel)

    def _cancel(self, _: asyncio.Future[Any]) -> None:
        if self._task is not None and not self._has_cancelled:
            self._has_cancelled = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        for future in self._futures:
            future.remove_done_callback(self._cancel)
        task, self._task = self._task, None
        assert task is not None
        if not self._has_cancelled:
            return False
        # If the task was also cancelled from outside, CancelledError has to propagate.
        return task.uncancel() <= self._num_earlier_cancellations and kind is asyncio.CancelledError


async def unless_disconnected(
    request: Request, work: Coroutine[Any, Any, _Result], *others: asyncio.Future[Any]
) -> _Result | None:
    """The result of `work`; None if the client disconnects or one of `others` is done first, which cancels `work`."""
    try:
        with CancelScope(request.state.disconnected, *others):
            return await work
    except ExceptionGroup as group:
        raise as_api_error(group.exceptions[0]) from group
    return None


class InFlightRequests:
    """The requests that a server is answering, by request id and by client-supplied id. Mutable."""

    def __init__(self) -> None:
        self._requests: dict[str, _InFlightRequest] = {}
        self._keys_by_client_id: dict[tuple[str, str], set[str]] = {}

    @contextmanager
    def registered(
        self,
        request_id: str,
        tenant_id: str,
        cancel: Callable[[], bool],
        abort: Callable[[], None],
        client_id: str | None = None,
    ) -> Iterator[None]:
        """Register a request while the context is open. `cancel` ends its output; `abort` closes its connection.

        `client_id` is the id that the client gave it, which several requests may share.
        """
        key, client_key = _key(request_id), (tenant_id, client_id or "")
        self._requests[key] = _InFlightRequest(tenant_id, cancel, abort)
        if client_id is not None:
            self._keys_by_client_id.setdefault(client_key, set()).add(key)
        try:
            yield
        finally:
            del self._requests[key]
            if client_id is not None:
                self._keys_by_client_id[client_key].remove(key)
                if not self._keys_by_client_id[client_key]:
                    del self._keys_by_client_id[client_key]

    def cancel(self, request_id: str, tenant_id: str) -> bool:
        """Cancel the tenant's request with this id, or its requests with this client id; False if there is none."""
        in_flight = self._requests.get(_key(request_id))
        if in_flight is not None and in_flight.tenant_id == tenant_id:
            return in_flight.cancel()
        cancelled = [self._requests[key].cancel() for key in self._keys_by_client_id.get((tenant_id, request_id), ())]
        return any(cancelled)

    def abort_all(self) -> None:
        """Close the connections of all remaining requests, after the drain timeout."""
        for in_flight in list(self._requests.values()):
            in_flight.abort()


class _InFlightRequest(NamedTuple):
    tenant_id: str
    cancel: Callable[[], bool]
    abort: Callable[[], None]


def _key(request_id: str) -> str:
    """The part that all ids of a request share: `req_…` in the header; `chatcmpl-…`, `cmpl-…`, `resp_…`, `msg_…`."""
    return request_id.rpartition("_")[2].rpartition("-")[2]


@router.delete("/v1/requests/{request_id:path}")
async def cancel(request: Request, request_id: str) -> dict[str, Any]:
    """Cancel a request by its id or its client's id.

    Its response ends with the tokens generated so far and finish reason `abort`.
    """
    state = request.app.state
    if not state.in_flight_requests.cancel(request_id, request.state.tenant.id):
        raise ApiError(404, f"There is no open request {request_id!r:.80}.", code="request_not_found")
    return {"id": request_id, "object": "request", "cancelled": True}
