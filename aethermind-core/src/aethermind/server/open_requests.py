"""Requests whose answers are being written, and `DELETE /v1/requests/{id}`, which ends one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request

from aethermind.server.openai.errors import ApiError

__all__ = ["OpenRequests", "router"]

router = APIRouter()


class OpenRequests:
    """The open requests of a server by their ids. Mutable."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, Callable[[], bool], Callable[[], None]]] = {}

    @contextmanager
    def holding(
        self, request_id: str, tenant_id: str, cancel: Callable[[], bool], cut: Callable[[], None]
    ) -> Iterator[None]:
        """Let its tenant cancel a request as long as the context is open, or the server cut its connection."""
        key = _key(request_id)
        self._open[key] = (tenant_id, cancel, cut)
        try:
            yield
        finally:
            del self._open[key]

    def cancel(self, request_id: str, tenant_id: str) -> bool:
        """End a request; False where the tenant has none of this id that still runs."""
        owner, cancel, _ = self._open.get(_key(request_id), (None, None, None))
        return owner == tenant_id and cancel is not None and cancel()

    def cut(self) -> None:
        """Cut the connections of all: nobody reads there."""
        for _, _, cut in list(self._open.values()):
            cut()


def _key(request_id: str) -> str:
    """What the ids of a request have in common: `req_…` in the header, `chatcmpl-…`, `cmpl-…`, `resp_…` in answers."""
    return request_id.rpartition("_")[2].rpartition("-")[2]


@router.delete("/v1/requests/{request_id}")
async def cancel(request: Request, request_id: str) -> dict[str, Any]:
    """End a request by its id; its answer ends with what there is of it, and `abort` as the reason."""
    state = request.app.state
    if not state.open_requests.cancel(request_id, request.state.tenant.id):
        raise ApiError(404, f"There is no open request {request_id!r:.80}.", code="request_not_found")
    return {"id": request_id, "object": "request", "cancelled": True}
