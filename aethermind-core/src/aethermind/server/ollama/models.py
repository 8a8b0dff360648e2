"""Ollama's endpoints about models: `/api/tags`, `/api/show`, `/api/ps`, `/api/version` and `/api/pull`."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from aethermind.server.ollama.requests import KeepAlive, has_reasoning
from aethermind.server.ollama.response import timestamp
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, body_of, openapi_body
from aethermind.server.sse import NDJSON
from aethermind.text.chat_prompt import THINKING_VARIABLES, template_variables

if TYPE_CHECKING:
    from aethermind.server.model_pool import ModelPool, ModelStatus
    from aethermind.server.served_model import ServedModel

__all__ = ["PullBody", "ShowBody", "lines_or_object", "router", "served_name", "set_keep_alive"]

router = APIRouter()

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this is. Clients compare it with the least version that they need."""

_STARTED_S = time.time()

_NEVER_S = 100 * 365 * 86400.0
"""Seconds until a model expires that is never unloaded, as far as Ollama's clients are concerned."""


class ShowBody(StrictModel):
    """The model to describe; `name` is an older name of the field."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class PullBody(StrictModel):
    """The model to download; `name` is an older name of the field."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


def served_name(pool: ModelPool, name: str) -> str:
    """The name under which the server has a model. Ollama's clients add `:latest` to names without a tag.

    ApiError 404 lists the names.
    """
    try:
        pool.status(name)
    except ApiError:
        short = name.removesuffix(":latest")
        if short == name:
            raise
        pool.status(short)
        return short
    return name


def lines_or_object(is_stream: bool, *objects: dict[str, Any]) -> Response:
    """A response with `objects` as lines, or with the last one alone."""
    if is_stream:
        return Response(NDJSON.encode_events(objects), media_type=NDJSON.media_type)
    return Response(json.dumps(objects[-1]), media_type="application/json")


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of Ollama's API."""
    return {"version": OLLAMA_VERSION}


@router.get("/api/tags")
async def tags(request: Request) -> dict[str, Any]:
    """List the models, each followed by its adapters."""
    pool: ModelPool = request.app.state.models
    loaded = {model.name: model for model in pool.base_models}
    return {
        "models": [
            {
                **_identity(name, status),
                "modified_at": timestamp(status.loaded_at or _STARTED_S),
                "details": _details(name, status, loaded.get(status.name)),
            }
            for status in pool.statuses()
            for name in (status.name, *status.adapters)
        ]
    }


@router.get("/api/ps")
async def ps(request: Request) -> dict[str, Any]:
    """List the models that are loaded."""
    pool: ModelPool = request.app.state.models
    loaded = {model.name: model for model in pool.base_models}
    return {
        "models": [
            {
                **_identity(status.name, status),
                "details": _details(status.name, status, model),
                "expires_at": timestamp(time.time() + _expires_s(status)),
                "size_vram": 0 if model.info.device.startswith("cpu") else status.num_bytes,
                "context_length": status.max_model_len,
            }
            for status in pool.statuses()
            if (model := loaded.get(status.name)) is not None
        ]
    }


@router.post("/api/show", openapi_extra=openapi_body(ShowBody))
async def show(request: Request, body: Annotated[ShowBody, Depends(body_of(ShowBody))]) -> dict[str, Any]:
    """Describe one model, which is not loaded for this: what only a loaded model tells is left out."""
    pool: ModelPool = request.app.state.models
    name = served_name(pool, _name_of(body))
    status = pool.status(name)
    model = next((model for model in pool.base_models if model.name == status.name), None)
    architecture = "unknown" if model is None else _family(model)
    facts: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.context_length": status.max_model_len,
    }
    template = ""
    if model is not None:
        facts["general.parameter_count"] = model.info.num_parameters
        template = model.tokenizer.chat_template or ""
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": "" if model is None else _parameters(model),
        "template": template,
        "details": _details(name, status, model),
        "model_info": facts,
        "capabilities": ["completion", *(() if model is None else _capabilities(model))],
        "modified_at": timestamp(status.loaded_at or _STARTED_S),
    }


@router.post("/api/pull", openapi_extra=openapi_body(PullBody), response_model=None)
async def pull(request: Request, body: Annotated[PullBody, Depends(body_of(PullBody))]) -> Response:
    """Succeed for a model that the server has. ApiError 400 for others: clients cannot add models."""
    name = _name_of(body)
    try:
        served_name(request.app.state.models, name)
    except ApiError as error:
        raise ApiError(
            400,
            f"Clients cannot add models: this server has those that it was started with. Run `aethermind pull "
            f"{name:.100}` there, and start it with that model. {error.message}",
        ) from None
    return lines_or_object(body.stream is not False, {"status": "pulling manifest"}, {"status": "success"})


async def set_keep_alive(request: Request, name: str, keep_alive: KeepAlive) -> str:
    """Load the model `name`, or unload it if `keep_alive` is 0; returns Ollama's `done_reason`.

    ApiError 403 for unloading on a server with API keys, where a model is unloaded with the admin key only, and 409 for
    a model that is never unloaded.
    """
    pool: ModelPool = request.app.state.models
    if not _is_zero(keep_alive):
        await pool.load(name)
        return "load"
    if request.state.tenant.id:
        raise ApiError(403, "A server with API keys unloads models by POST /admin/models/unload and its admin key.")
    await pool.unload(name)
    return "unload"


def _is_zero(keep_alive: KeepAlive) -> bool:
    """Whether a duration is 0, as a number or as a text such as `0s`."""
    if isinstance(keep_alive, str):
        return keep_alive.strip().rstrip("hmsnuµ") in ("0", "0.0")
    return keep_alive == 0 and keep_alive is not None


def _name_of(body: ShowBody | PullBody) -> str:
    name = body.model or body.name
    if not name:
        raise ApiError(400, "model is missing.", param="model", code="missing_required_parameter")
    return name


def _identity(name: str, status: ModelStatus) -> dict[str, Any]:
    """The fields that identify a model. The digest is that of its name, because the server hashes no files."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": status.num_bytes, "digest": digest}


def _details(name: str, status: ModelStatus, model: ServedModel | None) -> dict[str, Any]:
    info = None if model is None else model.info
    family = "" if model is None else _family(model)
    weights = "" if info is None else ", ".join(info.weight_formats) or info.dtype
    return {
        "parent_model": "" if name == status.name else status.name,
        "format": "" if info is None else "gguf" if info.model.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if info is None else _short_number(info.num_parameters),
        "quantization_level": weights,
    }


def _family(model: ServedModel) -> str:
    """The family of a model's architecture, such as qwen2 of Qwen2ForCausalLM."""
    return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", model.info.architecture).lower()


def _short_number(number: int) -> str:
    """A number of parameters such as 7.6B, as Ollama writes it."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def _expires_s(status: ModelStatus) -> float:
    """Seconds until a model is unloaded if no request comes."""
    return _NEVER_S if status.ttl_s is None else max(status.ttl_s - (status.idle_s or 0.0), 0.0)


def _parameters(model: ServedModel) -> str:
    """The model's default sampling parameters, one a line."""
    return "\n".join(f"{name} {value}" for name, value in model.sampling_defaults.items() if value is not None)


def _capabilities(model: ServedModel) -> list[str]:
    """What the chat template of a model reads, and its answers have."""
    read = template_variables(model.tokenizer.chat_templates, has_tools=True)
    if read is None:
        return []
    is_thinking = has_reasoning(model) or not read.isdisjoint(THINKING_VARIABLES)
    return [*(["tools"] if "tools" in read else []), *(["thinking"] if is_thinking else [])]
