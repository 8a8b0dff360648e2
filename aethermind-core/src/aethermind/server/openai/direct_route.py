"""Routes whose functions take a request and its body, and return a response."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

__all__ = ["DirectRoute"]


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
