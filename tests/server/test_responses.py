"""`/v1/responses` by OpenAI's client: items in, items out, and events that build the same items."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from tests.server.conftest import standing_still

from aethermind import LLM

ASK = {"model": "demo", "input": "Who are you?", "max_output_tokens": 32, "temperature": 0.0}
TOOL = {
    "type": "function",
    "name": "tell_weather",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string", "maxLength": 8}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_an_answer_is_the_chats(client: openai.OpenAI) -> None:
    answer = client.responses.create(**ASK, instructions="Be kind.")
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who are you?"}]
    chat = client.chat.completions.create(model="demo", messages=messages, max_tokens=32, temperature=0.0)
    assert answer.output_text == chat.choices[0].message.content
    (message,) = answer.output
    assert (message.type, message.role) == ("message", "assistant")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    assert (answer.store, answer.previous_response_id, answer.instructions) == (False, None, "Be kind.")
    is_whole = chat.choices[0].finish_reason == "stop"
    assert (answer.status, message.status) == (("completed",) * 2 if is_whole else ("incomplete",) * 2)


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI) -> None:
    answer = client.responses.create(**{**ASK, "max_output_tokens": 2})
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 2


def test_every_form_of_input_is_the_same_conversation(client: openai.OpenAI, http: httpx.Client) -> None:
    whole = client.responses.create(**ASK)
    for given in (
        [{"role": "user", "content": "Who are you?"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}],
    ):
        assert client.responses.create(**{**ASK, "input": given}).output_text == whole.output_text
    turns = [
        {"role": "user", "content": "Who are you?"},
        *[item.model_dump(exclude_none=True) for item in whole.output],
        {"role": "user", "content": "And then?"},
    ]
    again = client.responses.create(**{**ASK, "input": turns})
    messages = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": whole.output_text},
        {"role": "user", "content": "And then?"},
    ]
    tokens = http.post("/tokenize", json={"model": "demo", "messages": messages}).json()["count"]
    assert again.usage.input_tokens == tokens


def streamed(
    client: openai.OpenAI, on_event: Callable[[Any], object] = lambda event: None, **ask: Any
) -> tuple[list[Any], Any]:
    """The events, and the response in the last; the order and the numbers are checked on the way."""
    events = []
    for event in client.responses.create(**ask, stream=True):
        on_event(event)
        events.append(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    items: dict[int, list[Any]] = {}
    for event in events[2:-1]:
        items.setdefault(event.output_index, []).append(event)
    assert list(items) == list(range(len(items)))
    for index, of_item in items.items():
        assert of_item[0].type == "response.output_item.added"
        assert of_item[-1].type == "response.output_item.done"
        assert of_item[-1].item == events[-1].response.output[index]
    return events, events[-1].response


def test_events_build_the_whole(llm: LLM, client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    with standing_still(llm) as goes_on:  # or all of it may be told at once

        def go_on(event: Any) -> None:
            if event.type == "response.output_text.delta":
                goes_on.set()

        events, response = streamed(client, go_on, **ASK)
    kinds = [event.type.removeprefix("response.") for event in events[2:-1]]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        *("output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done"),
    ]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text == response.output_text
    assert (response.status, response.usage) == (whole.status, whole.usage)


def test_the_clients_own_accumulation_agrees(client: openai.OpenAI) -> None:
    ask = {**ASK, "extra_body": {"stop": ["."]}}
    with client.responses.stream(**ask) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == client.responses.create(**ask).output_text


def test_a_call_and_what_came_of_it(client: openai.OpenAI) -> None:
    ask = {**ASK, "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 100}
    (call,) = client.responses.create(**ask).output
    assert (call.type, call.name, call.status) == ("function_call", "tell_weather", "completed")
    assert set(json.loads(call.arguments)) == {"town"}
    events, response = streamed(client, **ask)
    (told,) = response.output
    assert told.arguments == call.arguments
    assert [event.type.removeprefix("response.") for event in events[2:-1]] == [
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    question = {"role": "user", "content": "And the weather?"}
    given = [question, call.model_dump(exclude_none=True), result]
    assert client.responses.create(**{**ASK, "input": given, "tools": [TOOL], "tool_choice": "none"}).output
    named = client.responses.create(**{**ask, "tool_choice": {"type": "function", "name": "tell_weather"}})
    assert named.output[0].name == "tell_weather"


def test_json_by_schema_and_logprobs(client: openai.OpenAI) -> None:
    form = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
    answer = client.responses.create(**ASK, text=form)
    assert 0 <= json.loads(answer.output_text)["age"] <= 99
    asked = {**ASK, "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    logprobs = client.responses.create(**asked).output[0].content[0].logprobs
    assert [len(token.top_logprobs) for token in logprobs] == [2] * 5
    events, _ = streamed(client, **asked)
    told = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.logprob for one in told] == [one.logprob for one in logprobs]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"reasoning": "low"}, "reasoning"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"include": ["reasoning.encrypted_content"]}, "include.0"),
        ({"n": 2}, "n"),
        ({"tools": [TOOL]}, "tools"),
    ],
)
def test_what_cannot_be_asked(http: httpx.Client, extra: dict[str, object], param: str) -> None:
    answer = http.post("/v1/responses", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_context_that_is_too_long(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={**ASK, "input": "word " * 2000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
