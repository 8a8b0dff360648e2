"""Rewrites of JSON schemas for llguidance. Answers that match a rewritten schema also match the original one.

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
"""By keyword, values that every document satisfies. Schema generators write them, such as zod for each record."""

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
"""The greatest magnitude of bounds of numbers: the library has 64-bit integers."""

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
    def is_noop(key: str, value: Any) -> bool:
        if key.startswith("x-"):
            return True
        if key == "format":
            return isinstance(value, str) and value not in _FORMATS
        return any(value == noop and type(value) is type(noop) for noop in _NOOP_VALUES.get(key, ()))

    return {key: value for key, value in schema.items() if not is_noop(key, value)}


def with_discriminators(schema: Any) -> Any:
    """Require in each alternative of a union the discriminator property that distinguishes it from the others.

    Pydantic gives the property a default, so it may be missing; then an answer could match two alternatives of a
    `oneOf`. If its values differ, no answer matches two, and `anyOf` is equivalent. In recursive unions the library
    supports only `anyOf`, without other keywords beside it.
    """
    root = copy.deepcopy(schema)

    def require_discriminator(union: dict[str, Any]) -> dict[str, Any]:
        alternatives, discriminator = union.get("oneOf"), union.get("discriminator")
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        if isinstance(alternatives, list) and isinstance(name, str):
            targets = [_resolve_reference(root, alternative) for alternative in alternatives]
            for target in targets:
                _add_required(target, name)
            values = [_constant_of(target, name) for target in targets]
            if None not in values and len(set(values)) == len(values) and "anyOf" not in union:
                union["anyOf"] = union.pop("oneOf")
            del union["discriminator"]
        return union

    rewritten(root, require_discriminator)
    return root


def _resolve_reference(root: Any, schema: Any) -> Any:
    """Resolve the `$ref` of a schema in `root`; the schema itself without one, None if the target does not exist."""
    pointer = schema.get("$ref") if isinstance(schema, dict) else None
    if pointer is None:
        return schema
    if not (isinstance(pointer, str) and pointer.startswith("#/")):
        return None
    node = root
    for token in unquote(pointer[2:]).split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else _element_at(node, key)
    return node


def _element_at(node: Any, index: str) -> Any:
    """Return an element of a list by its index in a JSON pointer; None if there is none."""
    is_there = isinstance(node, list) and index.isdecimal() and int(index) < len(node)
    return node[int(index)] if is_there else None


def _constant_of(schema: Any, name: str) -> str | None:
    """Return the constant string of a property in a schema; None if it has none."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    constraint = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(constraint, dict):
        return None
    values = [constraint["const"]] if "const" in constraint else constraint.get("enum")
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return None


def _add_required(schema: Any, name: str) -> None:
    """Make a property required, in place."""
    if isinstance(schema, dict) and isinstance(required := schema.get("required", []), list) and name not in required:
        schema["required"] = [*required, name]


def with_safe_bounds(schema: Any) -> Any:
    """Round bounds of numbers inwards to doubles, and to the range of 64 bits.

    No answer violates the original bounds then. Generators of schemas write larger ones for 64-bit integers and floats.
    """
    return rewritten(schema, _with_safe_bounds)


def _with_safe_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    bounds: dict[str, float] = {key: schema[key] for key in (*_LOWER, *_UPPER) if _is_number(schema.get(key))}
    return schema | {
        key: -_largest_safe_bound(-value) if key in _LOWER else _largest_safe_bound(value)
        for key, value in bounds.items()
    }


def _largest_safe_bound(upper: float) -> float:
    """Return the greatest double, or 64-bit integer, that is at most `upper`."""
    if upper > _MAX_BOUND:
        return _MAX_BOUND
    if isinstance(upper, float) or abs(upper) > _MAX_BOUND or float(upper) <= upper:
        return upper
    return int(math.nextafter(float(upper), -math.inf))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
