"""`/admin/limits`: the limits of a running server and of its engines, read and changed with the admin key."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from aethermind.errors import AetherMindError
from aethermind.log import get_logger
from aethermind.server.admission import MAX_LIMIT
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel, body_of, openapi_body

__all__ = ["LimitsRequest", "router"]

router = APIRouter()

_log = get_logger(__name__)

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
async def limits(request: Request) -> dict[str, Any]:
    """The limits of the server, and those of each model's engine."""
    return _in_force(request.app.state)


@router.patch("/admin/limits", openapi_extra=openapi_body(LimitsRequest))
async def change_limits(
    request: Request, body: Annotated[LimitsRequest, Depends(body_of(LimitsRequest))]
) -> dict[str, Any]:
    """Change limits for requests and steps from now on, and return those in force; open requests continue.

    ApiError 400 for a limit out of range changes nothing. Engines keep changed limits when their process is restarted.
    """
    state, of_engine, of_server = request.app.state, body.given(_ENGINE_LIMITS), body.given(_SERVER_LIMITS)
    try:
        changed = replace(state.limits, **{_field(name): value for name, value in of_server.items()})
        if of_engine or body.model is not None:
            async with state.models.lease(_model_name(request, body)) as model:
                await model.engine.adjust(**of_engine)
    except AetherMindError as error:
        param = getattr(error, "param", None) or str(error).partition(" ")[0]
        named = param if param in of_engine else param.removesuffix("_s")
        if named not in {*of_engine, *of_server}:
            raise
        raise ApiError(400, str(error).replace(param, named, 1), param=named, code="invalid_value") from None
    state.limits = state.admission.limits = changed
    if of_engine or of_server:
        shown = ", ".join(f"{name}={value}" for name, value in {**of_engine, **of_server}.items())
        _log.warning("limits changed%s: %s", "" if body.model is None else f" for {body.model}", shown)
    return _in_force(state)


def _model_name(request: Request, body: LimitsRequest) -> str:
    """The name of the model whose engine is meant; ApiError 400 if it is not given and there are several."""
    names: tuple[str, ...] = request.app.state.models.names
    if body.model is None and len(names) > 1:
        raise ApiError(400, f"Limits of an engine need model, one of {', '.join(names)}.", param="model")
    return names[0] if body.model is None else body.model


def _in_force(state: Any) -> dict[str, Any]:
    of_server = {name: getattr(state.limits, _field(name)) for name in _SERVER_LIMITS}
    engines = {model.name: model.engine.stats.step_limits for model in state.models.base_models}
    return {"object": "limits", **of_server, "models": engines}


def _field(name: str) -> str:
    """The field of `Limits` for an option of `serve`: times have their unit in its name."""
    return "request_timeout_s" if name == "request_timeout" else name
