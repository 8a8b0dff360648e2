"""A request's body: read within a size, parsed without leniency, and checked against its model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from aethermind.server.ended_by import EndedBy
from aethermind.server.headers import header_of
from aethermind.server.openai.errors import ApiError, draining
from aethermind.server.openai.refusal import refusal_of

if TYPE_CHECKING:
    from aethermind.server.limits import Limits
    from aethermind.server.openai.foreign_fields import ForeignField
    from aethermind.server.openai.ignored_fields import IgnoredFields

__all__ = ["StrictModel", "body_of", "documented"]

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A request, or an object in one: no coercion, no infinities.

    What becomes of unknown fields depends on the validation's context. It is the server's `IgnoredFields`, which takes
    them, or None, which makes each of them an error. A null in an unknown field says nothing, and is what many clients
    write for all that they leave out: those of typed languages, and OpenAI's own, which sends an answer's message back
    with `"refusal": null`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    place: ClassVar[str] = ""
    """Where such objects are in a request; empty for the request itself."""

    foreign: ClassVar[Mapping[str, ForeignField]] = {}
    """Unknown fields that would change the answer, which are errors in any case unless their values are neutral."""

    takes_unknown: ClassVar[bool] = True
    """Whether unknown fields can be ignored at all; not where each field is a demand on the answer."""

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, dict) or given.keys() <= (known := _known_names(cls)):
            return given
        return {name: one for name, one in given.items() if name in known or not cls._is_ignored(name, one, info)}

    @classmethod
    def _is_ignored(cls, name: str, value: Any, info: ValidationInfo) -> bool:
        """Whether an unknown field is left out; ApiError 400 for one that would change the answer."""
        if value is None:
            return True
        path = f"{cls.place}.{name}" if cls.place else name
        if (foreign := cls.foreign.get(name)) is not None:
            if foreign.is_neutral(value):
                return True
            message = f"{path} is not supported with this value. {foreign.instead}"
            raise ApiError(400, message, param=path, code="unsupported_parameter")
        ignored: IgnoredFields | None = info.context
        if ignored is None or not cls.takes_unknown:
            return False
        ignored.warn_once(path, _known_names(cls))
        return True


@cache
def _known_names(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a model as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def body_of(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads the body as `model`; ApiError 400 names the field that is wrong, 413 a body too large,
    503 one that has not come when the server stops. Unknown fields go to the server's `ignored_fields`.
    """

    async def read(request: Request) -> Model:
        limits, data = request.app.state.limits, None
        with EndedBy(request.app.state.admission.closed):
            data = await _read(request, limits)
        if data is None:
            raise draining()
        try:
            body = parse(data, limits.max_json_depth)
            return model.model_validate(body, context=request.app.state.ignored_fields)
        except ValidationError as error:
            raise refusal_of(error) from None
        except RecursionError:
            raise _too_deep() from None

    return read


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is read by `body_of(model)`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(model)}}}}


def parse(data: bytes, max_depth: int) -> Any:
    """JSON as RFC 8259 has it, at most `max_depth` lists and objects deep.

    ApiError for what is none or too deep, for names given twice, numbers without a value and halves of characters.
    """
    if not data.strip():
        raise ApiError(400, "The request body is empty; send a JSON object.")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ApiError(400, "The request body is not UTF-8; send JSON as it is, not compressed.") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"The request body is not JSON: {error}.") from None
    except ValueError:
        raise ApiError(400, "The request body has a number of thousands of digits.") from None
    if data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(value, max_depth)
    if _SURROGATE.search(data):
        _check_characters(value)
    return value


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character outside the basic plane, by its number: fine where the other half follows."""


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "The request body has half a character: \\ud800 to \\udfff go in pairs.") from None


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [child for one in level for child in _children(one) if isinstance(child, (list, dict))]
        if not level:
            return
    raise _too_deep()


def _children(value: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> ApiError:
    return ApiError(400, "The request body is nested too deeply.", code="nested_too_deeply")


async def _read(request: Request, limits: Limits) -> bytes:
    max_bytes = limits.max_body_bytes
    announced = header_of(request.scope, b"content-length") or "0"
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(limits.idle_timeout_s):
                message = await request.receive()
        except TimeoutError:
            seconds = limits.idle_timeout_s
            raise ApiError(408, f"Nothing came of the request body in {seconds:g} s.", code="idle") from None
        if message["type"] == "http.disconnect":
            raise ApiError(400, "The request body ended early.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than {max_bytes} bytes, which is the most this server takes.",
        code="body_too_large",
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ApiError(400, f"The request body has {name!r:.80} twice.", param=name[:80])
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise ApiError(400, f"The request body has {constant}, which is no JSON number.")


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model without references, so that it can stand anywhere in a document."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(definitions[node["$ref"].rsplit("/", 1)[1]])
            return {name: resolve(value) for name, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved
