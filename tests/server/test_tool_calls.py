"""Tools over OpenAI's client: calls the model makes, calls that are asked for, and conversations that recall them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import TypeAdapter
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.errors import TokenizerError
from aethermind.server.openai.chat import ChatMessage, ChatRequest
from aethermind.server.openai.reading import AnswerReader
from aethermind.server.openai.tools import ForcedCall, Tool, ToolChoice, demand_for
from aethermind.text.answer_parser import AnswerFormat, Content, Reasoning, ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "maxLength": 8}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "clock")
]
MESSAGES = [{"role": "user", "content": "What is the weather in Rome?"}]
ASK: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 200, "seed": 1}
BARE = {"model": "demo", "messages": MESSAGES}
CALL = {"name": "weather", "arguments": {"place": "Rome"}}
WRITES_A_CALL = {"choice": [f"Let me see.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"]}
"""The model was not taught tools; this makes it write what a model that was would."""


TEMPLATE = b"""{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}
{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{{ mood }}<|im_end|>\n{% endfor %}
<|im_start|>assistant\n"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[str]:
    """A server whose model is told of tools."""
    model = copy_demo(tmp_path_factory.mktemp("told") / "demo", files={"chat_template.jinja": TEMPLATE})
    with serving(LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_call_that_the_model_writes(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, extra_body={"structured_outputs": WRITES_A_CALL}).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CALL["arguments"])
    assert re.fullmatch("[a-zA-Z0-9]{9}", call.id)  # which is what Mistral's templates demand


def test_the_same_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASK, extra_body={"structured_outputs": WRITES_A_CALL}) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CALL["arguments"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
def test_a_call_that_is_asked_for(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(**{**ASK, "seed": seed}, tool_choice=choice).choices[0]
        (call,) = answer.message.tool_calls
        assert call.function.name in (("weather", "clock") if choice == "required" else ("clock",))
        assert set(json.loads(call.function.arguments)) == {"place"}
        assert answer.finish_reason == "tool_calls"


def test_a_call_that_is_asked_for_is_told_as_it_is_written() -> None:
    for arguments in ('{"x": 12345678901234567890123.50, "y":1e999}', '{"x": %s}' % ("9" * 5000)):
        reader = ForcedCall()
        text = f'{{"name": "clock", "arguments": {arguments}}}'
        assert [*reader.push(text[:20]), *reader.push(text[20:]), *reader.finish()] == [ToolCall(0, "clock", arguments)]


def test_a_call_that_is_no_call_after_all_is_text() -> None:
    for text in ('{"name": "clock", "argum', '{"name": "clock", "arguments": ' + "[" * 100_000):
        reader = ForcedCall()
        assert [*reader.push(text), *reader.finish()] == [Content(text)]


def test_without_tools_tags_are_text(client: openai.OpenAI) -> None:
    for change in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        ask = {**ASK, **change, "extra_body": {"structured_outputs": WRITES_A_CALL}}
        message = client.chat.completions.create(**ask).choices[0].message
        assert message.tool_calls is None
        assert message.content == WRITES_A_CALL["choice"][0]


def test_a_conversation_recalls_calls(client: openai.OpenAI) -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert client.chat.completions.create(**{**ASK, "messages": messages, "max_tokens": 4}).choices


def test_an_answer_s_message_goes_back_as_it_is(client: openai.OpenAI) -> None:
    """As OpenAI's guide to function calling writes it: with all the nulls that the message came with."""
    for forced in (WRITES_A_CALL, {"choice": ["Sunny."]}):
        message = client.chat.completions.create(**ASK, extra_body={"structured_outputs": forced}).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()
        ] or MESSAGES
        messages = [*MESSAGES, message, *results]
        assert client.chat.completions.create(**{**ASK, "messages": messages, "max_tokens": 4}).choices


def recalling(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "function": {"name": "x", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    "extra",
    [
        {"tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "sometimes"},
        {"tools": [{"type": "browser"}]},
        {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        {"messages": recalling("{")},
        {"messages": recalling("[" * 100_000)},
        {"chat_template_kwargs": {"messages": []}},
    ],
)
def test_what_cannot_be_asked(http: httpx.Client, extra: dict[str, Any]) -> None:
    answer = http.post("/v1/chat/completions", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_a_name_that_the_template_looks_at(http: httpx.Client) -> None:
    plain, merry = (
        http.post("/v1/chat/completions", json={**ASK, "max_tokens": 1, **extra}).json()["usage"]["prompt_tokens"]
        for extra in ({}, {"chat_template_kwargs": {"mood": "merrily"}})
    )
    assert merry > plain


HISTORY = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"place": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
]


def _written(template: str, messages: list[dict[str, Any]]) -> str:
    """A conversation as a server's model with this template would read it."""
    request = ChatRequest(model="m", messages=[ChatMessage(**one) for one in messages])
    return request.prompt(_model({"default": template}))


def _model(templates: dict[str, str]) -> Any:
    """As much of a served model as writing a prompt takes."""
    return SimpleNamespace(name="m", tokenizer=SimpleNamespace(chat_templates=templates, special_tokens={}))


@pytest.mark.parametrize("content", [None, "", []])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{% for m in messages %}{% if m['content'] is none %}CALL {{ m.tool_calls[0].function.name }}"
            "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
            "[hi]CALL clock[noon]",
        ),
        ("{% for m in messages %}{{ '[' + m['content'] + ']' }}{% endfor %}", "[hi][][noon]"),
        (
            "{% for m in messages %}{% if m.tool_calls %}{{ 'CALL ' + m.tool_calls[0].function.arguments }}"
            "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
            '[hi]CALL {"place": "Rome"}[noon]',
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.place }}{% endfor %}"
            "{{ m.content or '' }} {% endfor %}",
            "hi Rome noon ",
        ),
    ],
)
def test_a_turn_of_nothing_but_calls_is_told_as_the_template_asks(template: str, content: Any, expected: str) -> None:
    messages = [HISTORY[0], {**HISTORY[1], "content": content}, HISTORY[2]]
    assert _written(template, messages) == expected


def test_a_template_that_fails_on_calls_either_way_says_why() -> None:
    with pytest.raises(TokenizerError, match="refuses these messages: no calls"):
        _written(
            "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}",
            HISTORY,
        )


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_tools_go_to_the_template_for_them(tools: Any) -> None:
    model = _model({"default": "{{ mood }}", "tool_use": "{{ tools[0].function.name }}"})
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="hi")], tools=tools)
    assert request.prompt(model) == ("weather" if tools else "")


@pytest.mark.parametrize(
    ("demand", "told"),
    [
        ({}, [Reasoning("hm"), Content("Yes.")]),
        ({"response_format": {"type": "text"}}, [Reasoning("hm"), Content("Yes.")]),
        ({"response_format": {"type": "json_object"}}, [Content("hm\n</think>\n\nYes.")]),
        ({"structured_outputs": {"regex": "[^x]*"}}, [Content("hm\n</think>\n\nYes.")]),
    ],
)
def test_thoughts_that_the_template_opened(demand: dict[str, Any], told: list[Any]) -> None:
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="hi")], **demand)
    reader = AnswerReader(request, AnswerFormat(reasoning=("<think>", "</think>")), "<|assistant|><think>\n")
    assert reader.read("hm\n</think>\n\nYes.", is_last=True) == told


NESTED = {
    "type": "object",
    "properties": {
        "tree": {"$ref": "#/$defs/Tree"},
        "again": {"$ref": "#"},
        "same": {"$ref": "#/properties/$ref"},
        "$ref": {"type": "integer"},
        "default": {"$ref": "#/definitions/a~1b"},
        "plain": {"const": {"$ref": "#/x"}},
    },
    "additionalProperties": False,
    "$defs": {"Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "maxItems": 2}},
    "definitions": {"a/b": {"type": "boolean"}},
}
"""Parameters that refer to parts of themselves, as Pydantic, zod and MCP write them."""


@pytest.mark.parametrize("name", ["weather", "nested"])
@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"tree": [[], [[]]]},
        {"tree": [[], [], []]},
        {"again": {"again": {"same": 1, "$ref": 2}}},
        {"again": {"again": {"same": "1"}}},
        {"again": {"name": "nested", "arguments": {}}},
        {"default": True},
        {"default": 3},
        {"plain": {"$ref": "#/x"}},
    ],
    ids=json.dumps,
)
def test_a_call_has_the_arguments_that_its_function_takes(name: str, choice: str, arguments: dict[str, Any]) -> None:
    tools = [Tool(**TOOLS[0]), Tool(type="function", function={"name": "nested", "parameters": NESTED})]
    wanted = choice if choice == "required" else {"type": "function", "function": {"name": name}}
    demand = demand_for(tools, TypeAdapter(ToolChoice).validate_python(wanted))
    assert demand is not None
    assert demand.json is not None
    parameters = {"weather": TOOLS[0]["function"]["parameters"], "nested": NESTED}[name]
    right = jsonschema.Draft202012Validator(parameters).is_valid(arguments)
    call = {"name": name, "arguments": arguments}
    assert jsonschema.Draft202012Validator(json.loads(demand.json)).is_valid(call) == right


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_forced_call_of_a_function_with_definitions(client: openai.OpenAI, choice: Any) -> None:
    city = {"type": "object", "properties": {"of": {"const": "Rome"}}, "required": ["of"]}
    city["additionalProperties"] = False
    parameters = {"$defs": {"City": city}, "type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}}
    parameters |= {"required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "find", "parameters": parameters}}]
    answer = client.chat.completions.create(**{**ASK, "tools": tools}, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": {"of": "Rome"}}


@pytest.mark.parametrize(
    "extra",
    [{"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {"chat_template_kwargs": {"mood": " and merry"}}],
    ids=["tools", "no_choice", "names"],
)
def test_tools_are_counted_as_they_are_charged(address: str, extra: dict[str, Any]) -> None:
    ask = {**BARE, **extra}
    with httpx.Client(base_url=address) as http:
        plain, tokens = (http.post("/tokenize", json=one).json()["tokens"] for one in (BARE, ask))
        usage = http.post("/v1/chat/completions", json={**ask, "max_tokens": 1}).json()["usage"]
        refused = http.post("/tokenize", json={"model": "demo", "prompt": "hi", **extra})
    assert usage["prompt_tokens"] == len(tokens)
    assert (tokens != plain) == ("tool_choice" not in extra)
    assert refused.status_code == 400
    assert "goes with messages" in refused.text
