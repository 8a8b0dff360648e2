"""Rewrites of JSON schemas for llguidance, after which answers still satisfy the original schema.

The library refuses unknown keywords, even those without effect, and numbers beyond 64 bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

__all__ = ["rewritten", "with_discriminators", "with_safe_bounds", "without_noop_keywords"]

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values map names to schemas."""

_PLAIN_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are not schemas."""

_NOOP_VALUES: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "not": (False,),
}
"""Values of keywords that everything satisfies. Schema generators write them, zod for each record."""

_TIME_FORMATS = {"date-time", "time", "date", "duration"}
_HOST_FORMATS = {
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "uri-template",
    "iri",
    "iri-reference",
}
_FORMATS = (
    _TIME_FORMATS | _HOST_FORMATS | {"email", "idn-email", "uuid", "regex", "json-pointer", "relative-json-pointer"}
)
"""The string formats that JSON Schema defines. Others, such as Pydantic's `path` and `password`, are annotations."""

_MAX_BOUND = 9 * 10**18
"""The greatest magnitude of bounds: the library counts in 64 bits."""

_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any] | None], *, is_schema: bool = True) -> Any:
    """Apply `change` to the schema and to each schema within; a schema for which it returns None is unchanged.

    Without `is_schema`, the value maps names to schemas.
    """
    if isinstance(schema, list):
        return [rewritten(element, change) for element in schema]
    changed = change(schema) if is_schema and isinstance(schema, dict) else schema
    if not isinstance(changed, dict):
        return schema
    return {
        key: value
        if is_schema and key in _PLAIN_VALUES
        else rewritten(value, change, is_schema=not (is_schema and key in _NAMED_SCHEMAS))
        for key, value in changed.items()
    }


def without_noop_keywords(schema: Any) -> Any:
    """Remove keywords without effect, some of which the library does not know."""
    return rewritten(schema, _without_noop_keywords)


def _without_noop_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    def is_idle(key: str, value: Any) -> bool:
        if key.startswith("x-"):
            return True
        if key == "format":
            return isinstance(value, str) and value not in _FORMATS
        return any(value == noop and type(value) is type(noop) for noop in _NOOP_VALUES.get(key, ()))

    return {key: value for key, value in schema.items() if not is_idle(key, value)}


def with_discriminators(schema: Any) -> Any:
    """Require in each alternative of a union the discriminator property that distinguishes it from the others.

    Pydantic gives the property a default, so it may be missing; then an answer could match two alternatives of a
    `oneOf`. If its values differ, no answer matches two, and `anyOf` is equivalent. In recursive unions the library
    supports only `anyOf`, without other keywords beside it.
    """
    whole = copy.deepcopy(schema)

    def tag(part: dict[str, Any]) -> dict[str, Any]:
        alternatives, discriminator = part.get("oneOf"), part.get("discriminator")
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        if isinstance(alternatives, list) and isinstance(name, str):
            targets = [_target(whole, alternative) for alternative in alternatives]
            for target in targets:
                _require(target, name)
            values = [_constant(target, name) for target in targets]
            if None not in values and len(set(values)) == len(values) and "anyOf" not in part:
                part["anyOf"] = part.pop("oneOf")
            del part["discriminator"]
        return part

    rewritten(whole, tag)
    return whole


def _target(whole: Any, schema: Any) -> Any:
    """Resolve a schema's reference within the whole; itself without a reference, None if the target does not exist."""
    pointer = schema.get("$ref") if isinstance(schema, dict) else None
    if pointer is None:
        return schema
    if not (isinstance(pointer, str) and pointer.startswith("#/")):
        return None
    place = whole
    for step in unquote(pointer[2:]).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, dict) else _item(place, key)
    return place


def _item(place: Any, index: str) -> Any:
    is_there = isinstance(place, list) and index.isdecimal() and int(index) < len(place)
    return place[int(index)] if is_there else None


def _constant(schema: Any, name: str) -> str | None:
    """Return the only string that a property can be, if its schema has a constant."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    constraint = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(constraint, dict):
        return None
    values = [constraint["const"]] if "const" in constraint else constraint.get("enum")
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return None


def _require(schema: Any, name: str) -> None:
    if isinstance(schema, dict) and isinstance(required := schema.get("required", []), list) and name not in required:
        schema["required"] = [*required, name]


def with_safe_bounds(schema: Any) -> Any:
    """Bring bounds of numbers into the range of doubles and 64 bits, inwards, so that no answer violates the original
    ones.

    Generators of schemas write such bounds for 64-bit integers and floats.
    """
    return rewritten(schema, _with_safe_bounds)


def _with_safe_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    bounds: dict[str, float] = {key: schema[key] for key in (*_LOWER, *_UPPER) if _is_number(schema.get(key))}
    return schema | {key: -_safe(-value) if key in _LOWER else _safe(value) for key, value in bounds.items()}


def _safe(upper: float) -> float:
    """Return the greatest representable number that is at most `upper`."""
    if upper > _MAX_BOUND:
        return _MAX_BOUND
    if isinstance(upper, float) or abs(upper) > _MAX_BOUND or float(upper) <= upper:
        return upper
    return int(math.nextafter(float(upper), -math.inf))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
