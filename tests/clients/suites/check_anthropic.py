# /// script
# dependencies = ["anthropic==2.14.0"]
# ///
"""Anthropic's client: messages, events, tools, the tool runner, reasoning, structured output, tokens, errors."""

from __future__ import annotations

import anthropic
from anthropic import beta_tool
from common import CALL, CALLED, MODEL, PARAMETERS, SUNNY, URL, Person, run, script, with_script

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
TOOLS = [{"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}]
ASK = {"model": MODEL, "max_tokens": 900}


def check_messages() -> None:
    message = client.messages.create(**ASK, system="Be kind.", messages=with_script("Fine, 世界."))
    (block,) = message.content
    assert (block.text, message.stop_reason) == ("Fine, 世界.", "end_turn")


def check_stream() -> None:
    with client.messages.stream(**ASK, messages=with_script("Fine, and you, dear 世界?")) as stream:
        parts = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(parts) == message.content[0].text == "Fine, and you, dear 世界?"
    assert len(parts) > 1
    assert message.usage.output_tokens > 1


def check_tools() -> None:
    messages = with_script(f"<think>\nWhich?\n</think>\n\nI look.\n{CALL}\n{CALL}", SUNNY)
    ask = {**ASK, "messages": messages, "tools": TOOLS, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    ask["max_tokens"] = 2000
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert message.stop_reason == "tool_use"
        assert message.content[0].thinking == "Which?"
        assert [block.input for block in message.content[2:]] == [CALLED] * 2
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"} for block in message.content[2:]
        ]
        history = [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        final = client.messages.create(**{**ask, "messages": [*messages, *history]})
        assert final.content[0].text == SUNNY


def check_tool_runner() -> None:
    cities = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        cities.append(city)
        return "sunny"

    runner = client.beta.messages.tool_runner(**ASK, tools=[weather], messages=with_script(f"I look.\n{CALL}", SUNNY))
    assert runner.until_done().content[0].text == SUNNY
    assert cities == [CALLED["city"]]


def check_forced_tool() -> None:
    choice = {"type": "tool", "name": "weather"}
    message = client.messages.create(**ASK, messages=with_script(), tools=TOOLS, tool_choice=choice)
    (block,) = message.content
    assert (block.type, block.name, set(block.input)) == ("tool_use", "weather", {"city"})


def check_structured() -> None:
    message = client.messages.parse(**ASK, messages=with_script(), output_format=Person)
    assert isinstance(message.parsed_output, Person)


def check_tokens() -> None:
    ask = {"model": MODEL, "messages": with_script("Fine."), "tools": TOOLS, "system": "Be kind."}
    counted = client.messages.count_tokens(**ask).input_tokens
    usage = client.messages.create(**ask, max_tokens=90).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def check_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def check_errors() -> None:
    for changed, error in (
        ({"model": "claude-9"}, anthropic.NotFoundError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": f"{script()} x" * 60_000}]}, anthropic.BadRequestError),
    ):
        try:
            client.messages.create(**{**ASK, "messages": with_script(), **changed})
        except error as raised:
            assert raised.body["type"] == "error"
        else:
            raise AssertionError(changed)


run(
    "anthropic",
    *(check_messages, check_stream, check_tools, check_tool_runner, check_forced_tool, check_structured),
    *(check_tokens, check_models, check_errors),
)
