"""What is dropped of schemas demands nothing, and bounds that are kept are never outside the true ones."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from aethermind.sampling.json_schemas import with_discriminators, with_safe_bounds, without_noop_keywords

BOUNDS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)


@given(BOUNDS)
def test_bounds_move_inwards_or_not_at_all(bound: float) -> None:
    for key, sign in (("maximum", 1), ("exclusiveMaximum", 1), ("minimum", -1), ("exclusiveMinimum", -1)):
        near = with_safe_bounds({key: sign * bound})[key] * sign
        assert near <= bound
        if abs(bound) <= 9 * 10**18:
            assert float(near) == near
            assert bound - near <= abs(bound) / 2**52
        elif bound > 0:
            assert near == 9 * 10**18


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        {"properties": {"maximum": {"type": "string"}, "default": {"const": {"maximum": 2**63}}}},
        {"enum": [{"maximum": 2**64}], "default": {"minimum": -(2**64)}, "maximum": True},
        {"minimum": 2**65},
        True,
    ],
    ids=str,
)
def test_representable_bounds_are_unchanged(schema: Any) -> None:
    assert with_safe_bounds(copy.deepcopy(schema)) == schema


def test_bounds_within_schemas() -> None:
    far, near = {"type": "integer", "maximum": 2**63 - 1}, {"type": "integer", "maximum": 9 * 10**18}
    for wrap in (
        lambda one: {"properties": {"default": one}},
        lambda one: {"anyOf": [{"type": "null"}, one]},
        lambda one: {"$defs": {"enum": {"items": one}}},
    ):
        assert with_safe_bounds(wrap(far)) == wrap(near)


IDLE = [
    {"uniqueItems": False},
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {}},
    {"dependentRequired": {}},
    {"unevaluatedProperties": True},
    {"not": False},
    {"format": "path"},
    {"format": "int64"},
    {"x-order": 1},
]
WORKING = [
    {"uniqueItems": True},
    {"propertyNames": {"type": "string", "maxLength": 3}},
    {"propertyNames": False},
    {"dependentRequired": {"a": ["b"]}},
    {"unevaluatedProperties": False},
    {"not": True},
    {"format": "date"},
    {"format": "regex"},
    {"properties": {"format": {"type": "string"}, "not": {"const": {"uniqueItems": False}}}},
    {"enum": [{"uniqueItems": False}]},
]


@pytest.mark.parametrize("words", IDLE, ids=str)
@pytest.mark.parametrize("value", [1, "x", [1, 1], {"a": 1}, None], ids=str)
def test_keywords_without_effect_are_removed(words: dict[str, Any], value: Any) -> None:
    assert without_noop_keywords({"items": words, **words}) == {"items": {}}
    jsonschema.Draft202012Validator(words).validate(value)  # and are none for a validator, either


@pytest.mark.parametrize("words", WORKING, ids=str)
def test_keywords_with_an_effect_are_kept(words: dict[str, Any]) -> None:
    assert without_noop_keywords({"anyOf": [words]}) == {"anyOf": [words]}


class _Number(BaseModel):
    kind: Literal["number"] = "number"
    value: Literal[1, 2]


class _Sum(BaseModel):
    kind: Literal["sum"] = "sum"
    left: _Expression
    right: _Expression


_Expression = Annotated[_Number | _Sum, Field(discriminator="kind")]


class _Formula(BaseModel):
    expression: _Expression


def test_alternatives_of_a_union_require_their_discriminator() -> None:
    schema = _Formula.model_json_schema()
    whole, tagged = (jsonschema.Draft202012Validator(one) for one in (schema, with_discriminators(schema)))
    number, bare = {"kind": "number", "value": 1}, {"value": 1}
    for expression, is_tagged in (
        (number, True),
        (bare, False),
        ({"kind": "sum", "left": number, "right": bare}, False),
    ):
        assert whole.is_valid({"expression": expression})
        assert tagged.is_valid({"expression": expression}) == is_tagged
    assert not tagged.is_valid({"expression": {"kind": "sum", "value": 1}})


@pytest.mark.parametrize(
    "alternative",
    [{"$ref": "#/$defs/missing"}, {"$ref": "https://example.com/x"}, {"$ref": 5}, True, {"$ref": "#/oneOf/7"}],
    ids=str,
)
def test_unresolvable_alternatives_are_unchanged(alternative: Any) -> None:
    schema = {"oneOf": [alternative], "discriminator": {"propertyName": "kind"}}
    assert with_discriminators(schema) == {"oneOf": [alternative]}


def test_inline_alternatives_require_their_discriminator() -> None:
    schema = {"oneOf": [{"required": ["a"]}, {"$ref": "#/x~1y/0"}], "x/y": [{}], "discriminator": {"propertyName": "k"}}
    tagged = with_discriminators(schema)
    assert tagged["oneOf"][0] == {"required": ["a", "k"]}
    assert tagged["x/y"] == [{"required": ["k"]}]
    assert schema["x/y"] == [{}]
