"""Demands on an answer's text: one of five forms, one form of each, and the sentence for what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import MAX_CHOICES, MAX_GRAMMAR_CHARS, StructuredOutputs


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_equivalent_values_are_stored_in_one_form() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert StructuredOutputs(json=schema) == StructuredOutputs(json=json.dumps(schema, indent=2))
    assert StructuredOutputs(json=schema) != StructuredOutputs(json={"type": "object"})
    assert hash(StructuredOutputs(choice=["yes", "no"])) == hash(StructuredOutputs(choice=("yes", "no")))
    assert StructuredOutputs(json=True).json == "true"


def test_the_order_of_properties_is_the_callers() -> None:
    text = StructuredOutputs(json={"properties": {"z": {}, "a": {}}}).json
    assert text is not None
    assert list(json.loads(text)["properties"]) == ["z", "a"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "none was given"),
        ({"regex": "a", "json_object": True}, "regex and json_object was given"),
        ({"json": "{"}, "is no JSON"),
        ({"json": {"a": {1, 2}}}, "is no JSON"),
        ({"json": {"maximum": float("nan")}}, "is no JSON"),
        ({"json": "[1]"}, r"is an object, got \[1\]"),
        ({"json": deep(100_000)}, "nested too deeply"),
        ({"json": {"title": "x" * MAX_GRAMMAR_CHARS}}, "json has .* characters but must have at most"),
        ({"regex": ""}, "must be a non-empty string"),
        ({"regex": 3}, "must be a non-empty string"),
        ({"grammar": "x" * (MAX_GRAMMAR_CHARS + 1)}, "grammar has .* characters"),
        ({"choice": []}, "must be a list of strings"),
        ({"choice": "yes"}, "must be a list of strings"),
        ({"choice": ["yes", ""]}, "something else than non-empty strings"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice has 4097 strings"),
        ({"json_object": 1}, "must be True or False"),
    ],
)
def test_each_invalid_structured_output_is_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        StructuredOutputs(**fields)
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 400
