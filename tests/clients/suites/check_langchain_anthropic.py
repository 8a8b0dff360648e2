# /// script
# dependencies = ["langchain-anthropic==1.7.10"]
# ///
"""langchain-anthropic: chats, streams, tools, thinking, structured output, tokens."""

from __future__ import annotations

from common import CALL, CALLED, MODEL, PARAMETERS, SUNNY, URL, run, script
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

OURS = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0, "max_tokens": 2000}
chat = ChatAnthropic(**OURS)
TOOL = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}


def asked(*answers: str) -> list[SystemMessage | HumanMessage]:
    return [SystemMessage("Be brief."), HumanMessage(f"How? {script(*answers)}")]


def check_chat() -> None:
    whole = chat.invoke(asked("Fine, and you, dear 世界?"))
    assert whole.content == "Fine, and you, dear 世界?"
    assert whole.usage_metadata["output_tokens"] > 1
    parts = list(chat.stream(asked("Fine, and you, dear 世界?")))
    assert "".join(part.text for part in parts) == whole.content
    assert len(parts) > 2


def check_tools() -> None:
    thinking = ChatAnthropic(**OURS, thinking={"type": "enabled", "budget_tokens": 1024})
    for bound, thought in ((chat.bind_tools([TOOL]), ""), (thinking.bind_tools([TOOL]), "<think>\nHm.\n</think>\n\n")):
        messages = asked(f"{thought}I look.\n{CALL}\n{CALL}", SUNNY)
        streamed = None
        for part in bound.stream(messages):
            streamed = part if streamed is None else streamed + part
        for answer in (bound.invoke(messages), streamed):
            assert answer.text.strip() == "I look."
            assert [call["args"] for call in answer.tool_calls] == [CALLED] * 2
            blocks = [block["type"] for block in answer.content_blocks]
            assert ("reasoning" in blocks) == bool(thought)
            results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
            assert bound.invoke([*messages, answer, *results]).text == SUNNY


def check_structured() -> None:
    called = chat.bind_tools([TOOL], tool_choice="weather").invoke(asked())
    assert set(called.tool_calls[0]["args"]) == {"city"}
    schema = {"title": "Person", "description": "Somebody.", **PARAMETERS}
    for method in ("json_schema", "function_calling"):
        assert set(chat.with_structured_output(schema, method=method).invoke(asked())) == {"city"}


def check_tokens() -> None:
    assert chat.get_num_tokens_from_messages(asked("x")) > 10


run("langchain-anthropic", check_chat, check_tools, check_structured, check_tokens)
