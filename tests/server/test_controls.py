"""Sampling fields over HTTP: several answers, biases, penalties and structured output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

ASK = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12, "seed": 9}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Who are you?"}]


def test_several_answers_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(**ASK, n=4).choices
    assert [choice.index for choice in whole] == [0, 1, 2, 3]
    assert len({choice.text for choice in whole}) > 1
    assert whole[0].text == client.completions.create(**ASK).choices[0].text
    texts = [""] * 4
    for part in client.completions.create(**ASK, n=4, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [choice.text for choice in whole]


def test_several_answers_to_several_prompts(client: openai.OpenAI) -> None:
    ask = {**ASK, "prompt": ["The old fox", "A small hen"], "n": 2}
    whole = client.completions.create(**ask)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    for part in client.completions.create(**ask, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_each_of_several_answers_ends_once(client: openai.OpenAI) -> None:
    """A finished answer does not end again when longer ones end."""
    texts = ["a", "b" * 40]
    constraint = {"structured_outputs": {"choice": texts}}
    ends: list[int] = []
    for part in client.completions.create(
        **{**ASK, "max_tokens": 60}, n=8, stream=True, logprobs=0, extra_body=constraint
    ):
        ends += [choice.index for choice in part.choices if choice.finish_reason is not None]
    assert sorted(ends) == list(range(8))


def test_logit_bias_can_force_and_forbid_a_token(client: openai.OpenAI, http: httpx.Client) -> None:
    token = http.post("/tokenize", json={"model": "demo", "prompt": " fox"}).json()["tokens"][0]
    ask = {**ASK, "max_tokens": 3, "temperature": 0.0}
    biased = client.completions.create(**ask, logit_bias={str(token): 100})
    only = client.completions.create(**ask, extra_body={"allowed_token_ids": [token]})
    assert biased.choices[0].text == only.choices[0].text
    banned = client.completions.create(**{**ask, "max_tokens": 60}, logit_bias={str(token): -100}).choices[0].text
    assert " fox" not in banned


@pytest.mark.parametrize(
    "constraint",
    [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_object", "json_schema": {"name": "person", "schema": SCHEMA}},
    ],
)
def test_json_by_schema(client: openai.OpenAI, constraint: Any) -> None:
    for seed in range(5):
        answer = client.chat.completions.create(
            model="demo", messages=MESSAGES, response_format=constraint, seed=seed, max_tokens=200
        ).choices[0]
        assert answer.finish_reason == "stop"
        person = json.loads(answer.message.content)
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 99


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"regex": "[0-9]{3}"}, lambda text: len(text) == 3 and text.isdecimal()),
        ({"grammar": 'start: "a" "b"'}, lambda text: text == "ab"),
    ],
)
def test_structured_outputs_constrain_the_answer(
    client: openai.OpenAI, constraint: dict[str, object], allowed: object
) -> None:
    answer = client.completions.create(**ASK, extra_body={"structured_outputs": constraint})
    assert allowed(answer.choices[0].text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 2**31}, "n"),
        ({"presence_penalty": 1e300}, "presence_penalty"),
        ({"logit_bias": {"fox": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, None),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "value": {}}}, "response_format.value"),
        ({"structured_outputs": {"regex": "("}}, None),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, None),
        ({"structured_outputs": {"json": {"$ref": "http://example.com/schema"}}}, None),
        ({"priority": -1}, "priority"),
        ({"deadline_ms": 500}, "deadline_ms"),
    ],
)
def test_invalid_sampling_fields_are_a_400(http: httpx.Client, extra: dict[str, object], param: str | None) -> None:
    answer = http.post("/v1/completions", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_scheduling_fields_are_checked_against_the_policy(open_server: Callable[..., httpx.Client]) -> None:
    """A field that the policy ignores is a 400, and one that it uses is checked for its range."""
    http = open_server(scheduling_policy="deadline")
    for extra, status in (({"deadline_ms": 60_000}, 200), ({"deadline_ms": -1}, 400), ({"priority": 0}, 200)):
        assert http.post("/v1/completions", json={**ASK, **extra}).status_code == status
    http = open_server(scheduling_policy="priority")
    for extra, status in (({"priority": -1}, 200), ({"priority": 2**40}, 400), ({"deadline_ms": 500}, 400)):
        answer = http.post("/v1/completions", json={**ASK, **extra})
        assert answer.status_code == status
    assert "--scheduling-policy deadline" in answer.json()["error"]["message"]
