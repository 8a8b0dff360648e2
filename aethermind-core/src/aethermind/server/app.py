"""The HTTP application: which function answers which URL, and what stands at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Response
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from aethermind import __version__
from aethermind.server.door import Door
from aethermind.server.limits import Admission, Limits
from aethermind.server.observation import Metrics, Observer
from aethermind.server.open_requests import OpenRequests
from aethermind.server.open_requests import router as request_routes
from aethermind.server.openai.direct_route import DirectRoutes
from aethermind.server.openai.errors import ENGINE_DEAD_RETRY_S, ApiError, draining, install_error_handlers
from aethermind.server.openai.ignored_fields import IgnoredFields
from aethermind.server.openai.routes import model_router as model_routes
from aethermind.server.openai.routes import router as openai_routes
from aethermind.server.openai.tokens import router as token_routes
from aethermind.server.served_model import ServedModels
from aethermind.server.tenants import Tenants
from aethermind.server.web_ui import router as web_ui_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.server.observation.tracing import Tracing
    from aethermind.server.served_model import ServedModel

__all__ = ["create_app"]

_PROBES = ("/health", "/ready", "/version", "/metrics")


def create_app(
    models: Sequence[ServedModel],
    *,
    limits: Limits | None = None,
    tenants: Tenants | None = None,
    only_local: bool = False,
    origins: Sequence[str] = (),
    log_prompts: bool = False,
    tracing: Tracing | None = None,
    strict_requests: bool = False,
) -> FastAPI:
    """An application that serves `models`, whose engines run already.

    With `tenants` clients have to have the key of one; with `only_local` they have to call the server by a name of
    this machine. Web pages that come from `origins` may ask as its own page does; `*` is all. Prompts come into the
    log only with `log_prompts`; requests are spans of `tracing`. Unknown fields of requests are ignored, or are errors
    with `strict_requests`.
    """
    app = FastAPI(title="AetherMind", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    state = app.state
    state.limits = limits or Limits()
    state.models = ServedModels(models)
    state.admission = Admission(state.limits)
    state.open_requests = OpenRequests()
    state.ignored_fields = None if strict_requests else IgnoredFields()
    state.metrics = Metrics(state.models, state.admission)
    install_error_handlers(app)
    app.add_middleware(DirectRoutes, routes=openai_routes.routes)
    app.add_middleware(
        Door,
        tenants=tenants or Tenants(),
        admission=state.admission,
        admitted=_paths_posted_to(openai_routes),
        max_header_bytes=state.limits.max_header_bytes,
        only_local=only_local,
        origins=frozenset(origins),
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Should-Retry", "Retry-After"],
        )
    app.add_middleware(Observer, metrics=state.metrics, has_prompts=log_prompts, tracing=tracing)
    app.include_router(openai_routes)
    _add_probes(app)
    for routes in (model_routes, token_routes, request_routes, web_ui_routes):
        app.include_router(routes)
    state.addresses = [*_PROBES, *_paths(openai_routes), *_paths(model_routes), *_paths(token_routes)]
    return app


def _paths_posted_to(routes: APIRouter) -> frozenset[str]:
    return frozenset(
        one.path for one in routes.routes if isinstance(one, APIRoute) and one.methods and "POST" in one.methods
    )


def _paths(routes: APIRouter) -> list[str]:
    """The addresses, of those that are documented and have no names in them."""
    found = (one for one in routes.routes if isinstance(one, APIRoute) and one.include_in_schema)
    return [one.path for one in found if "{" not in one.path]


def _add_probes(app: FastAPI) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Requests would be served."""
        state = app.state
        if state.admission.is_draining:
            raise draining()
        if (failure := state.models.failure) is not None:
            raise ApiError(503, failure, code="engine_dead", retry_after_s=ENGINE_DEAD_RETRY_S)
        return Response(status_code=200)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of AetherMind."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """The metrics for Prometheus."""
        return Response(app.state.metrics.render(), media_type="text/plain; version=0.0.4")
