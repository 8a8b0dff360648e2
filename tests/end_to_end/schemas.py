"""Fifty JSON schemas, of every kind that people send: bounded, so that a weak model comes to an end."""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMAS"]

Schema = dict[str, Any]
WORD: Schema = {"type": "string", "maxLength": 12}
DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
YEAR: Schema = {"type": "integer", "minimum": 1900, "maximum": 2100}


def record(required: list[str] | None = None, **properties: Schema) -> Schema:
    """An object of these properties and no others, all of them required unless stated otherwise."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def array(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


PERSON = record(name=WORD, age=DIGIT)
TREE: Schema = {
    "$defs": {
        "leaf": record(value=DIGIT),
        "inner": record(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
    },
    "$ref": "#/$defs/inner",
}
NESTED: Schema = {
    "$defs": {"node": record(value=DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})},
    "$ref": "#/$defs/node",
}

SCHEMAS: list[Schema] = [
    {"type": "boolean"},
    {"type": "null"},
    DIGIT,
    YEAR,
    {"type": "integer", "minimum": -50, "maximum": 50},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    WORD,
    {"type": "string", "minLength": 3, "maxLength": 8},
    {"type": "string", "enum": ["red", "green", "blue"]},
    {"const": "only this"},
    {"const": {"a": [1, 2, None]}},
    {"enum": [1, "two", None, True, [3]]},
    text("^[A-Z][a-z]{2,6}$"),
    text("^[0-9]{3}-[0-9]{4}$"),
    text("^(yes|no|maybe)$"),
    {"type": "string", "format": "date"},
    text("^[0-2][0-9]:[0-5][0-9]$"),
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    array(DIGIT, 0, 5),
    array(WORD, 1, 3),
    array({"type": "boolean"}, 2, 2),
    array(array(DIGIT, 1, 2), 1, 2),
    array(PERSON, 1, 2),
    {"type": "array", "prefixItems": [WORD, DIGIT], "items": False, "minItems": 2, "maxItems": 2},
    record(),
    PERSON,
    record(name=WORD, tags=array(WORD, 0, 3)),
    record(person=PERSON, year=YEAR),
    record(["id"], id=DIGIT, note=WORD),
    record([], a=DIGIT, b=DIGIT),
    record(a=record(b=record(c=record(d=DIGIT)))),
    record(color={"enum": ["red", "green"]}, size={"type": ["integer", "null"], "minimum": 1, "maximum": 9}),
    record(**{"key with spaces": DIGIT, 'with "quotes"': DIGIT, "ключ": DIGIT, "new\nline": DIGIT}),
    record(choice={"anyOf": [DIGIT, {"type": "boolean"}, {"type": "null"}]}),
    {"anyOf": [record(kind={"const": "circle"}, r=DIGIT), record(kind={"const": "square"}, side=DIGIT)]},
    {"allOf": [{"type": "object", "properties": {"a": DIGIT}}, record(a=DIGIT, b=DIGIT)]},
    TREE,
    NESTED,
    record(point=array({"type": "number", "minimum": 0, "maximum": 9}, 2, 2)),
    record(email=text("^[a-z]{1,8}@[a-z]{1,8}\\.com$")),
    record(active={"type": "boolean"}, score={"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.5}),
    record(map=record(["x"], x=DIGIT, y=DIGIT)),
    record(steps=array(record(do=WORD, times=DIGIT), 1, 3)),
    record(
        title={"type": "string", "minLength": 1, "maxLength": 20},
        pages={"type": "integer", "minimum": 1, "maximum": 999},
    ),
    record(a={"type": "null"}, b={"type": "null"}, c={"type": "null"}),
    record(name={"type": "string", "maxLength": 40}, happy={"type": "boolean"}, friends=array(WORD, 0, 2)),
]
