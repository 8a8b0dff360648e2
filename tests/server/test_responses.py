"""`/v1/responses` with OpenAI's client: input items, output items and events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from tests.server.conftest import paused_engine

from aethermind import LLM

ASK = {"model": "demo", "input": "Who are you?", "max_output_tokens": 32, "temperature": 0.0}
TOOL = {
    "type": "function",
    "name": "get_weather",
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


def test_a_response_has_the_answer_of_the_chat(client: openai.OpenAI) -> None:
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


def test_a_response_cut_by_max_output_tokens_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(**{**ASK, "max_output_tokens": 2})
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 2


def test_all_forms_of_input_are_the_same_conversation(client: openai.OpenAI, http: httpx.Client) -> None:
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


def test_the_events_build_the_whole_response(llm: LLM, client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    with paused_engine(llm) as resume:  # otherwise a single delta may have the whole text

        def resume_at_first_delta(event: Any) -> None:
            if event.type == "response.output_text.delta":
                resume.set()

        events, response = streamed(client, resume_at_first_delta, **ASK)
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


def test_the_client_accumulates_the_events_to_the_same_response(client: openai.OpenAI) -> None:
    ask = {**ASK, "extra_body": {"stop": ["."]}}
    with client.responses.stream(**ask) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == client.responses.create(**ask).output_text


def test_a_function_call_and_its_output(client: openai.OpenAI) -> None:
    ask = {**ASK, "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 100}
    (call,) = client.responses.create(**ask).output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert set(json.loads(call.arguments)) == {"town"}
    events, response = streamed(client, **ask)
    (streamed_call,) = response.output
    assert streamed_call.arguments == call.arguments
    assert [event.type.removeprefix("response.") for event in events[2:-1]] == [
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    question = {"role": "user", "content": "And the weather?"}
    given = [question, call.model_dump(exclude_none=True), result]
    assert client.responses.create(**{**ASK, "input": given, "tools": [TOOL], "tool_choice": "none"}).output
    named = client.responses.create(**{**ask, "tool_choice": {"type": "function", "name": "get_weather"}})
    assert named.output[0].name == "get_weather"


def test_json_by_schema_and_logprobs(client: openai.OpenAI) -> None:
    form = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
    answer = client.responses.create(**ASK, text=form)
    assert 0 <= json.loads(answer.output_text)["age"] <= 99
    ask = {**ASK, "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    logprobs = client.responses.create(**ask).output[0].content[0].logprobs
    assert [len(token.top_logprobs) for token in logprobs] == [2] * 5
    events, _ = streamed(client, **ask)
    streamed_logprobs = [
        one for event in events if event.type == "response.output_text.delta" for one in event.logprobs
    ]
    assert [one.logprob for one in streamed_logprobs] == [one.logprob for one in logprobs]


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
        ({"tools": [{"type": "file_search"}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"n": 2}, "n"),
        ({"tools": [TOOL]}, "tools"),
    ],
)
def test_unsupported_response_fields_are_a_400(http: httpx.Client, extra: dict[str, object], param: str) -> None:
    answer = http.post("/v1/responses", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_input_beyond_the_context_is_a_400(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={**ASK, "input": "word " * 2000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
