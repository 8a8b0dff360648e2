"""`/v1/models`: the models of the server and their states.

With the admin key, `/admin/models` loads and unloads models, and vLLM's endpoints load and unload LoRA adapters.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from aethermind.server.access import LOAD_ADAPTER, UNLOAD_ADAPTER
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, body_of, openapi_body

if TYPE_CHECKING:
    from aethermind.server.model_pool import ModelPool, ModelStatus

__all__ = ["LoadAdapterRequest", "ModelRequest", "UnloadAdapterRequest", "admin_router", "router"]

router = APIRouter()
admin_router = APIRouter()

_STARTED = int(time.time())


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
async def models(request: Request) -> dict[str, Any]:
    """List the models, each followed by its adapters."""
    pool: ModelPool = request.app.state.models
    data = [_model_object(name, status) for status in pool.statuses() for name in (status.name, *status.adapters)]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe one model, which is not loaded for this."""
    pool: ModelPool = request.app.state.models
    return _model_object(name, pool.status(name))


@admin_router.post("/admin/models/load", openapi_extra=openapi_body(ModelRequest))
async def load(request: Request, body: Annotated[ModelRequest, Depends(body_of(ModelRequest))]) -> dict[str, Any]:
    """Load a model, and return its description once it is loaded."""
    pool: ModelPool = request.app.state.models
    await pool.load(body.model)
    return _model_object(body.model, pool.status(body.model))


@admin_router.post("/admin/models/unload", openapi_extra=openapi_body(ModelRequest))
async def unload(request: Request, body: Annotated[ModelRequest, Depends(body_of(ModelRequest))]) -> dict[str, Any]:
    """Unload a model as soon as its open requests have ended, and return its description then."""
    pool: ModelPool = request.app.state.models
    await pool.unload(body.model)
    return _model_object(body.model, pool.status(body.model))


@admin_router.post(LOAD_ADAPTER, openapi_extra=openapi_body(LoadAdapterRequest))
async def load_adapter(
    request: Request, body: Annotated[LoadAdapterRequest, Depends(body_of(LoadAdapterRequest))]
) -> Response:
    """Load a LoRA adapter, which clients then use like a model; the request is vLLM's."""
    pool: ModelPool = request.app.state.models
    name = body.base_model_name
    if name is None and len(pool.names) > 1:
        names = ", ".join(pool.names)
        raise ApiError(
            400, f"Several models are served; base_model_name should be one of {names}.", param="base_model_name"
        )
    await pool.load_adapter(pool.names[0] if name is None else name, body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@admin_router.post(UNLOAD_ADAPTER, openapi_extra=openapi_body(UnloadAdapterRequest))
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
