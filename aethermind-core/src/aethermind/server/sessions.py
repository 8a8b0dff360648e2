"""`/v1/sessions`: the conversations whose keys and values are kept for their next turn (`session_id` of a request).

A client sees the sessions of its own API key. With several models, `?model=` names one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from aethermind.engine.requests.sessions import SessionInfo
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.served_model import ServedModel

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/sessions")
async def list_sessions(request: Request, model: str | None = None) -> dict[str, Any]:
    """List the sessions, those in memory first."""
    prefix = request.state.tenant.session_name("")
    async with request.app.state.models.lease(_model_name(request, model)) as served:
        found = await served.engine.manage_session("list", prefix)
    return {"object": "list", "data": [_session_object(info, served, prefix) for info in found]}


@router.delete("/v1/sessions/{session_id:path}")
async def delete_session(request: Request, session_id: str, model: str | None = None) -> dict[str, Any]:
    """Delete a session from memory and from its file."""
    return {**await _manage(request, "delete", session_id, model), "deleted": True}


@router.post("/v1/sessions/{session_id:path}/{action}")
async def change_session(
    request: Request,
    session_id: str,
    action: Literal["save", "load", "protect", "unprotect"],
    model: str | None = None,
) -> dict[str, Any]:
    """Save a session to its file, load it from there, protect it from expiry and swapping, or lift that."""
    return await _manage(request, action, session_id, model)


async def _manage(request: Request, action: str, session_id: str, model: str | None) -> dict[str, Any]:
    prefix = request.state.tenant.session_name("")
    async with request.app.state.models.lease(_model_name(request, model)) as served:
        found = await served.engine.manage_session(action, prefix + session_id)
    if not found:
        raise ApiError(404, f"There is no session {session_id!r:.80} to {action}.", code="session_not_found")
    return _session_object(found[0], served, prefix)


def _model_name(request: Request, name: str | None) -> str:
    """`name`, or the name of the only model; ApiError 400 if there are several."""
    pool: ModelPool = request.app.state.models
    if name is None and len(pool.names) > 1:
        raise ApiError(400, "Several models are served; name one with ?model=.", param="model")
    return pool.names[0] if name is None else name


def _session_object(info: SessionInfo, served: ServedModel, prefix: str) -> dict[str, Any]:
    return {
        "id": info.name.removeprefix(prefix),
        "object": "session",
        "model": served.name,
        "state": info.state,
        "num_tokens": info.num_tokens,
        "protected": info.is_protected,
        "saved": info.is_saved,
        "idle_s": round(info.idle_s, 3),
    }
