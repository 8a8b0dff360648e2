"""Tool calls with OpenAI's client: calls of the model, required calls, and conversations with earlier calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
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
from aethermind.server.openai.chat_response import ChatOutputParser
from aethermind.server.openai.tools import RequiredCallParser, Tool, ToolChoice, call_constraint
from aethermind.text.answer_format import AnswerFormat
from aethermind.text.answer_parts import Content, Reasoning, ToolCall

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
"""A constraint that makes the demo model, which was not trained on tools, write a call."""


TEMPLATE = b"""{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}
{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{{ mood }}<|im_end|>\n{% endfor %}
<|im_start|>assistant\n"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[str]:
    """A server whose chat template renders tools."""
    model = copy_demo(tmp_path_factory.mktemp("tools") / "demo", files={"chat_template.jinja": TEMPLATE})
    with serving(LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_call_of_the_model_is_parsed(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, extra_body={"structured_outputs": WRITES_A_CALL}).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CALL["arguments"])
    assert re.fullmatch("[a-zA-Z0-9]{9}", call.id)  # the format that Mistral's templates require


def test_a_call_of_the_model_is_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASK, extra_body={"structured_outputs": WRITES_A_CALL}) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CALL["arguments"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
def test_a_required_call_is_generated(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(**{**ASK, "seed": seed}, tool_choice=choice).choices[0]
        (call,) = answer.message.tool_calls
        assert call.function.name in (("weather", "clock") if choice == "required" else ("clock",))
        assert set(json.loads(call.function.arguments)) == {"place"}
        assert answer.finish_reason == "tool_calls"


def test_the_arguments_of_a_required_call_are_returned_unchanged() -> None:
    for arguments in ('{"x": 12345678901234567890123.50, "y":1e999}', '{"x": %s}' % ("9" * 5000)):
        reader = RequiredCallParser()
        text = f'{{"name": "clock", "arguments": {arguments}}}'
        assert [*reader.push(text[:20]), *reader.push(text[20:]), *reader.finish()] == [ToolCall(0, "clock", arguments)]


def test_a_truncated_required_call_is_returned_as_content() -> None:
    for text in ('{"name": "clock", "argum', '{"name": "clock", "arguments": ' + "[" * 100_000):
        reader = RequiredCallParser()
        assert [*reader.push(text), *reader.finish()] == [Content(text)]


def test_call_tags_are_text_without_tools(client: openai.OpenAI) -> None:
    for change in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        ask = {**ASK, **change, "extra_body": {"structured_outputs": WRITES_A_CALL}}
        message = client.chat.completions.create(**ask).choices[0].message
        assert message.tool_calls is None
        assert message.content == WRITES_A_CALL["choice"][0]


def test_a_conversation_may_contain_earlier_calls(client: openai.OpenAI) -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert client.chat.completions.create(**{**ASK, "messages": messages, "max_tokens": 4}).choices


def test_the_message_of_an_answer_can_be_sent_back_unchanged(client: openai.OpenAI) -> None:
    """OpenAI's guide to function calling does so, with all nulls of the message."""
    for forced in (WRITES_A_CALL, {"choice": ["Sunny."]}):
        message = client.chat.completions.create(**ASK, extra_body={"structured_outputs": forced}).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()
        ] or MESSAGES
        messages = [*MESSAGES, message, *results]
        assert client.chat.completions.create(**{**ASK, "messages": messages, "max_tokens": 4}).choices


def with_earlier_call(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "function": {"name": "x", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    "extra",
    [
        {"tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "sometimes"},
        {"tools": [{"type": "browser"}]},
        {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        {"messages": with_earlier_call("{")},
        {"messages": with_earlier_call("[" * 100_000)},
        {"chat_template_kwargs": {"messages": []}},
    ],
)
def test_invalid_tool_requests_are_a_400(http: httpx.Client, extra: dict[str, Any]) -> None:
    answer = http.post("/v1/chat/completions", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_chat_template_kwargs_change_the_prompt(http: httpx.Client) -> None:
    plain, with_mood = (
        http.post("/v1/chat/completions", json={**ASK, "max_tokens": 1, **extra}).json()["usage"]["prompt_tokens"]
        for extra in ({}, {"chat_template_kwargs": {"mood": "merrily"}})
    )
    assert with_mood > plain


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


def _rendered(template: str, messages: list[dict[str, Any]]) -> str:
    """A conversation rendered by this template."""
    request = ChatRequest(model="m", messages=[ChatMessage(**one) for one in messages])
    return request.prompt(_model({"default": template}))


def _model(templates: dict[str, str]) -> Any:
    """The parts of a served model that rendering a prompt needs."""
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
def test_a_message_with_only_calls_has_the_content_that_the_template_expects(
    template: str, content: Any, expected: str
) -> None:
    messages = [HISTORY[0], {**HISTORY[1], "content": content}, HISTORY[2]]
    assert _rendered(template, messages) == expected


def test_content_and_reasoning_before_a_call_are_joined_where_the_template_takes_one_of_them() -> None:
    """The template of gpt-oss refuses both, and clients send back what the answer had."""
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}"
        "{% endif %}[{{ m.thinking or m.content }}] CALL{% else %}{{ m.content }}{% endif %} {% endfor %}"
    )
    call = {**HISTORY[1], "content": "I look.", "reasoning_content": "Hm."}
    assert _rendered(template, [HISTORY[0], call, HISTORY[2]]) == "hi [Hm.\nI look.] CALL noon "
    assert _rendered(template, [HISTORY[0], {**call, "content": None}, HISTORY[2]]) == "hi [Hm.] CALL noon "


def test_the_error_of_a_template_that_rejects_calls_is_shown() -> None:
    with pytest.raises(TokenizerError, match="refuses these messages: no calls"):
        _rendered(
            "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}",
            HISTORY,
        )


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_tools_are_rendered_by_the_tool_use_template(tools: Any) -> None:
    model = _model({"default": "{{ mood }}", "tool_use": "{{ tools[0].function.name }}"})
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="hi")], tools=tools)
    assert request.prompt(model) == ("weather" if tools else "")


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({}, [Reasoning("hm"), Content("Yes.")]),
        ({"response_format": {"type": "text"}}, [Reasoning("hm"), Content("Yes.")]),
        ({"response_format": {"type": "json_object"}}, [Content("hm\n</think>\n\nYes.")]),
        ({"structured_outputs": {"regex": "[^x]*"}}, [Content("hm\n</think>\n\nYes.")]),
    ],
)
def test_reasoning_that_the_template_opened_is_parsed(constraint: dict[str, Any], expected: list[Any]) -> None:
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="hi")], **constraint)
    reader = ChatOutputParser(request, AnswerFormat(reasoning=("<think>", "</think>")), "<|assistant|><think>\n")
    assert reader.read("hm\n</think>\n\nYes.", is_last=True) == expected


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
"""Parameters with references to subschemas, as Pydantic, zod and MCP generate them."""


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
def test_the_constraint_accepts_the_arguments_that_the_schema_accepts(
    name: str, choice: str, arguments: dict[str, Any]
) -> None:
    tools = [Tool(**TOOLS[0]), Tool(type="function", function={"name": "nested", "parameters": NESTED})]
    wanted = choice if choice == "required" else {"type": "function", "function": {"name": name}}
    constraint = call_constraint(tools, TypeAdapter(ToolChoice).validate_python(wanted))
    assert constraint is not None
    assert constraint.json is not None
    parameters = {"weather": TOOLS[0]["function"]["parameters"], "nested": NESTED}[name]
    is_valid = jsonschema.Draft202012Validator(parameters).is_valid(arguments)
    call = {"name": name, "arguments": arguments}
    assert jsonschema.Draft202012Validator(json.loads(constraint.json)).is_valid(call) == is_valid


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_required_call_of_a_function_with_definitions(client: openai.OpenAI, choice: Any) -> None:
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
    [{"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {"chat_template_kwargs": {"mood": " and with_mood"}}],
    ids=["tools", "no_choice", "names"],
)
def test_the_token_count_with_tools_equals_the_usage(address: str, extra: dict[str, Any]) -> None:
    ask = {**BARE, **extra}
    with httpx.Client(base_url=address) as http:
        plain, tokens = (http.post("/tokenize", json=one).json()["tokens"] for one in (BARE, ask))
        usage = http.post("/v1/chat/completions", json={**ask, "max_tokens": 1}).json()["usage"]
        refused = http.post("/tokenize", json={"model": "demo", "prompt": "hi", **extra})
    assert usage["prompt_tokens"] == len(tokens)
    assert (tokens != plain) == ("tool_choice" not in extra)
    assert refused.status_code == 400
    assert "goes with messages" in refused.text


def test_a_template_whose_calls_are_not_read_is_warned_of_at_load(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    template = b"""{% for tool in tools or () %}{{ tool.function.name }}{% endfor %}{% for m in messages %}
{{ m.content }}{% for call in m.tool_calls or () %}<fn>{{ call.function|tojson }}</fn>{% endfor %}{% endfor %}"""
    model = copy_demo(tmp_path / "demo", files={"chat_template.jinja": template})
    with serving(LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)):
        pass
    (record,) = [record for record in caplog.records if "Tool calls of demo will not be read" in record.message]
    assert "aethermind tools check" in record.message
