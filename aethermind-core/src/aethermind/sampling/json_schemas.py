"""JSON schemas as the library that follows them knows them: answers still fit the schema that was asked for.

It refuses words that it does not know, also those that demand nothing, and numbers beyond 64 bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

__all__ = ["rewritten", "with_near_bounds", "with_tags", "without_idle_words"]

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values map names to schemas."""

_PLAIN_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Those whose values are no schemas."""

_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "not": (False,),
}
"""Values of keywords that everything satisfies. Generators of schemas write them, zod for each record."""

_TIMES = {"date-time", "time", "date", "duration"}
_PLACES = {"hostname", "idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template", "iri", "iri-reference"}
_FORMATS = _TIMES | _PLACES | {"email", "idn-email", "uuid", "regex", "json-pointer", "relative-json-pointer"}
"""The formats of texts that JSON Schema defines. Others, such as Pydantic's `path` and `password`, are remarks."""

_FARTHEST = 9 * 10**18
"""The library that follows schemas counts in 64 bits."""

_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any] | None], *, is_schema: bool = True) -> Any:
    """The schema with `change` made to it and to each one within; where that is None, a schema stays as it is.

    Unless it `is_schema`, what is given maps names to schemas.
    """
    if isinstance(schema, list):
        return [rewritten(one, change) for one in schema]
    changed = change(schema) if is_schema and isinstance(schema, dict) else schema
    if not isinstance(changed, dict):
        return schema
    return {
        key: value
        if is_schema and key in _PLAIN_VALUES
        else rewritten(value, change, is_schema=not (is_schema and key in _NAMED_SCHEMAS))
        for key, value in changed.items()
    }


def without_idle_words(schema: Any) -> Any:
    """The schema without keywords that demand nothing, of which the library that follows schemas knows some not."""
    return rewritten(schema, _without_idle_words)


def _without_idle_words(schema: dict[str, Any]) -> dict[str, Any]:
    def is_idle(key: str, value: Any) -> bool:
        if key.startswith("x-"):
            return True
        if key == "format":
            return isinstance(value, str) and value not in _FORMATS
        return any(value == one and type(value) is type(one) for one in _IDLE.get(key, ()))

    return {key: value for key, value in schema.items() if not is_idle(key, value)}


def with_tags(schema: Any) -> Any:
    """The schema in which each alternative of a union has the property that tells it from the others.

    Pydantic gives that a default, so that it may be left out; then an answer could fit two alternatives of a `oneOf`.
    Where its values differ, no answer fits two, and `anyOf` says the same. In recursive unions the library knows that
    alone, and no words beside it.
    """
    whole = copy.deepcopy(schema)

    def tag(part: dict[str, Any]) -> dict[str, Any]:
        alternatives, told_by = part.get("oneOf"), part.get("discriminator")
        name = told_by.get("propertyName") if isinstance(told_by, dict) else None
        if isinstance(alternatives, list) and isinstance(name, str):
            targets = [_target(whole, one) for one in alternatives]
            for one in targets:
                _require(one, name)
            values = [_constant(one, name) for one in targets]
            if None not in values and len(set(values)) == len(values) and "anyOf" not in part:
                part["anyOf"] = part.pop("oneOf")
            del part["discriminator"]
        return part

    rewritten(whole, tag)
    return whole


def _target(whole: Any, schema: Any) -> Any:
    """What a schema refers to within the whole; itself if it refers to nothing, None where nothing is there."""
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
    """The only text that a property can be, if its schema says so."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    told = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(told, dict):
        return None
    values = [told["const"]] if "const" in told else told.get("enum")
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return None


def _require(schema: Any, name: str) -> None:
    if isinstance(schema, dict) and isinstance(required := schema.get("required", []), list) and name not in required:
        schema["required"] = [*required, name]


def with_near_bounds(schema: Any) -> Any:
    """The schema with bounds of numbers that doubles hold and 64 bits reach, so that no answer is outside the true
    ones: those of 64-bit integers and of floats, which generators of schemas write, come a little nearer.
    """
    return rewritten(schema, _with_near_bounds)


def _with_near_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    bounds: dict[str, float] = {key: schema[key] for key in (*_LOWER, *_UPPER) if _is_number(schema.get(key))}
    return schema | {key: -_near(-value) if key in _LOWER else _near(value) for key, value in bounds.items()}


def _near(upper: float) -> float:
    """The greatest number that can be kept and is no greater than `upper`."""
    if upper > _FARTHEST:
        return _FARTHEST
    if isinstance(upper, float) or abs(upper) > _FARTHEST or float(upper) <= upper:
        return upper
    return int(math.nextafter(float(upper), -math.inf))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
