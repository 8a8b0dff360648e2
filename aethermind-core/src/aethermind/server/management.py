"""Endpoints that manage a running server: `/v1/models`, `/v1/sessions`, `/admin/models` and `/admin/limits`.

Clients list models, and list, change and delete the sessions of their own API key. Sessions are conversations whose
keys and values are kept for their next turn (`session_id` of a request).

The other endpoints need the admin key. They load and unload models and, by vLLM's requests, LoRA adapters, and read and
change the limits of the server and of its engines.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from aethermind.errors import AetherMindError
from aethermind.log import get_logger
from aethermind.server.access import LOAD_ADAPTER, UNLOAD_ADAPTER
from aethermind.server.admission import MAX_LIMIT
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, body_of, openapi_body

if TYPE_CHECKING:
    from aethermind.engine.requests.sessions import SessionInfo
    from aethermind.server.model_pool import ModelPool, ModelStatus
    from aethermind.server.served_model import ServedModel

__all__ = ["LimitsRequest", "LoadAdapterRequest", "ModelRequest", "UnloadAdapterRequest", "router"]

router = APIRouter()

_log = get_logger(__name__)

_STARTED = int(time.time())
"""Unix time at which the server started: `created` of a model that is not loaded."""


class ModelRequest(StrictModel):
    """The model to load or to unload."""

    ignores_unknown = False

    model: str


class LoadAdapterRequest(StrictModel):
    """The adapter to load: its name for clients, a directory of the server or a name on the Hugging Face Hub, and its
    model, which may be absent where one model is served.
    """

    ignores_unknown = False

    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1)]
    base_model_name: str | None = None


class UnloadAdapterRequest(StrictModel):
    """The adapter to unload."""

    ignores_unknown = False

    lora_name: str


@router.get("/v1/models/", include_in_schema=False)
@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """List the models, each followed by its adapters."""
    pool: ModelPool = request.app.state.models
    data = [_model_object(name, status) for status in pool.statuses() for name in (status.name, *status.adapters)]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Describe one model, which is not loaded for this."""
    pool: ModelPool = request.app.state.models
    return _model_object(name, pool.status(name))


@router.post("/admin/models/load", openapi_extra=openapi_body(ModelRequest))
async def load_model(request: Request, body: Annotated[ModelRequest, Depends(body_of(ModelRequest))]) -> dict[str, Any]:
    """Load a model, and return its description once it is loaded."""
    pool: ModelPool = request.app.state.models
    await pool.load(body.model)
    return _model_object(body.model, pool.status(body.model))


@router.post("/admin/models/unload", openapi_extra=openapi_body(ModelRequest))
async def unload_model(
    request: Request, body: Annotated[ModelRequest, Depends(body_of(ModelRequest))]
) -> dict[str, Any]:
    """Unload a model as soon as its open requests have ended, and return its description then."""
    pool: ModelPool = request.app.state.models
    await pool.unload(body.model)
    return _model_object(body.model, pool.status(body.model))


@router.post(LOAD_ADAPTER, openapi_extra=openapi_body(LoadAdapterRequest))
async def load_adapter(
    request: Request, body: Annotated[LoadAdapterRequest, Depends(body_of(LoadAdapterRequest))]
) -> Response:
    """Load a LoRA adapter, which clients then use like a model; the request is vLLM's."""
    pool: ModelPool = request.app.state.models
    name = _model_or_only(request, body.base_model_name, "base_model_name")
    await pool.load_adapter(name, body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post(UNLOAD_ADAPTER, openapi_extra=openapi_body(UnloadAdapterRequest))
async def unload_adapter(
    request: Request, body: Annotated[UnloadAdapterRequest, Depends(body_of(UnloadAdapterRequest))]
) -> Response:
    """Unload a LoRA adapter; open requests finish with it."""
    pool: ModelPool = request.app.state.models
    await pool.unload_adapter(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _model_object(name: str, status: ModelStatus) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": _STARTED if status.loaded_at is None else int(status.loaded_at),
        "owned_by": "aethermind",
        "max_model_len": status.max_model_len,
        "parent": None if name == status.name else status.name,
        "status": {
            "value": status.state,
            "progress": None if status.progress is None else round(status.progress, 3),
            "error": status.error,
            "loaded_at": status.loaded_at,
            "idle_s": None if status.idle_s is None else round(status.idle_s, 3),
            "num_requests": status.num_requests,
            "num_loads": status.num_loads,
            "memory_bytes": status.num_bytes,
        },
    }


@router.get("/v1/sessions")
async def list_sessions(request: Request, model: str | None = None) -> dict[str, Any]:
    """List the sessions, those in memory first."""
    prefix = request.state.tenant.session_name("")
    async with request.app.state.models.lease(_model_or_only(request, model, "model")) as served:
        found = await served.engine.manage_session("list", prefix)
    return {"object": "list", "data": [_session_object(info, served, prefix) for info in found]}


@router.delete("/v1/sessions/{session_id:path}")
async def delete_session(request: Request, session_id: str, model: str | None = None) -> dict[str, Any]:
    """Delete a session from memory and from its file."""
    return {**await _manage_session(request, "delete", session_id, model), "deleted": True}


@router.post("/v1/sessions/{session_id:path}/{action}")
async def change_session(
    request: Request,
    session_id: str,
    action: Literal["save", "load", "protect", "unprotect"],
    model: str | None = None,
) -> dict[str, Any]:
    """Save a session to its file, load it from there, protect it from expiry and swapping, or lift that."""
    return await _manage_session(request, action, session_id, model)


async def _manage_session(request: Request, action: str, session_id: str, model: str | None) -> dict[str, Any]:
    prefix = request.state.tenant.session_name("")
    async with request.app.state.models.lease(_model_or_only(request, model, "model")) as served:
        found = await served.engine.manage_session(action, prefix + session_id)
    if not found:
        raise ApiError(404, f"There is no session {session_id!r:.80} to {action}.", code="session_not_found")
    return _session_object(found[0], served, prefix)


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


_SERVER_LIMITS = ("max_concurrent_requests", "max_queued_requests", "max_queued_tokens", "request_timeout")
_ENGINE_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk")

_Count = Annotated[int, Field(lt=MAX_LIMIT)]


class LimitsRequest(StrictModel):
    """New limits, named as the options of `serve`; those that are absent or null remain as they are.

    `model` names the model whose engine gets new limits. It may be absent where one model is served.
    """

    ignores_unknown = False

    model: str | None = None
    max_num_seqs: _Count | None = None
    max_num_batched_tokens: _Count | None = None
    max_prefill_chunk: _Count | None = None
    max_concurrent_requests: _Count | None = None
    max_queued_requests: _Count | None = None
    max_queued_tokens: _Count | None = None
    request_timeout: Annotated[int | float, Field(lt=MAX_LIMIT)] | None = None

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The fields among `names` that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@router.get("/admin/limits")
async def get_limits(request: Request) -> dict[str, Any]:
    """The limits of the server, and those of each model's engine."""
    return _current_limits(request.app.state)


@router.patch("/admin/limits", openapi_extra=openapi_body(LimitsRequest))
async def change_limits(
    request: Request, body: Annotated[LimitsRequest, Depends(body_of(LimitsRequest))]
) -> dict[str, Any]:
    """Change limits for requests and steps from now on, and return those in force; open requests continue.

    ApiError 400 for a limit out of range changes nothing. Engines keep changed limits when their process is restarted.
    """
    state, engine_limits, server_limits = request.app.state, body.given(_ENGINE_LIMITS), body.given(_SERVER_LIMITS)
    try:
        changed = replace(state.limits, **{_limits_field(name): value for name, value in server_limits.items()})
        if engine_limits or body.model is not None:
            async with state.models.lease(_model_or_only(request, body.model, "model")) as model:
                await model.engine.adjust(**engine_limits)
    except AetherMindError as error:
        param = getattr(error, "param", None) or str(error).partition(" ")[0]
        name = param if param in engine_limits else param.removesuffix("_s")
        if name not in {*engine_limits, *server_limits}:
            raise
        raise ApiError(400, str(error).replace(param, name, 1), param=name, code="invalid_value") from None
    state.limits = state.admission.limits = changed
    if engine_limits or server_limits:
        changes = ", ".join(f"{name}={value}" for name, value in {**engine_limits, **server_limits}.items())
        _log.warning("limits changed%s: %s", "" if body.model is None else f" for {body.model}", changes)
    return _current_limits(state)


def _current_limits(state: Any) -> dict[str, Any]:
    server_limits = {name: getattr(state.limits, _limits_field(name)) for name in _SERVER_LIMITS}
    engines = {model.name: model.engine.stats.step_limits for model in state.models.base_models}
    return {"object": "limits", **server_limits, "models": engines}


def _limits_field(name: str) -> str:
    """The field of `Limits` for an option of `serve`. The names of fields that are times end with their unit."""
    return "request_timeout_s" if name == "request_timeout" else name


def _model_or_only(request: Request, name: str | None, param: str) -> str:
    """`name`, or the name of the only model. ApiError 400, which names `param`, if there are several models."""
    pool: ModelPool = request.app.state.models
    if name is None and len(pool.names) > 1:
        names = ", ".join(pool.names)
        raise ApiError(400, f"Several models are served; {param} should be one of {names}.", param=param)
    return pool.names[0] if name is None else name
