"""Routes whose functions take a request and its body, and return a response."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["DirectRoute", "DirectRoutes"]


class DirectRoute(APIRoute):
    """Calls `function(request, body)`, where `body` is what the function's one dependency returns.

    FastAPI would look in each request for parameters that there are not, and at a response that is finished. What
    `/openapi.json` says of the route is the same.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        function, (body,) = self.endpoint, self.dependant.dependencies
        read = body.call
        assert read is not None, "a dependency is a function"

        async def handle(request: Request) -> Response:
            response: Response = await function(request, await read(request))
            return response

        return handle


class DirectRoutes:
    """ASGI middleware, the innermost: a request to one of `routes` goes to its function at once.

    The others are looked for among all routes, inside what FastAPI has around them for functions that leave more to it.
    Errors are for the layers outside to tell.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[object]) -> None:
        self._app = app
        direct = [route for route in routes if isinstance(route, DirectRoute)]
        self._handlers = {(method, one.path): one.get_route_handler() for one in direct for method in one.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handlers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)
