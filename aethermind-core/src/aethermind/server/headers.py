"""One of a request's headers, without reading all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = ["header_of"]


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first of a request's headers of that name, which is in lower case; None where there is none."""
    for one, value in scope["headers"]:
        if one == name:
            text: str = value.decode("latin-1")
            return text
    return None
