"""Requests whose answers are being written, and `DELETE /v1/requests/{id}`, which ends one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fastapi import APIRouter, Request

from aethermind.server.openai.errors import ApiError

__all__ = ["OpenRequests", "router"]

router = APIRouter()


class OpenRequests:
    """The open requests of a server by their ids, and by what their clients call them. Mutable."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRequest] = {}
        self._of_clients: dict[tuple[str, str], set[str]] = {}

    @contextmanager
    def holding(
        self,
        request_id: str,
        tenant_id: str,
        cancel: Callable[[], bool],
        cut: Callable[[], None],
        client_id: str | None = None,
    ) -> Iterator[None]:
        """Let its tenant cancel a request as long as the context is open, or the server cut its connection.

        `client_id` is the client's own name of it, which several requests may have.
        """
        key, named = _key(request_id), (tenant_id, client_id or "")
        self._open[key] = _OpenRequest(tenant_id, cancel, cut)
        if client_id is not None:
            self._of_clients.setdefault(named, set()).add(key)
        try:
            yield
        finally:
            del self._open[key]
            if client_id is not None:
                self._of_clients[named].remove(key)
                if not self._of_clients[named]:
                    del self._of_clients[named]

    def cancel(self, request_id: str, tenant_id: str) -> bool:
        """End the request of this id, or those that the tenant's client calls so; False where none of them runs."""
        one = self._open.get(_key(request_id))
        if one is not None and one.tenant_id == tenant_id:
            return one.cancel()
        ended = [self._open[key].cancel() for key in self._of_clients.get((tenant_id, request_id), ())]
        return any(ended)

    def cut(self) -> None:
        """Cut the connections of all: nobody reads there."""
        for one in list(self._open.values()):
            one.cut()


class _OpenRequest(NamedTuple):
    tenant_id: str
    cancel: Callable[[], bool]
    cut: Callable[[], None]


def _key(request_id: str) -> str:
    """What the ids of a request have in common: `req_…` in the header, `chatcmpl-…`, `cmpl-…`, `resp_…` in answers."""
    return request_id.rpartition("_")[2].rpartition("-")[2]


@router.delete("/v1/requests/{request_id:path}")
async def cancel(request: Request, request_id: str) -> dict[str, Any]:
    """End a request by its id or its client's; its answer ends with what there is of it, and `abort` as the reason."""
    state = request.app.state
    if not state.open_requests.cancel(request_id, request.state.tenant.id):
        raise ApiError(404, f"There is no open request {request_id!r:.80}.", code="request_not_found")
    return {"id": request_id, "object": "request", "cancelled": True}
