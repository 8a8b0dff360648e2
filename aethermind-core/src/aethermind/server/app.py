"""The HTTP application: its state, its middleware and its routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from fastapi import APIRouter, FastAPI, Response
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from aethermind import __version__
from aethermind.server.access import AccessMiddleware, Tenants, admin_key_hash
from aethermind.server.admission import AdmissionController, Limits
from aethermind.server.anthropic.routes import count_router
from aethermind.server.anthropic.routes import router as messages_routes
from aethermind.server.cancellation import InFlightRequests
from aethermind.server.cancellation import router as request_routes
from aethermind.server.management import router as management_routes
from aethermind.server.model_pool import ModelPool
from aethermind.server.observation import Metrics, Observer
from aethermind.server.ollama.models import router as ollama_model_routes
from aethermind.server.ollama.routes import router as ollama_routes
from aethermind.server.openai.errors import ENGINE_DEAD_RETRY_S, ApiError, draining, install_error_handlers
from aethermind.server.openai.routes import DirectDispatch
from aethermind.server.openai.routes import router as openai_routes
from aethermind.server.openai.stored_responses import router as stored_routes
from aethermind.server.openai.tokens import router as token_routes
from aethermind.server.openai.unknown_fields import IgnoredFields
from aethermind.server.pool_entry import is_loading
from aethermind.server.web_ui import router as web_ui_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.server.observation.tracing import Tracing
    from aethermind.server.openai.stored_responses import ResponseStore
    from aethermind.server.served_model import ServedModel

__all__ = ["AppOptions", "create_app"]

_PROBES = ("/health", "/ready", "/version", "/metrics")


class AppOptions(TypedDict, total=False):
    """The options of `create_app` that do not depend on the address."""

    tenants: Tenants | None
    origins: Sequence[str]
    log_prompts: bool
    log_prefixes: bool
    tracing: Tracing | None
    strict_requests: bool
    admin_key: str | None
    response_store: ResponseStore | None


def create_app(
    models: ModelPool | Sequence[ServedModel],
    *,
    limits: Limits | None = None,
    tenants: Tenants | None = None,
    only_local: bool = False,
    origins: Sequence[str] = (),
    log_prompts: bool = False,
    log_prefixes: bool = False,
    tracing: Tracing | None = None,
    strict_requests: bool = False,
    admin_key: str | None = None,
    response_store: ResponseStore | None = None,
) -> FastAPI:
    """An application that serves the models of a pool, or `models`, whose engines run already.

    With `tenants`, clients need the API key of one. With `only_local`, requests have to name this machine as their
    host. Web pages of `origins` may call the API as the server's own page does; `*` allows all. Prompts are logged only
    with `log_prompts`, and the places where they differ from earlier ones with `log_prefixes`. With `tracing`, each
    request is a span. Unknown fields of requests are ignored, or with `strict_requests` an error. Without an
    `admin_key` the paths below `/admin/` are disabled. Without a `response_store` no responses are stored.
    """
    tenants = tenants or Tenants()
    app = FastAPI(title="AetherMind", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    state = app.state
    state.limits = limits or Limits()
    state.models = models if isinstance(models, ModelPool) else ModelPool.of(models)
    state.admission = AdmissionController(state.limits)
    state.in_flight_requests = InFlightRequests()
    state.ignored_fields = None if strict_requests else IgnoredFields()
    state.response_store = response_store
    state.metrics = Metrics(state.models, state.admission)
    install_error_handlers(app)
    app.add_middleware(DirectDispatch, routes=[*openai_routes.routes, *ollama_routes.routes, *messages_routes.routes])
    app.add_middleware(
        AccessMiddleware,
        tenants=tenants,
        admission=state.admission,
        admission_paths=_post_paths(openai_routes) | _post_paths(ollama_routes) | _post_paths(messages_routes),
        max_header_bytes=state.limits.max_header_bytes,
        only_local=only_local,
        origins=frozenset(origins),
        admin_key_hash=None if admin_key is None else admin_key_hash(admin_key, tenants),
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Should-Retry", "Retry-After"],
        )
    app.add_middleware(
        Observer, metrics=state.metrics, log_prompts=log_prompts, log_prefixes=log_prefixes, tracing=tracing
    )
    _add_probes(app)
    documented = (
        *(openai_routes, stored_routes, messages_routes, count_router, management_routes, token_routes),
        *(ollama_routes, ollama_model_routes),
    )
    for routes in (*documented, request_routes, web_ui_routes):
        app.include_router(routes)
    state.documented_paths = [*_PROBES]
    for routes in documented:
        state.documented_paths += _paths(routes)
    return app


def _post_paths(routes: APIRouter) -> frozenset[str]:
    return frozenset(
        route.path
        for route in routes.routes
        if isinstance(route, APIRoute) and route.methods and "POST" in route.methods
    )


def _paths(routes: APIRouter) -> list[str]:
    """The paths of the documented routes without path parameters."""
    found = (route for route in routes.routes if isinstance(route, APIRoute) and route.include_in_schema)
    return [route.path for route in found if "{" not in route.path]


def _add_probes(app: FastAPI) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: the server process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Readiness: 503 while the server stops, or while an engine is down or being loaded that always runs."""
        state = app.state
        if state.admission.is_draining:
            raise draining()
        if (loading := state.models.loading) is not None:
            raise is_loading(loading)
        if (failure := state.models.failure) is not None:
            raise ApiError(503, failure, code="engine_dead", retry_after_s=ENGINE_DEAD_RETRY_S)
        return Response(status_code=200)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of AetherMind."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(app.state.metrics.render(), media_type="text/plain; version=0.0.4")
