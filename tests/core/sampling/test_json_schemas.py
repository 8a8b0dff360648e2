"""What is dropped of schemas demands nothing, and bounds that are kept are never outside the true ones."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.sampling.json_schemas import with_near_bounds, without_idle_words

BOUNDS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)


@given(BOUNDS)
def test_bounds_come_nearer_or_stay(bound: float) -> None:
    for key, sign in (("maximum", 1), ("exclusiveMaximum", 1), ("minimum", -1), ("exclusiveMinimum", -1)):
        near = with_near_bounds({key: sign * bound})[key] * sign
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
def test_what_stays(schema: Any) -> None:
    assert with_near_bounds(copy.deepcopy(schema)) == schema


def test_bounds_within_schemas() -> None:
    far, near = {"type": "integer", "maximum": 2**63 - 1}, {"type": "integer", "maximum": 9 * 10**18}
    for wrap in (
        lambda one: {"properties": {"default": one}},
        lambda one: {"anyOf": [{"type": "null"}, one]},
        lambda one: {"$defs": {"enum": {"items": one}}},
    ):
        assert with_near_bounds(wrap(far)) == wrap(near)


IDLE = [
    {"uniqueItems": False},
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {}},
    {"dependentRequired": {}},
    {"unevaluatedProperties": True},
    {"not": False},
    {"format": "path"},
    {"format": "int64"},
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
def test_words_without_effect_are_dropped(words: dict[str, Any], value: Any) -> None:
    assert without_idle_words({"items": words, **words}) == {"items": {}}
    jsonschema.Draft202012Validator(words).validate(value)  # and are none for a validator, either


@pytest.mark.parametrize("words", WORKING, ids=str)
def test_words_with_an_effect_stay(words: dict[str, Any]) -> None:
    assert without_idle_words({"anyOf": [words]}) == {"anyOf": [words]}
