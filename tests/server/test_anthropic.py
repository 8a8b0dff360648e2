"""`/v1/messages` with Anthropic's client: content blocks, events, tools, reasoning, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving, unread
from tests.server.test_abuse import HOSTILE

from aethermind import LLM, Runtime
from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.requests.output_delta import CompletionDelta
from aethermind.server.access import Tenants
from aethermind.server.admission import Limits
from aethermind.server.anthropic.request import MessagesParams, MessagesRequest
from aethermind.server.anthropic.routes import MessageBuilder
from aethermind.server.generation import PromptState
from aethermind.text.answer_format import HERMES_CALLS, AnswerFormat

TEMPLATE = b"""{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}
{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{{ message.reasoning_content }}
{% for call in message.tool_calls or () %}{{ call.function.name }}{{ call.function.arguments.place }}{% endfor %}
{{ message.tool_call_id }}<|im_end|>\n{% endfor %}{% if enable_thinking is false %}be quick{% endif %}
<|im_start|>assistant\n"""

MESSAGES = [{"role": "user", "content": "What is the weather in Rome?"}]
BODY: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "temperature": 0.0}
ASK: dict[str, Any] = {name: value for name, value in BODY.items() if name != "temperature"}
ASK["extra_body"] = {"temperature": 0.0}
"""The same body for the client, whose methods have no argument for the temperature."""
TOOLS = [
    {
        "name": name,
        "description": "Looks something up.",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 8}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "cache_control": {"type": "ephemeral"},
    }
    for name in ("weather", "clock")
]
CALL = {"name": "weather", "arguments": {"place": "Rome"}}
WRITES_CALLS = {"choice": [f"Let me see.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>" * 2]}
"""A constraint that makes the demo model, which was not trained on tools, write two calls."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> LLM:
    """A model whose chat template renders tools, calls and reasoning."""
    model = copy_demo(tmp_path_factory.mktemp("anthropic") / "demo", files={"chat_template.jinja": TEMPLATE})
    return LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)


@pytest.fixture(scope="module")
def address(llm: LLM) -> Iterator[str]:
    with serving(llm) as address:
        yield address


@pytest.fixture(scope="module")
def claude(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as claude:
        yield claude


def chat_prompt_tokens(http: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> int:
    body = {"model": "demo", "messages": messages, **fields}
    return int(http.post("/tokenize", json=body).json()["count"])


def test_a_message_has_the_answer_of_the_chat(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    message = claude.messages.create(**ASK, system="Be kind.")
    messages = [{"role": "system", "content": "Be kind."}, *MESSAGES]
    chat = http.post("/v1/chat/completions", json={**BODY, "messages": messages}).json()
    (block,) = message.content
    assert (message.role, message.model, block.type) == ("assistant", "demo", "text")
    assert block.text == chat["choices"][0]["message"]["content"]
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert (usage.output_tokens, usage.cache_creation_input_tokens) == (chat["usage"]["completion_tokens"], 0)
    assert message.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[chat["choices"][0]["finish_reason"]]


def test_usage_reports_the_prefix_that_was_reused(claude: anthropic.Anthropic) -> None:
    ask = {**ASK, "messages": [{"role": "user", "content": "Once upon a time there was a fox. " * 6}]}
    first, second = claude.messages.create(**ask).usage, claude.messages.create(**ask).usage
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens


def test_the_events_build_the_whole_message(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**ASK)
    with claude.messages.stream(**ASK) as stream:
        kinds = [event.type for event in stream if event.type != "text"]  # "text" is an event of the client
        message = stream.get_final_message()
    assert kinds == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * kinds.count("content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert message.content[0].text == whole.content[0].text
    assert (message.stop_reason, message.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert message.id.startswith("msg_")


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    text = claude.messages.create(**ASK).content[0].text
    stop = text[4:7]
    for message in (
        claude.messages.create(**ASK, stop_sequences=["never so", stop]),
        claude.messages.stream(**ASK, stop_sequences=["never so", stop]).__enter__().get_final_message(),
    ):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
        assert "".join(block.text for block in message.content) == text[: text.index(stop)]


def test_max_tokens_beyond_the_context_are_an_upper_bound(claude: anthropic.Anthropic) -> None:
    """Claude Code asks for 32,000 tokens, whatever the context of the model."""
    ask = {**ASK, "messages": [{"role": "user", "content": "fox " * 440}], "extra_body": {"ignore_eos": True}}
    with claude.messages.stream(**{**ask, "max_tokens": 32_000}) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded"
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens == 512


def test_tool_calls_are_blocks(claude: anthropic.Anthropic) -> None:
    ask = {**ASK, "max_tokens": 200, "tools": TOOLS, "extra_body": {"structured_outputs": WRITES_CALLS}}
    whole = claude.messages.create(**ask)
    with claude.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["text", "tool_use", "text", "tool_use"]
        assert [block.input for block in message.content if block.type == "tool_use"] == [CALL["arguments"]] * 2
        assert len({block.id for block in message.content if block.type == "tool_use"}) == 2
    one = claude.messages.create(**ask, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in one.content].count("tool_use") == 1


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}])
def test_a_required_call_is_generated(claude: anthropic.Anthropic, choice: Any) -> None:
    message = claude.messages.create(**{**ASK, "max_tokens": 200}, tools=TOOLS, tool_choice=choice)
    (block,) = message.content
    assert block.name in (("weather", "clock") if choice["type"] == "any" else ("clock",))
    assert set(block.input) == {"place"}
    assert message.stop_reason == "tool_use"


def test_no_call_is_parsed_with_tool_choice_none(claude: anthropic.Anthropic) -> None:
    ask = {**ASK, "max_tokens": 200, "tools": TOOLS, "extra_body": {"structured_outputs": WRITES_CALLS}}
    (block,) = claude.messages.create(**ask, tool_choice={"type": "none"}).content
    assert block.text == WRITES_CALLS["choice"][0]


def test_a_schema_of_the_answer(claude: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"enum": [7, 8]}},
        "required": ["age"],
        "additionalProperties": False,
    }
    message = claude.messages.create(**ASK, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(message.content[0].text)["age"] in (7, 8)


EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.mark.parametrize(
    ("system", "messages", "expected"),
    [
        (
            [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"},
                {"type": "text", "text": "Be", **EPHEMERAL},
                {"type": "text", "text": "kind."},
            ],
            [{"role": "user", "content": [{"type": "text", "text": "a", **EPHEMERAL}, {"type": "text", "text": "b"}]}],
            [{"role": "system", "content": "Be\nkind."}, {"role": "user", "content": "a\nb"}],
        ),
        (
            None,
            [
                *MESSAGES,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                        {"type": "redacted_thinking", "data": "xyz"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Rom"}},
                        {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny", **EPHEMERAL},
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_2",
                            "content": [{"type": "text", "text": "no clock"}],
                            "is_error": True,
                        },
                        {"type": "text", "text": "And now?"},
                    ],
                },
                {"role": "user", "content": "Say."},
            ],
            [
                *MESSAGES,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [
                        {"id": "toolu_1", "function": {"name": "weather", "arguments": '{"place": "Rom"}'}},
                        {"id": "toolu_2", "function": {"name": "clock", "arguments": "{}"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
                {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no clock"},
                {"role": "user", "content": "And now?\nSay."},
            ],
        ),
    ],
)
def test_blocks_are_the_conversation_of_the_chat(
    claude: anthropic.Anthropic, http: httpx.Client, system: Any, messages: Any, expected: Any
) -> None:
    given = {"messages": messages, **({"system": system} if system else {})}
    num_tokens = chat_prompt_tokens(http, expected)
    assert claude.messages.count_tokens(model="demo", **given).input_tokens == num_tokens
    params = MessagesParams(MessagesRequest.model_validate({"model": "demo", "max_tokens": 1, **given}))
    names = ("role", "content", "reasoning_content", "tool_call_id")
    for message, other in zip(params.chat.messages, expected, strict=True):
        assert {name: getattr(message, name) for name in names} == {name: other.get(name) for name in names}


def test_tools_and_thinking_are_part_of_the_prompt(claude: anthropic.Anthropic) -> None:
    def count(**fields: Any) -> int:
        return claude.messages.count_tokens(model="demo", messages=MESSAGES, **fields).input_tokens

    assert count(tools=TOOLS) > count() == count(thinking={"type": "enabled", "budget_tokens": 1024})
    assert count(thinking={"type": "disabled"}) > count()
    assert count(tools=TOOLS, tool_choice={"type": "none"}) == count()


FIELDS_WITHOUT_EFFECT: dict[str, Any] = {
    "metadata": {"user_id": "somebody"},
    "service_tier": "auto",
    "thinking": {"type": "adaptive"},
    "top_k": 40,
    "top_p": 0.9,
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": []},
    "output_config": {"effort": "max"},
    "unknown": 1,
}


def test_what_claude_code_sends_is_accepted(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,context-1m-2025-08-07"}
    body = {**BODY, **FIELDS_WITHOUT_EFFECT, "tools": TOOLS, "max_tokens": 2}
    answer = http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert claude.beta.messages.create(**{**ASK, "max_tokens": 2}, betas=["x"]).usage.output_tokens == 2


TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, r"max_tokens: "),
        ({"max_tokens": 0}, r"max_tokens "),
        ({"temperature": -1}, r"temperature "),
        ({"stop_sequences": ["x"] * 17}, r"stop_sequences "),
        ({"messages": []}, r"messages is empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages.0.role: "),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, r"messages.0.content.0: type should be one"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, r".*reads text only"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "", "name": "", "input": {}}]}]}, r".*"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "I "}]}, r"The final assistant content cannot end"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "content": [{**TOOL_USE, "input": {}}]}]},
            r"The last message is the assistant's and does not end with text",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools has one of type 'web_search_"),
        ({"tool_choice": {"type": "any"}}, r"tool_choice asks for a call"),
        ({"tool_choice": {"type": "tool"}}, r"tool_choice of type tool has no name"),
        ({"stop": ["x"]}, r"stop is not supported with this value. Use stop_sequences."),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            r"The structured output cannot be served",
        ),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, r"prompt is too long: The context "),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_invalid_requests_are_a_400(http: httpx.Client, change: Any, message: str, is_stream: bool) -> None:
    answer = http.post("/v1/messages", json={**BODY, "stream": is_stream, **change})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert re.match(message, body["error"].pop("message"))
    request_id = answer.headers["request-id"]
    assert body == {"type": "error", "error": {"type": "invalid_request_error"}, "request_id": request_id}


def test_tool_runners_send_whole_conversations(claude: anthropic.Anthropic) -> None:
    """They begin with `thread`, which would make them send only the latest messages. The error says not to."""

    @anthropic.beta_tool
    def weather(place: str) -> str:
        """The weather."""
        return f"sunny in {place}"

    forced = {"extra_body": {"structured_outputs": WRITES_CALLS}}
    asked = {"model": "demo", "messages": MESSAGES, "max_tokens": 200}
    runner = claude.beta.messages.tool_runner(**asked, tools=[weather], max_iterations=2, **forced)
    first, second = (message.usage for message in runner)
    assert second.input_tokens + second.cache_read_input_tokens > first.input_tokens + first.output_tokens / 2


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_threads_are_an_error_after_which_clients_go_on_without(http: httpx.Client, path: str, thread: Any) -> None:
    answer = http.post(path, json={**BODY, "thread": thread})
    assert answer.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert answer.json()["error"]["details"] == details


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_400(http: httpx.Client, name: str, path: str) -> None:
    answer = http.post(path, content=HOSTILE[name])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 400


def test_errors_are_the_exceptions_of_the_client(
    claude: anthropic.Anthropic, open_server: Callable[..., httpx.Client]
) -> None:
    with pytest.raises(anthropic.NotFoundError) as not_found:
        claude.messages.create(**{**ASK, "model": "claude-x"})
    assert not_found.value.body["error"] == {  # type: ignore[index]
        "type": "not_found_error",
        "message": "There is no model 'claude-x'; this server has demo.",
    }
    limits = Limits(max_body_bytes=1000)
    keyed = str(open_server(tenants=Tenants.of_keys(["secret"]), limits=limits).base_url)
    for auth in ({"api_key": "secret"}, {"auth_token": "secret"}):
        with anthropic.Anthropic(base_url=keyed, max_retries=0, **auth) as own:
            assert own.messages.create(**{**ASK, "max_tokens": 1}).usage.output_tokens == 1
            with pytest.raises(anthropic.RequestTooLargeError, match="request_too_large"):
                own.messages.create(**ASK, system="x" * 2000)
    with (
        anthropic.Anthropic(base_url=keyed, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError, match="authentication_error"),
    ):
        other.messages.create(**ASK)


def test_an_overloaded_server_is_a_rate_limit_error(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_concurrent_requests=4))
    with unread(http) as answer, anthropic.Anthropic(base_url=str(http.base_url), api_key="x", max_retries=0) as own:
        assert answer.status_code == 200
        with pytest.raises(anthropic.RateLimitError, match="rate_limit_error"):
            own.messages.create(**ASK)
        assert own.messages.count_tokens(model="demo", messages=MESSAGES).input_tokens


def test_unknown_paths_and_methods_below_messages_have_anthropics_errors(http: httpx.Client) -> None:
    for answer, status in ((http.get("/v1/messages"), 405), (http.post("/v1/messages/batches", json={}), 404)):
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
        assert answer.json()["request_id"] == answer.headers["X-Request-Id"]


# -- stream = whole ------------------------------------------------------------------------------------------

PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "Hello", "<", "{}", "é"),
    '{"name": "weather", "arguments": {"place": "Rome"}}',
    '{"name": "clock", "arguments": {"n": 1e999, "m": -12345678901234567890, "s": "\\ud83e"}}',
]
FORMAT = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))
REQUEST = MessagesRequest.model_validate({**BODY, "tools": TOOLS})


def built(texts: list[str], *, is_stream: bool) -> Any:
    """The message of an answer that arrives in `texts`, as one object or put together by the client."""
    model: Any = SimpleNamespace(name="demo", answer_format=FORMAT, tokenizer=None)
    builder = MessageBuilder(MessagesParams(REQUEST), model, "req_1", "<|im_start|>assistant\n")
    if not is_stream:
        completion = CompletionOutput(0, "".join(texts), [7, 7], None, "stop", None)
        times = RequestMetrics(0.0, 0.0, 0.0)
        output = RequestOutput("", None, [1, 2, 3], [completion], True, times, num_cached_tokens=1)
        json.dumps(message := builder.full_response([output]), allow_nan=False).encode()
        return message
    prompt = PromptState("", [1, 2, 3], num_output_tokens=2, num_cached_tokens=1)
    deltas = [
        CompletionDelta(0, text, [7], None, 1, "stop" if number == len(texts) else None, None)
        for number, text in enumerate(texts, 1)
    ]
    events = [event for delta in deltas for event in builder.delta_events(0, delta, prompt)]
    events += builder.final_events([prompt])
    snapshot, buffers = None, {}
    for line in builder.framing.encode_events(events).decode().split("\n"):
        if line.startswith("data: "):
            snapshot = accumulate_event(event=json.loads(line[6:]), current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    assert snapshot is not None
    return snapshot.to_dict()


def normalised(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the random ids of its calls, and without fields that only the client has."""
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert re.fullmatch("[a-zA-Z0-9]{9}", block["id"])
            block["id"] = ""
    names = ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
    return {name: message[name] for name in names}


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_any_answer_in_any_chunks_is_the_same_message(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    chunks = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert normalised(built(chunks, is_stream=True)) == normalised(built([text], is_stream=False))


def test_reasoning_is_a_block_before_the_text() -> None:
    whole = built(["<think>Hm.</think>Yes."], is_stream=False)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
