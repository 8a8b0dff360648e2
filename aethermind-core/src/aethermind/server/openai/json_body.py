"""Request bodies: reading within a size limit, strict JSON parsing, validation against a schema, and its errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from aethermind.server.access import header_of
from aethermind.server.cancellation import CancelScope
from aethermind.server.openai.errors import ApiError, draining

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from aethermind.server.admission import Limits
    from aethermind.server.openai.unknown_fields import IgnoredFields, UnsupportedField

__all__ = ["StrictModel", "body_of", "openapi_body", "validation_api_error"]

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """The base of request schemas: no coercion of types, no infinities.

    The context of the validation (pydantic's `info.context`) decides about unknown fields. With the server's
    `IgnoredFields` they are ignored with a warning; with None each of them is an error. A null in an unknown field is
    always ignored: clients in typed languages send nulls for absent fields, and OpenAI's client sends back the message
    of a completion with `"refusal": null`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    location: ClassVar[str] = ""
    """The path of such objects in a request, for error messages; empty for the request itself."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = {}
    """Unknown fields that would change the output: always errors, unless their values are neutral."""

    ignores_unknown: ClassVar[bool] = True
    """Whether unknown fields may be ignored; False if every field constrains the output."""

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, dict) or given.keys() <= (known := _known_names(cls)):
            return given
        return {name: value for name, value in given.items() if name in known or not cls._is_ignored(name, value, info)}

    @classmethod
    def _is_ignored(cls, name: str, value: Any, info: ValidationInfo) -> bool:
        """Whether an unknown field is ignored; ApiError 400 for one that would change the output."""
        if value is None:
            return True
        path = f"{cls.location}.{name}" if cls.location else name
        if (unsupported := cls.unsupported.get(name)) is not None:
            if unsupported.is_neutral(value):
                return True
            message = f"{path} is not supported with this value. {unsupported.instead}"
            raise ApiError(400, message, param=path, code="unsupported_parameter")
        ignored: IgnoredFields | None = info.context
        if ignored is None or not cls.ignores_unknown:
            return False
        ignored.warn_once(path, _known_names(cls))
        return True


@cache
def _known_names(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a schema by their names in JSON."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def body_of(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A FastAPI dependency that reads and validates a request's body as `model`.

    ApiError 400 names the invalid field, 408 ends a body that does not arrive in time, 413 one that is too large, 503
    one that is incomplete when the server stops. Unknown fields are passed to the server's `ignored_fields`.
    """

    async def read(request: Request) -> Model:
        limits, data = request.app.state.limits, None
        with CancelScope(request.app.state.admission.closed):
            data = await _read(request, limits)
        if data is None:
            raise draining()
        try:
            body = parse(data, limits.max_json_depth)
            return model.model_validate(body, context=request.app.state.ignored_fields)
        except ValidationError as error:
            raise validation_api_error(error) from None
        except RecursionError:
            raise _too_deep() from None

    return read


def openapi_body(model: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body `body_of(model)` reads."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(model)}}}}


def parse(data: bytes, max_depth: int) -> Any:
    """Parse strict JSON (RFC 8259) whose lists and objects nest at most `max_depth` deep.

    ApiError 400 for invalid or too deep JSON, duplicate names, NaN and infinities, and lone surrogates.
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
"""An escaped UTF-16 surrogate, valid only in a pair."""


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "The request body has half a character: \\ud800 to \\udfff go in pairs.") from None


def _check_depth(value: Any, max_depth: int) -> None:
    containers = [value]
    for _ in range(max_depth):
        containers = [child for parent in containers for child in _children(parent) if isinstance(child, (list, dict))]
        if not containers:
            return
    raise _too_deep()


def _children(value: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> ApiError:
    return ApiError(400, "The request body is nested too deeply.", code="nested_too_deeply")


async def _read(request: Request, limits: Limits) -> bytes:
    max_bytes = limits.max_body_bytes
    content_length = header_of(request.scope, b"content-length") or "0"
    if content_length.isdecimal() and int(content_length) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(limits.keep_alive_timeout_s):
                message = await request.receive()
        except TimeoutError:
            seconds = limits.keep_alive_timeout_s
            raise ApiError(408, f"Nothing came of the request body in {seconds:g} s.", code="idle") from None
        if message["type"] == "http.disconnect":
            raise ApiError(400, "The request body ended early.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(chunks)


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
    """The JSON schema of a model with its references resolved, so that it can be embedded in the OpenAPI document."""
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


_EXPECTED = "Input should be "
_OBJECT_ERRORS = ("model_type", "model_attributes_type", "dict_type")
"""Types of pydantic's errors about values that should be objects; their messages name Python classes."""


def validation_api_error(error: ValidationError) -> ApiError:
    """The 400 of a validation error. It names the invalid field with the longest path, the most specific one."""
    errors = error.errors(include_url=False, include_input=False)
    first = max(errors, key=lambda detail: len(detail["loc"]))
    path = _path_of(first)
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{path} is not supported; leave it out.", param=path, code="unsupported_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"{path} is missing.", param=path, code="missing_required_parameter")
    message, *others = dict.fromkeys(_message_of(detail) for detail in errors if _path_of(detail) == path)
    message = " or ".join([message, *(other.removeprefix(_EXPECTED) for other in others)])
    return ApiError(400, f"{path or 'The request body'}: {message}.", param=path, code="invalid_value")


def _message_of(error: ErrorDetails) -> str:
    """The values that one member of a field's union accepts."""
    if error["type"] in _OBJECT_ERRORS:
        return f"{_EXPECTED}an object"
    if error["type"] == "union_tag_invalid":
        tags = str(error["ctx"]["expected_tags"]).replace("[", "").replace("]", "")
        return f"type should be one of {tags}"
    return error["msg"]


def _path_of(error: ErrorDetails) -> str | None:
    """The path of the invalid field in the request, without the members of unions that pydantic inserts."""
    location = error["loc"]
    num_outer = len(location) if error["type"] in _OBJECT_ERRORS else len(location) - 1
    parts = [part for part in location[:num_outer] if not (_is_union_member(part) or _is_class_name(part))]
    parts += [part for part in location[num_outer:] if not _is_union_member(part)]
    return ".".join(map(str, parts)) or None


def _is_union_member(part: object) -> bool:
    """Whether a part of an error's location names a member of a union."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))


def _is_class_name(part: object) -> bool:
    """Whether a part of an error's location names a schema class; names of fields are in lower case."""
    return isinstance(part, str) and part[:1].isupper()
